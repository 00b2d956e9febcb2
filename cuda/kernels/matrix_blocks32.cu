/* SPDX-License-Identifier: MIT */
/* Products by the matrix units with weights of blocks of 32. */
#include "cuda/kernels/matrix_product.cuh"

bool moe_cuda_matrix_blocks32(moe_cuda_stream stream, const moe_cuda_products &job,
                              const uint32_t *max_rows)
{
    switch (job.type) {
    case MOE_DTYPE_Q4_0:
        launch_matrix_type<MOE_DTYPE_Q4_0>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_Q4_1:
        launch_matrix_type<MOE_DTYPE_Q4_1>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_Q5_0:
        launch_matrix_type<MOE_DTYPE_Q5_0>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_Q5_1:
        launch_matrix_type<MOE_DTYPE_Q5_1>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_Q8_0:
        launch_matrix_type<MOE_DTYPE_Q8_0>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_IQ4_NL:
        launch_matrix_type<MOE_DTYPE_IQ4_NL>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_MXFP4:
        launch_matrix_type<MOE_DTYPE_MXFP4>(stream, job, max_rows);
        return true;
    default:
        return false;
    }
}
