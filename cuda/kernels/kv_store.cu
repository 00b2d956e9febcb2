/* SPDX-License-Identifier: MIT */
/* Writes the KV cache: stores new rows of keys and values in the cache's type (kv_store of
 * vector_ops.h), and moves rows to other places.
 *
 * A warp stores 32 elements of one head. For Q8_0 these are a block; its scale comes from a maximum
 * that shuffles find. */
#include "cuda/kernels/kv_cells.cuh"
#include "cuda/kernels/norm_launch.h"
#include "cuda/kernels/vector_math.cuh"

#define THREADS 128u
#define WARPS   (THREADS / MOE_WARP)

typedef struct store_args {
    moe_kv_layout layout;
    const moe_cuda_kv_row *rows;
    const float *k;
    const float *v;
    size_t k_stride;
    size_t v_stride;
} store_args;

/* Stores element `lane` of a block of 32; a warp stores the whole block. */
__device__ static inline void store_q8(uint8_t *block, float x, uint32_t lane)
{
    uint32_t top = moe_device_bits_of(x) & 0x7fffffffu;
    for (int half = 16; half > 0; half /= 2) {
        uint32_t other = __shfl_xor_sync(MOE_ALL_WARP, top, half);
        top = other > top ? other : top;
    }
    uint16_t half = moe_device_float_to_half(moe_device_float_of(top) / 127.0f);
    bool damaged = (half & 0x7c00u) == 0x7c00u;
    half = damaged ? MOE_KV_Q8_NAN : half;
    float d = moe_device_half_to_float(half);
    float inverse = d > 0.0f ? 1.0f / d : 0.0f;
    float q = rintf(x * inverse);
    q = q > 127.0f ? 127.0f : q;
    q = q < -127.0f ? -127.0f : q;
    if (lane == 0)
        *(uint16_t *)block = half;
    block[2 + lane] = damaged ? 0 : (uint8_t)(int8_t)q;
}

/* Stores 32 elements of a row from element `first` on. The row has n. */
__device__ static inline void store_piece(int type, uint8_t *row, const float *x, uint32_t first,
                                          uint32_t n)
{
    uint32_t lane = threadIdx.x % MOE_WARP;
    uint32_t i = first + lane;
    if (type == MOE_KV_Q8_0)
        store_q8(row + moe_q8_block_at(first), x[i], lane);
    else if (i < n && type == MOE_KV_F32)
        ((float *)row)[i] = x[i];
    else if (i < n)
        ((uint16_t *)row)[i] = moe_device_float_to_half(x[i]);
}

/* Stores a head of the block's row. */
__device__ static inline void store_head(const store_args &args, uint32_t head)
{
    const moe_kv_layout &layout = args.layout;
    const moe_cuda_kv_row &row = args.rows[blockIdx.x];
    uint8_t *page = moe_kv_page_of(layout, row.pages, row.stored);
    size_t slot = (size_t)head * MOE_KV_PAGE + row.stored % MOE_KV_PAGE;
    uint32_t warp = threadIdx.x / MOE_WARP;
    const float *k = args.k + blockIdx.x * args.k_stride + (size_t)head * layout.k_dim;
    uint8_t *key = page + layout.k_offset + slot * layout.k_row_bytes;
    for (uint32_t first = warp * MOE_WARP; first < layout.k_dim; first += THREADS)
        store_piece(layout.type, key, k, first, layout.k_dim);
    if (layout.v_in_k)
        return;
    const float *v = args.v + blockIdx.x * args.v_stride + (size_t)head * layout.v_dim;
    uint8_t *value = page + layout.v_offset + slot * layout.v_row_bytes;
    for (uint32_t first = warp * MOE_WARP; first < layout.v_dim; first += THREADS)
        store_piece(layout.type, value, v, first, layout.v_dim);
}

/* Block (row, head). */
__global__ __launch_bounds__(THREADS) void moe_kv_store_rows(store_args args)
{
    MOE_BEGIN_EARLY();
    MOE_WAIT_FOR_STREAM();
    store_head(args, blockIdx.y);
}

/* The norm of rms_norm.cu, computed by the whole block, which shares *inverse. */
__device__ static inline void norm_head(float *x, const float *weight, uint32_t n, float eps,
                                        float *inverse)
{
    if (threadIdx.x < MOE_WARP) {
        float chain = 0.0f;
#pragma unroll 8
        for (uint32_t i = threadIdx.x % MOE_LANES; i < n; i += MOE_LANES)
            chain = fmaf(x[i], x[i], chain);
        chain = moe_lanes_sum(chain);
        if (threadIdx.x == 0)
            *inverse = 1.0f / sqrtf(chain / (float)n + eps);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        x[i] = x[i] * *inverse * weight[i];
    __syncthreads();
}

/* Rotates the pairs of a head as rope.cu does. */
__device__ static inline void turn_head(const moe_rope &rope, float *head)
{
    uint32_t n_pairs = rope.n_rot / 2;
    for (uint32_t pair = threadIdx.x; pair < n_pairs; pair += THREADS) {
        float *x0 = head + (rope.interleaved ? 2 * pair : pair);
        float *x1 = x0 + (rope.interleaved ? 1 : n_pairs);
        float c = rope.cos[(size_t)blockIdx.x * n_pairs + pair];
        float s = rope.sin[(size_t)blockIdx.x * n_pairs + pair];
        float a = *x0;
        float b = *x1;
        *x0 = fmaf(a, c, -(b * s));
        *x1 = fmaf(a, s, b * c);
    }
}

/* Block (row, head): first the heads of the queries, then those of the keys. */
__global__ __launch_bounds__(THREADS, 8) void moe_heads_rows(moe_cuda_heads job)
{
    __shared__ float inverse;
    const bool is_key = blockIdx.y >= job.q.n_head;
    MOE_BEGIN_EARLY();
    MOE_WAIT_FOR_STREAM();
    const moe_rope &rope = is_key ? job.k : job.q;
    uint32_t head = is_key ? blockIdx.y - job.q.n_head : blockIdx.y;
    float *x = rope.x + blockIdx.x * rope.row_stride + head * rope.head_stride;
    if (job.weights[0] != NULL)
        norm_head(x, job.weights[is_key], job.dim, job.eps, &inverse);
    turn_head(rope, x);
    if (!is_key)
        return;
    __syncthreads();
    store_args args = {job.layout, job.rows, rope.x, job.v, rope.row_stride, job.v_stride};
    store_head(args, head);
}

void moe_cuda_heads_store(moe_cuda_stream stream, const moe_cuda_heads *heads)
{
    if (heads->n_rows > 0)
        MOE_LAUNCH_EARLY(moe_heads_rows, dim3(heads->n_rows, heads->q.n_head + heads->k.n_head),
                         THREADS, 0, stream, *heads);
}

/* ---- Keys of pools: moe_key_pool of runtime/device/attention_ops.h ---- */

typedef struct pool_args {
    moe_key_pool pool; /* without its list of rows */
    const moe_cuda_kv_row *rows;
} pool_args;

/* The index key of a position that the row sees. */
__device__ static inline uint8_t *index_key(const moe_key_pool &pool, const moe_cuda_kv_row &row,
                                            uint32_t position)
{
    const uint32_t stored = row.path != NULL && position >= row.path_first
                                ? row.path[position - row.path_first]
                                : position;
    uint8_t *page = moe_kv_page_of(pool.layout, row.pages, stored);
    return page + pool.layout.k_offset + (size_t)(stored % MOE_KV_PAGE) * pool.layout.k_row_bytes +
           pool.key;
}

/* Element i of a pool's key, before its norm. */
template <int TYPE>
__device__ static inline float pooled_element(const moe_key_pool &pool, const moe_cuda_kv_row &row,
                                              uint32_t i)
{
    const uint32_t first = row.position + 1 - pool.n;
    float sum = 0.0f;
    float all = 0.0f;
    float max = -MOE_INFINITY;
    if (pool.means) {
        for (uint32_t p = 0; p < pool.n; p++)
            sum += moe_kv_load1<TYPE>(index_key(pool, row, first + p), i);
        return sum / (float)pool.n;
    }
    for (uint32_t p = 0; p < pool.n; p++)
        max = moe_greater(moe_kv_load1<TYPE>(index_key(pool, row, first + p), pool.dim + i) +
                              pool.weight[(size_t)p * pool.dim + i],
                          max);
    /* The exponentials are computed twice, in place of an array of them. */
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t p = 0; p < pool.n; p++) {
            const uint8_t *key = index_key(pool, row, first + p);
            const float gate =
                moe_kv_load1<TYPE>(key, pool.dim + i) + pool.weight[(size_t)p * pool.dim + i];
            const float share = moe_device_exp(gate - max);
            if (pass == 0)
                all += share;
            else
                sum = fmaf(share / all, moe_kv_load1<TYPE>(key, i), sum);
        }
    }
    return sum;
}

/* A block takes a row. */
template <int TYPE> __global__ __launch_bounds__(THREADS) void moe_pool_keys(pool_args args)
{
    MOE_DYNAMIC_SHARED(float, pooled_key); /* [dim], and one number of the norm */
    const moe_key_pool &pool = args.pool;
    const moe_cuda_kv_row &row = args.rows[blockIdx.x];
    if ((row.position + 1) % pool.n != 0)
        return;
    for (uint32_t i = threadIdx.x; i < pool.dim; i += THREADS)
        pooled_key[i] = pooled_element<TYPE>(pool, row, i);
    __syncthreads();
    if (pool.means) {
        norm_head(pooled_key, pool.weight, pool.dim, pool.eps, pooled_key + pool.dim);
        turn_head(pool.rope, pooled_key);
        __syncthreads();
    }
    uint8_t *to = index_key(pool, row, row.position) - pool.key + pool.pooled;
    for (uint32_t first = threadIdx.x / MOE_WARP * MOE_WARP; first < pool.dim; first += THREADS)
        store_piece(TYPE, to, pooled_key, first, pool.dim);
}

void moe_cuda_pool_keys(moe_cuda_stream stream, const moe_key_pool *pool,
                        const moe_cuda_kv_row *rows, uint32_t n_rows)
{
    const pool_args args = {*pool, rows};
    const size_t bytes = (pool->dim + 1) * sizeof(float);
    if (n_rows == 0)
        return;
    if (pool->layout.type == MOE_KV_F16)
        MOE_LAUNCH(moe_pool_keys<MOE_KV_F16>, n_rows, THREADS, bytes, stream, args);
    else if (pool->layout.type == MOE_KV_F32)
        MOE_LAUNCH(moe_pool_keys<MOE_KV_F32>, n_rows, THREADS, bytes, stream, args);
    else
        MOE_LAUNCH(moe_pool_keys<MOE_KV_Q8_0>, n_rows, THREADS, bytes, stream, args);
}

typedef struct move_args {
    const moe_kv_layout *layouts; /* device */
    void *const *pages;           /* device */
    const uint32_t *from;         /* device, [n] */
    const uint32_t *to;
    uint32_t n;
} move_args;

/* A thread makes all moves, in order, for one column of 16 bits. So no place is overwritten before
 * it is read. */
__device__ static inline void move_column(const move_args &args, const moe_kv_layout &layout,
                                          size_t at, size_t row_bytes)
{
    for (uint32_t i = 0; i < args.n; i++) {
        uint32_t from = args.from[i];
        uint32_t to = args.to[i];
        const uint8_t *source = moe_kv_page_of(layout, args.pages, from);
        uint8_t *target = moe_kv_page_of(layout, args.pages, to);
        *(uint16_t *)(target + at + to % MOE_KV_PAGE * row_bytes) =
            *(const uint16_t *)(source + at + from % MOE_KV_PAGE * row_bytes);
    }
}

/* Block (layer, head). Heads beyond a layer's own do nothing. */
__global__ __launch_bounds__(THREADS) void moe_kv_move_rows(move_args args)
{
    const moe_kv_layout &layout = args.layouts[blockIdx.x];
    if (blockIdx.y >= layout.n_head_kv)
        return;
    size_t head = (size_t)blockIdx.y * MOE_KV_PAGE;
    for (size_t b = 2 * threadIdx.x; b < layout.k_row_bytes; b += 2 * THREADS)
        move_column(args, layout, layout.k_offset + head * layout.k_row_bytes + b,
                    layout.k_row_bytes);
    if (layout.v_in_k)
        return;
    for (size_t b = 2 * threadIdx.x; b < layout.v_row_bytes; b += 2 * THREADS)
        move_column(args, layout, layout.v_offset + head * layout.v_row_bytes + b,
                    layout.v_row_bytes);
}

void moe_cuda_kv_store(moe_cuda_stream stream, const moe_kv_layout *layout,
                       const moe_cuda_kv_row *rows, uint32_t n_rows, const float *k,
                       size_t k_stride, const float *v, size_t v_stride)
{
    store_args args = {*layout, rows, k, v, k_stride, v_stride};
    if (n_rows > 0)
        MOE_LAUNCH_EARLY(moe_kv_store_rows, dim3(n_rows, layout->n_head_kv), THREADS, 0, stream,
                         args);
}

void moe_cuda_kv_move(moe_cuda_stream stream, const moe_kv_move *move, uint32_t max_head_kv)
{
    move_args args = {move->layouts, move->pages, move->from, move->to, move->n};
    if (move->n > 0 && move->n_layouts > 0)
        MOE_LAUNCH(moe_kv_move_rows, dim3(move->n_layouts, max_head_kv), THREADS, 0, stream, args);
}
