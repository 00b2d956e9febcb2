/* SPDX-License-Identifier: MIT */
/* Where a tile of matrix_product.cuh keeps its operands in shared memory, and how a block copies
 * them there. */
#ifndef MOE_CUDA_MATRIX_TILE_CUH
#define MOE_CUDA_MATRIX_TILE_CUH

#include "cuda/kernels/product.cuh"
#include "cuda/kernels/weight_slices.cuh"

#define MATRIX_WARPS   8u
#define MATRIX_THREADS (MATRIX_WARPS * MOE_WARP)
#define MATRIX_STAGES  2u

/* Where data lies in a stage, in bytes. The scales that a warp's threads share lie behind the
 * stages. COLUMNS: activation rows of a tile. */
template <int TYPE, int COLUMNS> struct matrix_shape {
    typedef weight_slice<TYPE> slice;
    static constexpr uint32_t runs = slice::runs;
    static constexpr uint32_t tiles = 4 / runs; /* of 16 weight rows */
    static constexpr uint32_t outs = 16 * tiles;
    static constexpr uint32_t column_tiles = COLUMNS / 8;
    static constexpr uint32_t row_threads = MATRIX_THREADS / outs; /* threads that copy a weight row
                                                                    */
    static constexpr uint32_t column_threads = MATRIX_THREADS / COLUMNS;
    static constexpr uint32_t pieces = (slice::group_bytes + 2 * PIECE_BYTES - 2) / PIECE_BYTES | 1;
    static constexpr uint32_t pitch = pieces * PIECE_BYTES;
    /* One plane has the scales d of a row's slices; formats with minima have further planes with
     * the sums of the runs. Planes are padded so that slices lie in different banks. */
    static constexpr uint32_t planes = 1 + (slice::has_mins ? runs : 0);
    static constexpr uint32_t factor_pitch = (COLUMNS + 4) * sizeof(float);
    static constexpr uint32_t plane = MATRIX_WARPS * factor_pitch;
    static constexpr uint32_t codes = outs * pitch;
    static constexpr uint32_t factors = codes + COLUMNS * MOE_GROUP;
    static constexpr uint32_t stage = factors + planes * plane;
    /* Packed scales are unpacked once for the four threads of a row. */
    static constexpr bool shared_scales = slice::format::elems == MOE_GROUP;
    /* Registers are scarce: factors are loaded where they are used. */
    static constexpr bool lean =
        COLUMNS == 32 && (shared_scales ? TYPE != MOE_DTYPE_Q2_K : TYPE == MOE_DTYPE_Q5_1);
    static constexpr uint32_t row_scales = runs * (slice::has_mins ? 2 : 1);
    static constexpr uint32_t scales = MATRIX_STAGES * stage;
    static constexpr uint32_t warp_scales = shared_scales ? outs * row_scales * sizeof(float) : 0;
    /* The lanes of this many rows are added at a time, in the memory of the stages. */
    static constexpr uint32_t lanes = MATRIX_WARPS * runs;
    static constexpr uint32_t sum_outs = 32 / runs;
    static constexpr uint32_t sum_pitch = sum_outs + 4; /* in floats */
    static constexpr uint32_t sums_bytes = lanes * COLUMNS * sum_pitch * sizeof(float);
    static constexpr uint32_t bytes = scales + MATRIX_WARPS * warp_scales > sums_bytes
                                          ? scales + MATRIX_WARPS *warp_scales
                                          : sums_bytes;
};

/* How many of a product's rows go to tiles of 64. The rest go to tiles of 32, or to one of 16 if
 * they fit. */
__host__ __device__ static inline uint32_t wide_rows_of(const moe_cuda_products &job,
                                                        uint32_t n_rows)
{
    return n_rows >= job.wide_from ? (n_rows + 64 - job.wide_rest) / 64 * 64 : 0;
}

/* What a thread copies next, and its target: every row_threads-th piece of a weight row's group,
 * and every column_threads-th piece and slice of an activation row. */
typedef struct matrix_source {
    const uint8_t *weights; /* where the row's first piece begins; NULL: no row */
    uint32_t at;            /* offsets of the group and of the row's end from there: below 4 GiB */
    uint32_t end;
    uint32_t code;           /* offset in the activations' codes, in elements */
    uint32_t factor;         /* offset in their scales and sums, in slices */
    uint32_t weights_target; /* offsets in a stage */
    uint32_t codes_target;
    uint32_t factors_target;
} matrix_source;

/* The place of a piece of an activation row: its number XOR the row's number, so that the threads
 * of a warp read from different banks. */
__device__ static inline uint32_t code_piece(uint32_t row, uint32_t piece)
{
    return row * MOE_GROUP + (piece ^ row % 8) * PIECE_BYTES;
}

template <int TYPE, int COLUMNS>
__device__ static inline matrix_source source_of(const moe_cuda_products &job,
                                                 const moe_cuda_product &product,
                                                 uint32_t first_out, uint32_t first_row)
{
    typedef matrix_shape<TYPE, COLUMNS> shape;
    matrix_source source = {};
    uint32_t t = threadIdx.x % shape::row_threads;
    uint32_t row = threadIdx.x / shape::row_threads;
    if (first_out + row < job.n_out) {
        const uint8_t *bytes =
            (const uint8_t *)product.weights + (size_t)(first_out + row) * job.row_bytes;
        source.at = (uint32_t)(uintptr_t)bytes & (PIECE_BYTES - 1);
        source.weights = bytes - source.at;
        source.end = source.at + (uint32_t)((size_t)job.n_in / shape::slice::format::elems *
                                            shape::slice::format::bytes);
    }
    source.weights_target = row * shape::pitch + t * PIECE_BYTES;
    row = threadIdx.x / shape::column_threads;
    t = threadIdx.x % shape::column_threads;
    uint32_t at = first_row + row < product.n_rows ? first_row + row : product.n_rows - 1;
    uint32_t x = product.first_row + (product.x_index != NULL ? product.x_index[at] : at);
    source.code = x * job.x_q8.n_in_padded + t * PIECE_BYTES;
    source.factor = x * (job.x_q8.n_in_padded / 32) + t;
    source.codes_target = shape::codes + code_piece(row, t);
    source.factors_target = shape::factors + t * shape::factor_pitch + row * sizeof(float);
    return source;
}

/* Copies the next group. */
template <int TYPE, int COLUMNS>
__device__ static inline void fetch_group(const moe_q8_rows &x, matrix_source *source,
                                          uint8_t *stage)
{
    typedef matrix_shape<TYPE, COLUMNS> shape;
    uint32_t end = source->at + shape::slice::group_bytes;
    end = end < source->end ? end : source->end;
    uint32_t piece =
        (source->at & ~(PIECE_BYTES - 1)) + threadIdx.x % shape::row_threads * PIECE_BYTES;
    uint8_t *target = stage + source->weights_target;
    constexpr uint32_t step = shape::row_threads * PIECE_BYTES;
#pragma unroll
    for (uint32_t i = 0; i < shape::pieces * PIECE_BYTES; i += step)
        if (piece + i < end)
            __pipeline_memcpy_async(target + i, source->weights + piece + i, PIECE_BYTES);
    source->at += shape::slice::group_bytes;
#pragma unroll
    for (uint32_t i = 0; i < 16; i += shape::column_threads) {
        uint32_t at = (source->codes_target ^ i % 8 * PIECE_BYTES) + i / 8 * (8 * PIECE_BYTES);
        __pipeline_memcpy_async(stage + at, x.q + source->code + i * PIECE_BYTES, PIECE_BYTES);
    }
    source->code += MOE_GROUP;
#pragma unroll
    for (uint32_t i = 0; i < 8; i += shape::column_threads) {
        if (threadIdx.x % shape::column_threads >= 8)
            break;
        uint8_t *factors = stage + source->factors_target + i * shape::factor_pitch;
        __pipeline_memcpy_async(factors, x.d + source->factor + i, sizeof(float));
#pragma unroll
        for (uint32_t p = 0; p + 1 < shape::planes; p++)
            __pipeline_memcpy_async(factors + (p + 1) * shape::plane,
                                    (shape::runs == 1 ? x.dsum32 : x.dsum16) +
                                        (source->factor + i) * shape::runs + p,
                                    sizeof(float));
    }
    source->factor += 8;
}

#endif
