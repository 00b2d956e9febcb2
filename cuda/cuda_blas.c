/* SPDX-License-Identifier: MIT */
/* Products with float weights by cuBLAS.
 *
 * cuBLAS stores matrices by columns, so it sees a matrix of rows as the transposed matrix. out = x
 * W^T is therefore computed as out^T = W x^T. F32 weights are used in place. F16 and BF16 weights
 * are first widened to F32 by the embeddings' kernel, as many rows at a time as the scratch holds.
 * (Rounding the activations to the weights' type instead would change far more than the last bits.)
 * The sums begin with the bias. */
#include "cuda/cuda_blas.h"

#include <stdlib.h>

#include "cuda/cuda_blas_load.h"
#include "cuda/cuda_internal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* For widened weights; enough for a thousand rows of 8192 floats at a time. */
#define SCRATCH_BYTES ((size_t)32 << 20)

/* What cublasCreate() answers when the driver is too old for the library. */
#define NOT_INITIALISED 1

struct moe_cuda_blas {
    moe_cuda_blas_api api;
    void *handle;
    cudaStream_t stream;
    float *widened; /* device, SCRATCH_BYTES */
};

/* The names of the codes whose names help a reader of the error. */
static const char *name_of(int code)
{
    switch (code) {
    case NOT_INITIALISED:
        return "not initialised: the library and the driver may not fit";
    case 3:
        return "out of memory";
    case 7:
        return "wrong argument";
    case 8:
        return "not for this GPU";
    case 13:
        return "a kernel failed";
    default:
        return "see cublasStatus_t";
    }
}

static int refused(const char *call, int code, moe_error *err)
{
    return moe_fail(
        err, code == 3 ? MOE_ERR_MEMORY : MOE_ERR_DEVICE,
        "cuBLAS: %s failed with status %d (%s); options.float_gemm exact works without it", call,
        code, name_of(code));
}

/* Loads one cuBLAS after the other until one works with this driver: cuBLAS of CUDA 13 refuses a
 * driver for CUDA 12. If none works, returns the error of the first. */
static int load_and_create(moe_cuda_blas *blas, moe_error *err)
{
    moe_error later = {""};
    size_t next = 0;
    int status = moe_cuda_blas_load(&blas->api, &next, err);
    int first = status;
    for (bool again = false; status == MOE_OK; again = true) {
        int code = blas->api.create(&blas->handle);
        if (code == 0) {
            return MOE_OK;
        }
        blas->handle = NULL;
        first = again ? first : refused("cublasCreate", code, err);
        if (code != NOT_INITIALISED) {
            break;
        }
        status = moe_cuda_blas_load(&blas->api, &next, &later);
    }
    return first;
}

int moe_cuda_blas_open(moe_cuda_blas **out, cudaStream_t stream, moe_error *err)
{
    *out = NULL;
    moe_cuda_blas *blas = moe_calloc(1, sizeof *blas);
    if (blas == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for cuBLAS");
    }
    blas->stream = stream;
    int status = load_and_create(blas, err);
    int code = status == MOE_OK ? blas->api.set_stream(blas->handle, stream) : 0;
    if (code != 0) {
        status = refused("cublasSetStream", code, err);
    }
    if (status == MOE_OK) {
        cudaError_t error = cudaMalloc((void **)&blas->widened, SCRATCH_BYTES);
        status = error == cudaSuccess
                     ? MOE_OK
                     : moe_cuda_translate(error, "cudaMalloc", "scratch for cuBLAS", err);
    }
    if (status != MOE_OK) {
        moe_cuda_blas_close(&blas);
        return status;
    }
    *out = blas;
    return MOE_OK;
}

void moe_cuda_blas_close(moe_cuda_blas **blas)
{
    if (*blas == NULL) {
        return;
    }
    if ((*blas)->handle != NULL) {
        (void)(*blas)->api.destroy((*blas)->handle);
    }
    if ((*blas)->widened != NULL) {
        (void)cudaFree((*blas)->widened);
    }
    free(*blas);
    *blas = NULL;
}

bool moe_cuda_blas_takes(const moe_cuda_blas *blas, const moe_weight *weight, uint32_t n_rows)
{
    return blas != NULL && n_rows >= MOE_CUDA_BLAS_ROWS && weight->n_in > 0 &&
           moe_dtype_info_of(weight->type)->is_float &&
           weight->n_in * sizeof(float) <= SCRATCH_BYTES;
}

/* Whether the rows can be used in place as arrays of floats. */
static bool is_plain(const moe_weight *weight)
{
    return weight->type == MOE_DTYPE_F32 && (uintptr_t)weight->data % sizeof(float) == 0 &&
           weight->row_bytes % sizeof(float) == 0;
}

/* Multiplies rows first .. first + n of the weight. */
static int run_part(moe_cuda_blas *blas, const moe_cuda_blas_product *product, uint32_t first,
                    uint32_t n, moe_error *err)
{
    moe_weight part = *product->weight;
    part.data = (const uint8_t *)part.data + (size_t)first * part.row_bytes;
    part.n_out = n;
    const float *rows = part.data;
    size_t stride = part.row_bytes / sizeof(float);
    if (!is_plain(&part)) {
        moe_cuda_embed(blas->stream, &part, NULL, n, 1.0f, blas->widened);
        rows = blas->widened;
        stride = part.n_in;
    }
    float *out = product->out + first;
    if (product->bias != NULL) {
        moe_cuda_copy_rows(blas->stream, product->bias + first, 0, out, product->out_stride, n,
                           product->n_rows);
    }
    const float one = 1.0f;
    const float beta = product->bias != NULL ? 1.0f : 0.0f;
    int code =
        blas->api.sgemm(blas->handle, MOE_CUBLAS_T, MOE_CUBLAS_N, (int)n, (int)product->n_rows,
                        (int)part.n_in, &one, rows, (int)stride, product->x, (int)product->x_stride,
                        &beta, out, (int)product->out_stride);
    return code == 0 ? MOE_OK : refused("cublasSgemm", code, err);
}

int moe_cuda_blas_run(moe_cuda_blas *blas, const moe_cuda_blas_product *product, moe_error *err)
{
    const moe_weight *weight = product->weight;
    size_t most = is_plain(weight) ? weight->n_out : SCRATCH_BYTES / sizeof(float) / weight->n_in;
    int status = MOE_OK;
    for (uint32_t first = 0; status == MOE_OK && first < weight->n_out;) {
        uint32_t left = weight->n_out - first;
        uint32_t n = left < most ? left : (uint32_t)most;
        status = run_part(blas, product, first, n, err);
        first += n;
    }
    return status;
}
