/* SPDX-License-Identifier: MIT */
/* The device's clock: events before and after the operations that the caller wants timed. Nothing
 * is timed until a caller asks. A failure here only loses a measurement; if the device itself has
 * failed, the next operation reports it. */
#include "cuda/cuda_internal.h"

static bool has_events(moe_cuda_timing *timing)
{
    cudaEvent_t *events[] = {&timing->begin, &timing->end};
    for (int i = 0; i < 2; i++) {
        if (*events[i] == NULL &&
            cudaEventCreateWithFlags(events[i], cudaEventDefault) != cudaSuccess) {
            *events[i] = NULL;
            (void)cudaGetLastError();
            return false;
        }
    }
    return true;
}

static bool record(moe_cuda_device *cuda, cudaEvent_t event)
{
    bool recorded = cudaEventRecord(event, cuda->stream) == cudaSuccess;
    if (!recorded) {
        (void)cudaGetLastError();
    }
    return recorded;
}

static void clock_begin(moe_device *device)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_timing *timing = &cuda->timings[cuda->n_timed % MOE_CUDA_TIMINGS];
    cuda->is_timing =
        !cuda->recording.under_way && cuda->n_timed - cuda->n_times_taken < MOE_CUDA_TIMINGS &&
        moe_cuda_enter(cuda, NULL) == MOE_OK && has_events(timing) && record(cuda, timing->begin);
}

static void clock_end(moe_device *device, const moe_timed_work *work)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_timing *timing = &cuda->timings[cuda->n_timed % MOE_CUDA_TIMINGS];
    if (cuda->is_timing && moe_cuda_enter(cuda, NULL) == MOE_OK && record(cuda, timing->end)) {
        timing->work = *work;
        cuda->n_timed++;
    }
    cuda->is_timing = false;
}

static bool clock_take(moe_device *device, moe_timed_work *work, uint64_t *ns)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    while (cuda->n_times_taken < cuda->n_timed && moe_cuda_enter(cuda, NULL) == MOE_OK) {
        const moe_cuda_timing *timing = &cuda->timings[cuda->n_times_taken % MOE_CUDA_TIMINGS];
        float ms;
        cudaError_t code = cudaEventElapsedTime(&ms, timing->begin, timing->end);
        if (code == cudaSuccess) {
            cuda->n_times_taken++;
            *work = timing->work;
            *ns = (uint64_t)((double)ms * 1e6);
            return true;
        }
        (void)cudaGetLastError();
        if (code == cudaErrorNotReady) {
            break;
        }
        cuda->n_times_taken++; /* this time will never be known */
    }
    return false;
}

const moe_device_clock moe_cuda_clock = {
    .begin = clock_begin, .end = clock_end, .take = clock_take};

void moe_cuda_clock_close(moe_cuda_device *cuda)
{
    for (uint32_t i = 0; i < MOE_CUDA_TIMINGS; i++) {
        cudaEvent_t events[] = {cuda->timings[i].begin, cuda->timings[i].end};
        for (int e = 0; e < 2; e++) {
            if (events[e] != NULL) {
                (void)cudaEventDestroy(events[e]);
            }
        }
    }
}
