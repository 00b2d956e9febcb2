/* SPDX-License-Identifier: MIT */
/* Products with weights of IQ2 and IQ3, which are points of codebooks (weight_points.cuh). */
#include "cuda/kernels/product.cuh"
#include "cuda/kernels/weight_points.cuh"

bool moe_cuda_product_points(moe_cuda_stream stream, const moe_cuda_products &job, uint32_t warps,
                             const uint32_t *max_rows)
{
    switch (job.type) {
    case MOE_DTYPE_IQ2_XXS:
        launch_product_type<MOE_DTYPE_IQ2_XXS>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_IQ2_XS:
        launch_product_type<MOE_DTYPE_IQ2_XS>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_IQ2_S:
        launch_product_type<MOE_DTYPE_IQ2_S>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_IQ3_XXS:
        launch_product_type<MOE_DTYPE_IQ3_XXS>(stream, job, warps, max_rows);
        return true;
    case MOE_DTYPE_IQ3_S:
        launch_product_type<MOE_DTYPE_IQ3_S>(stream, job, warps, max_rows);
        return true;
    default:
        return false;
    }
}
