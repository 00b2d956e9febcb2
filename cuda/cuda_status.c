/* SPDX-License-Identifier: MIT */
/* Translates CUDA's codes into the library's, and handles devices that have failed.
 *
 * A lack of memory is reported and forgotten. Any other failure, of a call or of a kernel before
 * it, leaves the context of the whole process unusable (CUDA calls such an error sticky), or may do
 * so. The device keeps the first such failure and returns it for every later operation. */
#include <string.h>

#include "cuda/cuda_internal.h"
#include "runtime/base/error.h"

static const char *remedy_for(cudaError_t code)
{
    switch (code) {
    case cudaErrorMemoryAllocation:
        return "lower options.device_memory or the context, or end other programs on the GPU";
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
        return "see `moe-offload devices`; CUDA_VISIBLE_DEVICES or another process may hide it";
    case cudaErrorInsufficientDriver:
    case cudaErrorCompatNotSupportedOnDevice:
        return "install a newer NVIDIA driver";
    case cudaErrorSystemDriverMismatch:
        return "the driver's library and its kernel module differ: restart after an update, and in "
               "a container use the host's libcuda";
    case cudaErrorSystemNotReady:
        return "machines with NVSwitch need nvidia-fabricmanager: start it";
    case cudaErrorInitializationError:
    case cudaErrorOperatingSystem:
    case cudaErrorUnknown:
        return "see that `nvidia-smi` works, that /dev/nvidia-uvm is there, and the kernel's log";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
        return "build with this GPU's architecture in -Dgpu_archs";
    case cudaErrorECCUncorrectable:
        return "the GPU's memory is damaged: see `nvidia-smi -q`";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
        return "a broken invariant: please report it; this process cannot use the GPU any more";
    default:
        return "options.device cpu works without a GPU";
    }
}

int moe_cuda_translate(cudaError_t code, const char *call, const char *what, moe_error *err)
{
    (void)cudaGetLastError();
    int status = code == cudaErrorMemoryAllocation ? MOE_ERR_MEMORY : MOE_ERR_DEVICE;
    return moe_fail(err, status, "CUDA: %s: %s failed: %s (%s); %s", what, call,
                    cudaGetErrorString(code), cudaGetErrorName(code), remedy_for(code));
}

int moe_cuda_give_up(moe_cuda_device *cuda, cudaError_t code, const char *call, const char *what,
                     moe_error *err)
{
    moe_error failure = {""};
    (void)moe_cuda_translate(code, call, what, &failure);
    pthread_mutex_lock(&cuda->lock);
    if (!cuda->failed) {
        cuda->failed = true;
        cuda->failure = failure;
    }
    pthread_mutex_unlock(&cuda->lock);
    return moe_fail(err, MOE_ERR_DEVICE, "%s", failure.message);
}

int moe_cuda_enter(moe_cuda_device *cuda, moe_error *err)
{
    moe_error failure = {""};
    pthread_mutex_lock(&cuda->lock);
    bool failed = cuda->failed;
    if (failed) {
        failure = cuda->failure;
    }
    pthread_mutex_unlock(&cuda->lock);
    if (failed) {
        return moe_fail(err, MOE_ERR_DEVICE, "%s", failure.message);
    }
    return moe_cuda_check(cuda, cudaSetDevice(cuda->index), "cudaSetDevice", "selecting the GPU",
                          err);
}

int moe_cuda_check(moe_cuda_device *cuda, cudaError_t code, const char *call, const char *what,
                   moe_error *err)
{
    return code == cudaSuccess ? MOE_OK : moe_cuda_give_up(cuda, code, call, what, err);
}

bool moe_cuda_refuses_recording(cudaError_t code)
{
    return code == cudaErrorMemoryAllocation || code == cudaErrorNotSupported ||
           (code >= cudaErrorStreamCaptureUnsupported && code <= cudaErrorStreamCaptureWrongThread);
}

int moe_cuda_launched(moe_cuda_device *cuda, const char *what, moe_error *err)
{
    const char *call = "launching a kernel";
    cudaError_t code = cudaGetLastError();
    if (cuda->recording.under_way && moe_cuda_refuses_recording(code)) {
        (void)moe_cuda_translate(code, call, what, err);
        return MOE_ERR_UNSUPPORTED;
    }
    return moe_cuda_check(cuda, code, call, what, err);
}

int moe_cuda_wait(moe_cuda_device *cuda, const char *what, moe_error *err)
{
    if (cuda->recording.under_way) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "%s: not while operations are being recorded", what);
    }
    pthread_mutex_lock(&cuda->lock);
    uint64_t n_uses = cuda->n_uses;
    pthread_mutex_unlock(&cuda->lock);
    MOE_TRY(moe_cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "cudaStreamSynchronize", what,
                           err));
    pthread_mutex_lock(&cuda->lock);
    cuda->n_uses_done = n_uses > cuda->n_uses_done ? n_uses : cuda->n_uses_done;
    pthread_mutex_unlock(&cuda->lock);
    return MOE_OK;
}
