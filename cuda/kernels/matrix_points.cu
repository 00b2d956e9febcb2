/* SPDX-License-Identifier: MIT */
/* Products by the matrix units with weights of IQ2 and IQ3, which are points of codebooks
 * (weight_points.cuh). */
#include "cuda/kernels/matrix_product.cuh"
#include "cuda/kernels/weight_point_slices.cuh"

bool moe_cuda_matrix_points(moe_cuda_stream stream, const moe_cuda_products &job,
                            const uint32_t *max_rows)
{
    switch (job.type) {
    case MOE_DTYPE_IQ2_XXS:
        launch_matrix_type<MOE_DTYPE_IQ2_XXS>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_IQ2_XS:
        launch_matrix_type<MOE_DTYPE_IQ2_XS>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_IQ2_S:
        launch_matrix_type<MOE_DTYPE_IQ2_S>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_IQ3_XXS:
        launch_matrix_type<MOE_DTYPE_IQ3_XXS>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_IQ3_S:
        launch_matrix_type<MOE_DTYPE_IQ3_S>(stream, job, max_rows);
        return true;
    default:
        return false;
    }
}
