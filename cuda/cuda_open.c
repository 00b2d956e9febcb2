/* SPDX-License-Identifier: MIT */
/* Opens a CUDA device and manages its scratch. */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/cuda_blas.h"
#include "cuda/cuda_forms.h"
#include "cuda/cuda_internal.h"
#include "cuda/cuda_module.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define MIB 1048576.0
/* This fraction of the free memory is not used: it covers kernels' code and stacks, the rounding of
 * allocations to pages, and rings that grow. */
#define HEADROOM_DIVISOR 32u
#define LEAST_HEADROOM   (64u << 20)
/* Opening measures the link by copies of this size and takes the best of a few. */
#define PROBE_BYTES   (16u << 20)
#define PROBE_REPEATS 3
/* Before that it copies for so long: the link of a GPU that sleeps is slow (PCIe of generation 1),
 * and wakes up only while it is used. The emulation, whose link does not sleep, has less. */
#ifndef LINK_WAKING_MS
#define LINK_WAKING_MS 50.0f
#endif
#define LEAST_COPY_MS 0.1f /* for which a copy counts at least; so the copies end */
#define TRIED_VALUES  64

/* ---- Memory ---- */

static int device_copy(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    return moe_cuda_check(cuda,
                          cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, cuda->stream),
                          "cudaMemcpyAsync", "a copy on the device", err);
}

static int device_sync(moe_device *device, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    return moe_cuda_wait(cuda, "waiting for the GPU", err);
}

/* ---- Scratch ---- */

typedef struct scratch_sizes {
    size_t x_q8, h_q8, ff, workspace, total;
} scratch_sizes;

static scratch_sizes measure_scratch(const moe_cuda_device *cuda, const moe_device_limits *limits)
{
    scratch_sizes sizes = {0};
    size_t heads =
        moe_align64(moe_q8_rows_bytes(limits->head_linear.n_rows, limits->head_linear.n));
    sizes.x_q8 = moe_align64(moe_q8_rows_bytes(limits->linear.n_rows, limits->linear.n));
    sizes.x_q8 = sizes.x_q8 > heads ? sizes.x_q8 : heads;
    for (int i = 0; i < MOE_MAX_FF_LIMITS; i++) {
        const moe_rows_limit *ff = &limits->ff[i];
        size_t values = moe_align64((size_t)ff->n_rows * ff->n * sizeof(float));
        size_t bytes = moe_align64(moe_q8_rows_bytes(ff->n_rows, ff->n));
        sizes.ff = values > sizes.ff ? values : sizes.ff;
        sizes.h_q8 = bytes > sizes.h_q8 ? bytes : sizes.h_q8;
    }
    if (limits->max_v_dim > 0) {
        sizes.workspace =
            moe_align64(moe_cuda_attention_workspace(cuda->n_multiprocessors, limits->max_v_dim));
    }
    sizes.total = sizes.x_q8 + sizes.h_q8 + 2 * sizes.ff + sizes.workspace;
    return sizes;
}

static uint64_t device_scratch_need(const moe_device *device, const moe_device_limits *limits)
{
    return measure_scratch((const moe_cuda_device *)device, limits).total;
}

static int device_reserve(moe_device *device, const moe_device_limits *limits, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    scratch_sizes sizes = measure_scratch(cuda, limits);
    void *memory;
    MOE_TRY(moe_cuda_op_alloc(device, sizes.total, &memory, err));
    uint8_t *p = memory;
    cuda->scratch = p;
    cuda->x_q8_memory = p;
    cuda->x_q8_bytes = sizes.x_q8;
    moe_cuda_forget_rows(cuda);
    cuda->h_q8_memory = p += sizes.x_q8;
    cuda->ff_gate = (float *)(p += sizes.h_q8);
    cuda->ff_up = (float *)(p += sizes.ff);
    cuda->attention_workspace = p + sizes.ff;
    cuda->workspace_v_dim = limits->max_v_dim;
    return MOE_OK;
}

/* ---- Opening ---- */

/* Also closes a half-open device. Waits until the stream has run all queued operations. */
static void device_close(moe_device *device)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    (void)cudaSetDevice(cuda->index);
    if (cuda->stream != NULL) {
        (void)cudaStreamSynchronize(cuda->stream);
    }
    moe_cuda_blas_close(&cuda->blas);
    moe_cuda_link_close(cuda);
    moe_cuda_clock_close(cuda);
    moe_cuda_step_close(cuda);
    moe_cuda_staging_close(cuda);
    if (cuda->scratch != NULL) {
        moe_cuda_op_free(&cuda->base, cuda->scratch, 0);
    }
    moe_cuda_memory_close(cuda);
    if (cuda->stream != NULL) {
        (void)cudaStreamDestroy(cuda->stream);
    }
    if (cuda->to_device.stream != NULL) {
        (void)cudaStreamDestroy(cuda->to_device.stream);
    }
    if (cuda->to_host.stream != NULL) {
        (void)cudaStreamDestroy(cuda->to_host.stream);
    }
    (void)cudaGetLastError();
    pthread_cond_destroy(&cuda->to_device.begun);
    pthread_cond_destroy(&cuda->to_host.begun);
    pthread_cond_destroy(&cuda->done);
    pthread_mutex_destroy(&cuda->lock);
    pthread_cond_destroy(&cuda->pinning.changed);
    pthread_mutex_destroy(&cuda->pin_lock);
    pthread_mutex_destroy(&cuda->memory_lock);
    pthread_mutex_destroy(&cuda->notify_lock);
    free(cuda->works);
    free(cuda);
}

static const moe_device_ops cuda_ops = {
    .close = device_close,
    .reserve = device_reserve,
    .scratch_need = device_scratch_need,
    .alloc = moe_cuda_op_alloc,
    .free = moe_cuda_op_free,
    .give_up = moe_cuda_give_up_part,
    .take_back = moe_cuda_take_back_part,
    .upload = moe_cuda_upload,
    .download = moe_cuda_download,
    .download_later = moe_cuda_download_later,
    .copy = device_copy,
    .copy_rows = moe_cuda_op_copy_rows,
    .sync = device_sync,
    .begin_step = moe_cuda_op_begin_step,
    .embed = moe_cuda_op_embed,
    .gather = moe_cuda_op_gather,
    .scatter = moe_cuda_op_scatter,
    .rms_norm = moe_cuda_op_rms_norm,
    .layer_norm = moe_cuda_op_layer_norm,
    .soft_cap = moe_cuda_op_soft_cap,
    .linear = moe_cuda_op_linear,
    .head_linear = moe_cuda_op_head_linear,
    .clamp = moe_cuda_op_clamp,
    .scale = moe_cuda_op_scale,
    .add = moe_cuda_op_add,
    .rope = moe_cuda_op_rope,
    .kv_store = moe_cuda_op_kv_store,
    .kv_move = moe_cuda_op_kv_move,
    .attention = moe_cuda_op_attention,
    .own_attention = moe_cuda_op_own_attention,
    .choose = moe_cuda_op_choose,
    .route = moe_cuda_op_route,
    .experts = moe_cuda_op_experts,
    .combine = moe_cuda_op_combine,
    .sigmoid_scale = moe_cuda_op_sigmoid_scale,
    .gate = moe_cuda_op_gate,
    .delta_rule = moe_cuda_op_delta_rule,
    .short_conv = moe_cuda_op_short_conv,
    .state_space = moe_cuda_op_state_space,
    .selective_scan = moe_cuda_op_selective_scan,
    .pool_keys = moe_cuda_op_pool_keys,
    .stream_read = moe_cuda_op_stream_read,
    .stream_write = moe_cuda_op_stream_write,
    .stream_match = moe_cuda_op_stream_match,
    .channel_rule = moe_cuda_op_channel_rule,
    .add_norm = moe_cuda_op_add_norm,
    .heads_store = moe_cuda_op_heads_store,
    .greatest = moe_cuda_op_greatest,
};

/* The link has a stream for each direction, because the two directions do not slow each other.
 * Priorities have no effect on copies. So all streams have the same priority, and kernels transfer
 * small arrays (cuda_staging.c). */
static int open_streams(moe_cuda_device *cuda, moe_error *err)
{
    cudaStream_t *const streams[] = {&cuda->stream, &cuda->to_device.stream, &cuda->to_host.stream};
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < 3 && code == cudaSuccess; i++) {
        code = cudaStreamCreateWithPriority(streams[i], cudaStreamNonBlocking, 0);
    }
    return code == cudaSuccess
               ? MOE_OK
               : moe_cuda_translate(code, "cudaStreamCreateWithPriority", "opening the GPU", err);
}

/* Times one copy to the device with the device's clock, in milliseconds. */
static cudaError_t time_copy(moe_cuda_device *cuda, const cudaEvent_t events[2], void *dst,
                             const void *src, size_t bytes, float *ms)
{
    cudaError_t code = cudaEventRecord(events[0], cuda->to_device.stream);
    if (code == cudaSuccess) {
        code = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, cuda->to_device.stream);
    }
    if (code == cudaSuccess) {
        code = cudaEventRecord(events[1], cuda->to_device.stream);
    }
    if (code == cudaSuccess) {
        code = cudaEventSynchronize(events[1]);
    }
    return code == cudaSuccess ? cudaEventElapsedTime(ms, events[0], events[1]) : code;
}

static cudaError_t probe_link(moe_cuda_device *cuda, const cudaEvent_t events[2], void *dst,
                              const void *src)
{
    float whole_ms = 0.0f;
    float small_ms = 0.0f;
    cudaError_t code = cudaSuccess;
    for (float waking_ms = 0.0f; code == cudaSuccess && waking_ms < LINK_WAKING_MS;) {
        float ms = 0.0f;
        code = time_copy(cuda, events, dst, src, PROBE_BYTES, &ms);
        waking_ms += ms > LEAST_COPY_MS ? ms : LEAST_COPY_MS;
    }
    for (int i = 0; code == cudaSuccess && i < PROBE_REPEATS; i++) {
        float ms;
        code = time_copy(cuda, events, dst, src, PROBE_BYTES, &ms);
        whole_ms = code == cudaSuccess && (i == 0 || ms < whole_ms) ? ms : whole_ms;
        if (code == cudaSuccess) {
            code = time_copy(cuda, events, dst, src, 64, &ms);
            small_ms = code == cudaSuccess && (i == 0 || ms < small_ms) ? ms : small_ms;
        }
    }
    /* The times include the latency, so the time of a small copy is subtracted from that of the
     * large one. If the clock is too coarse to show the difference, it counts as a microsecond. */
    double transfer_ms =
        (double)(whole_ms - small_ms) > 1e-3 ? (double)(whole_ms - small_ms) : 1e-3;
    cuda->base.link_bytes_per_s = (uint64_t)(PROBE_BYTES * 1e3 / transfer_ms);
    cuda->base.link_latency_ns = (uint64_t)((double)small_ms * 1e6);
    return code;
}

static int measure_link(moe_cuda_device *cuda, moe_error *err)
{
    cudaEvent_t events[2] = {NULL, NULL};
    void *dst = NULL;
    void *src = NULL;
    cudaError_t code = cudaHostAlloc(&src, PROBE_BYTES, cudaHostAllocDefault);
    if (code == cudaSuccess) {
        code = cudaMalloc(&dst, PROBE_BYTES);
    }
    for (int i = 0; code == cudaSuccess && i < 2; i++) {
        code = cudaEventCreateWithFlags(&events[i], cudaEventDefault);
    }
    if (code == cudaSuccess) {
        code = probe_link(cuda, events, dst, src);
    }
    int status = code == cudaSuccess
                     ? MOE_OK
                     : moe_cuda_translate(code, "a timed copy", "measuring the link", err);
    for (int i = 0; i < 2; i++) {
        if (events[i] != NULL) {
            (void)cudaEventDestroy(events[i]);
        }
    }
    if (dst != NULL) {
        (void)cudaFree(dst);
    }
    if (src != NULL) {
        (void)cudaFreeHost(src);
    }
    return status;
}

/* Called after all other allocations of open. */
static int measure_memory(moe_cuda_device *cuda, moe_error *err)
{
    size_t free_bytes = 0;
    size_t total = 0;
    cudaError_t code = cudaMemGetInfo(&free_bytes, &total);
    if (code != cudaSuccess) {
        return moe_cuda_translate(code, "cudaMemGetInfo", "opening the GPU", err);
    }
    size_t headroom = free_bytes / HEADROOM_DIVISOR;
    headroom = headroom > LEAST_HEADROOM ? headroom : LEAST_HEADROOM;
    if (free_bytes <= headroom) {
        return moe_fail(err, MOE_ERR_MEMORY,
                        "%s has %.1f MiB free of %.1f, too little to work in; end other programs "
                        "on it",
                        cuda->name, (double)free_bytes / MIB, (double)total / MIB);
    }
    cuda->base.memory_bytes = free_bytes - headroom;
    return MOE_OK;
}

/* Runs a kernel once and checks its result: the driver's description of a device shows neither
 * whether the module has code for the device nor whether the device computes correctly. */
static int try_kernel(moe_cuda_device *cuda, moe_error *err)
{
    float values[TRIED_VALUES];
    float back[TRIED_VALUES];
    void *staged;
    for (int i = 0; i < TRIED_VALUES; i++) {
        values[i] = (float)i - 7.5f;
    }
    MOE_TRY(moe_cuda_stage(cuda, values, sizeof values, &staged, err));
    moe_cuda_scale(cuda->stream, 0.5f, staged, TRIED_VALUES);
    MOE_TRY(moe_cuda_launched(cuda, "trying the GPU", err));
    MOE_TRY(moe_cuda_download(&cuda->base, back, staged, sizeof back, err));
    for (int i = 0; i < TRIED_VALUES; i++) {
        if (back[i] != 0.5f * values[i]) {
            return moe_fail(err, MOE_ERR_DEVICE,
                            "%s computes wrongly: 0.5 times %g gave %g; see `nvidia-smi -q`",
                            cuda->name, (double)values[i], (double)back[i]);
        }
    }
    return MOE_OK;
}

static int open_parts(moe_cuda_device *cuda, uint64_t device_bytes, bool blas_prefill,
                      moe_error *err)
{
    cudaError_t code = cudaSetDevice(cuda->index);
    if (code != cudaSuccess) {
        return moe_cuda_translate(code, "cudaSetDevice", "opening the GPU", err);
    }
    /* Clears an error that earlier code left on this thread: it would look like a failed launch. */
    (void)cudaGetLastError();
    MOE_TRY(open_streams(cuda, err));
    MOE_TRY(moe_cuda_staging_open(cuda, err));
    MOE_TRY(moe_cuda_step_open(cuda, err));
    MOE_TRY(moe_cuda_host_memory_open(cuda, device_bytes, err));
    MOE_TRY(moe_cuda_link_open(cuda, err));
    MOE_TRY(try_kernel(cuda, err));
    if (blas_prefill) {
        MOE_TRY(moe_cuda_blas_open(&cuda->blas, cuda->stream, err));
    }
    MOE_TRY(measure_link(cuda, err));
    return measure_memory(cuda, err);
}

static int choose(uint32_t index, moe_cuda_device_info *info, moe_error *err)
{
    moe_cuda_device_list list;
    MOE_TRY(moe_cuda_list(&list, err));
    if (index >= list.n) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "device cuda:%u: there %s %u: cuda:0 to cuda:%u",
                        index, list.n == 1 ? "is" : "are", list.n, list.n - 1);
    }
    *info = list.devices[index];
    if (info->why_not[0] != '\0') {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "device cuda:%u (%s) cannot be used: %s", index,
                        info->name, info->why_not);
    }
    return MOE_OK;
}

int moe_cuda_device_open(moe_device **out, const moe_cuda_device_options *options, moe_error *err)
{
    moe_cuda_device_info info;
    uint32_t index = options->index;
    *out = NULL;
    MOE_TRY(choose(index, &info, err));
    moe_cuda_device *cuda = moe_calloc(1, sizeof *cuda);
    if (cuda == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a CUDA device");
    }
    cuda->index = (int)index;
    cuda->numa_node = info.numa_node;
    cuda->n_multiprocessors = info.n_multiprocessors;
    cuda->matrix_attention = !options->exact_attention;
    cuda->to_device.cuda = cuda->to_host.cuda = cuda;
    cuda->to_device.first_failed = cuda->to_host.first_failed = UINT64_MAX;
    snprintf(cuda->name, sizeof cuda->name, "cuda:%u %s", index, info.name);
    cuda->base = (moe_device){.ops = &cuda_ops,
                              .name = cuda->name,
                              .link = &moe_cuda_link_ops,
                              .recording = &moe_cuda_recording_ops,
                              .clock = &moe_cuda_clock,
                              .features = MOE_DEVICE_CHOICE | MOE_DEVICE_KV_GROUPS,
                              .forms = MOE_CUDA_FORMS,
                              .queues = true};
    pthread_mutex_init(&cuda->lock, NULL);
    pthread_mutex_init(&cuda->pin_lock, NULL);
    pthread_cond_init(&cuda->pinning.changed, NULL);
    pthread_mutex_init(&cuda->memory_lock, NULL);
    pthread_mutex_init(&cuda->notify_lock, NULL);
    pthread_cond_init(&cuda->to_device.begun, NULL);
    pthread_cond_init(&cuda->to_host.begun, NULL);
    pthread_cond_init(&cuda->done, NULL);
    int status = open_parts(cuda, info.memory_bytes, options->blas_prefill, err);
    if (status != MOE_OK) {
        device_close(&cuda->base);
        return status;
    }
    *out = &cuda->base;
    return MOE_OK;
}
