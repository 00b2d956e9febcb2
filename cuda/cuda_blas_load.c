/* SPDX-License-Identifier: MIT */
/* Finding cuBLAS: where the system looks, then in the folder of the CUDA that this was built with.
 */
#include <dlfcn.h>

#include "cuda/cuda_blas.h"
#include "module_build.h" /* of the build: MOE_CUDA_LIBRARIES */
#include "runtime/base/error.h"

static bool find_functions(moe_cuda_blas_api *api, void *handle)
{
    /* Since CUDA 4 the names without a version are those of another interface. */
    *(void **)&api->create = dlsym(handle, "cublasCreate_v2");
    *(void **)&api->destroy = dlsym(handle, "cublasDestroy_v2");
    *(void **)&api->set_stream = dlsym(handle, "cublasSetStream_v2");
    *(void **)&api->sgemm = dlsym(handle, "cublasSgemm_v2");
    return api->create != NULL && api->destroy != NULL && api->set_stream != NULL &&
           api->sgemm != NULL;
}

int moe_cuda_blas_load_from(moe_cuda_blas_api *out, const char *const *files, size_t n,
                            moe_error *err)
{
    for (size_t i = 0; i < n; i++) {
        void *handle = dlopen(files[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (handle == NULL) {
            continue;
        }
        bool found = find_functions(out, handle);
        (void)dlclose(handle); /* it stays mapped: RTLD_NODELETE */
        if (!found) {
            return moe_fail(
                err, MOE_ERR_UNSUPPORTED,
                "%s is no cuBLAS that can be used: it lacks functions; options.float_gemm "
                "exact works without it",
                files[i]);
        }
        return MOE_OK;
    }
    return moe_fail(
        err, MOE_ERR_UNSUPPORTED,
        "options.float_gemm blas needs cuBLAS on a GPU, and %s cannot be loaded; install it "
        "or name its folder in LD_LIBRARY_PATH; options.float_gemm exact works without it",
        files[0]);
}

int moe_cuda_blas_load(moe_cuda_blas_api *out, moe_error *err)
{
    static const char *const files[] = {"libcublas.so.13", "libcublas.so.12",
                                        MOE_CUDA_LIBRARIES "/libcublas.so", "libcublas.so"};
    return moe_cuda_blas_load_from(out, files, sizeof files / sizeof files[0], err);
}
