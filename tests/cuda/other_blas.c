/* SPDX-License-Identifier: MIT */
/* A library with the functions that the loader looks for in cuBLAS, for test_cuda_blas_load.c. */
#pragma GCC visibility push(default)
int cublasCreate_v2(void);
int cublasDestroy_v2(void);
int cublasSetStream_v2(void);
int cublasSgemm_v2(void);
#pragma GCC visibility pop

int cublasCreate_v2(void)
{
    return 101;
}

int cublasDestroy_v2(void)
{
    return 102;
}

int cublasSetStream_v2(void)
{
    return 103;
}

int cublasSgemm_v2(void)
{
    return 104;
}
