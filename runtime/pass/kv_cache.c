/* SPDX-License-Identifier: MIT */
#include "runtime/pass/kv_cache.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

static int check_blocks(const moe_model_config *config, moe_kv_type type, moe_error *err)
{
    bool blocks = type == MOE_KV_Q8_0 || type == MOE_KV_Q4_0;
    for (uint32_t l = 0; l < config->n_layer && blocks; l++) {
        const moe_heads *heads = &config->layers[l].heads;
        if (heads->k_dim % 32 != 0 || heads->v_dim % 32 != 0) {
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "a %s KV cache needs head dimensions that are multiples of 32, not %u "
                            "and %u; use F16",
                            type == MOE_KV_Q8_0 ? "Q8_0" : "Q4_0", heads->k_dim, heads->v_dim);
        }
    }
    return MOE_OK;
}

int moe_kv_pool_init(moe_kv_pool *pool, moe_device *device, const moe_model_config *config,
                     moe_kv_type type, moe_error *err)
{
    *pool = (moe_kv_pool){.device = device};
    int status = check_blocks(config, type, err);
    if (status != MOE_OK) {
        return status;
    }
    pool->layers = moe_calloc(config->n_layer, sizeof *pool->layers);
    if (pool->layers == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the KV layout");
    }
    pool->n_layer = config->n_layer;
    pool->type = type;
    size_t offset = 0;
    for (uint32_t l = 0; l < config->n_layer; l++) {
        moe_kv_layout *layout = &pool->layers[l];
        const moe_heads *heads = &config->layers[l].heads;
        if (config->layers[l].mixer == MOE_MIXER_RECURRENT) {
            layout->v_in_k = true; /* a layer without heads stores nothing */
            continue;
        }
        *layout = (moe_kv_layout){
            .type = type,
            .n_head_kv = heads->n_kv,
            .k_dim = heads->k_dim,
            .v_dim = heads->v_dim,
            .k_row_bytes = moe_kv_row_bytes(type, heads->k_dim),
            .v_row_bytes = moe_kv_row_bytes(type, heads->v_dim),
            .k_offset = offset,
            .v_in_k = config->attention == MOE_ATTENTION_MLA,
        };
        size_t positions = (size_t)heads->n_kv * MOE_KV_PAGE;
        offset = moe_align64(offset + positions * layout->k_row_bytes);
        layout->v_offset = offset;
        if (layout->v_in_k) {
            layout->v_offset = layout->k_offset;
            layout->v_row_bytes = layout->k_row_bytes;
        } else {
            offset = moe_align64(offset + positions * layout->v_row_bytes);
        }
    }
    pool->page_bytes = offset > 0 ? offset : 64;
    MOE_ASSERT(moe_kv_pool_is_sane(pool));
    return MOE_OK;
}

void moe_kv_pool_trim(moe_kv_pool *pool)
{
    while (pool->n_free > pool->n_promised) {
        moe_kv_page *page = pool->free_pages;
        pool->free_pages = page->next_free;
        pool->n_free--;
        pool->n_pages--;
        moe_memory_border_give_page(pool->border, pool->page_bytes, page->memory, page->lent);
        free(page);
    }
}

void moe_kv_pool_free(moe_kv_pool *pool)
{
    MOE_ASSERT(pool->n_pages == pool->n_free); /* no table has pages left */
    pool->n_promised = 0;
    moe_kv_pool_trim(pool);
    free(pool->layers);
    *pool = (moe_kv_pool){0};
}

static void put_free(moe_kv_pool *pool, moe_kv_page *page)
{
    MOE_ASSERT(page->n_users == 0 && page->memory != NULL);
    page->next_free = pool->free_pages;
    pool->free_pages = page;
    pool->n_free++;
}

/* Allocates one more free page. */
static int add_page(moe_kv_pool *pool, moe_error *err)
{
    moe_kv_page *page = moe_calloc(1, sizeof *page);
    if (page == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a page of the KV cache");
    }
    int status = moe_memory_border_take_page(pool->border, pool->page_bytes, &page->memory,
                                             &page->lent, err);
    if (status != MOE_OK) {
        free(page);
        return status;
    }
    pool->n_pages++;
    put_free(pool, page);
    return MOE_OK;
}

/* Takes a page, one of those promised to the table while it has any. */
static int take_page(moe_kv_pool *pool, moe_kv_table *table, moe_kv_page **out, moe_error *err)
{
    if (table->n_promised > 0) {
        table->n_promised--;
        pool->n_promised--;
    } else if (pool->n_free == pool->n_promised) {
        int status = add_page(pool, err);
        if (status != MOE_OK) {
            return status;
        }
    }
    MOE_ASSERT(pool->n_free > pool->n_promised && pool->free_pages != NULL);
    *out = pool->free_pages;
    MOE_ASSERT((*out)->n_users == 0);
    pool->free_pages = (*out)->next_free;
    pool->n_free--;
    (*out)->n_users = 1;
    return MOE_OK;
}

static void drop_page(moe_kv_pool *pool, moe_kv_page *page)
{
    MOE_ASSERT(page->n_users > 0);
    if (--page->n_users == 0) {
        put_free(pool, page);
    }
}

int moe_kv_table_promise(moe_kv_pool *pool, moe_kv_table *table, uint32_t first, uint32_t end,
                         moe_error *err)
{
    uint32_t n_pages = (end + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
    uint32_t n = n_pages > table->n_pages ? n_pages - table->n_pages : 0;
    for (uint32_t p = first / MOE_KV_PAGE; p < n_pages && p < table->n_pages; p++) {
        n += table->pages[p]->n_users > 1;
    }
    MOE_ASSERT(table->n_promised <= pool->n_promised);
    uint64_t n_others = pool->n_promised - table->n_promised;
    uint64_t before = pool->n_free;
    while (pool->n_free < n_others + n) {
        int status = add_page(pool, err);
        if (status != MOE_OK) {
            uint64_t others = pool->n_promised;
            pool->n_promised = before > others ? before : others;
            moe_kv_pool_trim(pool); /* frees pages that were allocated only for this */
            pool->n_promised = others;
            return status;
        }
    }
    pool->n_promised = n_others + n;
    table->n_promised = n;
    MOE_ASSERT(moe_kv_pool_is_sane(pool) && moe_kv_table_is_sane(pool, table));
    return MOE_OK;
}

static int grow_table(moe_kv_table *table, uint32_t n_pages, moe_error *err)
{
    if (n_pages <= table->capacity) {
        return MOE_OK;
    }
    uint32_t capacity = n_pages < 8 ? 8 : n_pages + n_pages / 2;
    moe_kv_page **pages = moe_realloc_array(table->pages, capacity, sizeof *pages);
    if (pages != NULL) {
        table->pages = pages;
    }
    void **addresses = moe_realloc_array(table->addresses, capacity, sizeof *addresses);
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
static int unshare(moe_kv_pool *pool, moe_kv_table *table, uint32_t index, moe_error *err)
{
    moe_kv_page *shared = table->pages[index];
    if (shared->n_users == 1) {
        return MOE_OK;
    }
    moe_kv_page *own;
    int status = take_page(pool, table, &own, err);
    if (status != MOE_OK) {
        return status;
    }
    status =
        pool->device->ops->copy(pool->device, own->memory, shared->memory, pool->page_bytes, err);
    if (status != MOE_OK) {
        drop_page(pool, own);
        return status;
    }
    drop_page(pool, shared);
    table->pages[index] = own;
    table->addresses[index] = own->memory;
    return MOE_OK;
}

int moe_kv_table_reserve(moe_kv_pool *pool, moe_kv_table *table, uint32_t first, uint32_t end,
                         moe_error *err)
{
    uint32_t n_pages = (end + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
    int status = grow_table(table, n_pages, err);
    for (uint32_t p = first / MOE_KV_PAGE; status == MOE_OK && p < n_pages; p++) {
        if (p < table->n_pages) {
            status = unshare(pool, table, p, err);
            continue;
        }
        moe_kv_page *page;
        status = take_page(pool, table, &page, err);
        if (status == MOE_OK) {
            table->pages[p] = page;
            table->addresses[p] = page->memory;
            table->n_pages = p + 1;
        }
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
                        .n_layouts = pool->n_layer,
                        .pages = table->addresses,
                        .from = from,
                        .to = to,
                        .n = n};
    return pool->device->ops->kv_move(pool->device, &move, err);
}

void moe_kv_table_truncate(moe_kv_pool *pool, moe_kv_table *table, uint32_t n)
{
    uint32_t n_pages = (n + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
    while (table->n_pages > n_pages) {
        drop_page(pool, table->pages[--table->n_pages]);
    }
    MOE_ASSERT(moe_kv_pool_is_sane(pool) && moe_kv_table_is_sane(pool, table));
}

int moe_kv_table_share(moe_kv_table *out, const moe_kv_table *table, moe_error *err)
{
    *out = (moe_kv_table){0};
    int status = grow_table(out, table->n_pages, err);
    if (status != MOE_OK) {
        free(out->pages);
        free(out->addresses);
        *out = (moe_kv_table){0};
        return status;
    }
    for (uint32_t p = 0; p < table->n_pages; p++) {
        out->pages[p] = table->pages[p];
        out->addresses[p] = table->addresses[p];
        out->pages[p]->n_users++;
    }
    out->n_pages = table->n_pages;
    return MOE_OK;
}

void moe_kv_table_free(moe_kv_pool *pool, moe_kv_table *table)
{
    moe_kv_table_truncate(pool, table, 0);
    pool->n_promised -= table->n_promised;
    free(table->pages);
    free(table->addresses);
    *table = (moe_kv_table){0};
}
