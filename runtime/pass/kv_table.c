/* SPDX-License-Identifier: MIT */
/* A session's table of pages: how it grows, which pages are promised to it, and forks. */
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/kv_cache.h"

/* ---- Promises ---- */

uint32_t moe_kv_pages_due(const moe_kv_pool *pool, const moe_kv_table *table, uint32_t g,
                          uint32_t first, uint32_t end)
{
    const moe_kv_group *group = &pool->groups[g];
    uint32_t n_pages = moe_kv_pages_of(end);
    uint32_t due = n_pages > table->n_pages ? n_pages - table->n_pages : 0;
    uint32_t from = first / MOE_KV_PAGE;
    from = from > table->first_page[g] ? from : table->first_page[g];
    for (uint32_t p = from; p < n_pages && p < table->n_pages; p++) {
        due += (*moe_kv_table_entry(pool, table, g, p))->n_users > 1;
    }
    if (!group->frees) {
        return due;
    }
    uint32_t own = 0; /* pages that come back to the table once they are behind its span */
    for (uint32_t p = table->first_page[g]; p < table->n_pages; p++) {
        own += (*moe_kv_table_entry(pool, table, g, p))->n_users == 1;
    }
    uint32_t most = group->most_live > own ? group->most_live - own : 0;
    return due < most ? due : most;
}

/* Frees pages that a failed promise has allocated. */
static void undo_adds(moe_kv_pool *pool, const uint64_t *n_free_before)
{
    uint64_t promised[MOE_KV_GROUPS] = {0};
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        uint64_t before = n_free_before[g];
        promised[g] = pool->groups[g].n_promised;
        pool->groups[g].n_promised = before > promised[g] ? before : promised[g];
    }
    moe_kv_pool_trim(pool);
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        pool->groups[g].n_promised = promised[g];
    }
}

static int try_promise(moe_kv_pool *pool, moe_kv_table *table, uint32_t first, uint32_t end,
                       moe_error *err)
{
    uint64_t before[MOE_KV_GROUPS];
    uint32_t due[MOE_KV_GROUPS];
    int status = MOE_OK;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        before[g] = pool->groups[g].n_free;
        due[g] = moe_kv_pages_due(pool, table, g, first, end);
    }
    for (uint32_t g = 0; g < pool->n_groups && status == MOE_OK; g++) {
        const moe_kv_group *group = &pool->groups[g];
        uint64_t others = group->n_promised - table->n_promised[g];
        while (status == MOE_OK && group->n_free < others + due[g]) {
            status = moe_kv_add_page(pool, g, err);
        }
    }
    if (status != MOE_OK) {
        undo_adds(pool, before);
        return status;
    }
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        MOE_ASSERT(table->n_promised[g] <= pool->groups[g].n_promised);
        pool->groups[g].n_promised += due[g];
        pool->groups[g].n_promised -= table->n_promised[g];
        table->n_promised[g] = due[g];
    }
    table->promised_end = end;
    return MOE_OK;
}

int moe_kv_table_promise(moe_kv_pool *pool, moe_kv_table *table, uint32_t first, uint32_t end,
                         moe_error *err)
{
    int status;
    do {
        status = try_promise(pool, table, first, end, err);
    } while (status == MOE_ERR_BUDGET && moe_kv_table_forget(pool, table));
    MOE_ASSERT(moe_kv_pool_is_sane(pool) && moe_kv_table_is_sane(pool, table));
    return status;
}

/* ---- Pages ---- */

int moe_kv_table_grow(const moe_kv_pool *pool, moe_kv_table *table, uint32_t n_pages,
                      moe_error *err)
{
    if (n_pages <= table->capacity) {
        return MOE_OK;
    }
    uint32_t capacity = n_pages < 8 ? 8 : n_pages + n_pages / 2;
    size_t n = (size_t)capacity * pool->n_groups;
    moe_kv_page **pages = moe_realloc_array(table->pages, n, sizeof *pages);
    if (pages != NULL) {
        table->pages = pages;
    }
    void **addresses = moe_realloc_array(table->addresses, n, sizeof *addresses);
    if (addresses != NULL) {
        table->addresses = addresses;
    }
    if (pages == NULL || addresses == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a table of %u KV pages", capacity);
    }
    table->capacity = capacity;
    return MOE_OK;
}

/* Replaces a shared page by a copy that only this table has. */
static int unshare(moe_kv_pool *pool, moe_kv_table *table, uint32_t g, uint32_t p, moe_error *err)
{
    moe_kv_page *shared = *moe_kv_table_entry(pool, table, g, p);
    if (shared == NULL || shared->n_users == 1) {
        return MOE_OK;
    }
    moe_kv_page *own;
    MOE_TRY(moe_kv_take_page(pool, table, g, &own, err));
    int status = pool->device->ops->copy(pool->device, own->memory, shared->memory,
                                         pool->groups[g].page_bytes, err);
    if (status != MOE_OK) {
        moe_kv_drop_page(pool, g, own);
        return status;
    }
    moe_kv_drop_page(pool, g, shared);
    moe_kv_table_set(pool, table, g, p, own);
    return MOE_OK;
}

/* Adds the next page of every group. */
static int append_page(moe_kv_pool *pool, moe_kv_table *table, moe_error *err)
{
    uint32_t p = table->n_pages;
    int status = MOE_OK;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        moe_kv_page *page = NULL;
        if (status == MOE_OK && p >= table->first_page[g]) {
            status = moe_kv_take_page(pool, table, g, &page, err);
        }
        moe_kv_table_set(pool, table, g, p, page);
    }
    for (uint32_t g = 0; g < pool->n_groups && status != MOE_OK; g++) {
        if (*moe_kv_table_entry(pool, table, g, p) != NULL) {
            moe_kv_drop_page(pool, g, *moe_kv_table_entry(pool, table, g, p));
        }
    }
    table->n_pages += status == MOE_OK;
    return status;
}

int moe_kv_table_reserve(moe_kv_pool *pool, moe_kv_table *table, uint32_t first, uint32_t end,
                         moe_error *err)
{
    uint32_t n_pages = moe_kv_pages_of(end);
    int status = moe_kv_table_grow(pool, table, n_pages, err);
    uint32_t n_old = n_pages < table->n_pages ? n_pages : table->n_pages;
    for (uint32_t p = first / MOE_KV_PAGE; status == MOE_OK && p < n_old; p++) {
        for (uint32_t g = 0; status == MOE_OK && g < pool->n_groups; g++) {
            status = unshare(pool, table, g, p, err);
        }
    }
    while (status == MOE_OK && table->n_pages < n_pages) {
        status = append_page(pool, table, err);
    }
    MOE_ASSERT(moe_kv_pool_is_sane(pool) && moe_kv_table_is_sane(pool, table));
    return status;
}

int moe_kv_table_move(moe_kv_pool *pool, moe_kv_table *table, const uint32_t *from,
                      const uint32_t *to, uint32_t n, moe_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        bool ascending = i == 0 || (from[i - 1] < from[i] && to[i - 1] < to[i]);
        if (!ascending || to[i] > from[i] || from[i] / MOE_KV_PAGE >= table->n_pages) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "KV positions move down in ascending order within %u pages, not %u "
                            "to %u",
                            table->n_pages, from[i], to[i]);
        }
    }
    int status = n == 0 ? MOE_OK : moe_kv_table_reserve(pool, table, to[0], to[n - 1] + 1, err);
    if (n == 0 || status != MOE_OK) {
        return status;
    }
    moe_kv_move move = {.layouts = pool->layers,
                        .n_layouts = pool->n_layouts,
                        .pages = table->addresses,
                        .from = from,
                        .to = to,
                        .n = n};
    return pool->device->ops->kv_move(pool->device, &move, err);
}

void moe_kv_table_truncate(moe_kv_pool *pool, moe_kv_table *table, uint32_t n)
{
    uint32_t n_pages = moe_kv_pages_of(n);
    while (table->n_pages > n_pages) {
        uint32_t p = --table->n_pages;
        for (uint32_t g = 0; g < pool->n_groups; g++) {
            if (*moe_kv_table_entry(pool, table, g, p) != NULL) {
                moe_kv_drop_page(pool, g, *moe_kv_table_entry(pool, table, g, p));
            }
        }
    }
    for (uint32_t g = 0; g < pool->n_groups && n == 0; g++) {
        table->first_page[g] = 0;
    }
    while (table->n_snapshots > 0 && table->snapshots[table->n_snapshots - 1].position > n) {
        moe_kv_snapshot_free(pool, &table->snapshots[--table->n_snapshots]);
    }
    MOE_ASSERT(moe_kv_pool_is_sane(pool) && moe_kv_table_is_sane(pool, table));
}

int moe_kv_table_share(const moe_kv_pool *pool, moe_kv_table *out, const moe_kv_table *table,
                       moe_error *err)
{
    *out = (moe_kv_table){.begins_turn = table->begins_turn};
    int status = moe_kv_table_grow(pool, out, table->n_pages, err);
    if (status != MOE_OK) {
        free(out->pages);
        free(out->addresses);
        *out = (moe_kv_table){0};
        return status;
    }
    for (size_t i = 0; i < (size_t)table->n_pages * pool->n_groups; i++) {
        out->pages[i] = table->pages[i];
        out->addresses[i] = table->addresses[i];
        if (out->pages[i] != NULL) {
            out->pages[i]->n_users++;
        }
    }
    out->n_pages = table->n_pages;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        out->first_page[g] = table->first_page[g];
    }
    for (uint32_t i = 0; i < table->n_snapshots; i++) {
        moe_kv_snapshot_copy(pool, out, &table->snapshots[i]);
    }
    return MOE_OK;
}

void moe_kv_table_free(moe_kv_pool *pool, moe_kv_table *table)
{
    moe_kv_table_truncate(pool, table, 0);
    while (moe_kv_table_forget(pool, table)) {
    }
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        pool->groups[g].n_promised -= table->n_promised[g];
    }
    free(table->pages);
    free(table->addresses);
    *table = (moe_kv_table){0};
}
