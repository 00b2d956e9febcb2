/* SPDX-License-Identifier: MIT */
/* The product of weight rows with many activation rows by the matrix units, to the bit of matmul.h.
 *
 *      a block: 64 (32) weight rows                          a group of 256 elements of them
 *
 *               16, 32, 64  activation rows            warp       0     1     2    ..    7
 *              +----------+                            elements | 0.. | 32..| 64..|    | 224.. |
 *           64 |   tile   |  8 warps, and each         lanes of
 *              |          |  sums the whole tile       32       | 0   | 1   | 2   | .. | 7     |
 *              +----------+                            16       | 0 1 | 2 3 | 4 5 | .. | 14 15 |
 *
 * In the contract each output has 8 or 16 accumulators (lanes), each a chain of fmaf() in the order
 * of the row. Warp w owns the lanes of slice w of every group, for all outputs of the tile, and
 * keeps them in registers. One instruction multiplies a run, the elements that share a scale
 * (matrix_units.cuh): it gives the exact integer sums of 16 x 8 outputs. A product of scales and an
 * fmaf() for each output follow. At the end the lanes are added up in shared memory, by the
 * contract's tree. For types with 16 lanes a warp has two lanes, and a tile has half as many weight
 * rows.
 *
 * The block copies the next group into shared memory while it multiplies the current one. It copies
 * the weights in the aligned pieces of 16 bytes that contain them, as product.cuh does, and the
 * activations' codes, scales and sums. Only one warp uses a slice. So a weight is unpacked once a
 * tile, straight into its fragment (weight_slices.cuh), and an activation's code is read once.
 *
 * A thread has rows g, g + 8, g + 16, .. of the tile. If a row is an even number of bytes long,
 * eight rows are a multiple of 16 bytes, so all of the thread's rows begin at the same offset in a
 * piece. Rows of MXFP4 may be an odd number of bytes long: then every other one of the thread's
 * rows begins eight bytes further. */
#ifndef MOE_CUDA_MATRIX_PRODUCT_CUH
#define MOE_CUDA_MATRIX_PRODUCT_CUH

#include "cuda/kernels/matrix_tile.cuh"
#include "cuda/kernels/matrix_units.cuh"

/* A thread's lanes: for each run of the slice, one lane of each output that the thread has. */
template <int TYPE, int COLUMNS> struct matrix_sums {
    typedef matrix_shape<TYPE, COLUMNS> shape;
    float acc[shape::runs][shape::tiles][shape::column_tiles][4];
};

/* A thread's part of the activations in a slice, and the factors of its two columns in each tile of
 * eight columns. */
template <int TYPE, int COLUMNS> struct matrix_columns {
    typedef matrix_shape<TYPE, COLUMNS> shape;
    uint32_t code[shape::column_tiles][2];
    product_factors<2> factor[shape::column_tiles][shape::planes]; /* not filled if lean */
    const uint8_t *factors;
};

/* Where a thread reads: offsets in a stage. */
typedef struct matrix_place {
    uint32_t weights; /* the thread's first weight row */
    uint32_t codes;
    uint32_t factors;
    uint32_t w, g, t;
} matrix_place;

template <int TYPE, int COLUMNS> __device__ static inline matrix_place place_of(void)
{
    typedef matrix_shape<TYPE, COLUMNS> shape;
    matrix_place place;
    place.w = threadIdx.x / MOE_WARP;
    place.g = threadIdx.x % MOE_WARP / 4;
    place.t = threadIdx.x % 4;
    place.weights = place.g * shape::pitch;
    place.codes = shape::codes + code_piece(place.g, 2 * place.w) + 4 * place.t;
    place.factors = shape::factors + place.w * shape::factor_pitch + 2 * place.t * sizeof(float);
    return place;
}

template <int TYPE, int COLUMNS>
__device__ static inline void load_factors(const uint8_t *factors, uint32_t n,
                                           product_factors<2> *out)
{
    typedef matrix_shape<TYPE, COLUMNS> shape;
#pragma unroll
    for (uint32_t p = 0; p < shape::planes; p++)
        out[p] = *(const product_factors<2> *)(factors + 8 * n * sizeof(float) + p * shape::plane);
}

template <int TYPE, int COLUMNS>
__device__ static inline void load_columns(const uint8_t *stage, const matrix_place &place,
                                           matrix_columns<TYPE, COLUMNS> *columns)
{
    typedef matrix_shape<TYPE, COLUMNS> shape;
    const uint8_t *low = stage + place.codes;
    const uint8_t *high = stage + (place.codes ^ PIECE_BYTES);
    columns->factors = stage + place.factors;
#pragma unroll
    for (uint32_t n = 0; n < shape::column_tiles; n++) {
        columns->code[n][0] = *(const uint32_t *)(low + 8 * n * MOE_GROUP);
        columns->code[n][1] = *(const uint32_t *)(high + 8 * n * MOE_GROUP);
        if (!shape::lean)
            load_factors<TYPE, COLUMNS>(columns->factors, n, columns->factor[n]);
    }
}

/* Scales and minima of a weight row's slice. */
template <int TYPE> struct matrix_scales {
    float scale[weight_slice<TYPE>::runs];
    float min[weight_slice<TYPE>::runs];
};

/* Returns a row's skew: the offset of its group from the start of a piece, in bytes. skew: that of
 * row 0. row_step: how much each further row adds. */
__device__ static inline uint32_t skew_of(uint32_t skew, uint32_t row_step, uint32_t row)
{
    return (skew + row * row_step) & (PIECE_BYTES - 1);
}

/* Unpacks the scales of the warp's slice; each thread unpacks those of one or two rows. */
template <int TYPE, int COLUMNS>
__device__ static inline void share_scales(const uint8_t *stage, uint32_t skew, uint32_t row_step,
                                           uint32_t w, uint8_t *shared)
{
    typedef matrix_shape<TYPE, COLUMNS> shape;
    typedef product_factors<shape::row_scales> packed_scales;
    uint32_t row = threadIdx.x % MOE_WARP;
    const uint8_t *group = stage + row * shape::pitch + skew_of(skew, row_step, row);
#pragma unroll
    for (uint32_t i = 0; i < shape::outs; i += MOE_WARP) {
        matrix_scales<TYPE> scales;
        shape::slice::scales(group + i * shape::pitch, w, scales.scale, scales.min);
        packed_scales packed;
#pragma unroll
        for (uint32_t j = 0; j < shape::runs; j++) {
            packed.v[j] = scales.scale[j];
            if (shape::slice::has_mins)
                packed.v[shape::row_scales - shape::runs + j] = scales.min[j];
        }
        ((packed_scales *)shared)[row + i] = packed;
    }
    __syncwarp();
}

template <int TYPE, bool SHARED> struct matrix_scales_of {
    __device__ static inline void load(const uint8_t *, const uint8_t *shared, uint32_t,
                                       uint32_t row, matrix_scales<TYPE> *out)
    {
        typedef weight_slice<TYPE> slice;
        constexpr uint32_t n = slice::runs * (slice::has_mins ? 2 : 1);
        product_factors<n> packed = ((const product_factors<n> *)shared)[row];
#pragma unroll
        for (uint32_t j = 0; j < slice::runs; j++) {
            out->scale[j] = packed.v[j];
            if (slice::has_mins)
                out->min[j] = packed.v[n - slice::runs + j];
        }
    }
};

template <int TYPE> struct matrix_scales_of<TYPE, false> {
    __device__ static inline void load(const uint8_t *group, const uint8_t *, uint32_t w, uint32_t,
                                       matrix_scales<TYPE> *out)
    {
        weight_slice<TYPE>::scales(group, w, out->scale, out->min);
    }
};

/* Computes run j's sums of 16 x 8 outputs, as floats. */
template <int TYPE>
__device__ static inline void multiply_run(const uint32_t *a, const uint32_t *b, uint32_t j,
                                           float *sums)
{
    constexpr uint32_t zero = 0x4b400000u - (weight_slice<TYPE>::zeros << 23);
    int out[4];
    if (weight_slice<TYPE>::runs == 1)
        moe_multiply_k32(a, b, (int)zero, out);
    else
        moe_multiply_k16(a + 2 * j, b[j], (int)zero, out);
#pragma unroll
    for (int i = 0; i < 4; i++)
        sums[i] = __int_as_float(out[i]) - moe_device_float_of(zero);
}

/* Multiplies 16 weight rows with all columns. scales: of the thread's two rows. */
template <int TYPE, int COLUMNS>
__device__ static inline void add_rows(const uint32_t *a, const matrix_scales<TYPE> *scales,
                                       const matrix_columns<TYPE, COLUMNS> &columns, uint32_t tile,
                                       matrix_sums<TYPE, COLUMNS> *sums)
{
    typedef matrix_shape<TYPE, COLUMNS> shape;
#pragma unroll
    for (uint32_t at = 0; at < shape::runs * shape::column_tiles; at++) {
        /* This order needs fewer registers. */
        uint32_t j = shape::lean ? at % shape::runs : at / shape::column_tiles;
        uint32_t n = shape::lean ? at / shape::runs : at % shape::column_tiles;
        product_factors<2> factor[shape::planes];
#pragma unroll
        for (uint32_t p = 0; p < shape::planes; p++)
            factor[p] = columns.factor[n][p];
        if (shape::lean)
            load_factors<TYPE, COLUMNS>(columns.factors, n, factor);
        float s[4];
        float *acc = sums->acc[j][tile][n];
        multiply_run<TYPE>(a, columns.code[n], j, s);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            acc[i] = fmaf(scales[i / 2].scale[j] * factor[0].v[i % 2], s[i], acc[i]);
            if constexpr (shape::slice::has_mins)
                acc[i] = fmaf(scales[i / 2].min[j],
                              factor[shape::planes - shape::runs + j].v[i % 2], acc[i]);
        }
    }
}

/* Multiplies the warp's slice of a group. skew: that of the tile's first row (see skew_of()). */
template <int TYPE, int COLUMNS>
__device__ static inline void add_slice(const uint8_t *stage, uint32_t skew, uint32_t row_step,
                                        const matrix_place &place, uint8_t *shared,
                                        matrix_sums<TYPE, COLUMNS> *sums)
{
    typedef matrix_shape<TYPE, COLUMNS> shape;
    constexpr bool odd = shape::slice::format::bytes % 2 != 0;
    if (shape::shared_scales)
        share_scales<TYPE, COLUMNS>(stage, skew, row_step, place.w, shared);
    matrix_columns<TYPE, COLUMNS> columns;
    load_columns<TYPE, COLUMNS>(stage, place, &columns);
    uint32_t skews[2];
    skews[0] = skew_of(skew, row_step, place.g);
    skews[1] = odd ? skew_of(skew, row_step, place.g + 8) : skews[0];
#pragma unroll
    for (uint32_t m = 0; m < shape::tiles; m++) {
        uint32_t a[4];
        matrix_scales<TYPE> scales[2];
        if (shape::lean || (COLUMNS == 64 && !shape::shared_scales && !shape::slice::has_mins))
            __syncwarp();
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const uint8_t *row = stage + place.weights + (16 * m + 8 * h) * shape::pitch;
            uint32_t first = skews[h] + shape::slice::origin(place.w);
            slice_words at = {
                (const uint32_t *)(row + (shape::slice::aligned ? first : first & ~3u)), first * 8};
            shape::slice::codes(at, place.w, place.t, &a[h], &a[h + 2]);
            matrix_scales_of<TYPE, shape::shared_scales>::load(
                row + skews[h], shared, place.w, place.g + 8 * h + 16 * m, &scales[h]);
        }
        add_rows<TYPE, COLUMNS>(a, scales, columns, m, sums);
    }
}

/* Adds the lanes up in the order of the kernels' contract: each level of the tree makes LEFT sums
 * of 2 * LEFT, down to one. */
template <int LANES, int LEFT>
__device__ static inline float add_lanes(const float *lane, uint32_t stride)
{
    if constexpr (LEFT == LANES)
        return *lane;
    else
        return add_lanes<LANES, 2 * LEFT>(lane, stride) +
               add_lanes<LANES, 2 * LEFT>(lane + LEFT * stride, stride);
}

/* Adds the lanes of sum_outs weight rows at a time and stores them. */
template <int TYPE, int COLUMNS>
__device__ static inline void
store_tile(const moe_cuda_products &job, const moe_cuda_product &product, uint32_t first_out,
           uint32_t first_row, float *memory, const matrix_sums<TYPE, COLUMNS> &sums)
{
    typedef matrix_shape<TYPE, COLUMNS> shape;
    constexpr uint32_t lane_floats = COLUMNS * shape::sum_pitch;
    constexpr uint32_t part_tiles = shape::sum_outs / 16;
    uint32_t w = threadIdx.x / MOE_WARP;
    uint32_t g = threadIdx.x % MOE_WARP / 4, t = threadIdx.x % 4;
    float *own = memory + w * shape::runs * lane_floats + 2 * t * shape::sum_pitch + g;
#pragma unroll
    for (uint32_t part = 0; part < shape::tiles / part_tiles; part++) {
        __syncthreads();
#pragma unroll
        for (uint32_t at = 0; at < shape::runs * part_tiles * shape::column_tiles * 4; at++) {
            uint32_t i = at % 4, n = at / 4 % shape::column_tiles,
                     m = at / 4 / shape::column_tiles % part_tiles;
            uint32_t j = at / 4 / shape::column_tiles / part_tiles;
            own[j * lane_floats + (8 * n + i % 2) * shape::sum_pitch + 16 * m + i / 2 * 8] =
                sums.acc[j][part * part_tiles + m][n][i];
        }
        __syncthreads();
        uint32_t column = threadIdx.x % shape::sum_outs;
        uint32_t out = first_out + part * shape::sum_outs + column;
        for (uint32_t row = threadIdx.x / shape::sum_outs; row < COLUMNS;
             row += MATRIX_THREADS / shape::sum_outs) {
            uint32_t at = first_row + row;
            if (at >= product.n_rows || out >= job.n_out)
                break;
            float sum =
                add_lanes<shape::lanes, 1>(memory + row * shape::sum_pitch + column, lane_floats);
            size_t target = product.out_index != NULL ? product.out_index[at] : at;
            product.out[target * job.out_stride + out] =
                product.bias != NULL ? sum + product.bias[out] : sum;
        }
    }
}

template <int TYPE, int COLUMNS>
__global__ __launch_bounds__(MATRIX_THREADS,
                             COLUMNS == 64 ? 1 : 2) void moe_matrix_product(moe_cuda_products job)
{
    typedef matrix_shape<TYPE, COLUMNS> shape;
    MOE_DYNAMIC_SHARED(product_words, matrix_memory);
    moe_cuda_product product = product_of(job, blockIdx.z);
    uint32_t first_out = blockIdx.x * shape::outs;
    uint32_t wide = wide_rows_of(job, product.n_rows);
    uint32_t first_row = blockIdx.y * COLUMNS + (COLUMNS == 64 ? 0 : wide);
    if (product.n_rows < job.matrix_from || first_row >= product.n_rows)
        return;
    if (COLUMNS == 64 ? first_row >= wide
                      : (product.n_rows - wide <= job.narrow_upto) != (COLUMNS == 16))
        return;
    uint8_t *memory = (uint8_t *)matrix_memory;
    matrix_source source = source_of<TYPE, COLUMNS>(job, product, first_out, first_row);
    matrix_place place = place_of<TYPE, COLUMNS>();
    matrix_sums<TYPE, COLUMNS> sums = {};
    uint8_t *shared = memory + shape::scales + place.w * shape::warp_scales;
    uint32_t row_step = (uint32_t)job.row_bytes;
    uint32_t skew = (uint32_t)(uintptr_t)product.weights + first_out * row_step;
    if (job.n_in != 0)
        fetch_group<TYPE, COLUMNS>(job.x_q8, &source, memory);
    __pipeline_commit();
    uint32_t stage = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < job.n_in; first += MOE_GROUP) {
        __pipeline_wait_prior(0);
        __syncthreads(); /* the other threads' copies have arrived, and no thread still reads the
                          * stage that is filled next */
        if (first + MOE_GROUP < job.n_in)
            fetch_group<TYPE, COLUMNS>(job.x_q8, &source, memory + (shape::stage - stage));
        __pipeline_commit();
        if (first + place.w * 32 < job.n_in)
            add_slice<TYPE, COLUMNS>(memory + stage, skew, row_step, place, shared, &sums);
        skew += shape::slice::group_bytes % PIECE_BYTES;
        stage = shape::stage - stage;
    }
    /* Reads the product again, because the loop needed its registers. */
    store_tile<TYPE, COLUMNS>(job, product_of(job, blockIdx.z), first_out, first_row,
                              (float *)memory, sums);
}

template <int TYPE, int COLUMNS>
static void launch_matrix_tiles(moe_cuda_stream stream, const moe_cuda_products &job,
                                uint32_t max_rows)
{
    typedef matrix_shape<TYPE, COLUMNS> shape;
    dim3 grid((job.n_out + shape::outs - 1) / shape::outs, (max_rows + COLUMNS - 1) / COLUMNS,
              job.n_products);
    MOE_LAUNCH_LARGE((moe_matrix_product<TYPE, COLUMNS>), grid, MATRIX_THREADS, shape::bytes,
                     stream, job);
}

/* max_rows: for tiles of 16, 32 and 64 rows, the most rows that one product gives to such tiles. */
template <int TYPE>
static void launch_matrix_type(moe_cuda_stream stream, const moe_cuda_products &job,
                               const uint32_t *max_rows)
{
    if (max_rows[0] != 0)
        launch_matrix_tiles<TYPE, 16>(stream, job, max_rows[0]);
    if (max_rows[1] != 0)
        launch_matrix_tiles<TYPE, 32>(stream, job, max_rows[1]);
    if (max_rows[2] != 0)
        launch_matrix_tiles<TYPE, 64>(stream, job, max_rows[2]);
}

/* One function for each source file with instances; false: another file has the type. */
bool moe_cuda_matrix_blocks32(moe_cuda_stream stream, const moe_cuda_products &job,
                              const uint32_t *max_rows);
bool moe_cuda_matrix_blocks256(moe_cuda_stream stream, const moe_cuda_products &job,
                               const uint32_t *max_rows);
bool moe_cuda_matrix_points(moe_cuda_stream stream, const moe_cuda_products &job,
                            const uint32_t *max_rows);
bool moe_cuda_matrix_ternary(moe_cuda_stream stream, const moe_cuda_products &job,
                             const uint32_t *max_rows);

#endif
