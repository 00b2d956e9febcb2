/* SPDX-License-Identifier: MIT */
/* Snapshots of a table: which pages each holds. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/pass/kv_cache.h"

uint32_t moe_kv_snapshot_pages(const moe_kv_pool *pool, const moe_kv_snapshot *s, uint32_t g)
{
    return pool->groups[g].frees ? moe_kv_pages_of(s->position) - s->first_page[g] : 0;
}

uint32_t moe_kv_snapshot_all_pages(const moe_kv_pool *pool, const moe_kv_snapshot *s)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        n += moe_kv_snapshot_pages(pool, s, g);
    }
    return n;
}

void moe_kv_snapshot_free(moe_kv_pool *pool, moe_kv_snapshot *s)
{
    const moe_kv_snapshot *at = s;
    moe_kv_page **page = s->pages;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        for (uint32_t n = moe_kv_snapshot_pages(pool, at, g); n > 0; n--) {
            moe_kv_drop_page(pool, g, *page++);
        }
    }
    free(s->pages);
    *s = (moe_kv_snapshot){0};
}

void moe_kv_snapshot_copy(const moe_kv_pool *pool, moe_kv_table *table,
                          const moe_kv_snapshot *snapshot)
{
    uint32_t n = moe_kv_snapshot_all_pages(pool, snapshot);
    moe_kv_page **pages = moe_calloc(n + 1, sizeof *pages);
    if (pages == NULL) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        pages[i] = snapshot->pages[i];
        pages[i]->n_users++;
    }
    moe_kv_snapshot *own = &table->snapshots[table->n_snapshots++];
    *own = *snapshot;
    own->pages = pages;
}

void moe_kv_snapshot_remove(moe_kv_pool *pool, moe_kv_table *table, uint32_t i)
{
    moe_kv_snapshot_free(pool, &table->snapshots[i]);
    table->n_snapshots--;
    memmove(table->snapshots + i, table->snapshots + i + 1,
            (table->n_snapshots - i) * sizeof *table->snapshots);
}

bool moe_kv_table_forget(moe_kv_pool *pool, moe_kv_table *table)
{
    if (table->n_snapshots == 0) {
        return false;
    }
    moe_kv_snapshot_remove(pool, table, 0);
    return true;
}
