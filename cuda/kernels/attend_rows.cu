/* SPDX-License-Identifier: MIT */
/* Attention over the pages of the KV cache to the bits of vector_ops.h (attend_page and
 * attend_merge), and the choice between it and attention by matrix units (attend_matrix.cu).
 *
 * A block takes up to QUERIES query heads that share a KV head, of one row or of neighbouring rows.
 * It takes a page of 64 logical positions in three steps:
 *  - scores: four threads share a position; each has four of the sixteen lanes, for every query.
 *    A thread reads its part of a key once, and multiplies it with the queries in shared memory.
 *    Shuffles then add the lanes, and halve the queries that each thread answers for.
 *  - weights: sixteen threads share a query. They compute the maximum, the exponentials, their
 *    sum, and the factors that fold the page into the pages before it.
 *  - values: a thread has two columns and some of the queries, and goes down the positions.
 *
 * The reduction is over fixed pages in ascending order, so a page's result does not depend on which
 * block computes it. With enough blocks (prompts), each block walks through all pages and folds as
 * it goes. Otherwise (few rows with long contexts) each page is a block of its own and leaves a
 * part, and attend_fold.cu folds the parts in order.
 *
 * With windows or chunks, the first position that a row sees may lie inside a page: the row's sums
 * begin there, and earlier pages are not touched. A sink is the state before the first page.
 *
 * Rows of one timeline have the same pages. If all rows of a block find a page in one place, the
 * page is read once for all of them. If not (nodes of a tree of tokens), the rows take turns. */
#include "cuda/kernels/attend_steps.cuh"

#define SHARED_LIMIT (48u << 10) /* the shared memory that a block may have by default */
#define MAX_GRID_Z   65535u
#define LINE         128u /* bytes */
/* With fewer blocks per multiprocessor than this, each page becomes a block of its own. */
#define FEW_BLOCKS 2u
/* Such blocks run in waves. A wave is this many blocks per multiprocessor, so that the idle time at
 * its end matters little. */
#define BLOCKS_A_WAVE 16u

/* Whether a row's path, if it has one, reaches into the page. */
__device__ static inline bool strays(const moe_cuda_kv_row &row, uint32_t page)
{
    return row.path != NULL && (page + 1) * MOE_KV_PAGE > row.path_first;
}

/* Whether all rows of the tile that see the page find it in the same place. */
__device__ static inline bool page_is_common(const moe_attend_job &job, const query_tile &tile,
                                             uint32_t page)
{
    const void *place = NULL;
    for (uint32_t r = 0; r < tile.n_rows; r++) {
        const moe_cuda_kv_row &row = job.rows[tile.first_row + r];
        if (row.position < page * MOE_KV_PAGE ||
            moe_attend_first(job, row.position) >= (page + 1) * MOE_KV_PAGE)
            continue;
        const void *own = moe_kv_page_of(job.layout, row.pages, page * MOE_KV_PAGE);
        if (strays(row, page) || (place != NULL && place != own))
            return tile.n_rows == 1;
        place = own;
    }
    return true;
}

/* Returns the key of this thread's position in the page, or NULL when none of the rows first_row ..
 * end_row - 1 sees that position. */
__device__ static inline const uint8_t *place_position(const moe_attend_job &job,
                                                       const query_tile &tile, uint32_t page,
                                                       uint32_t first_row, uint32_t end_row,
                                                       attend_shared *shared)
{
    const moe_kv_layout &layout = job.layout;
    uint32_t position = page * MOE_KV_PAGE + threadIdx.x / SCORE_THREADS;
    for (uint32_t r = first_row; r < end_row; r++) {
        const moe_cuda_kv_row &row = job.rows[tile.first_row + r];
        if (position > row.position || position < moe_attend_first(job, row.position))
            continue;
        uint32_t stored = row.path != NULL && position >= row.path_first
                              ? row.path[position - row.path_first]
                              : position;
        const uint8_t *base = moe_kv_page_of(layout, row.pages, stored);
        size_t slot = (size_t)tile.kv_head * MOE_KV_PAGE + stored % MOE_KV_PAGE;
        const uint8_t *values = base + layout.v_offset + slot * layout.v_row_bytes;
        uint32_t part = threadIdx.x % SCORE_THREADS;
        if (part == 0)
            shared->values[threadIdx.x / SCORE_THREADS] = values;
        /* Only a few threads read values, and they do so late, so prefetch the values now. In MLA
         * they are part of the key. */
        for (uint32_t b = LINE * part; b < job.v_bytes && !layout.v_in_k; b += LINE * SCORE_THREADS)
            MOE_PREFETCH(values + b);
        return base + layout.k_offset + slot * layout.k_row_bytes;
    }
    return NULL;
}

/* Computes one page for the tile's rows first_row .. end_row. */
template <int TYPE, int QUERIES>
__device__ static inline void attend_turn(const moe_attend_job &job, const query_tile &tile,
                                          uint32_t page, uint32_t first_row, uint32_t end_row,
                                          const float *q, float *weights, attend_shared *shared)
{
    if (threadIdx.x < MAX_QUERIES) {
        uint32_t row = threadIdx.x / tile.heads;
        uint32_t n = shared->n_visible[threadIdx.x];
        uint32_t from = shared->first[threadIdx.x];
        uint32_t first = page * MOE_KV_PAGE;
        bool sees = row >= first_row && row < end_row && n > first && from < first + MOE_KV_PAGE;
        shared->begin[threadIdx.x] = sees && from > first ? from - first : 0;
        shared->end[threadIdx.x] = sees ? smaller(n - first, MOE_KV_PAGE) : 0;
    }
    const uint8_t *key = place_position(job, tile, page, first_row, end_row, shared);
    score_page<TYPE, QUERIES>(job, shared, key, q, weights);
    __syncthreads();
    if (threadIdx.x / MOE_WARP * 2 < QUERIES)
        weigh_page(job, tile, page, weights, shared);
    __syncthreads();
    values_page<TYPE, QUERIES>(job, shared, page, weights);
    __syncthreads();
}

/* Copies queries to shared memory, and notes where their results go. */
template <int QUERIES>
__device__ static inline void load_queries(const moe_attend_job &job, const query_tile &tile,
                                           float *q, attend_shared *shared)
{
    uint32_t k_dim = job.layout.k_dim;
    for (uint32_t i = threadIdx.x; i < QUERIES * job.q_stride; i += ATTEND_THREADS) {
        uint32_t query = i / job.q_stride;
        uint32_t e = i % job.q_stride;
        size_t head = (size_t)(tile.first_row + query / tile.heads) * job.n_head + tile.first_head +
                      query % tile.heads;
        q[i] = query < tile.n && e < k_dim ? job.q[head * k_dim + e] : 0.0f;
    }
    if (threadIdx.x < MAX_QUERIES) {
        uint32_t query = threadIdx.x;
        uint32_t row = tile.first_row + query / tile.heads;
        uint32_t head = tile.first_head + query % tile.heads;
        bool valid = query < tile.n;
        shared->max[query] = valid ? moe_attend_max_before(job, head) : -MOE_INFINITY;
        shared->sum[query] = moe_attend_sum_before(job);
        shared->n_visible[query] = valid ? job.rows[row].position + 1 : 0;
        shared->first[query] = valid ? moe_attend_first(job, job.rows[row].position) : 0;
        shared->scale[query] =
            valid && job.row_scales != NULL ? job.scale * job.row_scales[row] : job.scale;
        size_t place = (size_t)row * job.n_head + head;
        if (job.split)
            shared->out[query] =
                job.part_out + moe_attend_part(job, row, head, blockIdx.z) * job.layout.v_dim;
        else
            shared->out[query] = job.out + place * job.layout.v_dim;
    }
}

template <int TYPE, int QUERIES>
__global__ __launch_bounds__(ATTEND_THREADS, 2) void moe_attend(moe_attend_job job)
{
    MOE_DYNAMIC_SHARED(moe_float4, attend_memory);
    attend_shared *shared = (attend_shared *)attend_memory;
    float *weights = (float *)(attend_memory + sizeof(attend_shared) / sizeof(moe_float4));
    float *q = weights + QUERIES * WEIGHT_STRIDE;
    query_tile tile = tile_of_block(job, blockIdx.x);
    MOE_BEGIN_EARLY();
    MOE_WAIT_FOR_STREAM();
    if (job.split && !sees_part(job, tile, job.first_part + blockIdx.z))
        return;
    load_queries<QUERIES>(job, tile, q, shared);
    __syncthreads();
    uint32_t n_visible = 0;
    uint32_t first = UINT32_MAX;
    for (uint32_t r = 0; r < tile.n_rows; r++) {
        uint32_t n = shared->n_visible[r * tile.heads];
        n_visible = n > n_visible ? n : n_visible;
        first = smaller(first, shared->first[r * tile.heads]);
    }
    first /= MOE_KV_PAGE;
    uint32_t page = job.split ? job.first_part + blockIdx.z : first;
    uint32_t end = job.split ? page + 1 : n_visible;
    for (; page < end && page * MOE_KV_PAGE < n_visible; page++) {
        uint32_t step = page_is_common(job, tile, page) ? tile.n_rows : 1;
        for (uint32_t r = 0; r < tile.n_rows; r += step)
            attend_turn<TYPE, QUERIES>(job, tile, page, r, r + step, q, weights, shared);
    }
}

static_assert(sizeof(attend_shared) % sizeof(moe_float4) == 0, "what follows is aligned");

static size_t shared_bytes(uint32_t queries, uint32_t q_stride)
{
    return sizeof(attend_shared) + queries * (WEIGHT_STRIDE + q_stride) * sizeof(float);
}

template <int TYPE, int QUERIES>
static void launch_attend(moe_cuda_stream stream, const moe_attend_job &job, uint32_t n_waved)
{
    uint32_t tiles = (job.group + job.tile_heads - 1) / job.tile_heads;
    dim3 grid((job.n_rows + job.tile_rows - 1) / job.tile_rows, job.layout.n_head_kv * tiles,
              n_waved);
    MOE_LAUNCH_EARLY((moe_attend<TYPE, QUERIES>), grid, ATTEND_THREADS,
                     shared_bytes(QUERIES, job.q_stride), stream, job);
}

template <int TYPE>
static void launch_type(moe_cuda_stream stream, const moe_attend_job &job, uint32_t n_waved)
{
    uint32_t queries = job.tile_heads * job.tile_rows;
    if (queries == 1)
        launch_attend<TYPE, 1>(stream, job, n_waved);
    else if (queries <= 4)
        launch_attend<TYPE, 4>(stream, job, n_waved);
    else if (queries <= 8)
        launch_attend<TYPE, 8>(stream, job, n_waved);
    else
        launch_attend<TYPE, 16>(stream, job, n_waved);
}

static void launch_any(moe_cuda_stream stream, const moe_attend_job &job, uint32_t n_waved)
{
    if (job.layout.type == MOE_KV_F16)
        launch_type<MOE_KV_F16>(stream, job, n_waved);
    else if (job.layout.type == MOE_KV_F32)
        launch_type<MOE_KV_F32>(stream, job, n_waved);
    else
        launch_type<MOE_KV_Q8_0>(stream, job, n_waved);
}

/* As moe_kv_row_bytes(), which CUDA code does not link. */
static uint32_t bytes_of(int type, uint32_t n)
{
    return type == MOE_KV_Q8_0 ? n / MOE_KV_Q8_BLOCK * MOE_KV_Q8_BYTES
                               : n * (type == MOE_KV_F32 ? 4 : 2);
}

/* Whether four elements of every key and value are one aligned word. Pages are 64-aligned. */
static bool rows_are_wide(const moe_kv_layout *layout)
{
    size_t word = layout->type == MOE_KV_F32 ? 16 : 8;
    return (layout->k_row_bytes | layout->v_row_bytes | layout->k_offset | layout->v_offset) %
               word ==
           0;
}

/* Chooses how many heads and rows a block takes: as many of those that share pages as fit shared
 * memory. */
static void choose_tile(const moe_cuda_attention *attention, moe_attend_job *job)
{
    uint32_t limit = MAX_QUERIES;
    while (limit > 1 && shared_bytes(limit, job->q_stride) > SHARED_LIMIT)
        limit /= 2;
    uint32_t tiles = (job->group + limit - 1) / limit;
    job->tile_heads = (job->group + tiles - 1) / tiles;
    uint32_t rows = attention->shared_pages ? limit / job->tile_heads : 1;
    job->tile_rows = rows < attention->n_rows ? rows : attention->n_rows;
}

/* The parts that hold the first n positions. */
static uint32_t parts_until(const moe_attend_job *job, uint32_t n)
{
    const uint32_t positions = job->part_pages * MOE_KV_PAGE;
    return (n + positions - 1) / positions;
}

/* How many blocks one part gives. */
static uint32_t blocks_a_part(const moe_attend_job *job)
{
    uint32_t tiles = (job->group + job->tile_heads - 1) / job->tile_heads;
    return (job->n_rows + job->tile_rows - 1) / job->tile_rows * job->layout.n_head_kv * tiles;
}

/* Divides the workspace between the parts' results and the running state. A wave has as many parts
 * as fit the workspace. */
static void place_parts(const moe_cuda_attention *attention, moe_attend_job *job)
{
    size_t heads = (size_t)job->n_rows * job->n_head;
    size_t floats = moe_cuda_attention_workspace(attention->n_multiprocessors, job->layout.v_dim) /
                    sizeof(float);
    size_t n_parts = (floats - 2 * heads) / (heads * (job->layout.v_dim + 2));
    size_t all = parts_until(job, attention->n_visible) - job->first_part;
    n_parts = n_parts < all ? n_parts : all;
    job->n_parts = (uint32_t)(n_parts < MAX_GRID_Z ? n_parts : MAX_GRID_Z);
    job->state_max = (float *)attention->workspace;
    job->state_sum = job->state_max + heads;
    job->part_max = job->state_sum + heads;
    job->part_sum = job->part_max + heads * job->n_parts;
    job->part_out = job->part_sum + heads * job->n_parts;
}

size_t moe_cuda_attention_workspace(uint32_t n_multiprocessors, uint32_t v_dim)
{
    size_t queries = (size_t)n_multiprocessors * BLOCKS_A_WAVE * MAX_QUERIES;
    return queries * (v_dim + 4) * sizeof(float);
}

static void launch_form(moe_cuda_stream stream, const moe_attend_job &job, uint32_t n_waved)
{
    if (job.binary)
        moe_launch_attend_matrix(stream, &job, n_waved);
    else
        launch_any(stream, job, n_waved);
}

bool moe_cuda_attend(moe_cuda_stream stream, const moe_cuda_attention *attention)
{
    if (attention->n_rows == 0)
        return false;
    moe_attend_job job = {};
    job.layout = attention->layout;
    job.rows = attention->rows;
    job.q = attention->q;
    job.out = attention->out;
    job.n_rows = attention->n_rows;
    job.n_head = attention->n_head;
    job.scale = attention->scale;
    job.cap = attention->cap;
    job.window = attention->window;
    job.chunk = attention->chunk;
    job.sinks = attention->sinks;
    job.row_scales = attention->row_scales;
    job.group = attention->n_head / job.layout.n_head_kv;
    job.q_stride = (job.layout.k_dim + 3) / 4 * 4;
    job.v_bytes = bytes_of(job.layout.type, job.layout.v_dim);
    job.wide = rows_are_wide(&job.layout);
    job.out_q8 = attention->out_q8;
    job.binary = attention->by_matrix && moe_cuda_attends_by_matrix(&job.layout, job.cap);
    job.part_pages = job.binary ? MOE_STRETCH_PAGES : 1;
    if (job.binary)
        moe_choose_matrix_tile(attention, &job);
    else
        choose_tile(attention, &job);
    job.first_part = attention->first_visible / (job.part_pages * MOE_KV_PAGE);
    const uint32_t few =
        job.binary ? attention->n_multiprocessors / 2 : FEW_BLOCKS * attention->n_multiprocessors;
    job.split = attention->workspace != NULL &&
                attention->n_visible - attention->first_visible > job.part_pages * MOE_KV_PAGE &&
                blocks_a_part(&job) < few;
    if (!job.split) {
        launch_form(stream, job, 1);
        return false;
    }
    const uint32_t end = parts_until(&job, attention->n_visible);
    place_parts(attention, &job);
    for (; job.first_part < end; job.first_part += job.n_parts) {
        uint32_t left = end - job.first_part;
        launch_form(stream, job, left < job.n_parts ? left : job.n_parts);
        moe_launch_attend_fold(stream, &job);
    }
    return job.out_q8.q != NULL;
}
