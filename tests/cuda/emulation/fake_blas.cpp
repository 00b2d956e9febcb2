/* SPDX-License-Identifier: MIT */
/* Stands in for cuBLAS: one product, in plain loops on the stream. Sums are doubles, so that its
 * results are close to those of the exact kernels and seldom their bits, as cuBLAS's are. */
#include "cuda/cuda_blas_load.h"
#include "fake_blas.h"

namespace
{
struct handle {
    cudaStream_t stream;
};

/* Codes of cublasStatus_t. */
int status_of(cudaError_t code)
{
    return code == cudaSuccess                   ? 0
           : code == cudaErrorInsufficientDriver ? 1
           : code == cudaErrorMemoryAllocation   ? 3
                                                 : 13;
}

int create(void **out)
{
    *out = nullptr;
    cudaError_t code = emulation::enter_call("cublasCreate");
    if (code != cudaSuccess)
        return status_of(code);
    *out = new handle{};
    emulation::count_blas_handles(1);
    return 0;
}

int destroy(void *h)
{
    delete (handle *)h;
    emulation::count_blas_handles(-1);
    return 0;
}

int set_stream(void *h, cudaStream_t stream)
{
    ((handle *)h)->stream = stream;
    return status_of(emulation::enter_call("cublasSetStream"));
}

int sgemm(void *h, int op_a, int op_b, int m, int n, int k, const float *alpha, const float *a,
          int lda, const float *b, int ldb, const float *beta, float *c, int ldc)
{
    bool turned = op_a == MOE_CUBLAS_T;
    if (m <= 0 || n <= 0 || k <= 0 || lda < (turned ? k : m) || op_b != MOE_CUBLAS_N || ldb < k ||
        ldc < m)
        return 7;
    float scale = *alpha;
    float keep = *beta;
    auto run = [=] {
        for (int j = 0; j < n; j++)
            for (int i = 0; i < m; i++) {
                double sum = 0.0;
                for (int l = 0; l < k; l++)
                    sum += (double)a[turned ? (size_t)i * lda + l : (size_t)l * lda + i] *
                           (double)b[(size_t)j * ldb + l];
                float *out = &c[(size_t)j * ldc + i];
                /* By a factor of 0 even NaNs are not read. */
                *out = (float)(scale * sum + (keep == 0.0f ? 0.0 : (double)keep * *out));
            }
    };
    return status_of(emulation::queue_product(((handle *)h)->stream, run));
}
} // namespace

/* Two of them, so that the second can be tried where the first fails. */
int moe_cuda_blas_load(moe_cuda_blas_api *out, size_t *next, moe_error *)
{
    *out = {create, destroy, set_stream, sgemm};
    return (*next)++ < 2 ? MOE_OK : MOE_ERR_UNSUPPORTED;
}
