/* SPDX-License-Identifier: MIT */
/* Products with weights of floats.
 *
 * A matrix of few rows, such as a router's, gives moe_product too few warps for a GPU: 128 rows
 * are 16 warps. For such matrices there is moe_product_thin: a block is one warp, a warp takes two
 * rows, and a thread has one of the sixteen lanes. It requests its rows whole, before the kernels
 * ahead have ended. The lanes are summed by the same tree, so the bits are those of moe_product. */
#include "cuda/kernels/product.cuh"

#define LANES     16u
#define THIN_ROWS (MOE_WARP / LANES)

template <int TYPE> __device__ static inline float thin_weight(const uint8_t *row, uint32_t e)
{
    if (TYPE == MOE_DTYPE_F32)
        return ((const float *)row)[e];
    const uint16_t bits = ((const uint16_t *)row)[e];
    return TYPE == MOE_DTYPE_F16 ? moe_device_half_to_float(bits)
                                 : moe_device_float_of((uint32_t)bits << 16);
}

/* A row's room in shared memory, chosen so that the two rows of a warp are in different banks. */
__host__ __device__ static inline uint32_t thin_stride(uint32_t row_bytes)
{
    return (row_bytes + 127) / 128 * 128 + 64;
}

template <int TYPE, int ROWS>
__global__ __launch_bounds__(MOE_WARP) void moe_product_thin(moe_cuda_products job)
{
    MOE_DYNAMIC_SHARED(product_words, thin_memory);
    MOE_BEGIN_EARLY();
    moe_cuda_product product = job.first;
    const product_outs outs = find_outs(job, THIN_ROWS, &product);
    const uint32_t lane = threadIdx.x % LANES;
    const uint32_t out = outs.block * THIN_ROWS + threadIdx.x / LANES;
    const uint32_t first_row = blockIdx.y * ROWS;
    const uint32_t bytes = job.n_in * weight_format<TYPE>::elem_bytes;
    const uint8_t *row = (const uint8_t *)product.weights + out * job.row_bytes;
    uint8_t *own = (uint8_t *)thin_memory + threadIdx.x / LANES * thin_stride(bytes);
    for (uint32_t at = lane * PIECE_BYTES; at < bytes && out < outs.n_out;
         at += LANES * PIECE_BYTES)
        __pipeline_memcpy_async(own + at, row + at, PIECE_BYTES);
    __pipeline_commit();
    MOE_WAIT_FOR_STREAM();
    const float *x[ROWS];
    float sums[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        uint32_t at = first_row + r < product.n_rows ? first_row + r : product.n_rows - 1;
        x[r] = product.x + (product.x_index != NULL ? product.x_index[at] : at) * job.x_stride;
        sums[r] = 0.0f;
    }
    __pipeline_wait_prior(0);
    __syncwarp();
    const uint32_t n = out < outs.n_out ? job.n_in : 0;
    constexpr uint32_t AT_ONCE = ROWS == 1 ? 32 : 8; /* elements of x that are loaded at once */
    uint32_t e = lane;
    for (; e + (AT_ONCE - 1) * LANES < n; e += AT_ONCE * LANES) {
        float values[ROWS][AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < ROWS * AT_ONCE; i++)
            values[i / AT_ONCE][i % AT_ONCE] = x[i / AT_ONCE][e + i % AT_ONCE * LANES];
#pragma unroll
        for (uint32_t i = 0; i < ROWS * AT_ONCE; i++)
            sums[i % ROWS] = fmaf(thin_weight<TYPE>(own, e + i / ROWS * LANES),
                                  values[i % ROWS][i / ROWS], sums[i % ROWS]);
    }
    for (; e < n; e += LANES) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            sums[r] = fmaf(thin_weight<TYPE>(own, e), x[r][e], sums[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = sums[r];
#pragma unroll
        for (int distance = LANES / 2; distance > 0; distance /= 2)
            sum += __shfl_xor_sync(MOE_ALL_WARP, sum, distance);
        const uint32_t at = first_row + r;
        if (lane != 0 || out >= outs.n_out || at >= product.n_rows)
            continue;
        size_t target = product.out_index != NULL ? product.out_index[at] : at;
        product.out[target * outs.stride + out] =
            product.bias != NULL ? sum + product.bias[out] : sum;
    }
}

template <int TYPE, int ROWS>
static void launch_thin_class(moe_cuda_stream stream, const moe_cuda_products &job,
                              uint32_t max_rows)
{
    uint32_t blocks = blocks_of_outs(job.n_out, THIN_ROWS);
    for (uint32_t m = 0; m < job.n_more; m++)
        blocks += blocks_of_outs(job.more[m].n_out, THIN_ROWS);
    if (max_rows != 0)
        MOE_LAUNCH_EARLY(
            (moe_product_thin<TYPE, ROWS>), dim3(blocks, (max_rows + ROWS - 1) / ROWS), MOE_WARP,
            THIN_ROWS * thin_stride(job.n_in * weight_format<TYPE>::elem_bytes), stream, job);
}

template <int TYPE>
static void launch_type(moe_cuda_stream stream, const moe_cuda_products &job, uint32_t warps,
                        const uint32_t *max_rows)
{
    if (warps > 0) {
        launch_product_type<TYPE>(stream, job, warps, max_rows);
        return;
    }
    launch_thin_class<TYPE, 1>(stream, job, max_rows[0]);
    launch_thin_class<TYPE, 2>(stream, job, max_rows[1]);
    launch_thin_class<TYPE, 4>(stream, job, max_rows[2]);
    launch_thin_class<TYPE, 8>(stream, job, max_rows[3]);
}

bool moe_cuda_product_floats(moe_cuda_stream stream, const moe_cuda_products &job, uint32_t warps,
                             const uint32_t *max_rows)
{
    switch (job.type) {
    case MOE_DTYPE_F32:
        launch_type<MOE_DTYPE_F32>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_F16:
        launch_type<MOE_DTYPE_F16>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_BF16:
        launch_type<MOE_DTYPE_BF16>(stream, job, warps, max_rows);
        return true;
    default:
        return false;
    }
}
