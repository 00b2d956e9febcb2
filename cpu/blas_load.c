/* SPDX-License-Identifier: MIT */
#include "cpu/blas_load.h"

#include <dlfcn.h>

#include "runtime/base/error.h"

int moe_blas_load_from(moe_blas *out, const char *const *files, size_t n, moe_error *err)
{
    *out = (moe_blas){NULL, NULL};
    for (size_t i = 0; i < n; i++) {
        void *handle = dlopen(files[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (handle == NULL) {
            continue;
        }
        moe_blas found;
        *(void **)&found.sgemm = dlsym(handle, "cblas_sgemm");
        *(void **)&found.ssyrk = dlsym(handle, "cblas_ssyrk");
        (void)dlclose(handle); /* the object stays mapped: RTLD_NODELETE */
        if (found.sgemm == NULL || found.ssyrk == NULL) {
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s lacks functions of CBLAS; install OpenBLAS with them", files[i]);
        }
        *out = found;
        return MOE_OK;
    }
    return moe_fail(
        err, MOE_ERR_UNSUPPORTED,
        "OpenBLAS is needed for calibrating and for options.float_gemm blas, and %s cannot be "
        "loaded; install it (Debian: libopenblas0) or name its folder in "
        "LD_LIBRARY_PATH",
        files[0]);
}

int moe_blas_load(moe_blas *out, moe_error *err)
{
    static const char *const files[] = {"libopenblas.so.0", "libopenblas.so"};
    return moe_blas_load_from(out, files, sizeof files / sizeof files[0], err);
}
