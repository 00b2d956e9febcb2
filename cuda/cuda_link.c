/* SPDX-License-Identifier: MIT */
/* The link: a queue of copies on a separate stream, from memory of cuda_host_memory.c.
 *
 *    copy_begin() -> [copies stream] -> event of the ticket -> waiting thread -> n_done, notify
 *
 * Copies run in parallel with the arithmetic, with one exception: the kernels of a queued experts()
 * call may still have to read the slot that a copy overwrites. Such calls are noted with an event
 * and the memory that they read, and a copy into that memory waits for the event on the device.
 * Calls that the stream has certainly passed (the host waits for it once a layer) are forgotten, so
 * a copy rarely has to wait. */
#include <errno.h>
#include <string.h>
#include <stdlib.h>

#include "cuda/cuda_internal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* ---- What copies wait for ---- */

static moe_cuda_span span_of(const void *data, size_t bytes)
{
    return (moe_cuda_span){(uintptr_t)data, (uintptr_t)data + bytes};
}

static moe_cuda_span span_of_weight(const moe_weight *weight)
{
    return span_of(weight->data, (size_t)weight->n_out * weight->row_bytes);
}

/* Under the lock. */
static bool write_spans(moe_cuda_use *use, const moe_expert_work *works, uint32_t n_works)
{
    if (use->max_spans < 3 * n_works) {
        moe_cuda_span *spans = moe_realloc_array(use->spans, 3 * (size_t)n_works, sizeof *spans);
        if (spans == NULL) {
            return false;
        }
        use->spans = spans;
        use->max_spans = 3 * n_works;
    }
    use->n_spans = 3 * n_works;
    for (uint32_t w = 0; w < n_works; w++) {
        use->spans[3 * w] = span_of_weight(&works[w].gate);
        use->spans[3 * w + 1] = span_of_weight(&works[w].up);
        use->spans[3 * w + 2] = span_of_weight(&works[w].down);
    }
    return true;
}

int moe_cuda_note_use(moe_cuda_device *cuda, const moe_expert_work *works, uint32_t n_works,
                      moe_error *err)
{
    if (cuda->recording.under_way) {
        return MOE_OK; /* whoever plays a recording keeps its memory from being overwritten */
    }
    pthread_mutex_lock(&cuda->lock);
    moe_cuda_use *use = &cuda->uses[cuda->n_uses % MOE_CUDA_USES];
    bool written = write_spans(use, works, n_works);
    cudaError_t code = written ? cudaEventRecord(use->done, cuda->stream) : cudaSuccess;
    cuda->n_uses += written && code == cudaSuccess;
    pthread_mutex_unlock(&cuda->lock);
    if (!written) {
        /* The call cannot be noted, so it must end now. */
        return moe_cuda_wait(cuda, "experts", err);
    }
    return moe_cuda_check(cuda, code, "cudaEventRecord", "experts", err);
}

static bool touches(const moe_cuda_use *use, const moe_copy_range *ranges, uint32_t n_ranges)
{
    for (uint32_t r = 0; r < n_ranges; r++) {
        moe_cuda_span target = span_of(ranges[r].dst, ranges[r].bytes);
        for (uint32_t s = 0; s < use->n_spans; s++) {
            if (use->spans[s].begin < target.end && target.begin < use->spans[s].end) {
                return true;
            }
        }
    }
    return false;
}

/* Under the lock. Waiting for a call includes all calls before it. It is therefore enough to wait
 * for the newest that touches the ranges; the oldest noted call stands for those already forgotten.
 */
static cudaError_t wait_for_uses(moe_cuda_device *cuda, const moe_copy_range *ranges,
                                 uint32_t n_ranges)
{
    uint64_t first = cuda->n_uses_done;
    bool forgotten = cuda->n_uses - first > MOE_CUDA_USES;
    first = forgotten ? cuda->n_uses - MOE_CUDA_USES : first;
    uint64_t use = cuda->n_uses;
    while (use > first && !touches(&cuda->uses[(use - 1) % MOE_CUDA_USES], ranges, n_ranges)) {
        use--;
    }
    if (use == first && !forgotten) {
        return cudaSuccess;
    }
    uint64_t awaited = use > first ? use - 1 : first;
    return cudaStreamWaitEvent(cuda->copies, cuda->uses[awaited % MOE_CUDA_USES].done, 0);
}

/* ---- The queue ---- */

/* Under the lock. */
static cudaError_t queue_copy(moe_cuda_device *cuda, const moe_copy_range *ranges,
                              uint32_t n_ranges)
{
    cudaError_t code = wait_for_uses(cuda, ranges, n_ranges);
    for (uint32_t r = 0; code == cudaSuccess && r < n_ranges; r++) {
        code = moe_cuda_send_range(cuda, &ranges[r]);
    }
    if (code == cudaSuccess) {
        code = cudaEventRecord(cuda->copied[cuda->n_begun % MOE_MAX_COPIES], cuda->copies);
    }
    return code;
}

static int link_copy_begin(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                           uint64_t *ticket, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    if (n_ranges > MOE_MAX_COPY_RANGES) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "a copy of %u ranges; at most %u travel together",
                        n_ranges, MOE_MAX_COPY_RANGES);
    }
    int status = moe_cuda_enter(cuda, err);
    if (status != MOE_OK) {
        return status;
    }
    for (uint32_t r = 0; r < n_ranges; r++) {
        moe_cuda_pin(cuda, ranges[r].src, ranges[r].bytes);
    }
    pthread_mutex_lock(&cuda->lock);
    if (cuda->n_begun - atomic_load(&cuda->n_done) == MOE_MAX_COPIES) {
        pthread_mutex_unlock(&cuda->lock);
        return moe_fail(err, MOE_ERR_ARGUMENT, "more than %u copies under way", MOE_MAX_COPIES);
    }
    cudaError_t code = queue_copy(cuda, ranges, n_ranges);
    if (code == cudaSuccess) {
        *ticket = cuda->n_begun++;
        pthread_cond_signal(&cuda->begun);
    }
    pthread_mutex_unlock(&cuda->lock);
    return moe_cuda_check(cuda, code, "cudaMemcpyAsync", "a copy over the link", err);
}

static int link_copy_state(moe_device *device, uint64_t ticket)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    if (ticket >= atomic_load(&cuda->n_done)) {
        return MOE_COPY_UNDER_WAY;
    }
    pthread_mutex_lock(&cuda->lock);
    bool failed = ticket >= cuda->first_failed;
    pthread_mutex_unlock(&cuda->lock);
    return failed ? MOE_ERR_DEVICE : MOE_OK;
}

static int link_copy_wait(moe_device *device, uint64_t ticket, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_error failure = {""};
    pthread_mutex_lock(&cuda->lock);
    while (ticket >= atomic_load(&cuda->n_done)) {
        pthread_cond_wait(&cuda->done, &cuda->lock);
    }
    bool failed = ticket >= cuda->first_failed;
    if (failed) {
        failure = cuda->failure;
    }
    pthread_mutex_unlock(&cuda->lock);
    return failed ? moe_fail(err, MOE_ERR_DEVICE, "%s", failure.message) : MOE_OK;
}

static void link_copy_notify(moe_device *device, moe_copy_notify_fn fn, void *user)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    pthread_mutex_lock(&cuda->notify_lock);
    cuda->notify = fn;
    cuda->notify_user = user;
    pthread_mutex_unlock(&cuda->notify_lock);
}

static void tell(moe_cuda_device *cuda)
{
    pthread_mutex_lock(&cuda->notify_lock);
    if (cuda->notify != NULL) {
        cuda->notify(cuda->notify_user);
    }
    pthread_mutex_unlock(&cuda->notify_lock);
}

/* A failed copy counts as done too; whoever waits for it gets the error. */
static void *link_main(void *arg)
{
    moe_cuda_device *cuda = arg;
    cudaError_t set = cudaSetDevice(cuda->index);
    pthread_mutex_lock(&cuda->lock);
    for (;;) {
        uint64_t ticket = atomic_load(&cuda->n_done);
        if (ticket == cuda->n_begun) {
            if (cuda->stop) {
                break;
            }
            pthread_cond_wait(&cuda->begun, &cuda->lock);
            continue;
        }
        pthread_mutex_unlock(&cuda->lock);
        cudaError_t code =
            set != cudaSuccess ? set : cudaEventSynchronize(cuda->copied[ticket % MOE_MAX_COPIES]);
        if (code != cudaSuccess) {
            (void)moe_cuda_give_up(cuda, code, "cudaEventSynchronize", "a copy over the link",
                                   NULL);
        }
        pthread_mutex_lock(&cuda->lock);
        if (code != cudaSuccess && ticket < cuda->first_failed) {
            cuda->first_failed = ticket;
        }
        atomic_store(&cuda->n_done, ticket + 1);
        pthread_cond_broadcast(&cuda->done);
        pthread_mutex_unlock(&cuda->lock);
        tell(cuda);
        pthread_mutex_lock(&cuda->lock);
    }
    pthread_mutex_unlock(&cuda->lock);
    return NULL;
}

int moe_cuda_link_open(moe_cuda_device *cuda, moe_error *err)
{
    cudaError_t code = cudaSuccess;
    for (uint32_t i = 0; code == cudaSuccess && i < MOE_MAX_COPIES; i++) {
        code = cudaEventCreateWithFlags(&cuda->copied[i],
                                        cudaEventDisableTiming | cudaEventBlockingSync);
    }
    for (uint32_t i = 0; code == cudaSuccess && i < MOE_CUDA_USES; i++) {
        code = cudaEventCreateWithFlags(&cuda->uses[i].done, cudaEventDisableTiming);
    }
    if (code != cudaSuccess) {
        return moe_cuda_translate(code, "cudaEventCreateWithFlags", "opening the link", err);
    }
    int error = pthread_create(&cuda->thread, NULL, link_main, cuda);
    if (error != 0) {
        return moe_fail(err, MOE_ERR_MEMORY, "cannot start the link's thread: %s", strerror(error));
    }
    cuda->has_thread = true;
    return MOE_OK;
}

void moe_cuda_link_close(moe_cuda_device *cuda)
{
    if (cuda->has_thread) {
        pthread_mutex_lock(&cuda->lock);
        cuda->stop = true;
        pthread_cond_signal(&cuda->begun);
        pthread_mutex_unlock(&cuda->lock);
        pthread_join(cuda->thread, NULL);
    }
    for (uint32_t i = 0; i < MOE_MAX_COPIES; i++) {
        if (cuda->copied[i] != NULL) {
            (void)cudaEventDestroy(cuda->copied[i]);
        }
    }
    for (uint32_t i = 0; i < MOE_CUDA_USES; i++) {
        if (cuda->uses[i].done != NULL) {
            (void)cudaEventDestroy(cuda->uses[i].done);
        }
        free(cuda->uses[i].spans);
    }
    moe_cuda_host_memory_close(cuda);
}

const moe_link_ops moe_cuda_link_ops = {
    .host_alloc = moe_cuda_host_alloc,
    .host_free = moe_cuda_host_free,
    .host_give_up = moe_cuda_give_up_part,
    .host_take_back = moe_cuda_take_back_part,
    .copy_begin = link_copy_begin,
    .copy_state = link_copy_state,
    .copy_wait = link_copy_wait,
    .copy_notify = link_copy_notify,
};
