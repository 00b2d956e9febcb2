/* SPDX-License-Identifier: MIT */
/* Computes the part of a page of the KV cache for a tile's queries, and folds parts into their
 * state.
 *
 * If several neighbouring rows of the tile see the whole of a page, and in the same place, one call
 * computes the page for all their queries. So its keys and values are loaded and converted once. A
 * prompt's rows share all pages but the last two; the rows of a batch share the pages of a common
 * prefix.
 *
 *   page      0      1      2      3
 *   row 200   whole  whole  whole  partly   pages 0 to 2: one call for the three rows,
 *   row 201   whole  whole  whole  partly   page 3: one call for each row
 *   row 202   whole  whole  whole  partly
 *
 * If a row's path takes a logical page from several places, the kernel gets a list of the page's
 * rows. */
#include "cpu/cpu_attention_tile.h"

#include <math.h>
#include <string.h>

#include "runtime/base/moe_assert.h"

/* Where a logical page's keys and values are. */
typedef struct page_rows {
    const void *k[MOE_KV_PAGE];
    const void *v[MOE_KV_PAGE];
} page_rows;

/* Lists positions first .. first + n - 1 of the timeline. */
static void collect_rows(const moe_attention *a, const moe_kv_row *kv, uint32_t kv_head,
                         uint32_t first, uint32_t n, page_rows *rows)
{
    MOE_ASSERT(n <= MOE_KV_PAGE && kv->path_first <= kv->position);
    for (uint32_t j = 0; j < n; j++) {
        MOE_ASSERT(first + j <= kv->position);
        uint32_t stored = moe_kv_row_stored(kv, first + j);
        const moe_kv_layout *layout = &a->layout;
        if (a->beside != NULL && (stored & MOE_KV_BESIDE) != 0) {
            stored &= ~MOE_KV_BESIDE;
            layout = a->beside;
        }
        const uint8_t *page = kv->pages[moe_kv_entry(layout, stored / MOE_KV_PAGE)];
        MOE_ASSERT(page != NULL);
        size_t slot = (size_t)kv_head * MOE_KV_PAGE + stored % MOE_KV_PAGE;
        rows->k[j] = page + layout->k_offset + slot * layout->k_row_bytes;
        rows->v[j] = page + layout->v_offset + slot * layout->v_row_bytes;
    }
}

/* Finds positions from .. from + args->n_valid - 1, which lie in one page. */
static void place_page(const moe_attention *a, const moe_kv_row *kv, uint32_t kv_head,
                       uint32_t from, page_rows *rows, moe_attend_args *args)
{
    const moe_kv_layout *layout = &a->layout;
    uint32_t page = from / MOE_KV_PAGE;
    if (kv->path != NULL && (page + 1) * MOE_KV_PAGE > kv->path_first) {
        collect_rows(a, kv, kv_head, from, args->n_valid, rows);
        args->k_rows = rows->k;
        args->v_rows = rows->v;
        return;
    }
    const uint8_t *base = kv->pages[moe_kv_entry(layout, page)];
    MOE_ASSERT(base != NULL);
    size_t slot = (size_t)kv_head * MOE_KV_PAGE + from % MOE_KV_PAGE;
    args->k = base + layout->k_offset + slot * layout->k_row_bytes;
    args->v = base + layout->v_offset + slot * layout->v_row_bytes;
}

/* The keys of the page that begins at position `from`. NULL if the timeline ends within the page,
 * or takes the page's positions from several places. */
static const void *next_keys(const moe_kv_layout *layout, const moe_kv_row *kv, uint32_t kv_head,
                             uint32_t from)
{
    uint32_t end = from + MOE_KV_PAGE;
    if (from % MOE_KV_PAGE != 0 || end > kv->position ||
        (kv->path != NULL && end > kv->path_first)) {
        return NULL;
    }
    const uint8_t *page = kv->pages[moe_kv_entry(layout, from / MOE_KV_PAGE)];
    return page + layout->k_offset + (size_t)kv_head * MOE_KV_PAGE * layout->k_row_bytes;
}

static const moe_kv_row *row_of(const moe_attention_tile *tile, uint32_t r)
{
    return &tile->a->rows[tile->first_row + r];
}

static float *out_of(const moe_attention_tile *tile, uint32_t query)
{
    const moe_attention *a = tile->a;
    size_t row = tile->first_row + query / tile->n_heads;
    size_t head = tile->first_head + query % tile->n_heads;
    return a->out + (row * a->n_head + head) * a->layout.v_dim;
}

static float scale_of(const moe_attention_tile *tile, uint32_t r)
{
    const moe_attention *a = tile->a;
    return a->row_scales != NULL ? a->scale * a->row_scales[tile->first_row + r] : a->scale;
}

/* The positions of a page that row r sees: from .. end - 1, perhaps none. */
typedef struct seen_range {
    uint32_t from, end;
} seen_range;

static seen_range seen_of(const moe_attention_tile *tile, uint32_t r, uint32_t page)
{
    uint32_t position = row_of(tile, r)->position;
    uint32_t first = moe_attention_first(tile->a, position);
    uint32_t from = page * MOE_KV_PAGE, end = from + MOE_KV_PAGE;
    return (seen_range){from > first ? from : first, end < position + 1 ? end : position + 1};
}

/* Whether row r sees the whole page, and no position of it through a path. */
static bool sees_whole(const moe_attention_tile *tile, uint32_t r, uint32_t page)
{
    const moe_kv_row *kv = row_of(tile, r);
    seen_range seen = seen_of(tile, r, page);
    uint32_t end = (page + 1) * MOE_KV_PAGE;
    return seen.from == page * MOE_KV_PAGE && seen.end == end &&
           (kv->path == NULL || end <= kv->path_first);
}

/* How many rows, from row r on, attend to the page in one call; at least one. */
static uint32_t rows_together(const moe_attention_tile *tile, uint32_t r, uint32_t page)
{
    uint32_t n = 1;
    size_t entry = moe_kv_entry(&tile->a->layout, page);
    if (sees_whole(tile, r, page)) {
        while (r + n < tile->n_rows && sees_whole(tile, r + n, page) &&
               row_of(tile, r + n)->pages[entry] == row_of(tile, r)->pages[entry] &&
               scale_of(tile, r + n) == scale_of(tile, r)) {
            n++;
        }
    }
    return n;
}

/* Computes the parts of rows r .. r + n - 1 for a page. */
static void attend_rows(const moe_attention_tile *tile, uint32_t r, uint32_t n, seen_range seen,
                        moe_attention_part part)
{
    const moe_kv_layout *layout = &tile->a->layout;
    const size_t query = (size_t)r * tile->n_heads;
    page_rows rows;
    moe_attend_args args = {
        .type = (moe_kv_type)layout->type,
        .k_row_bytes = layout->k_row_bytes,
        .v_row_bytes = layout->v_row_bytes,
        .k_dim = layout->k_dim,
        .v_dim = layout->v_dim,
        .n_valid = seen.end - seen.from,
        .n_q = n * tile->n_heads,
        .q = tile->q + query * layout->k_dim,
        .scale = scale_of(tile, r),
        .cap = tile->a->cap,
        .max = part.max + query,
        .sum = part.sum + query,
        .out = part.out + query * layout->v_dim,
    };
    place_page(tile->a, row_of(tile, r), tile->kv_head, seen.from, &rows, &args);
    args.next_k = next_keys(layout, row_of(tile, r), tile->kv_head, seen.end);
    tile->cpu->vector.attend_page(&args);
}

void moe_attention_page(const moe_attention_tile *tile, uint32_t page, moe_attention_part part)
{
    for (uint32_t r = 0, n; r < tile->n_rows; r += n) {
        seen_range seen = seen_of(tile, r, page);
        n = rows_together(tile, r, page);
        if (seen.from < seen.end) {
            attend_rows(tile, r, n, seen, part);
        }
    }
}

void moe_attention_begin(const moe_attention_tile *tile, moe_query_range queries,
                         moe_attention_part state)
{
    const moe_attention *a = tile->a;
    for (uint32_t i = queries.begin; i < queries.end; i++) {
        uint32_t head = tile->first_head + i % tile->n_heads;
        state.max[i] = a->sinks != NULL ? a->sinks[head] + 0.0f : -INFINITY;
        state.sum[i] = a->sinks != NULL ? 1.0f : 0.0f;
        memset(out_of(tile, i), 0, a->layout.v_dim * sizeof(float));
    }
}

void moe_attention_fold(const moe_attention_tile *tile, moe_query_range queries, uint32_t page,
                        moe_attention_part part, moe_attention_part state)
{
    const size_t v_dim = tile->a->layout.v_dim;
    for (uint32_t i = queries.begin; i < queries.end; i++) {
        seen_range seen = seen_of(tile, i / tile->n_heads, page);
        if (seen.from < seen.end) {
            tile->cpu->vector.attend_merge(&state.max[i], &state.sum[i], out_of(tile, i),
                                           part.max[i], part.sum[i], part.out + i * v_dim,
                                           (uint32_t)v_dim);
        }
    }
}

void moe_attention_finish(const moe_attention_tile *tile, moe_query_range queries,
                          moe_attention_part state)
{
    for (uint32_t i = queries.begin; i < queries.end; i++) {
        tile->cpu->vector.scale(1.0f / state.sum[i], out_of(tile, i), tile->a->layout.v_dim);
    }
}

moe_page_range moe_attention_pages(const moe_attention *a, uint32_t first, uint32_t n)
{
    uint32_t from = UINT32_MAX, last = 0;
    for (uint32_t r = first; r < first + n; r++) {
        uint32_t position = a->rows[r].position;
        uint32_t seen_first = moe_attention_first(a, position);
        from = seen_first < from ? seen_first : from;
        last = position > last ? position : last;
    }
    return (moe_page_range){from / MOE_KV_PAGE, last / MOE_KV_PAGE + 1};
}
