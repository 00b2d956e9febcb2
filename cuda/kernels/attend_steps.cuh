/* SPDX-License-Identifier: MIT */
/* The three steps of attend_rows.cu for a page: scores, weights, values. */
#ifndef MOE_CUDA_ATTEND_STEPS_CUH
#define MOE_CUDA_ATTEND_STEPS_CUH

#include "cuda/kernels/attend.cuh"
#include "cuda/kernels/kv_cells.cuh"

#define ATTEND_THREADS 256u
#define SCORE_THREADS  4u /* threads that share a position */
/* Floats from one query's weights to the next. The weights are padded, because a warp's writes
 * would otherwise meet in the same banks. */
#define WEIGHT_STRIDE (MOE_KV_PAGE + 8)
#define MAX_QUERIES   16u

/* Shared memory of a block, in this order. */
typedef struct attend_shared {
    const uint8_t *values[MOE_KV_PAGE]; /* each position's row of values */
    float max[MAX_QUERIES];             /* the maximum over the pages so far */
    float sum[MAX_QUERIES];
    float keep[MAX_QUERIES]; /* factor of the earlier pages' result */
    float take[MAX_QUERIES]; /* factor of this page's result */
    float *out[MAX_QUERIES]; /* where the query's result goes */
    /* The query attends to positions begin .. end of the page in this turn; none if both are 0. */
    uint32_t begin[MAX_QUERIES];
    uint32_t end[MAX_QUERIES];
    uint32_t first[MAX_QUERIES];     /* the query sees positions first .. n_visible in all pages */
    uint32_t n_visible[MAX_QUERIES]; /* 0: there is no such query */
    float scale[MAX_QUERIES];        /* factor of the scores */
} attend_shared;

/* Multiplies this thread's four elements (4 * part ..) of each whole run of sixteen, then its share
 * of the last, shorter run. */
template <int TYPE, int QUERIES>
__device__ static inline void score_lanes(const uint8_t *key, const float *q, uint32_t q_stride,
                                          uint32_t dim, uint32_t part, bool wide,
                                          float lanes[QUERIES][4])
{
    uint32_t whole = dim / MOE_LANES * MOE_LANES;
#pragma unroll(QUERIES > 8 ? 2 : 4)
    for (uint32_t first = 0; first < whole; first += MOE_LANES) {
        uint32_t i = first + 4 * part;
        float k[4];
        moe_kv_load<TYPE, 4>(key, i, wide, k);
#pragma unroll
        for (int n = 0; n < QUERIES; n++) {
            moe_float4 four = *(const moe_float4 *)(q + n * q_stride + i);
#pragma unroll
            for (int e = 0; e < 4; e++)
                lanes[n][e] = fmaf(four.v[e], k[e], lanes[n][e]);
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        uint32_t i = whole + 4 * part + e;
        if (i < dim) {
            float k = moe_kv_load1<TYPE>(key, i);
#pragma unroll
            for (int n = 0; n < QUERIES; n++)
                lanes[n][e] = fmaf(q[n * q_stride + i], k, lanes[n][e]);
        }
    }
}

/* One step of the sum over lanes, between two threads. If there are several queries, each thread of
 * the pair goes on with half of them. A sum of two lanes has the same bits on either thread. */
template <int QUERIES>
__device__ static inline void fold_pair(float lanes[][4], int distance, bool upper)
{
#pragma unroll
    for (int n = 0; n < (QUERIES + 1) / 2; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float low = lanes[n][e];
            float high = lanes[QUERIES > 1 ? n + QUERIES / 2 : n][e];
            float mine = upper ? high : low;
            float other = upper ? low : high;
            lanes[n][e] = mine + __shfl_xor_sync(MOE_ALL_WARP, other, distance);
        }
    }
}

/* Computes the scores of this thread's position: scores[query * WEIGHT_STRIDE + position]. */
template <int TYPE, int QUERIES>
__device__ static inline void score_page(const moe_attend_job &job, const attend_shared *shared,
                                         const uint8_t *key, const float *q, float *scores)
{
    uint32_t part = threadIdx.x % SCORE_THREADS;
    uint32_t position = threadIdx.x / SCORE_THREADS;
    float lanes[QUERIES][4];
#pragma unroll
    for (int n = 0; n < QUERIES; n++)
        lanes[n][0] = lanes[n][1] = lanes[n][2] = lanes[n][3] = 0.0f;
    if (key != NULL)
        score_lanes<TYPE, QUERIES>(key, q, job.q_stride, job.layout.k_dim, part, job.wide, lanes);
    fold_pair<QUERIES>(lanes, 2, part & 2);
    fold_pair<(QUERIES + 1) / 2>(lanes, 1, part & 1);
    uint32_t first = QUERIES > 1 ? (part >> 1) * (QUERIES / 2) + (part & 1) * (QUERIES / 4) : 0;
    if (key == NULL || (QUERIES == 1 && part > 0))
        return;
#pragma unroll
    for (int n = 0; n < (QUERIES + 3) / 4; n++) {
        float dot = (lanes[n][0] + lanes[n][2]) + (lanes[n][1] + lanes[n][3]);
        float score = shared->scale[first + n] * dot;
        if (job.cap != 0.0f)
            score = job.cap * moe_device_tanh(score / job.cap);
        scores[(first + n) * WEIGHT_STRIDE + position] = score;
    }
}

/* Turns scores into weights, and computes the factors of this page and of the pages before it. */
__device__ static inline void weigh_page(const moe_attend_job &job, const query_tile &tile,
                                         uint32_t page, float *weights, attend_shared *shared)
{
    uint32_t query = threadIdx.x / MOE_LANES;
    uint32_t lane = threadIdx.x % MOE_LANES;
    uint32_t n = shared->end[query] - shared->begin[query];
    weights += query * WEIGHT_STRIDE + shared->begin[query];
    float max = -MOE_INFINITY;
    for (uint32_t j = lane; j < n; j += MOE_LANES)
        max = moe_greater(weights[j], max);
    max = moe_lanes_max(max) + 0.0f;
    float sum = 0.0f;
    for (uint32_t j = lane; j < n; j += MOE_LANES) {
        float weight = moe_device_exp(weights[j] - max);
        weights[j] = weight;
        sum += weight;
    }
    sum = moe_lanes_sum(sum);
    if (lane > 0 || n == 0)
        return;
    if (job.split) {
        size_t part = moe_attend_part(job, tile.first_row + query / tile.heads,
                                      tile.first_head + query % tile.heads, page - job.first_part);
        job.part_max[part] = max;
        job.part_sum[part] = sum;
        return;
    }
    float before = shared->max[query];
    float to = moe_greater(max, before);
    shared->keep[query] = moe_fold_factor(before, to);
    shared->take[query] = moe_fold_factor(max, to);
    shared->max[query] = to;
    shared->sum[query] = fmaf(shared->sum[query], shared->keep[query], sum * shared->take[query]);
}

/* Adds positions from .. to one by one, each only for the queries that attend to it. A position to
 * which no query attends may have no place in memory. */
template <int TYPE, int COUNT>
__device__ static inline void weigh_some(const attend_shared *shared, const float *weights,
                                         uint32_t first, uint32_t column, bool two, uint32_t from,
                                         uint32_t to, float acc[COUNT][2])
{
    for (uint32_t j = from; j < to; j++) {
        bool seen = false;
#pragma unroll
        for (int n = 0; n < COUNT; n++)
            seen = seen || (j >= shared->begin[first + n] && j < shared->end[first + n]);
        if (!seen)
            continue;
        float left = moe_kv_load1<TYPE>(shared->values[j], column);
        float right = two ? moe_kv_load1<TYPE>(shared->values[j], column + 1) : 0.0f;
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            if (j >= shared->begin[first + n] && j < shared->end[first + n]) {
                acc[n][0] = fmaf(weights[n * WEIGHT_STRIDE + j], left, acc[n][0]);
                acc[n][1] = fmaf(weights[n * WEIGHT_STRIDE + j], right, acc[n][1]);
            }
        }
    }
}

/* Sums the weighted values in two columns, `column` and the next, for queries first .. first +
 * COUNT. */
template <int TYPE, int COUNT>
__device__ static inline void weigh_values(const moe_attend_job &job, const attend_shared *shared,
                                           const float *weights, uint32_t first, uint32_t column,
                                           float acc[COUNT][2])
{
    uint32_t lowest = MOE_KV_PAGE; /* least and greatest of the queries' begins and ends */
    uint32_t low = 0;
    uint32_t least = MOE_KV_PAGE;
    uint32_t most = 0;
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        uint32_t begin = shared->begin[first + n];
        uint32_t end = shared->end[first + n];
        lowest = smaller(lowest, begin);
        low = low > begin ? low : begin;
        least = smaller(least, end);
        most = most > end ? most : end;
        acc[n][0] = acc[n][1] = 0.0f;
    }
    constexpr uint32_t RUN = 8; /* positions loaded before the first is used */
    bool two = column + 1 < job.layout.v_dim;
    weights += first * WEIGHT_STRIDE;
    /* From here to `least` all queries attend: loads weights four at a time. */
    low = smaller((low + 3) / 4 * 4, most);
    weigh_some<TYPE, COUNT>(shared, weights, first, column, two, lowest, low, acc);
    uint32_t j = low;
    for (; two && j + RUN <= least; j += RUN) {
        float v[RUN][2];
#pragma unroll
        for (uint32_t i = 0; i < RUN; i++)
            moe_kv_load<TYPE, 2>(shared->values[j + i], column, job.wide, v[i]);
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
#pragma unroll
            for (uint32_t i = 0; i < RUN; i++) {
                moe_float4 four =
                    *(const moe_float4 *)(weights + n * WEIGHT_STRIDE + j + i / 4 * 4);
                acc[n][0] = fmaf(four.v[i % 4], v[i][0], acc[n][0]);
                acc[n][1] = fmaf(four.v[i % 4], v[i][1], acc[n][1]);
            }
        }
    }
    weigh_some<TYPE, COUNT>(shared, weights, first, column, two, j, most, acc);
}

/* Stores two columns of a page's result for one query: in the page's part, or folded into the
 * output. */
__device__ static inline void deliver(const moe_attend_job &job, const attend_shared *shared,
                                      uint32_t query, uint32_t page, uint32_t column,
                                      const float acc[2])
{
    uint32_t count = smaller(job.layout.v_dim - column, 2);
    float *out = shared->out[query] + column;
    bool last = (page + 1) * MOE_KV_PAGE >= shared->n_visible[query];
    float scale = last ? 1.0f / shared->sum[query] : 1.0f;
    for (uint32_t c = 0; c < count; c++) {
        if (job.split) {
            out[c] = acc[c];
            continue;
        }
        float before = page == shared->first[query] / MOE_KV_PAGE ? 0.0f : out[c];
        float folded = fmaf(before, shared->keep[query], acc[c] * shared->take[query]);
        out[c] = last ? scale * folded : folded;
    }
}

/* The third step, for all columns and queries. Columns run along a warp's threads; if there are
 * fewer columns than threads, groups of threads share the queries. */
template <int TYPE, int QUERIES>
__device__ static inline void values_page(const moe_attend_job &job, const attend_shared *shared,
                                          uint32_t page, const float *weights)
{
    constexpr int COUNT = QUERIES > 4 ? QUERIES / 4 : 1;
    uint32_t pairs = (job.layout.v_dim + 1) / 2;
    uint32_t lanes = smaller((pairs + MOE_WARP - 1) / MOE_WARP * MOE_WARP, ATTEND_THREADS);
    uint32_t groups = ATTEND_THREADS / lanes;
    uint32_t group = threadIdx.x / lanes;
    if (group >= groups)
        return;
    for (uint32_t pair = threadIdx.x % lanes; pair < pairs; pair += lanes) {
        for (uint32_t first = group * COUNT; first < QUERIES; first += groups * COUNT) {
            float acc[COUNT][2];
            weigh_values<TYPE, COUNT>(job, shared, weights, first, 2 * pair, acc);
#pragma unroll
            for (int n = 0; n < COUNT; n++)
                if (shared->end[first + n] > 0)
                    deliver(job, shared, first + n, page, 2 * pair, acc[n]);
        }
    }
}

#endif
