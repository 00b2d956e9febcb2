/* SPDX-License-Identifier: MIT */
/* Products by the matrix units with weights of blocks of 256. */
#include "cuda/kernels/matrix_product.cuh"

bool moe_cuda_matrix_blocks256(moe_cuda_stream stream, const moe_cuda_products &job,
                               const uint32_t *max_rows)
{
    switch (job.type) {
    case MOE_DTYPE_Q2_K:
        launch_matrix_type<MOE_DTYPE_Q2_K>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_Q3_K:
        launch_matrix_type<MOE_DTYPE_Q3_K>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_Q4_K:
        launch_matrix_type<MOE_DTYPE_Q4_K>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_Q5_K:
        launch_matrix_type<MOE_DTYPE_Q5_K>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_Q6_K:
        launch_matrix_type<MOE_DTYPE_Q6_K>(stream, job, max_rows);
        return true;
    case MOE_DTYPE_IQ4_XS:
        launch_matrix_type<MOE_DTYPE_IQ4_XS>(stream, job, max_rows);
        return true;
    default:
        return false;
    }
}
