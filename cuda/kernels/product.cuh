/* SPDX-License-Identifier: MIT */
/* The product of weight rows with up to eight activation rows, to the bit of matmul.h.
 *
 *      a warp: 8 weight rows         a weight row: 4 threads        a chunk (quantised 64 elements,
 *                                                                   float 16)
 *      row 0   t0 t1 t2 t3           chunk  0  1  2 ..              | t0   | t1   | t2    | t3    |
 *      row 1   t0 t1 t2 t3           in order, all by               lanes
 *      ...                           the same four threads          | 0..3 | 4..7 | 8..11 | 12..15|
 *
 * A thread owns four lanes of the sixteen, so each lane's sum runs through the row in order, and
 * the lanes meet at the end: first by shuffles, then within the thread.
 *
 * Bytes travel in segments of SEGMENT bytes of a row. The four threads of a row copy what they will
 * need STAGES - 1 segments ahead into shared memory, in aligned pieces of 16 bytes, past the
 * registers; rows may begin at any address, so a piece more than the segment is long has room.
 * Warps share nothing: there is no barrier of the block.
 *
 * Codes are taken apart once for all activation rows. Their integer dot products begin at the bits
 * of 1.5 * 2^23, and so are floats as soon as that is subtracted again: exact, and cheaper than a
 * conversion. */
#ifndef MOE_CUDA_PRODUCT_CUH
#define MOE_CUDA_PRODUCT_CUH

#include "cuda/kernels/product_launch.h"
#include "cuda/kernels/vector_math.cuh"
#include "cuda/kernels/weight_formats.cuh"

#include <cuda_pipeline_primitives.h>

#define ROWS_A_WARP   8u
#define ROW_THREADS   4u
#define STAGES        4u
#define MAX_TILE_ROWS 8u /* activation rows that share the reading of a weight */
#define PIECE_BYTES   16u
#define MAX_WARPS     4u

struct alignas(16) product_words {
    uint32_t v[4];
};

/* How a type's rows are cut. Segments are as long as makes 16 bytes a divisor, where that is not
 * too long: short ones cost a thread's time, long ones room. Pieces a row are odd in number, so
 * that the eight rows of a warp lie in different banks. */
template <int TYPE> struct product_shape {
    typedef weight_format<TYPE> format;
    static constexpr uint32_t group_bytes = 256 / format::elems * format::bytes;
    static constexpr uint32_t groups = group_bytes < 140 ? 2 : 1;
    static constexpr uint32_t elems = 256 * groups;
    static constexpr uint32_t segment = group_bytes * groups;
    static constexpr uint32_t pieces = (segment + 2 * PIECE_BYTES - 2) / PIECE_BYTES | 1;
    static constexpr uint32_t n_mins = format::min_sub != 0 ? 4 : 0;
};

#define MOE_FLOAT_SHAPE(type)                                                                      \
    template <> struct product_shape<type> {                                                       \
        typedef weight_format<type> format;                                                        \
        static constexpr uint32_t segment = 256;                                                   \
        static constexpr uint32_t elems = segment / format::elem_bytes;                            \
        static constexpr uint32_t pieces = (segment + 2 * PIECE_BYTES - 2) / PIECE_BYTES | 1;      \
        static constexpr uint32_t n_mins = 0;                                                      \
    };
MOE_FLOAT_SHAPE(MOE_DTYPE_F32)
MOE_FLOAT_SHAPE(MOE_DTYPE_F16)
MOE_FLOAT_SHAPE(MOE_DTYPE_BF16)
#undef MOE_FLOAT_SHAPE

template <int TYPE> struct is_float_type {
    static constexpr bool value =
        TYPE == MOE_DTYPE_F32 || TYPE == MOE_DTYPE_F16 || TYPE == MOE_DTYPE_BF16;
};

/* What a thread keeps of its weight row and of the activation rows. */
template <int TYPE, int ROWS> struct product_sums {
    float acc[ROWS][4];
    float min[ROWS][product_shape<TYPE>::n_mins + 1];
};

__device__ static inline moe_cuda_product product_of(const moe_cuda_products &job, uint32_t p)
{
    if (job.list != NULL)
        return job.list[p];
    moe_cuda_product product = job.first;
    product.weights = (const uint8_t *)product.weights + p * job.weights_step;
    product.x += product.x != NULL ? p * job.x_step : 0;
    product.out += p * job.out_step;
    product.first_row += p * job.row_step;
    return product;
}

/* Copies the row's segment number `segment` into a stage, if there is one. Either way the copies
 * so far are one more commitment. `row` is NULL for threads without a row. */
template <int TYPE>
__device__ static inline void fetch_segment(const uint8_t *row, size_t row_size, uint32_t segment,
                                            uint8_t *stage, uint32_t t)
{
    typedef product_shape<TYPE> shape;
    size_t first = (size_t)segment * shape::segment;
    if (row != NULL && first < row_size) {
        size_t left = row_size - first;
        const uint8_t *begin = row + first;
        const uint8_t *end = begin + (left < shape::segment ? left : shape::segment);
        const uint8_t *source = begin - ((uintptr_t)begin & (PIECE_BYTES - 1));
#pragma unroll
        for (uint32_t i = 0; i < shape::pieces; i += ROW_THREADS)
            if (source + (i + t) * PIECE_BYTES < end)
                __pipeline_memcpy_async(stage + (i + t) * PIECE_BYTES,
                                        source + (i + t) * PIECE_BYTES, PIECE_BYTES);
    }
    __pipeline_commit();
}

/* The thread's runs of a segment that begins at element `first`. */
template <int TYPE, int ROWS>
__device__ static inline void add_quantised(const moe_cuda_products &job, const uint8_t *bytes,
                                            uint32_t first, uint32_t t, const uint32_t *rows,
                                            product_sums<TYPE, ROWS> *sums)
{
    typedef product_shape<TYPE> shape;
    typedef typename shape::format format;
    uint32_t n_padded = job.x_q8.n_in_padded;
#pragma unroll 1
    for (uint32_t g = 0; g < shape::groups; g++) {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            uint32_t e = first + 256 * g + 64 * c + 16 * t;
            if (e >= job.n_in)
                break;
            weight_run run;
            format::unpack(bytes + g * shape::group_bytes, c, t, &run);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                size_t at = (size_t)rows[r] * n_padded + e;
                product_words q = *(const product_words *)(job.x_q8.q + at);
                float scale = run.scale * job.x_q8.d[at / 32];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int s = __dp4a((int)run.code[i], (int)q.v[i], 0x4b400000);
                    sums->acc[r][i] = fmaf(scale, __int_as_float(s) - 12582912.0f, sums->acc[r][i]);
                }
                if (format::min_sub == 16)
                    sums->min[r][c] = fmaf(run.min, job.x_q8.dsum16[at / 16], sums->min[r][c]);
                if (format::min_sub == 32)
                    sums->min[r][c] = fmaf(run.min, job.x_q8.dsum32[at / 32], sums->min[r][c]);
            }
        }
    }
}

template <int TYPE, int ROWS>
__device__ static inline void add_floats(const moe_cuda_products &job, const float *x,
                                         const uint8_t *bytes, uint32_t first, uint32_t t,
                                         const uint32_t *rows, product_sums<TYPE, ROWS> *sums)
{
    typedef product_shape<TYPE> shape;
    typedef typename shape::format format;
    bool wide = (((uintptr_t)x | job.x_stride * sizeof(float)) & 15) == 0;
#pragma unroll 4
    for (uint32_t c = 0; c < shape::elems / 16; c++) {
        uint32_t e = first + 16 * c + 4 * t;
        if (e >= job.n_in)
            break;
        const uint8_t *at = bytes + (16 * c + 4 * t) * format::elem_bytes;
        if (e + 4 > job.n_in) {
            for (uint32_t i = 0; i < job.n_in - e; i++) {
                float weight = format::load1(at + i * format::elem_bytes);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    float *acc = sums->acc[r];
                    float value = x[rows[r] * job.x_stride + e + i];
                    acc[0] = i == 0 ? fmaf(weight, value, acc[0]) : acc[0];
                    acc[1] = i == 1 ? fmaf(weight, value, acc[1]) : acc[1];
                    acc[2] = i == 2 ? fmaf(weight, value, acc[2]) : acc[2];
                }
            }
            break;
        }
        float weight[4];
        format::load4(at, weight);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float *source = x + rows[r] * job.x_stride + e;
            moe_float4 value;
            if (wide)
                value = *(const moe_float4 *)source;
            else
                value = {{source[0], source[1], source[2], source[3]}};
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums->acc[r][i] = fmaf(weight[i], value.v[i], sums->acc[r][i]);
        }
    }
}

/* Tree 8, 4, 2, 1 of lanes 4t + i: thread t + 2, thread t + 1, then i + 2 and i + 1. */
__device__ static inline float reduce_lanes(float *acc)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        acc[i] += __shfl_xor_sync(MOE_ALL_WARP, acc[i], 2);
        acc[i] += __shfl_xor_sync(MOE_ALL_WARP, acc[i], 1);
    }
    return (acc[0] + acc[2]) + (acc[1] + acc[3]);
}

/* The same tree over minima. Of 16 elements: lane 4c + t. Of 32: lane 2c + t / 2 (threads in pairs
 * have the same), and the upper eight lanes are +0, which is added because it takes the sign off a
 * zero. */
template <uint32_t SUB> __device__ static inline float reduce_mins(float *min)
{
    if (SUB == 16) {
        float sum = (min[0] + min[2]) + (min[1] + min[3]);
        sum += __shfl_xor_sync(MOE_ALL_WARP, sum, 2);
        return sum + __shfl_xor_sync(MOE_ALL_WARP, sum, 1);
    }
    float sum = ((min[0] + 0.0f) + (min[2] + 0.0f)) + ((min[1] + 0.0f) + (min[3] + 0.0f));
    return sum + __shfl_xor_sync(MOE_ALL_WARP, sum, 2);
}

template <bool FLOAT> struct product_add {
    template <int TYPE, int ROWS>
    __device__ static inline void segment(const moe_cuda_products &job, const float *x,
                                          const uint8_t *bytes, uint32_t first, uint32_t t,
                                          const uint32_t *rows, product_sums<TYPE, ROWS> *sums)
    {
        (void)x;
        add_quantised<TYPE, ROWS>(job, bytes, first, t, rows, sums);
    }
    template <int TYPE> __device__ static inline float mins(float *min)
    {
        return reduce_mins<product_shape<TYPE>::format::min_sub>(min);
    }
};

template <> struct product_add<true> {
    template <int TYPE, int ROWS>
    __device__ static inline void segment(const moe_cuda_products &job, const float *x,
                                          const uint8_t *bytes, uint32_t first, uint32_t t,
                                          const uint32_t *rows, product_sums<TYPE, ROWS> *sums)
    {
        add_floats<TYPE, ROWS>(job, x, bytes, first, t, rows, sums);
    }
    template <int TYPE> __device__ static inline float mins(float *)
    {
        return 0.0f;
    }
};

/* All segments of a weight row, copied ahead through the stages. */
template <int TYPE, int ROWS>
__device__ static inline void sum_row(const moe_cuda_products &job, const moe_cuda_product &product,
                                      const uint8_t *row, uint8_t *stages, const uint32_t *rows,
                                      product_sums<TYPE, ROWS> *sums)
{
    typedef product_shape<TYPE> shape;
    constexpr uint32_t stage_bytes = ROWS_A_WARP * shape::pieces * PIECE_BYTES;
    uint32_t t = threadIdx.x % ROW_THREADS;
    uint32_t segments = (job.n_in + shape::elems - 1) / shape::elems;
    size_t row_size = (size_t)job.n_in * shape::segment / shape::elems;
    for (uint32_t s = 0; s < STAGES - 1; s++)
        fetch_segment<TYPE>(row, row_size, s, stages + s * stage_bytes, t);
    for (uint32_t s = 0; s < segments; s++) {
        __pipeline_wait_prior(STAGES - 2);
        __syncwarp(); /* what the others of the warp copied, and the stage that is filled next */
        fetch_segment<TYPE>(row, row_size, s + STAGES - 1,
                            stages + (s + STAGES - 1) % STAGES * stage_bytes, t);
        uint32_t skew = (uint32_t)((uintptr_t)row + (size_t)s * shape::segment) & (PIECE_BYTES - 1);
        const uint8_t *bytes = stages + s % STAGES * stage_bytes + skew;
        if (row != NULL)
            product_add<is_float_type<TYPE>::value>::template segment<TYPE, ROWS>(
                job, product.x, bytes, s * shape::elems, t, rows, sums);
    }
    __syncwarp();
}

/* Which launch a product's rows belong to. */
__host__ __device__ static inline uint32_t tile_rows_of(uint32_t n_rows)
{
    return n_rows <= 2 ? n_rows : n_rows <= 4 ? 4 : MAX_TILE_ROWS;
}

template <int TYPE, int ROWS>
__global__ __launch_bounds__(MAX_WARPS *MOE_WARP) void moe_product(moe_cuda_products job)
{
    typedef product_shape<TYPE> shape;
    MOE_DYNAMIC_SHARED(product_words, product_memory);
    moe_cuda_product product = product_of(job, blockIdx.z);
    uint32_t warp = threadIdx.x / MOE_WARP;
    uint32_t first_out = (blockIdx.x * (blockDim.x / MOE_WARP) + warp) * ROWS_A_WARP;
    uint32_t first_row = blockIdx.y * ROWS;
    if (tile_rows_of(product.n_rows) != ROWS || first_row >= product.n_rows ||
        first_out >= job.n_out)
        return;
    uint32_t out = first_out + threadIdx.x % MOE_WARP / ROW_THREADS;
    const uint8_t *row = (const uint8_t *)product.weights + out * job.row_bytes;
    uint8_t *stages = (uint8_t *)(product_memory + (warp * STAGES * ROWS_A_WARP +
                                                    threadIdx.x % MOE_WARP / ROW_THREADS) *
                                                       shape::pieces);
    uint32_t rows[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        uint32_t at = first_row + r < product.n_rows ? first_row + r : product.n_rows - 1;
        rows[r] = product.x_index != NULL ? product.x_index[at] : at;
        rows[r] += is_float_type<TYPE>::value ? 0 : product.first_row;
    }
    product_sums<TYPE, ROWS> sums;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums.acc[r][i] = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i <= shape::n_mins; i++)
            sums.min[r][i] = 0.0f;
    }
    sum_row<TYPE, ROWS>(job, product, out < job.n_out ? row : NULL, stages, rows, &sums);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = reduce_lanes(sums.acc[r]);
        if (shape::n_mins != 0)
            sum += product_add<is_float_type<TYPE>::value>::template mins<TYPE>(sums.min[r]);
        uint32_t at = first_row + r;
        if (threadIdx.x % ROW_THREADS != 0 || out >= job.n_out || at >= product.n_rows)
            continue;
        size_t target = product.out_index != NULL ? product.out_index[at] : at;
        product.out[target * job.out_stride + out] =
            product.bias != NULL ? sum + product.bias[out] : sum;
    }
}

template <int TYPE, int ROWS>
static void launch_product_class(moe_cuda_stream stream, const moe_cuda_products &job,
                                 uint32_t warps, uint32_t max_rows)
{
    uint32_t rows_a_block = warps * ROWS_A_WARP;
    dim3 grid((job.n_out + rows_a_block - 1) / rows_a_block, (max_rows + ROWS - 1) / ROWS,
              job.n_products);
    size_t shared = (size_t)warps * STAGES * ROWS_A_WARP * product_shape<TYPE>::pieces * 16;
    MOE_LAUNCH((moe_product<TYPE, ROWS>), grid, warps * MOE_WARP, shared, stream, job);
}

/* max_rows[k]: the most rows of a product of class 2^k, 0 if there is none. */
template <int TYPE>
static void launch_product_type(moe_cuda_stream stream, const moe_cuda_products &job,
                                uint32_t warps, const uint32_t *max_rows)
{
    if (max_rows[0] != 0)
        launch_product_class<TYPE, 1>(stream, job, warps, max_rows[0]);
    if (max_rows[1] != 0)
        launch_product_class<TYPE, 2>(stream, job, warps, max_rows[1]);
    if (max_rows[2] != 0)
        launch_product_class<TYPE, 4>(stream, job, warps, max_rows[2]);
    if (max_rows[3] != 0)
        launch_product_class<TYPE, 8>(stream, job, warps, max_rows[3]);
}

/* One for each source of instances; false: the type is of another. */
bool moe_cuda_product_floats(moe_cuda_stream stream, const moe_cuda_products &job, uint32_t warps,
                             const uint32_t *max_rows);
bool moe_cuda_product_blocks32(moe_cuda_stream stream, const moe_cuda_products &job, uint32_t warps,
                               const uint32_t *max_rows);
bool moe_cuda_product_blocks256(moe_cuda_stream stream, const moe_cuda_products &job,
                                uint32_t warps, const uint32_t *max_rows);

#endif
