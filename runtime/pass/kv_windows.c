/* SPDX-License-Identifier: MIT */
/* Frees pages behind a window, and keeps snapshots of earlier ones. If a timeline is cut back
 * further than its pages reach, it goes on from a snapshot. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/kv_cache.h"

uint32_t moe_kv_first_needed(const moe_kv_group *group, uint32_t n)
{
    moe_attention a = {.window = group->window, .chunk = group->chunk};
    return moe_attention_first(&a, n) / MOE_KV_PAGE;
}

static bool frees(const moe_kv_pool *pool)
{
    bool any = false;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        any |= pool->groups[g].frees;
    }
    return any;
}

/* ---- Snapshots ---- */

/* Whether the place is worth a snapshot. */
static bool is_wanted(const moe_kv_table *table, uint32_t position)
{
    uint32_t n = table->n_snapshots;
    const moe_kv_snapshot *last = n > 0 ? &table->snapshots[n - 1] : NULL;
    uint32_t behind = last != NULL ? last->position : 0;
    if (table->begins_turn) {
        return position > behind;
    }
    bool full = n == MOE_KV_SNAPSHOTS && last->begins_turn; /* the snapshot of the turn stays */
    return !full && position >= behind + MOE_KV_INTERVAL;
}

/* Makes room for one more snapshot. The first snapshot stays until the next one is twice as far
 * along. So a timeline that is cut to more than half of its length, or to the last turn, need not
 * begin at 0. */
static void make_room(moe_kv_pool *pool, moe_kv_table *table)
{
    uint32_t n = table->n_snapshots;
    if (n == MOE_KV_SNAPSHOTS) {
        const moe_kv_snapshot *s = table->snapshots;
        moe_kv_snapshot_remove(pool, table,
                               s[n - 1].position / 2 >= s[n - 2].position ? n - 2 : n - 1);
    }
}

/* If there is no memory for its list of pages, takes no snapshot: cutting back then costs more. */
static void take_snapshot(moe_kv_pool *pool, moe_kv_table *table, uint32_t position)
{
    moe_kv_snapshot s = {.position = position, .begins_turn = table->begins_turn};
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        s.first_page[g] = moe_kv_first_needed(&pool->groups[g], position);
        if (pool->groups[g].frees && s.first_page[g] < table->first_page[g]) {
            return; /* the session was loaded without these pages */
        }
    }
    s.pages = moe_calloc(moe_kv_snapshot_all_pages(pool, &s) + 1, sizeof *s.pages);
    if (s.pages == NULL) {
        return;
    }
    moe_kv_page **page = s.pages;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        for (uint32_t i = 0; i < moe_kv_snapshot_pages(pool, &s, g); i++) {
            *page = *moe_kv_table_entry(pool, table, g, s.first_page[g] + i);
            (*page++)->n_users++;
        }
    }
    make_room(pool, table);
    table->snapshots[table->n_snapshots++] = s;
}

/* ---- Growing and cutting ---- */

/* Frees pages that no position within the margin sees. Promises freed pages to the table again, as
 * many as its tokens still to be evaluated will take. */
static void free_behind(moe_kv_pool *pool, moe_kv_table *table, uint32_t g, uint32_t n)
{
    moe_kv_group *group = &pool->groups[g];
    uint32_t first = moe_kv_first_needed(group, n > MOE_KV_MARGIN ? n - MOE_KV_MARGIN : 0);
    while (table->first_page[g] < first && table->first_page[g] < table->n_pages) {
        uint32_t p = table->first_page[g]++;
        moe_kv_drop_page(pool, g, *moe_kv_table_entry(pool, table, g, p));
        moe_kv_table_set(pool, table, g, p, NULL);
    }
    uint32_t due = moe_kv_pages_due(pool, table, g, n, table->promised_end);
    uint64_t spare = group->n_free - group->n_promised;
    uint64_t more = due > table->n_promised[g] ? due - table->n_promised[g] : 0;
    more = more < spare ? more : spare;
    table->n_promised[g] += (uint32_t)more;
    group->n_promised += more;
}

void moe_kv_table_advance(moe_kv_pool *pool, moe_kv_table *table, uint32_t before, uint32_t n)
{
    if (!frees(pool)) {
        return;
    }
    if (before > 0 && is_wanted(table, before)) {
        take_snapshot(pool, table, before);
    }
    table->begins_turn = false;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        if (pool->groups[g].frees) {
            free_behind(pool, table, g, n);
        }
    }
    MOE_ASSERT(moe_kv_pool_is_sane(pool) && moe_kv_table_is_sane(pool, table));
}

static bool can_cut(const moe_kv_pool *pool, const moe_kv_table *table, uint32_t n)
{
    bool can = true;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        can &= moe_kv_first_needed(&pool->groups[g], n) >= table->first_page[g];
    }
    return can;
}

/* Replaces the table's pages by the snapshot's, in the groups that free pages. */
static void restore(moe_kv_pool *pool, moe_kv_table *table, const moe_kv_snapshot *s)
{
    moe_kv_page **page = s->pages;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        if (!pool->groups[g].frees) {
            continue;
        }
        for (uint32_t p = table->first_page[g]; p < table->n_pages; p++) {
            if (*moe_kv_table_entry(pool, table, g, p) != NULL) {
                moe_kv_drop_page(pool, g, *moe_kv_table_entry(pool, table, g, p));
                moe_kv_table_set(pool, table, g, p, NULL);
            }
        }
        table->first_page[g] = s->first_page[g];
        for (uint32_t n = moe_kv_snapshot_pages(pool, s, g), p = s->first_page[g]; n > 0;
             n--, p++) {
            (*page)->n_users++;
            moe_kv_table_set(pool, table, g, p, *page++);
        }
    }
}

uint32_t moe_kv_table_rewind(moe_kv_pool *pool, moe_kv_table *table, uint32_t n)
{
    table->begins_turn = false;
    if (!can_cut(pool, table, n)) {
        uint32_t i = table->n_snapshots;
        while (i > 0 && table->snapshots[i - 1].position > n) {
            i--;
        }
        n = i > 0 ? table->snapshots[i - 1].position : 0;
        if (i > 0) {
            restore(pool, table, &table->snapshots[i - 1]);
        }
    }
    moe_kv_table_truncate(pool, table, n);
    return n;
}
