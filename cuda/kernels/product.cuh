/* SPDX-License-Identifier: MIT */
/* The product of weight rows with up to eight activation rows, to the bit of matmul.h.
 *
 *      a warp: 8 weight rows      a weight row: 4 threads        a step of the four
 *
 *      row 0   t0 t1 t2 t3                                       256 | t0    | t1    | t2    | t3
 *      row 1   t0 t1 t2 t3        step   0  1  2 ..          lanes   | 0..3  | 4..7  | 8..11 | ..15
 *      ...                        in order, all by the        or     | 0 1   | 2 3   | 4 5   | 6 7
 *                                 same four threads       16 floats  | 0..3  | 4..7  | 8..11 | ..15
 *
 * A thread owns a quarter of the lanes: four of sixteen, or two of eight. So each lane's sum runs
 * through the row in order. At the end the lanes are added up, first between threads by shuffles,
 * then within the thread. With quantised weights a thread has whole runs, 64 neighbouring elements
 * of each 256. A run (16 or 32 elements that share a scale) is a chain of integer dot products,
 * then one product of scales and one fmaf().
 *
 * A row of weights is copied in segments (product_shape). The four threads of a row copy STAGES - 1
 * segments ahead into shared memory, without registers. They copy a segment in aligned pieces of 16
 * bytes. Rows may begin at any address, so there is room for one piece more than the segment is
 * long. Warps share nothing: there is no barrier of the block.
 *
 * Codes are unpacked once for all activation rows. The integer dot products begin at the bits of
 * the float 1.5 * 2^23. Read as a float and with 1.5 * 2^23 subtracted, the result is the integer
 * as a float: exact below 2^22 (a run of signed bytes stays below 2^19), and cheaper than a
 * conversion. If codes are 2^z times their value, the dot products begin at the bits of 1.5 *
 * 2^(23 - z), and the subtraction also divides by 2^z. */
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

template <int N> struct alignas(4 * N) product_factors {
    float v[N];
};

/* How a type's rows are cut into segments. A segment has two groups of 256 elements if these are
 * short, else one: short segments cost thread time, long ones shared memory. A segment is copied in
 * pieces of 16 bytes. `pieces` is how many a stage holds: as many as a segment touches when it does
 * not begin at a piece's begin. It is odd, so that a warp's eight rows lie in different banks. */
template <int TYPE> struct product_shape {
    typedef weight_format<TYPE> format;
    static constexpr uint32_t group_bytes = 256 / format::elems * format::bytes;
    static constexpr uint32_t groups = group_bytes < 140 ? 2 : 1;
    static constexpr uint32_t elems = 256 * groups;
    static constexpr uint32_t segment = group_bytes * groups;
    static constexpr uint32_t pieces = (segment + 2 * PIECE_BYTES - 2) / PIECE_BYTES | 1;
    static constexpr uint32_t lanes = format::runs; /* lanes that a thread owns */
};

#define MOE_FLOAT_SHAPE(type)                                                                      \
    template <> struct product_shape<type> {                                                       \
        typedef weight_format<type> format;                                                        \
        static constexpr uint32_t segment = 256;                                                   \
        static constexpr uint32_t elems = segment / format::elem_bytes;                            \
        static constexpr uint32_t pieces = (segment + 2 * PIECE_BYTES - 2) / PIECE_BYTES | 1;      \
        static constexpr uint32_t lanes = 4;                                                       \
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
    float acc[ROWS][product_shape<TYPE>::lanes];
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

/* The outputs of a block: of a product, or of one of the maps that share its launch. */
typedef struct product_outs {
    uint32_t block; /* the block's number among the blocks of the product or map */
    uint32_t n_out;
    size_t stride;
} product_outs;

__host__ __device__ static inline uint32_t blocks_of_outs(uint32_t n_out, uint32_t rows_a_block)
{
    return (n_out + rows_a_block - 1) / rows_a_block;
}

/* Finds the outputs of this block. A launch has the blocks of the first map, then those of the
 * second, .. */
__device__ static inline product_outs find_outs(const moe_cuda_products &job, uint32_t rows_a_block,
                                                moe_cuda_product *product)
{
    product_outs outs = {blockIdx.x, job.n_out, job.out_stride};
#pragma unroll
    for (uint32_t m = 0; m < MOE_CUDA_MORE_MAPS; m++) {
        const uint32_t before = blocks_of_outs(outs.n_out, rows_a_block);
        if (m >= job.n_more || outs.block < before)
            break;
        outs = {outs.block - before, job.more[m].n_out, job.more[m].n_out};
        product->weights = job.more[m].weights;
        product->out = job.more[m].out;
        product->bias = job.more[m].bias;
    }
    return outs;
}

/* A weight row. Reading starts with the aligned piece in which the row begins. */
typedef struct product_row {
    const uint8_t *pieces; /* NULL for threads without a row */
    uint32_t skew;         /* offsets of the row's begin and end from `pieces`: below 4 GiB */
    uint32_t end;
} product_row;

/* Copies the row's segment number `segment` into a stage, if there is one. In either case closes a
 * group of asynchronous copies. */
template <int TYPE>
__device__ static inline void fetch_segment(const product_row &row, uint32_t segment,
                                            uint8_t *stage, uint32_t t)
{
    typedef product_shape<TYPE> shape;
    uint32_t first = row.skew + segment * shape::segment;
    if (row.pieces != NULL && first < row.end) {
        uint32_t left = row.end - first;
        uint32_t end = first + (left < shape::segment ? left : shape::segment);
        uint32_t piece = (first & ~(PIECE_BYTES - 1)) + t * PIECE_BYTES;
        stage += t * PIECE_BYTES;
#pragma unroll
        for (uint32_t i = 0; i < shape::pieces * PIECE_BYTES; i += ROW_THREADS * PIECE_BYTES)
            if (piece + i < end)
                __pipeline_memcpy_async(stage + i, row.pieces + piece + i, PIECE_BYTES);
    }
    __pipeline_commit();
}

/* Multiplies a thread's part of a group with the same part of one activation row: 64 elements, the
 * two blocks of x from `block` on. */
template <typename FORMAT>
__device__ static inline void add_part(const moe_q8_rows &x, uint32_t block,
                                       const weight_part &part, float *acc)
{
    constexpr int runs = FORMAT::runs, words = 16 / runs;
    const product_factors<2> d = *(const product_factors<2> *)(x.d + block);
    product_factors<runs> dsum = {};
    if (FORMAT::has_mins)
        dsum = *(const product_factors<runs> *)(runs == 4 ? x.dsum16 + (size_t)block * 2
                                                          : x.dsum32 + block);
    product_words q[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        q[i] = ((const product_words *)(x.q + (size_t)block * MOE_Q8_BLOCK))[i];
#pragma unroll
    for (int j = 0; j < runs; j++) {
        const uint32_t zero = 0x4b400000u - (FORMAT::zeros(j * 2 / runs) << 23);
        int s = (int)zero;
#pragma unroll
        for (int i = j * words; i < (j + 1) * words; i++)
            s = __dp4a((int)part.code[i], (int)q[i / 4].v[i % 4], s);
        acc[j] = fmaf(part.scale[j] * d.v[j * 2 / runs],
                      __int_as_float(s) - moe_device_float_of(zero), acc[j]);
        if (FORMAT::has_mins)
            acc[j] = fmaf(part.min[j], dsum.v[j], acc[j]);
    }
}

/* Multiplies the thread's parts of a segment that begins at element `first`. Elements beyond the
 * row's end are zeros, which change no sum, because no sum is ever -0. */
template <int TYPE, int ROWS>
__device__ static inline void add_quantised(const moe_cuda_products &job, const uint8_t *bytes,
                                            uint32_t first, uint32_t t, const uint32_t *rows,
                                            product_sums<TYPE, ROWS> *sums)
{
    typedef product_shape<TYPE> shape;
    typedef typename shape::format format;
    uint32_t row_blocks = job.x_q8.n_in_padded / MOE_Q8_BLOCK;
#pragma unroll 1
    for (uint32_t g = 0; g < shape::groups; g++) {
        uint32_t e = first + 256 * g + 64 * t;
        if (e >= job.n_in)
            break;
        weight_part part;
        format::unpack(bytes + g * shape::group_bytes, t, e + 32 < job.n_in, &part);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            add_part<format>(job.x_q8, rows[r] * row_blocks + e / MOE_Q8_BLOCK, part, sums->acc[r]);
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

/* Adds the lanes N t + i (N = 4 of sixteen, or 2 of eight) as a tree: first thread t + 2, then
 * thread t + 1, then the thread's own lanes. */
template <int N> __device__ static inline float reduce_lanes(float *acc)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        acc[i] += __shfl_xor_sync(MOE_ALL_WARP, acc[i], 2);
        acc[i] += __shfl_xor_sync(MOE_ALL_WARP, acc[i], 1);
    }
    return N == 4 ? (acc[0] + acc[2]) + (acc[1] + acc[N - 1]) : acc[0] + acc[1];
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
};

template <> struct product_add<true> {
    template <int TYPE, int ROWS>
    __device__ static inline void segment(const moe_cuda_products &job, const float *x,
                                          const uint8_t *bytes, uint32_t first, uint32_t t,
                                          const uint32_t *rows, product_sums<TYPE, ROWS> *sums)
    {
        add_floats<TYPE, ROWS>(job, x, bytes, first, t, rows, sums);
    }
};

template <int TYPE> struct product_stages {
    static constexpr uint32_t bytes = ROWS_A_WARP * product_shape<TYPE>::pieces * PIECE_BYTES;
};

/* Begins to copy the first segments. `start`: NULL for threads without a row. */
template <int TYPE>
__device__ static inline product_row begin_row(const moe_cuda_products &job, const uint8_t *start,
                                               uint8_t *stages)
{
    typedef product_shape<TYPE> shape;
    product_row row;
    row.skew = (uint32_t)(uintptr_t)start & (PIECE_BYTES - 1);
    row.pieces = start - row.skew;
    row.end = row.skew + (uint32_t)((size_t)job.n_in * shape::segment / shape::elems);
    for (uint32_t s = 0; s < STAGES - 1; s++)
        fetch_segment<TYPE>(row, s, stages + s * product_stages<TYPE>::bytes,
                            threadIdx.x % ROW_THREADS);
    return row;
}

/* Multiplies all segments of a weight row, which are copied ahead through the stages. */
template <int TYPE, int ROWS>
__device__ static inline void sum_row(const moe_cuda_products &job, const moe_cuda_product &product,
                                      const product_row &row, uint8_t *stages, const uint32_t *rows,
                                      product_sums<TYPE, ROWS> *sums)
{
    typedef product_shape<TYPE> shape;
    constexpr uint32_t stage_bytes = product_stages<TYPE>::bytes;
    uint32_t t = threadIdx.x % ROW_THREADS;
    uint32_t segments = (job.n_in + shape::elems - 1) / shape::elems;
    for (uint32_t s = 0; s < segments; s++) {
        __pipeline_wait_prior(STAGES - 2);
        __syncwarp(); /* the other threads' copies have arrived, and no thread still reads the
                       * stage that is filled next */
        fetch_segment<TYPE>(row, s + STAGES - 1, stages + (s + STAGES - 1) % STAGES * stage_bytes,
                            t);
        uint32_t skew = (row.skew + s * shape::segment) & (PIECE_BYTES - 1);
        const uint8_t *bytes = stages + s % STAGES * stage_bytes + skew;
        if (row.pieces != NULL)
            product_add<is_float_type<TYPE>::value>::template segment<TYPE, ROWS>(
                job, product.x, bytes, s * shape::elems, t, rows, sums);
    }
    __syncwarp();
}

/* The class of launch that a product's rows belong to. */
__host__ __device__ static inline uint32_t tile_rows_of(uint32_t n_rows)
{
    return n_rows <= 2 ? n_rows : n_rows <= 4 ? 4 : MAX_TILE_ROWS;
}

/* tile_rows_of() for a list that the host does not know: all its products of several rows share a
 * launch. */
__device__ static inline uint32_t tile_rows_in(const moe_cuda_products &job, uint32_t n_rows)
{
    bool shares = n_rows > 1 && job.list != NULL && job.host_list == NULL;
    return tile_rows_of(shares ? job.first.n_rows : n_rows);
}

template <int TYPE, int ROWS>
__global__ __launch_bounds__(MAX_WARPS *MOE_WARP) void moe_product(moe_cuda_products job)
{
    typedef product_shape<TYPE> shape;
    MOE_DYNAMIC_SHARED(product_words, product_memory);
    MOE_BEGIN_EARLY();
    /* Kernels ahead write the lists, but the weights of a linear map are known before. */
    const bool is_known = job.list == NULL;
    if (!is_known)
        MOE_WAIT_FOR_STREAM();
    moe_cuda_product product = product_of(job, blockIdx.z);
    const product_outs outs = find_outs(job, blockDim.x / MOE_WARP * ROWS_A_WARP, &product);
    uint32_t warp = threadIdx.x / MOE_WARP;
    uint32_t first_out = (outs.block * (blockDim.x / MOE_WARP) + warp) * ROWS_A_WARP;
    uint32_t first_row = blockIdx.y * ROWS;
    const bool has_work = tile_rows_in(job, product.n_rows) == ROWS &&
                          product.n_rows < job.matrix_from && first_row < product.n_rows &&
                          first_out < outs.n_out;
    uint32_t out = first_out + threadIdx.x % MOE_WARP / ROW_THREADS;
    const uint8_t *row = (const uint8_t *)product.weights + out * job.row_bytes;
    uint8_t *stages = (uint8_t *)(product_memory + (warp * STAGES * ROWS_A_WARP +
                                                    threadIdx.x % MOE_WARP / ROW_THREADS) *
                                                       shape::pieces);
    product_row weights = {};
    if (has_work)
        weights = begin_row<TYPE>(job, out < outs.n_out ? row : NULL, stages);
    if (is_known)
        MOE_WAIT_FOR_STREAM();
    if (!has_work)
        return;
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
        for (uint32_t i = 0; i < shape::lanes; i++)
            sums.acc[r][i] = 0.0f;
    }
    sum_row<TYPE, ROWS>(job, product, weights, stages, rows, &sums);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = reduce_lanes<shape::lanes>(sums.acc[r]);
        uint32_t at = first_row + r;
        if (threadIdx.x % ROW_THREADS != 0 || out >= outs.n_out || at >= product.n_rows)
            continue;
        size_t target = product.out_index != NULL ? product.out_index[at] : at;
        product.out[target * outs.stride + out] =
            product.bias != NULL ? sum + product.bias[out] : sum;
    }
}

template <int TYPE, int ROWS>
static void launch_product_class(moe_cuda_stream stream, const moe_cuda_products &job,
                                 uint32_t warps, uint32_t max_rows)
{
    uint32_t rows_a_block = warps * ROWS_A_WARP;
    uint32_t blocks = blocks_of_outs(job.n_out, rows_a_block);
    for (uint32_t m = 0; m < job.n_more; m++)
        blocks += blocks_of_outs(job.more[m].n_out, rows_a_block);
    dim3 grid(blocks, (max_rows + ROWS - 1) / ROWS, job.n_products);
    size_t shared = (size_t)warps * STAGES * ROWS_A_WARP * product_shape<TYPE>::pieces * 16;
    MOE_LAUNCH_EARLY((moe_product<TYPE, ROWS>), grid, warps * MOE_WARP, shared, stream, job);
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

/* One function for each source file with instances; false: another file has the type. warps: of a
 * block; 0: a block is one warp with two weight rows, which must be floats. */
bool moe_cuda_product_floats(moe_cuda_stream stream, const moe_cuda_products &job, uint32_t warps,
                             const uint32_t *max_rows);
bool moe_cuda_product_blocks32(moe_cuda_stream stream, const moe_cuda_products &job, uint32_t warps,
                               const uint32_t *max_rows);
bool moe_cuda_product_blocks256(moe_cuda_stream stream, const moe_cuda_products &job,
                                uint32_t warps, const uint32_t *max_rows);
bool moe_cuda_product_points(moe_cuda_stream stream, const moe_cuda_products &job, uint32_t warps,
                             const uint32_t *max_rows);
bool moe_cuda_product_ternary(moe_cuda_stream stream, const moe_cuda_products &job, uint32_t warps,
                              const uint32_t *max_rows);

#endif
