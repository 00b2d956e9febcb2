/* SPDX-License-Identifier: MIT */
/* Checks the state that the KV cache must have between two calls; assertions do so after a
 * session's pages have changed. */
#include "runtime/pass/kv_cache.h"

/* A layer's keys and values are in the page, aligned, behind those of the layer before. */
static bool layouts_are_sane(const moe_kv_pool *pool)
{
    size_t end = 0;
    for (uint32_t l = 0; l < pool->n_layer; l++) {
        const moe_kv_layout *layout = &pool->layers[l];
        size_t positions = (size_t)layout->n_head_kv * MOE_KV_PAGE;
        if (positions == 0) {
            continue; /* a recurrent layer: its state is elsewhere */
        }
        if (layout->type != (int)pool->type || layout->k_offset % 64 != 0 ||
            layout->v_offset % 64 != 0 || layout->k_offset < end) {
            return false;
        }
        end = layout->k_offset + positions * layout->k_row_bytes;
        if (layout->v_in_k ? layout->v_offset != layout->k_offset : layout->v_offset < end) {
            return false;
        }
        end = layout->v_in_k ? end : layout->v_offset + positions * layout->v_row_bytes;
    }
    return end <= pool->page_bytes;
}

bool moe_kv_pool_is_sane(const moe_kv_pool *pool)
{
    uint64_t n_free = 0;
    const moe_kv_page *page = pool->free_pages;
    for (; page != NULL && n_free < pool->n_free; page = page->next_free) {
        if (page->n_users != 0 || page->memory == NULL) {
            return false;
        }
        n_free++;
    }
    return page == NULL && n_free == pool->n_free && n_free <= pool->n_pages &&
           pool->n_promised <= n_free && pool->device != NULL && layouts_are_sane(pool);
}

bool moe_kv_table_is_sane(const moe_kv_pool *pool, const moe_kv_table *table)
{
    if (table->n_pages > table->capacity || table->n_promised > pool->n_promised ||
        table->n_pages > pool->n_pages - pool->n_free) {
        return false;
    }
    for (uint32_t p = 0; p < table->n_pages; p++) {
        const moe_kv_page *page = table->pages[p];
        if (page == NULL || page->n_users == 0 || page->memory == NULL ||
            table->addresses[p] != page->memory) {
            return false;
        }
        for (uint32_t before = 0; before < p; before++) {
            if (table->pages[before] == page) {
                return false;
            }
        }
    }
    return true;
}
