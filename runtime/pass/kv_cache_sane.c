/* SPDX-License-Identifier: MIT */
/* Checks the state that the KV cache must have between two calls. Assertions call this after a
 * session's pages have changed. */
#include "runtime/pass/kv_cache.h"

/* Each layer's keys and values are in its group's page, aligned, behind those of the group's
 * previous layer. */
static bool layouts_are_sane(const moe_kv_pool *pool)
{
    size_t end[MOE_KV_GROUPS] = {0};
    for (uint32_t l = 0; l < pool->n_layouts; l++) {
        const moe_kv_layout *layout = &pool->layers[l];
        size_t positions = (size_t)layout->n_head_kv * MOE_KV_PAGE;
        if (layout->group >= pool->n_groups || layout->n_other_groups != pool->n_groups - 1) {
            return false;
        }
        if (positions == 0) {
            continue; /* a recurrent layer: its state is elsewhere */
        }
        size_t *at = &end[layout->group];
        const bool is_token = l >= pool->n_layer && layout->type == MOE_KV_F32;
        if ((layout->type != (int)pool->type && !is_token) || layout->k_offset % 64 != 0 ||
            layout->v_offset % 64 != 0 || layout->k_offset < *at) {
            return false;
        }
        *at = layout->k_offset + positions * layout->k_row_bytes;
        if (layout->v_in_k ? layout->v_offset != layout->k_offset : layout->v_offset < *at) {
            return false;
        }
        *at = layout->v_in_k ? *at : layout->v_offset + positions * layout->v_row_bytes;
        if (l >= pool->n_layer || pool->beside[l].n_head_kv == 0) {
            continue;
        }
        const moe_kv_layout *beside = &pool->beside[l];
        at = &end[beside->group];
        if (beside->k_offset % 64 != 0 || beside->k_offset < *at) {
            return false;
        }
        *at = beside->k_offset + beside->k_row_bytes;
    }
    bool fits = true;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        fits &= end[g] <= pool->groups[g].page_bytes;
    }
    return fits;
}

static bool group_is_sane(const moe_kv_group *group)
{
    uint64_t n_free = 0;
    const moe_kv_page *page = group->free_pages;
    for (; page != NULL && n_free < group->n_free; page = page->next_free) {
        if (page->n_users != 0 || page->memory == NULL) {
            return false;
        }
        n_free++;
    }
    return page == NULL && n_free == group->n_free && n_free <= group->n_pages &&
           group->n_promised <= n_free;
}

bool moe_kv_pool_is_sane(const moe_kv_pool *pool)
{
    bool sane = pool->device != NULL && pool->n_groups > 0 && pool->n_groups <= MOE_KV_GROUPS &&
                layouts_are_sane(pool);
    for (uint32_t g = 0; sane && g < pool->n_groups; g++) {
        sane = group_is_sane(&pool->groups[g]);
    }
    return sane;
}

static bool entries_are_sane(const moe_kv_pool *pool, const moe_kv_table *table, uint32_t g)
{
    const uint32_t n_groups = pool->n_groups;
    for (uint32_t p = 0; p < table->n_pages; p++) {
        const moe_kv_page *page = table->pages[(size_t)p * n_groups + g];
        const void *address = table->addresses[(size_t)p * n_groups + g];
        if (p < table->first_page[g]) {
            if (page != NULL || address != NULL) {
                return false;
            }
            continue;
        }
        if (page == NULL || page->n_users == 0 || page->memory == NULL || address != page->memory) {
            return false;
        }
        for (uint32_t before = table->first_page[g]; before < p; before++) {
            if (table->pages[(size_t)before * n_groups + g] == page) {
                return false;
            }
        }
    }
    return true;
}

bool moe_kv_table_is_sane(const moe_kv_pool *pool, const moe_kv_table *table)
{
    if (table->n_pages > table->capacity || table->n_snapshots > MOE_KV_SNAPSHOTS) {
        return false;
    }
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        const moe_kv_group *group = &pool->groups[g];
        uint32_t first = table->first_page[g];
        uint32_t n_held = table->n_pages > first ? table->n_pages - first : 0;
        if (table->n_promised[g] > group->n_promised || n_held > group->n_pages - group->n_free ||
            !entries_are_sane(pool, table, g)) {
            return false;
        }
    }
    for (uint32_t i = 1; i < table->n_snapshots; i++) {
        if (table->snapshots[i].position <= table->snapshots[i - 1].position) {
            return false;
        }
    }
    return true;
}
