/* SPDX-License-Identifier: MIT */
/* Sends host arrays to the device, and results back.
 *
 * The ring is in parts, each with an event:
 *
 *    | part 0 | part 1 | part 2 | part 3 |    page-locked on the host, and the same on the device
 *                 ^ used
 *
 * An operation's arrays lie together in a part and are copied to the same place on the device, in
 * stream order. So on the device a place is overwritten only after the kernels that read it have
 * ended. On the host, a part may be reused only after its copies have ended: the host records an
 * event when it leaves a part, and waits for that event before it uses the part again.
 *
 * Copy engines take copies of all streams in the order in which they were queued; priorities do not
 * change that. So an array that the next kernel needs would wait behind experts on the link.
 * Therefore a kernel (transfer.cu) transfers small arrays: it reads or writes the page-locked
 * memory in place. */
#include <string.h>

#include "cuda/cuda_internal.h"
#include "runtime/base/error.h"

#define PART_BYTES    (512u << 10)
#define RESULTS_BYTES (256u << 10)

void moe_cuda_both_free(uint8_t **host, uint8_t **device)
{
    if (*host != NULL) {
        (void)cudaFreeHost(*host);
    }
    if (*device != NULL) {
        (void)cudaFree(*device);
    }
    *host = *device = NULL;
}

int moe_cuda_both_alloc(uint8_t **host, uint8_t **device, size_t bytes, const char *what,
                        moe_error *err)
{
    *host = *device = NULL;
    const char *call = "cudaHostAlloc";
    cudaError_t code = cudaHostAlloc((void **)host, bytes, cudaHostAllocDefault);
    if (code == cudaSuccess) {
        call = "cudaMalloc";
        code = cudaMalloc((void **)device, bytes);
    }
    if (code == cudaSuccess) {
        return MOE_OK;
    }
    moe_cuda_both_free(host, device);
    return moe_cuda_translate(code, call, what, err);
}

int moe_cuda_event_create(cudaEvent_t *event, const char *what, moe_error *err)
{
    cudaError_t code = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    return code == cudaSuccess ? MOE_OK
                               : moe_cuda_translate(code, "cudaEventCreateWithFlags", what, err);
}

static void release_ring(moe_cuda_ring *ring)
{
    for (uint32_t i = 0; i < MOE_CUDA_STAGES; i++) {
        if (ring->passed[i] != NULL) {
            (void)cudaEventDestroy(ring->passed[i]);
        }
    }
    moe_cuda_both_free(&ring->host, &ring->device);
    *ring = (moe_cuda_ring){0};
}

static int make_ring(moe_cuda_ring *ring, size_t part_bytes, moe_error *err)
{
    const char *what = "memory for the arrays of operations";
    *ring = (moe_cuda_ring){.part_bytes = part_bytes};
    int status =
        moe_cuda_both_alloc(&ring->host, &ring->device, MOE_CUDA_STAGES * part_bytes, what, err);
    for (uint32_t i = 0; status == MOE_OK && i < MOE_CUDA_STAGES; i++) {
        status = moe_cuda_event_create(&ring->passed[i], what, err);
    }
    if (status != MOE_OK) {
        release_ring(ring);
    }
    return status;
}

static void release_results(moe_cuda_results *results)
{
    moe_cuda_both_free(&results->host, &results->device);
    results->bytes = 0;
}

static int make_results(moe_cuda_results *results, size_t bytes, moe_error *err)
{
    int status =
        moe_cuda_both_alloc(&results->host, &results->device, bytes, "memory for results", err);
    results->bytes = status == MOE_OK ? bytes : 0;
    return status;
}

/* Whether kernels reach page-locked memory by the host's addresses. They do on all devices that
 * share one address space with the host. */
static bool maps_host(const moe_cuda_device *cuda)
{
    void *seen = NULL;
    bool maps = cudaHostGetDevicePointer(&seen, cuda->ring.host, 0) == cudaSuccess &&
                seen == cuda->ring.host;
    (void)cudaGetLastError();
    return maps;
}

int moe_cuda_staging_open(moe_cuda_device *cuda, moe_error *err)
{
    int status = make_ring(&cuda->ring, PART_BYTES, err);
    if (status == MOE_OK) {
        status = make_results(&cuda->results, RESULTS_BYTES, err);
    }
    cuda->maps_host = status == MOE_OK && maps_host(cuda);
    return status;
}

int moe_cuda_transfer_queue(moe_cuda_device *cuda, void *dst, const void *src, size_t bytes,
                            enum cudaMemcpyKind kind, const char *what, moe_error *err)
{
    if (cuda->maps_host && bytes <= MOE_CUDA_TRANSFER_MOST) {
        moe_cuda_transfer(cuda->stream, dst, src, bytes);
        return moe_cuda_launched(cuda, what, err);
    }
    return moe_cuda_check(cuda, cudaMemcpyAsync(dst, src, bytes, kind, cuda->stream),
                          "cudaMemcpyAsync", what, err);
}

void moe_cuda_staging_close(moe_cuda_device *cuda)
{
    release_ring(&cuda->ring);
    release_results(&cuda->results);
}

/* Replaces a ring that is in use by a larger one. */
static int grow_ring(moe_cuda_device *cuda, size_t bytes, moe_error *err)
{
    size_t part_bytes = cuda->ring.part_bytes;
    while (part_bytes < bytes) {
        part_bytes *= 2;
    }
    MOE_TRY(moe_cuda_wait(cuda, "a larger staging ring", err));
    moe_cuda_ring larger;
    MOE_TRY(make_ring(&larger, part_bytes, err));
    release_ring(&cuda->ring);
    cuda->ring = larger;
    return MOE_OK;
}

static int next_part(moe_cuda_device *cuda, moe_error *err)
{
    moe_cuda_ring *ring = &cuda->ring;
    const char *what = "staging the arrays of an operation";
    MOE_TRY(moe_cuda_check(cuda, cudaEventRecord(ring->passed[ring->part], cuda->stream),
                           "cudaEventRecord", what, err));
    ring->left[ring->part] = true;
    ring->part = (ring->part + 1) % MOE_CUDA_STAGES;
    ring->used = 0;
    if (!ring->left[ring->part]) {
        return MOE_OK;
    }
    return moe_cuda_check(cuda, cudaEventSynchronize(ring->passed[ring->part]),
                          "cudaEventSynchronize", what, err);
}

/* During a recording: returns a place behind the inputs in the step's steady block, which lives as
 * long as the recording. */
static int begin_in_recording(moe_cuda_device *cuda, size_t bytes, moe_cuda_parcel *parcel,
                              moe_error *err)
{
    moe_cuda_steady *steady = cuda->step.at;
    size_t at = steady->recordings_at + steady->recordings_used;
    *parcel = (moe_cuda_parcel){0};
    if (at + bytes > steady->block.bytes) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the arrays of recordings take more than the %zu KiB that they have",
                        steady->block.bytes >> 10);
    }
    *parcel = (moe_cuda_parcel){
        .host = steady->block.host + at, .device = steady->block.device + at, .bytes = bytes};
    steady->recordings_used += bytes;
    return MOE_OK;
}

int moe_cuda_parcel_begin(moe_cuda_device *cuda, size_t bytes, moe_cuda_parcel *parcel,
                          moe_error *err)
{
    moe_cuda_ring *ring = &cuda->ring;
    if (cuda->recording.under_way) {
        return begin_in_recording(cuda, bytes, parcel, err);
    }
    if (bytes > ring->part_bytes) {
        MOE_TRY(grow_ring(cuda, bytes, err));
    } else if (ring->used + bytes > ring->part_bytes) {
        MOE_TRY(next_part(cuda, err));
    }
    size_t at = ring->part * ring->part_bytes + ring->used;
    ring->used += bytes;
    *parcel =
        (moe_cuda_parcel){.host = ring->host + at, .device = ring->device + at, .bytes = bytes};
    return MOE_OK;
}

int moe_cuda_scratch_begin(moe_cuda_device *cuda, size_t bytes, moe_cuda_parcel *parcel,
                           moe_error *err)
{
    if (!cuda->recording.under_way) {
        return moe_cuda_parcel_begin(cuda, bytes, parcel, err);
    }
    moe_cuda_steady *steady = cuda->step.at;
    int status = MOE_OK;
    if (bytes > steady->scratch.bytes) {
        status = begin_in_recording(cuda, bytes, &steady->scratch, err);
    }
    *parcel = steady->scratch;
    return status;
}

void *moe_cuda_parcel_put(moe_cuda_parcel *parcel, const void *src, size_t n, size_t element_bytes,
                          void **host)
{
    uint8_t *place = parcel->host + parcel->used;
    void *device = parcel->device + parcel->used;
    if (src != NULL && n > 0) {
        memcpy(place, src, n * element_bytes);
    }
    if (host != NULL) {
        *host = place;
    }
    parcel->used += moe_cuda_parcel_room(n, element_bytes);
    return device;
}

int moe_cuda_parcel_send(moe_cuda_device *cuda, const moe_cuda_parcel *parcel, moe_error *err)
{
    if (cuda->recording.under_way) {
        return MOE_OK; /* the recording sends it when it ends */
    }
    return moe_cuda_transfer_queue(cuda, parcel->device, parcel->host, parcel->used,
                                   cudaMemcpyHostToDevice, "sending the arrays of an operation",
                                   err);
}

int moe_cuda_stage(moe_cuda_device *cuda, const void *src, size_t bytes, void **device,
                   moe_error *err)
{
    moe_cuda_parcel parcel;
    MOE_TRY(moe_cuda_parcel_begin(cuda, moe_cuda_parcel_room(bytes, 1), &parcel, err));
    *device = moe_cuda_parcel_put(&parcel, src, bytes, 1, NULL);
    return moe_cuda_parcel_send(cuda, &parcel, err);
}

int moe_cuda_results_need(moe_cuda_device *cuda, size_t bytes, moe_error *err)
{
    if (bytes <= cuda->results.bytes) {
        return MOE_OK;
    }
    MOE_TRY(moe_cuda_wait(cuda, "a larger buffer for results", err));
    moe_cuda_results larger;
    MOE_TRY(make_results(&larger, bytes, err));
    release_results(&cuda->results);
    cuda->results = larger;
    return MOE_OK;
}

/* Sends one part of an upload of `bytes` in total. Large uploads are weights at loading; a copy
 * engine may take them, because no operation waits for them. */
static int upload_part(moe_cuda_device *cuda, void *dst, const void *part, size_t n, size_t bytes,
                       moe_error *err)
{
    const char *what = "an upload";
    return bytes <= MOE_CUDA_TRANSFER_MOST
               ? moe_cuda_transfer_queue(cuda, dst, part, n, cudaMemcpyHostToDevice, what, err)
               : moe_cuda_check(cuda,
                                cudaMemcpyAsync(dst, part, n, cudaMemcpyHostToDevice, cuda->stream),
                                "cudaMemcpyAsync", what, err);
}

/* Goes through the ring, a part at a time: the device copies one part while the host fills the
 * next, and the caller's memory is free when this returns. */
int moe_cuda_upload(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    int status = moe_cuda_begin(cuda, err);
    for (size_t at = 0; status == MOE_OK && at < bytes;) {
        size_t n = bytes - at < PART_BYTES ? bytes - at : PART_BYTES;
        moe_cuda_parcel parcel;
        MOE_TRY(moe_cuda_parcel_begin(cuda, moe_cuda_parcel_room(n, 1), &parcel, err));
        memcpy(parcel.host, (const uint8_t *)src + at, n);
        status = upload_part(cuda, (uint8_t *)dst + at, parcel.host, n, bytes, err);
        at += n;
    }
    return status;
}

static int begin_copy_back(moe_cuda_device *cuda, void *locked, const void *src, size_t bytes,
                           moe_error *err)
{
    return moe_cuda_transfer_queue(cuda, locked, src, bytes, cudaMemcpyDeviceToHost, "a download",
                                   err);
}

static int copy_back(moe_cuda_device *cuda, void *locked, const void *src, size_t bytes,
                     moe_error *err)
{
    MOE_TRY(begin_copy_back(cuda, locked, src, bytes, err));
    return moe_cuda_wait(cuda, "a download", err);
}

int moe_cuda_download_later(moe_device *device, void *dst, const void *src, size_t bytes,
                            moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    if (!moe_cuda_has_host_memory(cuda, dst, bytes)) {
        if (cuda->recording.under_way) {
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "a download to memory that could not be page-locked is not recorded");
        }
        return moe_cuda_download(device, dst, src, bytes, err);
    }
    return begin_copy_back(cuda, dst, src, bytes, err);
}

/* Copies straight to page-locked memory, else through the buffer for results. */
int moe_cuda_download(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    int status = moe_cuda_begin(cuda, err);
    if (status == MOE_OK && bytes == 0) {
        return moe_cuda_wait(cuda, "a download", err);
    }
    if (status == MOE_OK && moe_cuda_has_host_memory(cuda, dst, bytes)) {
        return copy_back(cuda, dst, src, bytes, err);
    }
    for (size_t at = 0; status == MOE_OK && at < bytes;) {
        size_t n = bytes - at < cuda->results.bytes ? bytes - at : cuda->results.bytes;
        status = copy_back(cuda, cuda->results.host, (const uint8_t *)src + at, n, err);
        if (status == MOE_OK) {
            memcpy((uint8_t *)dst + at, cuda->results.host, n);
        }
        at += n;
    }
    return status;
}
