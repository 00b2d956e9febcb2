/* SPDX-License-Identifier: MIT */
/* The pool of pages, by group: how layers lie in pages, and which pages are free. */
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
        const uint32_t side = config->layers[l].side_dim;
        if (heads->k_dim % 32 != 0 || side % 32 != 0 || heads->v_dim % 32 != 0 ||
            config->index_dim % 32 != 0) {
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "a %s KV cache needs head dimensions that are multiples of 32, not %u "
                            "and %u; use F16",
                            type == MOE_KV_Q8_0 ? "Q8_0" : "Q4_0", heads->k_dim, heads->v_dim);
        }
    }
    return MOE_OK;
}

/* ---- Groups ---- */

/* The most pages of a group that n consecutive positions touch. Where chunks are whole pages, the
 * positions begin at the start of a page. */
static uint32_t pages_spanned(const moe_kv_group *g, uint64_t n)
{
    bool aligned = g->window == 0 && g->chunk % MOE_KV_PAGE == 0;
    return aligned || n < 2 ? (uint32_t)((n + MOE_KV_PAGE - 1) / MOE_KV_PAGE)
                            : (uint32_t)((n - 2) / MOE_KV_PAGE + 2);
}

/* The most positions before its own position that a row sees. */
static uint64_t most_behind(const moe_kv_group *g)
{
    uint32_t window = g->window > 0 ? g->window - 1 : UINT32_MAX;
    uint32_t chunk = g->chunk > 0 ? g->chunk - 1 : UINT32_MAX;
    return window < chunk ? window : chunk;
}

/* The layer's group: one with the same span, or a new one. */
static uint32_t group_of(moe_kv_pool *pool, const moe_layer_kind *kind, uint32_t most_rows)
{
    bool apart = (pool->device->features & MOE_DEVICE_KV_GROUPS) != 0;
    moe_kv_group like = {.window = apart ? kind->window : 0, .chunk = apart ? kind->chunk : 0};
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        if (pool->groups[g].window == like.window && pool->groups[g].chunk == like.chunk) {
            return g;
        }
    }
    if (pool->n_groups == MOE_KV_GROUPS) {
        moe_kv_group *last = &pool->groups[MOE_KV_GROUPS - 1];
        last->window = last->chunk = 0;
        last->frees = false;
        return MOE_KV_GROUPS - 1;
    }
    like.frees = like.window > 0 || like.chunk > 0;
    like.most_live = pages_spanned(&like, most_behind(&like) + MOE_KV_MARGIN + most_rows);
    pool->groups[pool->n_groups] = like;
    return pool->n_groups++;
}

/* Places the layer's compressed keys. They are kept for all positions. */
static void place_beside(moe_kv_pool *pool, const moe_model_config *config, uint32_t l,
                         uint32_t most_rows)
{
    const moe_layer_kind *kind = &config->layers[l];
    const uint32_t n_rows = kind->rate < MOE_KV_PAGE ? MOE_KV_PAGE / kind->rate : 1;
    const bool indexes = kind->indexer == MOE_INDEXER_OWN;
    const size_t bytes = moe_kv_row_bytes(pool->type, config->head_dim_k) +
                         (indexes ? moe_kv_row_bytes(pool->type, config->index_dim) : 0);
    const uint32_t group = group_of(pool, &(moe_layer_kind){0}, most_rows);
    const size_t offset = pool->groups[group].page_bytes;
    pool->beside[l] = (moe_kv_layout){.type = pool->type,
                                      .group = group,
                                      .n_head_kv = 1,
                                      .k_dim = config->head_dim_k,
                                      .v_dim = config->head_dim_k,
                                      .k_row_bytes = bytes,
                                      .v_row_bytes = bytes,
                                      .k_offset = offset,
                                      .v_offset = offset,
                                      .v_in_k = true};
    pool->groups[group].page_bytes = moe_align64(offset + n_rows * bytes);
}

/* Places the layer in its group's page, behind the layers that the page holds so far. */
static void place_layer(moe_kv_pool *pool, const moe_model_config *config, uint32_t l,
                        uint32_t most_rows)
{
    moe_kv_layout *layout = &pool->layers[l];
    const moe_heads *heads = &config->layers[l].heads;
    if (!moe_mixer_has_heads(config->layers[l].mixer)) {
        layout->v_in_k = true; /* a layer without heads stores nothing */
        return;
    }
    uint32_t group = group_of(pool, &config->layers[l], most_rows);
    size_t offset = pool->groups[group].page_bytes;
    *layout = (moe_kv_layout){
        .type = pool->type,
        .group = group,
        .n_head_kv = heads->n_kv,
        .k_dim = heads->k_dim,
        .v_dim = heads->v_dim,
        .k_row_bytes = moe_kv_row_bytes(pool->type, heads->k_dim),
        .v_row_bytes = moe_kv_row_bytes(pool->type, heads->v_dim),
        .k_offset = offset,
        .v_in_k = config->attention != MOE_ATTENTION_GQA,
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
    pool->groups[group].page_bytes = offset;
    if (config->layers[l].rate > 0) {
        place_beside(pool, config, l, most_rows);
    }
}

static void place_side(moe_kv_pool *pool, const moe_layer_kind *kind, uint32_t l,
                       uint32_t most_rows)
{
    moe_kv_layout *layout = &pool->layers[pool->n_layer + l];
    layout->v_in_k = true;
    if (kind->side_dim == 0 && !kind->keeps_tokens) {
        return;
    }
    const uint32_t group = group_of(pool, kind, most_rows);
    const uint32_t dim = kind->keeps_tokens ? 1 : kind->side_dim;
    const moe_kv_type type = kind->keeps_tokens ? MOE_KV_F32 : pool->type;
    const size_t row_bytes = moe_kv_row_bytes(type, dim), at = pool->groups[group].page_bytes;
    *layout = (moe_kv_layout){.type = type,
                              .group = group,
                              .n_head_kv = 1,
                              .k_dim = dim,
                              .v_dim = dim,
                              .k_row_bytes = row_bytes,
                              .v_row_bytes = row_bytes,
                              .k_offset = at,
                              .v_offset = at,
                              .v_in_k = true};
    pool->groups[group].page_bytes = moe_align64(at + MOE_KV_PAGE * row_bytes);
}

static bool has_sides(const moe_model_config *config)
{
    bool has = false;
    for (uint32_t l = 0; l < config->n_layer; l++) {
        has = has || config->layers[l].side_dim > 0 || config->layers[l].keeps_tokens;
    }
    return has;
}

int moe_kv_pool_init(moe_kv_pool *pool, moe_device *device, const moe_model_config *config,
                     moe_kv_type type, uint32_t most_rows, moe_error *err)
{
    *pool = (moe_kv_pool){.device = device, .n_layer = config->n_layer, .type = type};
    MOE_TRY(check_blocks(config, type, err));
    pool->n_layouts = has_sides(config) ? 2 * config->n_layer : config->n_layer;
    pool->layers = moe_calloc(pool->n_layouts, sizeof *pool->layers);
    pool->beside = moe_calloc(config->n_layer, sizeof *pool->beside);
    if (pool->layers == NULL || pool->beside == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the KV layout");
    }
    for (uint32_t l = 0; l < config->n_layer; l++) {
        place_layer(pool, config, l, most_rows);
    }
    for (uint32_t l = 0; l < config->n_layer && pool->n_layouts > config->n_layer; l++) {
        place_side(pool, &config->layers[l], l, most_rows);
    }
    pool->n_groups = pool->n_groups > 0 ? pool->n_groups : 1;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        pool->page_bytes += pool->groups[g].page_bytes;
    }
    for (uint32_t l = 0; l < pool->n_layouts; l++) {
        pool->layers[l].n_other_groups = pool->n_groups - 1;
    }
    for (uint32_t l = 0; l < config->n_layer; l++) {
        pool->beside[l].n_other_groups = pool->n_groups - 1;
    }
    return MOE_OK;
}

void moe_kv_pool_sizes(const moe_kv_pool *pool, moe_kv_sizes *sizes)
{
    *sizes = (moe_kv_sizes){.n_groups = pool->n_groups, .n_beyond = pool->n_beyond};
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        const moe_kv_group *group = &pool->groups[g];
        sizes->page_bytes[g] = moe_memory_border_page_cost(pool->device, group->page_bytes);
        sizes->most_pages[g] =
            group->frees
                ? group->most_live + MOE_KV_SNAPSHOTS * pages_spanned(group, most_behind(group))
                : 0;
    }
}

/* How many pages of a group all positions take. */
static uint64_t all_pages(const moe_kv_sizes *sizes, uint32_t context)
{
    return ((uint64_t)context + sizes->n_beyond + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
}

uint64_t moe_kv_group_pages(const moe_kv_sizes *sizes, uint32_t group, uint32_t context)
{
    uint64_t all = all_pages(sizes, context);
    uint64_t most = sizes->most_pages[group];
    return most > 0 && most < all ? most : all;
}

uint64_t moe_kv_session_bytes(const moe_kv_sizes *sizes, uint32_t context, bool only_freed)
{
    uint64_t all = all_pages(sizes, context);
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < sizes->n_groups; g++) {
        uint64_t pages = moe_kv_group_pages(sizes, g, context);
        bytes += only_freed && pages == all ? 0 : pages * sizes->page_bytes[g];
    }
    return bytes;
}

void moe_kv_pool_limit(moe_kv_pool *pool, uint32_t context)
{
    moe_kv_sizes sizes;
    moe_kv_pool_sizes(pool, &sizes);
    uint64_t all = all_pages(&sizes, context);
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        pool->groups[g].frees &= moe_kv_group_pages(&sizes, g, context) < all;
    }
}

/* ---- Free pages ---- */

static void trim_group(moe_kv_pool *pool, moe_kv_group *group)
{
    while (group->n_free > group->n_promised) {
        moe_kv_page *page = group->free_pages;
        group->free_pages = page->next_free;
        group->n_free--;
        group->n_pages--;
        if (group->page_bytes > 0) {
            moe_memory_border_give_page(pool->border, group->page_bytes, page->memory, page->lent);
        }
        free(page);
    }
}

void moe_kv_pool_trim(moe_kv_pool *pool)
{
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        trim_group(pool, &pool->groups[g]);
    }
}

uint64_t moe_kv_pool_bytes(const moe_kv_pool *pool)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        bytes += pool->groups[g].n_pages *
                 moe_memory_border_page_cost(pool->device, pool->groups[g].page_bytes);
    }
    return bytes;
}

void moe_kv_pool_free(moe_kv_pool *pool)
{
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        MOE_ASSERT(pool->groups[g].n_pages == pool->groups[g].n_free); /* no table has pages left */
        pool->groups[g].n_promised = 0;
    }
    moe_kv_pool_trim(pool);
    free(pool->layers);
    free(pool->beside);
    *pool = (moe_kv_pool){0};
}

static void put_free(moe_kv_group *group, moe_kv_page *page)
{
    MOE_ASSERT(page->n_users == 0 && page->memory != NULL);
    page->next_free = group->free_pages;
    group->free_pages = page;
    group->n_free++;
}

int moe_kv_add_page(moe_kv_pool *pool, uint32_t g, moe_error *err)
{
    moe_kv_group *group = &pool->groups[g];
    moe_kv_page *page = moe_calloc(1, sizeof *page);
    if (page == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a page of the KV cache");
    }
    /* A page of a group that stores nothing: never read, but must not be NULL. */
    page->memory = page;
    int status = group->page_bytes == 0
                     ? MOE_OK
                     : moe_memory_border_take_page(pool->border, group->page_bytes, &page->memory,
                                                   &page->lent, err);
    if (status != MOE_OK) {
        free(page);
        return status;
    }
    group->n_pages++;
    put_free(group, page);
    return MOE_OK;
}

int moe_kv_take_page(moe_kv_pool *pool, moe_kv_table *table, uint32_t g, moe_kv_page **out,
                     moe_error *err)
{
    moe_kv_group *group = &pool->groups[g];
    if (table->n_promised[g] > 0) {
        table->n_promised[g]--;
        group->n_promised--;
    } else if (group->n_free == group->n_promised) {
        MOE_TRY(moe_kv_add_page(pool, g, err));
    }
    MOE_ASSERT(group->n_free > group->n_promised && group->free_pages != NULL);
    *out = group->free_pages;
    MOE_ASSERT((*out)->n_users == 0);
    group->free_pages = (*out)->next_free;
    group->n_free--;
    (*out)->n_users = 1;
    return MOE_OK;
}

void moe_kv_drop_page(moe_kv_pool *pool, uint32_t g, moe_kv_page *page)
{
    MOE_ASSERT(page->n_users > 0);
    if (--page->n_users == 0) {
        put_free(&pool->groups[g], page);
    }
}
