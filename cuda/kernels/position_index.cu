/* SPDX-License-Identifier: MIT */
/* Positions that an indexer chooses: moe_position_choice of runtime/device/device.h.
 *
 * There are two launches. In the first launch a block takes a page of 64 positions for one row,
 * with their index keys in shared memory. Each thread takes one position, four heads at a time.
 * Products are those of linear() with a matrix of floats: sixteen lanes in the order of
 * cpu/kernels/matmul.h. In the second launch a block takes a row. By counting it finds the lowest
 * chosen score byte by byte, from the highest byte down. Then each warp writes the chosen positions
 * of its stretch, in order.
 *
 * Some indexers choose blocks of positions. Then a block of the first launch takes one block of
 * positions, 64 positions at a time, and a block of the second launch takes one head of a row. */
#include "cuda/kernels/kv_cells.cuh"
#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

#define SCORE_THREADS  64u
#define SCORE_HEADS    4u
#define CHOOSE_THREADS 512u
#define CHOOSE_WARPS   (CHOOSE_THREADS / MOE_WARP)
#define BYTES          256u

static_assert(SCORE_THREADS == MOE_KV_PAGE, "a block takes a page of logical positions");

typedef struct score_job {
    moe_kv_layout layout;
    const moe_cuda_kv_row *rows; /* [n_rows] */
    const float *queries;        /* [n_rows][n_head][dim] */
    const float *weights;        /* [n_rows][n_head] */
    size_t key_offset;
    uint32_t n_head, dim;
    uint32_t n_chosen;
    uint32_t n_positions;    /* of a row of scores; if blocks or pools are chosen: how many */
    uint32_t block, n_local; /* of moe_position_choice */
    uint32_t pool;           /* positions for each index key */
    float *scores;           /* [n_rows][n_positions], with blocks [n_rows][n_head][n_positions] */
} score_job;

__device__ static inline bool is_choosing(const moe_cuda_kv_row &row, uint32_t n_chosen,
                                          uint32_t pool)
{
    return row.position + 1 >= n_chosen + pool;
}

__device__ static inline uint32_t stored_at(const moe_cuda_kv_row &row, uint32_t position)
{
    return row.path != NULL && position >= row.path_first ? row.path[position - row.path_first]
                                                          : position;
}

/* Loads the row's index keys from number `first` on. keys: [SCORE_THREADS][stride]. */
template <int TYPE>
__device__ static inline void load_keys(const score_job &job, const moe_cuda_kv_row &row,
                                        uint32_t first, uint32_t stride, float *keys)
{
    for (uint32_t p = 0; p < SCORE_THREADS && (first + p + 1) * job.pool <= row.position + 1; p++) {
        uint32_t stored = stored_at(row, (first + p + 1) * job.pool - 1);
        const uint8_t *page = moe_kv_page_of(job.layout, row.pages, stored);
        const uint8_t *key = page + job.layout.k_offset +
                             (size_t)(stored % MOE_KV_PAGE) * job.layout.k_row_bytes +
                             job.key_offset;
        for (uint32_t i = threadIdx.x; i < job.dim; i += SCORE_THREADS)
            keys[p * stride + i] = moe_kv_load1<TYPE>(key, i);
    }
}

/* Multiplies one key with SCORE_HEADS queries. */
__device__ static inline void multiply(const float *key, const float *queries, uint32_t dim,
                                       float *products)
{
    float lanes[SCORE_HEADS][MOE_LANES] = {};
    for (uint32_t i = 0; i < dim; i += MOE_LANES) {
#pragma unroll
        for (uint32_t l = 0; l < MOE_LANES; l++) {
            if (i + l >= dim)
                break;
            float x = key[i + l];
#pragma unroll
            for (uint32_t h = 0; h < SCORE_HEADS; h++)
                lanes[h][l] = fmaf(x, queries[h * dim + i + l], lanes[h][l]);
        }
    }
#pragma unroll
    for (uint32_t h = 0; h < SCORE_HEADS; h++) {
#pragma unroll
        for (uint32_t half = MOE_LANES / 2; half > 0; half /= 2) {
#pragma unroll
            for (uint32_t l = 0; l < half; l++)
                lanes[h][l] += lanes[h][l + half];
        }
        products[h] = lanes[h][0];
    }
}

/* Blocks: (64 index keys, row). */
template <int TYPE>
__global__ __launch_bounds__(SCORE_THREADS) void moe_score_positions(score_job job)
{
    MOE_DYNAMIC_SHARED(float, score_memory);
    const moe_cuda_kv_row &row = job.rows[blockIdx.y];
    uint32_t first = blockIdx.x * SCORE_THREADS;
    uint32_t n_keys = (row.position + 1) / job.pool;
    if (!is_choosing(row, job.n_chosen, job.pool) || first >= n_keys)
        return;
    uint32_t stride = job.dim | 1; /* odd: neighbouring keys begin in different banks */
    float *keys = score_memory;
    float *queries = keys + SCORE_THREADS * stride;
    const float *from = job.queries + (size_t)blockIdx.y * job.n_head * job.dim;
    const float *weights =
        job.weights != NULL ? job.weights + (size_t)blockIdx.y * job.n_head : NULL;
    bool valid = first + threadIdx.x < n_keys;
    float score = 0.0f;
    load_keys<TYPE>(job, row, first, stride, keys);
    for (uint32_t head = 0; head < job.n_head; head += SCORE_HEADS) {
        uint32_t heads = job.n_head - head < SCORE_HEADS ? job.n_head - head : SCORE_HEADS;
        float products[SCORE_HEADS];
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < SCORE_HEADS * job.dim; i += SCORE_THREADS)
            queries[i] = i < heads * job.dim ? from[head * job.dim + i] : 0.0f;
        __syncthreads();
        if (!valid)
            continue;
        multiply(keys + threadIdx.x * stride, queries, job.dim, products);
#pragma unroll
        for (uint32_t h = 0; h < SCORE_HEADS; h++) {
            if (h < heads)
                score = fmaf(weights != NULL ? weights[head + h] : 1.0f,
                             products[h] > 0.0f ? products[h] : 0.0f, score);
        }
    }
    if (valid)
        job.scores[(size_t)blockIdx.y * job.n_positions + first + threadIdx.x] = score;
}

/* The higher of two values; NaN if one of them is NaN. */
__device__ static inline float higher(float a, float b)
{
    return b > a || b != b ? b : a;
}

/* The highest of the threads' values, in scratch[0]. scratch: [SCORE_THREADS] */
__device__ static inline void reduce_highest(float value, float *scratch)
{
    __syncthreads();
    scratch[threadIdx.x] = value;
    for (uint32_t half = SCORE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            scratch[threadIdx.x] = higher(scratch[threadIdx.x], scratch[threadIdx.x + half]);
    }
    __syncthreads();
}

/* Blocks: (block of positions, row). */
template <int TYPE> __global__ __launch_bounds__(SCORE_THREADS) void moe_score_blocks(score_job job)
{
    MOE_DYNAMIC_SHARED(float, score_memory);
    const moe_cuda_kv_row &row = job.rows[blockIdx.y];
    const uint32_t begin = blockIdx.x * job.block;
    if (!is_choosing(row, job.n_chosen, job.pool) || begin > row.position)
        return;
    const bool local = row.position / job.block - blockIdx.x < job.n_local;
    const uint32_t after =
        row.position + 1 - begin < job.block ? row.position + 1 - begin : job.block;
    const uint32_t stride = job.dim | 1;
    float *keys = score_memory;
    float *queries = keys + SCORE_THREADS * stride;
    float *scratch = queries + SCORE_HEADS * job.dim; /* [SCORE_THREADS] */
    const float *from = job.queries + (size_t)blockIdx.y * job.n_head * job.dim;
    float *scores = job.scores + (size_t)blockIdx.y * job.n_head * job.n_positions + blockIdx.x;
    for (uint32_t head = 0; head < job.n_head; head += SCORE_HEADS) {
        const uint32_t heads = job.n_head - head < SCORE_HEADS ? job.n_head - head : SCORE_HEADS;
        float highest[SCORE_HEADS] = {-MOE_INFINITY, -MOE_INFINITY, -MOE_INFINITY, -MOE_INFINITY};
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < SCORE_HEADS * job.dim; i += SCORE_THREADS)
            queries[i] = i < heads * job.dim ? from[head * job.dim + i] : 0.0f;
        for (uint32_t first = 0; first < after; first += SCORE_THREADS) {
            float products[SCORE_HEADS];
            __syncthreads();
            load_keys<TYPE>(job, row, begin + first, stride, keys);
            __syncthreads();
            if (first + threadIdx.x >= after)
                continue;
            multiply(keys + threadIdx.x * stride, queries, job.dim, products);
#pragma unroll
            for (uint32_t h = 0; h < SCORE_HEADS; h++)
                highest[h] = higher(highest[h], products[h]);
        }
        for (uint32_t h = 0; h < heads; h++) {
            reduce_highest(highest[h], scratch);
            if (threadIdx.x == 0)
                scores[(size_t)(head + h) * job.n_positions] = local ? MOE_INFINITY : scratch[0];
        }
    }
}

/* ---- Choice: moe_choose_positions() of runtime/pass/position_index.h ---- */

typedef struct choose_shared {
    uint32_t counts[2][BYTES]; /* the two arrays take turns in the scan */
    uint32_t lowest, n_left;
    uint32_t above[CHOOSE_WARPS], equal[CHOOSE_WARPS]; /* of warps before, once scanned */
} choose_shared;

/* An integer that orders like the score: both zeros are equal, and NaNs are lowest. */
__device__ static inline uint32_t order_of(float score)
{
    float x = score + 0.0f;
    uint32_t bits = moe_device_bits_of(x);
    return x != x ? 0 : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/* Finds the byte at `shift` of shared->lowest, when the higher bytes are known. */
__device__ static inline void find_byte(const float *scores, uint32_t n, int shift,
                                        choose_shared *shared)
{
    uint32_t i = threadIdx.x;
    uint32_t lowest = shared->lowest;
    uint32_t n_left = shared->n_left;
    uint32_t mask = shift == 24 ? 0 : UINT32_MAX << (shift + 8);
    if (i < BYTES)
        shared->counts[0][i] = 0;
    __syncthreads();
    for (uint32_t p = i; p < n; p += CHOOSE_THREADS) {
        uint32_t order = order_of(scores[p]);
        if ((order & mask) == lowest)
            atomicAdd(&shared->counts[0][order >> shift & 255], 1u);
    }
    __syncthreads();
    uint32_t turn = 0; /* the scan adds to each byte's count the counts of all greater bytes */
    for (uint32_t distance = 1; distance < BYTES; distance *= 2) {
        if (i < BYTES) {
            uint32_t sum = shared->counts[turn][i];
            if (i + distance < BYTES)
                sum += shared->counts[turn][i + distance];
            shared->counts[turn ^ 1][i] = sum;
        }
        turn ^= 1;
        __syncthreads();
    }
    uint32_t above = i + 1 < BYTES ? shared->counts[turn][i + 1] : 0;
    if (i < BYTES && above < n_left && shared->counts[turn][i] >= n_left) {
        shared->lowest = lowest | i << shift;
        shared->n_left = n_left - above;
    }
    __syncthreads();
}

/* The sum over the lanes before this one; *all: the sum over the whole warp. */
__device__ static inline uint32_t sum_before(uint32_t value, uint32_t *all)
{
    uint32_t before = 0;
    for (uint32_t half = 1; half < MOE_WARP; half *= 2) {
        uint32_t other = __shfl_xor_sync(MOE_ALL_WARP, value, (int)half);
        before += (threadIdx.x & half) != 0 ? other : 0;
        value += other;
    }
    *all = value;
    return before;
}

/* Counts two kinds of scores among the warp's positions begin .. end - 1: those above the lowest
 * chosen score, and those equal to it. */
__device__ static inline void count_stretch(const float *scores, uint32_t begin, uint32_t end,
                                            choose_shared *shared)
{
    uint32_t above = 0;
    uint32_t equal = 0;
    for (uint32_t p = begin + threadIdx.x % MOE_WARP; p < end; p += MOE_WARP) {
        uint32_t order = order_of(scores[p]);
        above += order > shared->lowest;
        equal += order == shared->lowest;
    }
    (void)sum_before(above, &above);
    (void)sum_before(equal, &equal);
    if (threadIdx.x % MOE_WARP == 0) {
        shared->above[threadIdx.x / MOE_WARP] = above;
        shared->equal[threadIdx.x / MOE_WARP] = equal;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        above = equal = 0;
        for (uint32_t w = 0; w < CHOOSE_WARPS; w++) {
            uint32_t own_above = shared->above[w];
            uint32_t own_equal = shared->equal[w];
            shared->above[w] = above;
            shared->equal[w] = equal;
            above += own_above;
            equal += own_equal;
        }
    }
    __syncthreads();
}

/* Writes the stretch's chosen positions. Of the scores that equal the lowest chosen one, the first
 * n_left of the row are chosen. */
__device__ static inline void write_stretch(const moe_cuda_kv_row &row, const float *scores,
                                            uint32_t begin, uint32_t end, uint32_t block,
                                            const choose_shared *shared, uint32_t *chosen)
{
    uint32_t warp = threadIdx.x / MOE_WARP;
    uint32_t above = shared->above[warp];
    uint32_t equal = shared->equal[warp];
    uint32_t n_left = shared->n_left;
    for (uint32_t p0 = begin; p0 < end; p0 += MOE_WARP) {
        uint32_t p = p0 + threadIdx.x % MOE_WARP;
        uint32_t order = p < end ? order_of(scores[p]) : 0;
        bool is_above = p < end && order > shared->lowest;
        bool is_equal = p < end && order == shared->lowest;
        uint32_t all; /* packed: both counts of a warp */
        uint32_t before = sum_before((is_above ? 1u : 0u) | (is_equal ? 1u << 16 : 0u), &all);
        uint32_t n_equal = equal + (before >> 16);
        if (is_above || (is_equal && n_equal < n_left)) {
            const uint32_t at = above + (before & 0xffff) + (n_equal < n_left ? n_equal : n_left);
            for (uint32_t i = 0; i < block && p * block + i <= row.position; i++)
                chosen[(size_t)at * block + i] = stored_at(row, p * block + i);
        }
        above += all & 0xffff;
        equal += all >> 16;
    }
}

/* Adds the positions behind the row's last whole pool. */
__device__ static inline void add_rest(const moe_cuda_kv_row &row, uint32_t n_chosen, uint32_t pool,
                                       uint32_t *chosen)
{
    const uint32_t n_rest = (row.position + 1) % pool;
    if (threadIdx.x < n_rest)
        chosen[n_chosen + threadIdx.x] = stored_at(row, row.position + 1 - n_rest + threadIdx.x);
}

/* Blocks: (row, choosing head). n_positions: the length of a row of scores, in positions or in
 * blocks or pools of positions; head_stride: of `chosen`. */
__global__ __launch_bounds__(CHOOSE_THREADS) void moe_choose_highest(
    const moe_cuda_kv_row *rows, const float *scores, uint32_t n_positions, uint32_t n_chosen,
    uint32_t block, uint32_t pool, size_t head_stride, uint32_t *chosen)
{
    __shared__ choose_shared shared;
    const moe_cuda_kv_row &row = rows[blockIdx.x];
    if (!is_choosing(row, n_chosen, pool))
        return;
    const uint32_t size = block > pool ? block : pool;
    uint32_t n = pool > 1 ? (row.position + 1) / pool : row.position / block + 1;
    scores += ((size_t)blockIdx.x * gridDim.y + blockIdx.y) * n_positions;
    chosen += blockIdx.y * head_stride + (size_t)blockIdx.x * (n_chosen + pool - 1);
    add_rest(row, n_chosen, pool, chosen);
    if (threadIdx.x == 0) {
        shared.lowest = 0;
        shared.n_left = n_chosen / size;
    }
    __syncthreads();
    for (int shift = 24; shift >= 0; shift -= 8)
        find_byte(scores, n, shift, &shared);
    uint32_t stretch = ((n + CHOOSE_WARPS - 1) / CHOOSE_WARPS + MOE_WARP - 1) / MOE_WARP * MOE_WARP;
    uint32_t begin = threadIdx.x / MOE_WARP * stretch;
    begin = begin < n ? begin : n;
    uint32_t end = n - begin < stretch ? n : begin + stretch;
    count_stretch(scores, begin, end, &shared);
    write_stretch(row, scores, begin, end, size, &shared, chosen);
}

template <int TYPE>
static void launch_typed(moe_cuda_stream stream, const score_job &job, uint32_t n_rows)
{
    size_t bytes = (SCORE_THREADS * (job.dim | 1) + SCORE_HEADS * job.dim) * sizeof(float);
    if (job.block > 0) {
        dim3 grid(job.n_positions, n_rows);
        bytes += SCORE_THREADS * sizeof(float);
        MOE_LAUNCH_LARGE(moe_score_blocks<TYPE>, grid, SCORE_THREADS, bytes, stream, job);
    } else {
        dim3 grid((job.n_positions + SCORE_THREADS - 1) / SCORE_THREADS, n_rows);
        MOE_LAUNCH_LARGE(moe_score_positions<TYPE>, grid, SCORE_THREADS, bytes, stream, job);
    }
}

static void launch_scores(moe_cuda_stream stream, const score_job &job, uint32_t n_rows)
{
    if (job.layout.type == MOE_KV_F16)
        launch_typed<MOE_KV_F16>(stream, job, n_rows);
    else if (job.layout.type == MOE_KV_F32)
        launch_typed<MOE_KV_F32>(stream, job, n_rows);
    else
        launch_typed<MOE_KV_Q8_0>(stream, job, n_rows);
}

void moe_cuda_choose(moe_cuda_stream stream, const moe_position_choice *choice,
                     const moe_cuda_kv_row *rows, uint32_t n_rows, uint32_t n_positions)
{
    size_t width = (size_t)choice->n_head * choice->dim;
    const uint32_t block = choice->block > 0 ? choice->block : 1;
    const uint32_t pool = choice->pool > 0 ? choice->pool : 1;
    const uint32_t n_written = choice->n_chosen + pool - 1;        /* of a row */
    const uint32_t heads = choice->block > 0 ? choice->n_head : 1; /* each makes its own choice */
    const uint32_t n_scored = pool > 1 ? n_positions / pool : (n_positions + block - 1) / block;
    size_t room = choice->n_scores / ((size_t)n_scored * heads);
    uint32_t most = room < n_rows ? (uint32_t)room : n_rows;
    for (uint32_t r = 0; r < n_rows; r += most) {
        uint32_t n = n_rows - r < most ? n_rows - r : most;
        score_job job = {choice->layout,
                         rows + r,
                         choice->queries + r * width,
                         block > 1 || choice->weights == NULL
                             ? NULL
                             : choice->weights + (size_t)r * choice->n_head,
                         choice->key_offset,
                         choice->n_head,
                         choice->dim,
                         choice->n_chosen,
                         n_scored,
                         choice->block,
                         choice->n_local,
                         pool,
                         choice->scores};
        launch_scores(stream, job, n);
        dim3 grid(n, heads);
        MOE_LAUNCH(moe_choose_highest, grid, CHOOSE_THREADS, 0, stream, rows + r, choice->scores,
                   n_scored, choice->n_chosen, block, pool, (size_t)n_rows * n_written,
                   choice->chosen + (size_t)r * n_written);
    }
}
