/* SPDX-License-Identifier: MIT */
/* Several residual streams: moe_stream_read, moe_stream_write and moe_stream_match of
 * runtime/device/row_ops.h.
 *
 * Reading takes two launches. In the first one a block turns a row's products into weights, in
 * shared memory. In the second one each thread sums up one column. Attention to streams takes a
 * launch more, which computes the scores: a block takes one stream of one row, and the two halves
 * of its first warp sum up a product each, as sixteen lanes.
 *
 * Writing is one launch: a thread loads one column of all streams into registers, so mixing them
 * needs no copy. */
#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

#define THREADS      256u
#define MOST_STREAMS 16u
#define MOST_WEIGHTS (2 * MOST_STREAMS + MOST_STREAMS * MOST_STREAMS)
#define DOT_PIECE    2048u /* floats; a multiple of MOE_LANES and of THREADS */
#define LEAST_MATCH  1e-6f

/* In kernels with a thread for each column, a block is (row, part of the row). */
__device__ static inline uint32_t column(void)
{
    return blockIdx.y * blockDim.x + threadIdx.x;
}

/* ---- Weights ---- */

/* Divides n weights, `step` apart, by their sum. */
__device__ static inline void divide_by_sum(float *w, uint32_t n, uint32_t step, float eps)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        sum += w[i * step];
    sum += eps;
    for (uint32_t i = 0; i < n; i++)
        w[i * step] = w[i * step] / sum;
}

/* Turns products into weights for mixing, a thread for each row or column. w: [from][to] */
__device__ static inline void weigh_mixing(float *w, uint32_t n, uint32_t mixings, float eps)
{
    const uint32_t own = threadIdx.x;
    if (own < n) {
        float *row = w + own * n;
        float max = row[0];
        for (uint32_t i = 1; i < n; i++)
            max = moe_greater(row[i], max);
        for (uint32_t i = 0; i < n; i++)
            row[i] = moe_device_exp(row[i] - max);
        divide_by_sum(row, n, 1, 0.0f);
        for (uint32_t i = 0; i < n; i++)
            row[i] += eps;
    }
    for (uint32_t m = 0; m < mixings; m++) {
        if (m > 0 && own < n)
            divide_by_sum(w + own * n, n, 1, eps);
        __syncthreads();
        if (own < n)
            divide_by_sum(w + own, n, n, eps);
        __syncthreads();
    }
}

/* Computes one weight, of the sum or of stream_write(). part: 0 or 1; t: in. */
__device__ static inline float weight_of(const moe_stream_read &r, uint32_t part, float t)
{
    float s = moe_device_sigmoid(t);
    return part == 0 ? s + r.eps : fmaf(r.magnitude, s, r.write_eps);
}

/* A block, of one warp, takes a row. */
__global__ __launch_bounds__(MOE_WARP) void moe_weigh_streams(moe_stream_read r)
{
    __shared__ float w[MOST_WEIGHTS];
    __shared__ float scratch[MOE_WARP + 1];
    float *weights = r.weights + (size_t)blockIdx.x * r.n_weights;
    const uint32_t n = r.n_streams;
    const uint32_t n_weights = r.score != NULL ? n : r.n_weights;
    const uint32_t n_sums = n_weights == n ? n : 2 * n;
    for (uint32_t i = threadIdx.x; i < n_weights; i += MOE_WARP) {
        const uint32_t part = i / n < 2 ? i / n : 2;
        float t = weights[i];
        if (r.gates != NULL)
            t = r.magnitude * moe_device_sigmoid(1.0f / (float)n * t);
        else if (r.score == NULL)
            t = fmaf(t, r.scale[part], r.base[i]);
        w[i] = r.gates == NULL && r.score == NULL && i < n_sums ? weight_of(r, part, t) : t;
    }
    __syncthreads();
    if (r.score != NULL)
        moe_block_softmax(w, n, scratch);
    else if (r.mixings > 0)
        weigh_mixing(w + n_sums, n, r.mixings, r.eps);
    for (uint32_t i = threadIdx.x; i < n_weights; i += MOE_WARP)
        weights[i] = w[i];
}

/* ---- Products of long vectors ---- */

typedef struct dot_shared {
    float a[DOT_PIECE], b[DOT_PIECE];
    float results[2]; /* a . a and a . b */
} dot_shared;

/* Computes dot() of vector_ops.h of a with itself and with b; both are n long. All threads of the
 * block call it, and all see the results. */
__device__ static inline void dot_twice(const float *a, const float *b, uint32_t n,
                                        dot_shared *shared)
{
    float lane = 0.0f;
    for (uint32_t first = 0; first < n; first += DOT_PIECE) {
        const uint32_t count = n - first < DOT_PIECE ? n - first : DOT_PIECE;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
            shared->a[i] = a[first + i];
            shared->b[i] = b[first + i];
        }
        __syncthreads();
        if (threadIdx.x < MOE_WARP) {
            const float *with = threadIdx.x < MOE_LANES ? shared->a : shared->b;
#pragma unroll 8
            for (uint32_t i = threadIdx.x % MOE_LANES; i < count; i += MOE_LANES)
                lane = fmaf(shared->a[i], with[i], lane);
        }
    }
    if (threadIdx.x < MOE_WARP) {
        lane = moe_lanes_sum(lane);
        if (threadIdx.x % MOE_LANES == 0)
            shared->results[threadIdx.x / MOE_LANES] = lane;
    }
    __syncthreads();
}

/* Blocks: (row, stream). */
__global__ __launch_bounds__(THREADS) void moe_score_streams(moe_stream_read r)
{
    __shared__ dot_shared shared;
    const float *x = r.x + ((size_t)blockIdx.x * r.n_stored + blockIdx.y) * r.n;
    dot_twice(x, r.score, r.n, &shared);
    if (threadIdx.x == 0) {
        const float inverse = 1.0f / sqrtf(shared.results[0] / (float)r.n + r.eps);
        r.weights[(size_t)blockIdx.x * r.n_weights + blockIdx.y] = shared.results[1] * inverse;
    }
}

/* Blocks: (row, stream). */
__global__ __launch_bounds__(THREADS) void moe_match_streams(moe_stream_match m)
{
    __shared__ dot_shared shared;
    const size_t at = ((size_t)blockIdx.x * m.n_streams + blockIdx.y) * m.n;
    const float *values = m.values + (size_t)blockIdx.x * m.n;
    float *keys = m.keys + at;
    dot_twice(keys, m.queries + at, m.n, &shared);
    const float s = shared.results[1] * (1.0f / sqrtf((float)m.n));
    const float size = fabsf(s) < LEAST_MATCH ? LEAST_MATCH : fabsf(s);
    const float root = sqrtf(size);
    const float gate = moe_device_sigmoid(s == 0.0f ? 0.0f : s < 0.0f ? -root : root);
    for (uint32_t i = threadIdx.x; i < m.n; i += THREADS)
        keys[i] = gate * values[i];
}

/* ---- Sums ---- */

__global__ __launch_bounds__(THREADS) void moe_sum_streams(moe_stream_read r)
{
    const uint32_t i = column();
    if (i >= r.n)
        return;
    const float *x = r.x + (size_t)blockIdx.x * r.n_stored * r.n + i;
    const float *weights = r.weights + (size_t)blockIdx.x * r.n_weights;
    float y = 0.0f;
#pragma unroll 4
    for (uint32_t s = 0; s < r.n_streams; s++)
        y = fmaf(weights[s], x[(size_t)s * r.n], y);
    r.y[(size_t)blockIdx.x * r.n + i] = y;
}

__global__ __launch_bounds__(THREADS) void moe_sum_gated_streams(moe_stream_read r)
{
    const uint32_t i = column();
    if (i >= r.n)
        return;
    const size_t first = (size_t)blockIdx.x * r.n_streams * r.n + i;
    float y = moe_device_sigmoid(r.gates[first]) * r.x[first];
    for (uint32_t s = 1; s < r.n_streams; s++) {
        const size_t at = first + (size_t)s * r.n;
        y = y + moe_device_sigmoid(r.gates[at]) * r.x[at];
    }
    r.y[(size_t)blockIdx.x * r.n + i] = 1.0f / (float)r.n_streams * y;
}

/* ---- Writing ---- */

/* MOST: how many streams there are at most. */
template <int MOST> __global__ __launch_bounds__(THREADS) void moe_write_streams(moe_stream_write w)
{
    MOE_DYNAMIC_SHARED(float, weights);
    const uint32_t n = w.n_streams;
    const uint32_t n_weights = w.mixes ? n + n * n : n;
    for (uint32_t i = threadIdx.x; i < n_weights; i += blockDim.x)
        weights[i] = w.weights[blockIdx.x * w.weights_stride + i];
    __syncthreads();
    const uint32_t i = column();
    if (i >= w.n)
        return;
    float *x = w.x + (size_t)blockIdx.x * n * w.n + i;
    const float branch = w.branch[(size_t)blockIdx.x * w.n + i];
    float from[MOST];
#pragma unroll
    for (uint32_t s = 0; s < MOST; s++)
        from[s] = s < n ? x[(size_t)s * w.n] : 0.0f;
#pragma unroll
    for (uint32_t to = 0; to < MOST; to++) {
        if (to >= n)
            break;
        float sum = from[to];
        if (w.mixes) {
            sum = 0.0f;
#pragma unroll
            for (uint32_t s = 0; s < MOST; s++)
                if (s < n)
                    sum = fmaf(weights[n + s * n + to], from[s], sum);
        }
        x[(size_t)to * w.n] = fmaf(weights[to], branch, sum);
    }
}

__global__ __launch_bounds__(THREADS) void moe_begin_stream(moe_stream_write w)
{
    const uint32_t i = column();
    if (i >= w.n)
        return;
    float *x = w.x + (size_t)blockIdx.x * w.n_streams * w.n + i;
    const float branch = w.branch[(size_t)blockIdx.x * w.n + i];
    if (w.begins > 0) {
        x[(size_t)w.begins * w.n] = x[0];
        x[0] = branch;
    } else {
        x[0] = x[0] + branch;
    }
}

/* ---- Launches ---- */

static dim3 columns_of(uint32_t n_rows, uint32_t n)
{
    return dim3(n_rows, (n + THREADS - 1) / THREADS);
}

static uint32_t threads_of(uint32_t n)
{
    return n < THREADS ? (n + MOE_WARP - 1) / MOE_WARP * MOE_WARP : THREADS;
}

void moe_cuda_stream_read(moe_cuda_stream stream, const moe_stream_read *read, uint32_t n_rows)
{
    moe_stream_read r = *read;
    if (n_rows == 0)
        return;
    r.n_stored = r.n_stored > 0 ? r.n_stored : r.n_streams;
    if (r.score != NULL)
        MOE_LAUNCH(moe_score_streams, dim3(n_rows, r.n_streams), THREADS, 0, stream, r);
    if (r.n_weights > 0)
        MOE_LAUNCH(moe_weigh_streams, n_rows, MOE_WARP, 0, stream, r);
    if (r.gates != NULL)
        MOE_LAUNCH(moe_sum_gated_streams, columns_of(n_rows, r.n), threads_of(r.n), 0, stream, r);
    else
        MOE_LAUNCH(moe_sum_streams, columns_of(n_rows, r.n), threads_of(r.n), 0, stream, r);
}

void moe_cuda_stream_write(moe_cuda_stream stream, const moe_stream_write *write, uint32_t n_rows)
{
    const moe_stream_write &w = *write;
    const size_t weights_bytes = w.n_streams * (1 + w.n_streams) * sizeof(float);
    if (n_rows == 0)
        return;
    if (w.weights == NULL)
        MOE_LAUNCH(moe_begin_stream, columns_of(n_rows, w.n), threads_of(w.n), 0, stream, w);
    else if (w.n_streams <= 4)
        MOE_LAUNCH(moe_write_streams<4>, columns_of(n_rows, w.n), threads_of(w.n), weights_bytes,
                   stream, w);
    else
        MOE_LAUNCH(moe_write_streams<MOST_STREAMS>, columns_of(n_rows, w.n), threads_of(w.n),
                   weights_bytes, stream, w);
}

void moe_cuda_stream_match(moe_cuda_stream stream, const moe_stream_match *match, uint32_t n_rows)
{
    if (n_rows > 0)
        MOE_LAUNCH(moe_match_streams, dim3(n_rows, match->n_streams), THREADS, 0, stream, *match);
}
