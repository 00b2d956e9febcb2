/* SPDX-License-Identifier: MIT */
/* The pages that a block of attend_matrix.cu visits, and how they come to shared memory. */
#ifndef MOE_CUDA_ATTEND_MATRIX_CUH
#define MOE_CUDA_ATTEND_MATRIX_CUH

#include <cuda_pipeline_primitives.h>

#include "cuda/kernels/attend.cuh"
#include "cuda/kernels/half_units.cuh"
#include "cuda/kernels/kv_cells.cuh"

#define PIECE 16u /* bytes of one asynchronous copy */

struct alignas(8) moe_float2 {
    float v[2];
};

/* What the rows of a tile see, each from its first position up to its end. */
typedef struct attend_span {
    uint32_t first, end;            /* least first, greatest end */
    uint32_t last_first, least_end; /* greatest first, least end */
    /* In pages that end here or before, all rows find a position in one place, and some row sees
     * every position between `first` and `end`. */
    uint32_t common_end;
    uint32_t padding[3];
} attend_span;

/* What a query sees. In shared memory, because registers are scarce. */
typedef struct query_place {
    uint32_t row; /* of the tile */
    uint32_t first;
    uint32_t length; /* positions from the first on; 0: there is no such query */
    uint32_t padding;
} query_place;

/* A block has QUERY_WARPS x COLUMN_WARPS warps. The warps of a row of this grid have 16 queries;
 * they share the positions of a page for the scores, and the columns for the values. */
template <int K_STEPS, int V_TILES, int QUERY_WARPS, int COLUMN_WARPS> struct attend_shape {
    static constexpr uint32_t threads = MOE_WARP * QUERY_WARPS * COLUMN_WARPS;
    static constexpr uint32_t queries = 16 * QUERY_WARPS;
    static constexpr uint32_t k_dim = 16 * K_STEPS, v_dim = 8 * V_TILES;
    static constexpr uint32_t score_tiles = MOE_KV_PAGE / 8 / COLUMN_WARPS;
    static constexpr uint32_t value_tiles = V_TILES / COLUMN_WARPS;
    static constexpr bool shares = COLUMN_WARPS > 1;
    /* Shared memory in bytes: keys, values, places of queries, and if the warps of a row share
     * their work, weights and maxima. Rows are padded by a piece, so that eight rows begin in
     * different banks. */
    static constexpr uint32_t k_pitch = 2 * k_dim + PIECE, v_pitch = 2 * v_dim + PIECE;
    static constexpr uint32_t w_pitch = 2 * MOE_KV_PAGE + PIECE;
    static constexpr uint32_t values = MOE_KV_PAGE * k_pitch;
    static constexpr uint32_t places = values + MOE_KV_PAGE * v_pitch;
    static constexpr uint32_t weights =
        places + sizeof(attend_span) + queries * sizeof(query_place);
    static constexpr uint32_t maxima = weights + (shares ? queries * w_pitch : 0);
    static constexpr uint32_t bytes = maxima + (shares ? queries * COLUMN_WARPS * 4 : 0);
};

__device__ static inline uint32_t warp_least(uint32_t value)
{
    for (int half = MOE_WARP / 2; half > 0; half /= 2)
        value = smaller(value, __shfl_xor_sync(MOE_ALL_WARP, value, half));
    return value;
}

/* A whole warp calls it. */
__device__ static inline attend_span span_of(const moe_attend_job &job, const query_tile &tile)
{
    const moe_cuda_kv_row &base = job.rows[tile.first_row];
    uint32_t first = UINT32_MAX, not_end = UINT32_MAX, not_first = UINT32_MAX, end = UINT32_MAX;
    uint32_t path = UINT32_MAX;
    uint32_t runs = 1; /* the rows are neighbours in one timeline */
    for (uint32_t r = threadIdx.x % MOE_WARP; r < tile.n_rows; r += MOE_WARP) {
        const moe_cuda_kv_row &row = job.rows[tile.first_row + r];
        const uint32_t from = moe_attend_first(job, row.position);
        first = smaller(first, from);
        not_first = smaller(not_first, ~from);
        end = smaller(end, row.position + 1);
        not_end = smaller(not_end, ~(row.position + 1));
        if (row.pages != base.pages)
            path = 0;
        else if (row.path != NULL)
            path = smaller(path, row.path_first);
        if (row.position != base.position + r)
            runs = 0;
    }
    attend_span span = {};
    span.first = warp_least(first);
    span.end = ~warp_least(not_end);
    span.last_first = ~warp_least(not_first);
    span.least_end = warp_least(end);
    span.common_end = warp_least(path);
    if (warp_least(runs) == 0)
        span.common_end = smaller(span.common_end, span.least_end);
    if (tile.n_rows == 1)
        span.common_end = UINT32_MAX;
    return span;
}

/* A page for n_rows of the tile's rows from `row` on: all rows, or one row by itself. */
typedef struct attend_step {
    uint32_t page, row, n_rows;
} attend_step;

/* Moves to the first step from step->page and step->row on. Returns false if there is none before
 * end_page. */
__device__ static inline bool find_step(const moe_attend_job &job, const query_tile &tile,
                                        const attend_span &span, uint32_t end_page,
                                        attend_step *step)
{
    for (; step->page < end_page; step->page++, step->row = 0) {
        step->n_rows = tile.n_rows;
        if (tile.n_rows == 1 || (step->page + 1) * MOE_KV_PAGE <= span.common_end)
            return true;
        step->n_rows = 1;
        for (; step->row < tile.n_rows; step->row++) {
            const uint32_t position = job.rows[tile.first_row + step->row].position;
            if (step->page <= position / MOE_KV_PAGE &&
                step->page >= moe_attend_first(job, position) / MOE_KV_PAGE)
                return true;
        }
    }
    return false;
}

__device__ static inline bool next_step(const moe_attend_job &job, const query_tile &tile,
                                        const attend_span &span, uint32_t end_page,
                                        attend_step *step)
{
    step->row += step->n_rows;
    if (step->row == tile.n_rows) {
        step->page++;
        step->row = 0;
    }
    return find_step(job, tile, span, end_page, step);
}

/* The whole block calls it. Returns the span in shared memory, because registers are scarce. */
__device__ static inline const attend_span &share_span(const moe_attend_job &job,
                                                       const query_tile &tile, uint8_t *shared)
{
    attend_span *span = (attend_span *)shared;
    if (threadIdx.x < MOE_WARP) {
        const attend_span own = span_of(job, tile);
        if (threadIdx.x == 0)
            *span = own;
    }
    __syncthreads();
    return *span;
}

/* The block's first step: of all pages that its rows see, or of a part. */
__device__ static inline bool first_step(const moe_attend_job &job, const query_tile &tile,
                                         const attend_span &span, attend_step *step,
                                         uint32_t *end_page)
{
    *step = {span.first / MOE_KV_PAGE, 0, 0};
    *end_page = (span.end + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
    if (job.split) {
        const uint32_t first_page = (job.first_part + blockIdx.z) * MOE_STRETCH_PAGES;
        step->page = step->page > first_page ? step->page : first_page;
        *end_page = smaller(*end_page, first_page + MOE_STRETCH_PAGES);
    }
    return find_step(job, tile, span, *end_page, step);
}

/* All positions of a page, one row after the other. */
template <uint32_t PIECES, uint32_t PITCH, uint32_t THREADS>
__device__ static inline void copy_whole_page(const uint8_t *page, size_t row_bytes,
                                              uint8_t *target)
{
    constexpr uint32_t rows = THREADS / PIECES; /* that the block copies at once */
    constexpr bool even = THREADS % PIECES == 0 && MOE_KV_PAGE % rows == 0;
    if constexpr (even) {
        page += threadIdx.x / PIECES * row_bytes + threadIdx.x % PIECES * PIECE;
        target += threadIdx.x / PIECES * PITCH + threadIdx.x % PIECES * PIECE;
#pragma unroll
        for (uint32_t n = 0; n < MOE_KV_PAGE / rows; n++, page += rows * row_bytes)
            __pipeline_memcpy_async(target + n * rows * PITCH, page, PIECE);
    } else {
#pragma unroll 2
        for (uint32_t i = threadIdx.x; i < MOE_KV_PAGE * PIECES; i += THREADS)
            __pipeline_memcpy_async(target + i / PIECES * PITCH + i % PIECES * PIECE,
                                    page + i / PIECES * row_bytes + i % PIECES * PIECE, PIECE);
    }
}

/* Begins to copy the step's keys or values to `target`. Positions that no row sees may have no
 * place, or hold anything; they become zeros. */
template <uint32_t DIM, uint32_t PITCH, uint32_t THREADS>
__device__ static inline void copy_page(const moe_attend_job &job, const query_tile &tile,
                                        const attend_span &span, const attend_step &step,
                                        size_t offset, size_t row_bytes, uint8_t *target)
{
    constexpr uint32_t pieces = 2 * DIM / PIECE;
    const moe_cuda_kv_row row = job.rows[tile.first_row + step.row];
    const bool all = step.n_rows == tile.n_rows;
    const uint32_t first = all ? span.first : moe_attend_first(job, row.position);
    const uint32_t end = all ? span.end : row.position + 1;
    const uint32_t begin = step.page * MOE_KV_PAGE;
    const bool strays = row.path != NULL && begin + MOE_KV_PAGE > row.path_first;
    offset += (size_t)tile.kv_head * MOE_KV_PAGE * row_bytes;
    const uint8_t *page = strays ? NULL : moe_kv_page_of(job.layout, row.pages, begin) + offset;
    if (!strays && begin >= first && begin + MOE_KV_PAGE <= end) {
        copy_whole_page<pieces, PITCH, THREADS>(page, row_bytes, target);
        return;
    }
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < MOE_KV_PAGE * pieces; i += THREADS) {
        const uint32_t position = begin + i / pieces;
        uint8_t *to = target + i / pieces * PITCH + i % pieces * PIECE;
        if (position < first || position >= end) {
            *(moe_float4 *)to = {};
            continue;
        }
        const uint8_t *from = page + i / pieces * row_bytes;
        if (strays) {
            const uint32_t stored =
                position >= row.path_first ? row.path[position - row.path_first] : position;
            from = moe_kv_page_of(job.layout, row.pages, stored) + offset +
                   stored % MOE_KV_PAGE * row_bytes;
        }
        __pipeline_memcpy_async(to, from + i % pieces * PIECE, PIECE);
    }
}

#endif
