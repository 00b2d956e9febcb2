/* SPDX-License-Identifier: MIT */
/* Products with weights of floats. */
#include "cuda/kernels/product.cuh"

bool moe_cuda_product_floats(moe_cuda_stream stream, const moe_cuda_products &job, uint32_t warps,
                             const uint32_t *max_rows)
{
    switch (job.type) {
    case MOE_DTYPE_F32:
        launch_product_type<MOE_DTYPE_F32>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_F16:
        launch_product_type<MOE_DTYPE_F16>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_BF16:
        launch_product_type<MOE_DTYPE_BF16>(stream, job, warps, max_rows);
        return true;
    default:
        return false;
    }
}
