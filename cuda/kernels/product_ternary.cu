/* SPDX-License-Identifier: MIT */
/* Products with weights of below 2 bits, with ternary ones and with NVFP4. */
#include "cuda/kernels/product.cuh"
#include "cuda/kernels/weight_points.cuh"

bool moe_cuda_product_ternary(moe_cuda_stream stream, const moe_cuda_products &job, uint32_t warps,
                              const uint32_t *max_rows)
{
    switch (job.type) {
    case MOE_DTYPE_IQ1_S:
        launch_product_type<MOE_DTYPE_IQ1_S>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_IQ1_M:
        launch_product_type<MOE_DTYPE_IQ1_M>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_TQ1_0:
        launch_product_type<MOE_DTYPE_TQ1_0>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_TQ2_0:
        launch_product_type<MOE_DTYPE_TQ2_0>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_NVFP4:
        launch_product_type<MOE_DTYPE_NVFP4>(stream, job, warps, max_rows);
        return true;
    default:
        return false;
    }
}
