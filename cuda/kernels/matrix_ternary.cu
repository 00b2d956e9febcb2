/* SPDX-License-Identifier: MIT */
/* Products by the matrix units with weights of below 2 bits, with ternary ones and with NVFP4. */
#include "cuda/kernels/matrix_product.cuh"
#include "cuda/kernels/weight_point_slices.cuh"

bool moe_cuda_matrix_ternary(moe_cuda_stream stream, const moe_cuda_products &job,
                             const uint32_t *max_rows)
{
    switch (job.type) {
    case MOE_DTYPE_IQ1_S:
        launch_matrix_type<MOE_DTYPE_IQ1_S>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_IQ1_M:
        launch_matrix_type<MOE_DTYPE_IQ1_M>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_TQ1_0:
        launch_matrix_type<MOE_DTYPE_TQ1_0>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_TQ2_0:
        launch_matrix_type<MOE_DTYPE_TQ2_0>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_NVFP4:
        launch_matrix_type<MOE_DTYPE_NVFP4>(stream, job, max_rows);
        return true;
    default:
        return false;
    }
}
