/* SPDX-License-Identifier: MIT */
/* The link: a queue of copies for each direction, each on a stream of its own, from and to memory
 * of cuda_host_memory.c.
 *
 *    copy_begin() -> [the queue's stream] -> event of the ticket -> its thread -> n_done, notify
 *
 * Copies run in parallel with the arithmetic, with one exception: the kernels of a queued experts()
 * call may still have to read the slot that a copy to the device overwrites. Such calls are noted
 * with an event and the memory that they read, and a copy into that memory waits for the event on
 * the device. Calls that the stream has certainly passed (the host waits for it once a layer) are
 * forgotten, so a copy rarely has to wait. */
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
        return MOE_OK; /* the caller that plays a recording protects the memory that it reads */
    }
    pthread_mutex_lock(&cuda->lock);
    moe_cuda_use *use = &cuda->uses[cuda->n_uses % MOE_CUDA_USES];
    bool written = write_spans(use, works, n_works);
    cudaError_t code = written ? cudaEventRecord(use->done, cuda->stream) : cudaSuccess;
    cuda->n_uses += written && code == cudaSuccess;
    pthread_mutex_unlock(&cuda->lock);
    if (!written) {
        /* The call cannot be noted, so wait for its end now. */
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

/* Under the lock. Waiting for a call includes waiting for all calls before it. So it is enough to
 * wait for the newest call that touches the ranges. Calls that are no longer noted end before the
 * oldest noted call, so waiting for the oldest noted call covers them. */
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
    return cudaStreamWaitEvent(cuda->to_device.stream, cuda->uses[awaited % MOE_CUDA_USES].done, 0);
}

/* ---- The queues ---- */

/* Under the lock. */
static cudaError_t queue_copy(moe_cuda_queue *queue, const moe_copy_range *ranges,
                              uint32_t n_ranges)
{
    moe_cuda_device *cuda = queue->cuda;
    bool to_device = queue == &cuda->to_device;
    cudaError_t code = to_device ? wait_for_uses(cuda, ranges, n_ranges) : cudaSuccess;
    for (uint32_t r = 0; code == cudaSuccess && r < n_ranges; r++) {
        code = to_device ? moe_cuda_send_range(cuda, &ranges[r])
                         : moe_cuda_receive_range(cuda, &ranges[r]);
    }
    if (code == cudaSuccess) {
        code = cudaEventRecord(queue->ended[queue->n_begun % MOE_MAX_COPIES], queue->stream);
    }
    return code;
}

static int begin(moe_cuda_queue *queue, const moe_copy_range *ranges, uint32_t n_ranges,
                 uint64_t *ticket, moe_error *err)
{
    moe_cuda_device *cuda = queue->cuda;
    pthread_mutex_lock(&cuda->lock);
    if (queue->n_begun - atomic_load(&queue->n_done) == MOE_MAX_COPIES) {
        pthread_mutex_unlock(&cuda->lock);
        return moe_fail(err, MOE_ERR_ARGUMENT, "more than %u copies under way", MOE_MAX_COPIES);
    }
    cudaError_t code = queue_copy(queue, ranges, n_ranges);
    if (code == cudaSuccess) {
        *ticket = queue->n_begun++;
        pthread_cond_signal(&queue->begun);
    }
    pthread_mutex_unlock(&cuda->lock);
    return moe_cuda_check(cuda, code, "cudaMemcpyAsync", "a copy over the link", err);
}

/* Makes the device current, and refuses too many ranges. */
static int enter(moe_cuda_device *cuda, uint32_t n_ranges, moe_error *err)
{
    if (n_ranges > MOE_MAX_COPY_RANGES) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "a copy of %u ranges; at most %u travel together",
                        n_ranges, MOE_MAX_COPY_RANGES);
    }
    return moe_cuda_enter(cuda, err);
}

static int link_copy_begin(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                           uint64_t *ticket, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(enter(cuda, n_ranges, err));
    for (uint32_t r = 0; r < n_ranges; r++) {
        (void)moe_cuda_pin(cuda, ranges[r].src, ranges[r].bytes);
    }
    return begin(&cuda->to_device, ranges, n_ranges, ticket, err);
}

/* Refuses memory that is not page-locked: the caller would have to wait for a copy to it. */
static int link_save_begin(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                           uint64_t *ticket, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(enter(cuda, n_ranges, err));
    for (uint32_t r = 0; r < n_ranges; r++) {
        if (!moe_cuda_pin(cuda, ranges[r].dst, ranges[r].bytes)) {
            return moe_fail(err, MOE_ERR_UNSUPPORTED, "the memory is not page-locked");
        }
    }
    return begin(&cuda->to_host, ranges, n_ranges, ticket, err);
}

static int state_of(moe_cuda_queue *queue, uint64_t ticket)
{
    if (ticket >= atomic_load(&queue->n_done)) {
        return MOE_COPY_UNDER_WAY;
    }
    pthread_mutex_lock(&queue->cuda->lock);
    bool failed = ticket >= queue->first_failed;
    pthread_mutex_unlock(&queue->cuda->lock);
    return failed ? MOE_ERR_DEVICE : MOE_OK;
}

static int link_copy_state(moe_device *device, uint64_t ticket)
{
    return state_of(&moe_cuda_device_of(device)->to_device, ticket);
}

static int link_save_state(moe_device *device, uint64_t ticket)
{
    return state_of(&moe_cuda_device_of(device)->to_host, ticket);
}

static int link_copy_wait(moe_device *device, uint64_t ticket, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_error failure = {""};
    pthread_mutex_lock(&cuda->lock);
    while (ticket >= atomic_load(&cuda->to_device.n_done)) {
        pthread_cond_wait(&cuda->done, &cuda->lock);
    }
    bool failed = ticket >= cuda->to_device.first_failed;
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

/* A failed copy counts as done, too; the caller that waits for it gets the error. */
static void *queue_main(void *arg)
{
    moe_cuda_queue *queue = arg;
    moe_cuda_device *cuda = queue->cuda;
    cudaError_t set = cudaSetDevice(cuda->index);
    pthread_mutex_lock(&cuda->lock);
    for (;;) {
        uint64_t ticket = atomic_load(&queue->n_done);
        if (ticket == queue->n_begun) {
            if (cuda->stop) {
                break;
            }
            pthread_cond_wait(&queue->begun, &cuda->lock);
            continue;
        }
        pthread_mutex_unlock(&cuda->lock);
        cudaError_t code =
            set != cudaSuccess ? set : cudaEventSynchronize(queue->ended[ticket % MOE_MAX_COPIES]);
        if (code != cudaSuccess) {
            (void)moe_cuda_give_up(cuda, code, "cudaEventSynchronize", "a copy over the link",
                                   NULL);
        }
        pthread_mutex_lock(&cuda->lock);
        if (code != cudaSuccess && ticket < queue->first_failed) {
            queue->first_failed = ticket;
        }
        atomic_store(&queue->n_done, ticket + 1);
        pthread_cond_broadcast(&cuda->done);
        pthread_mutex_unlock(&cuda->lock);
        tell(cuda);
        pthread_mutex_lock(&cuda->lock);
    }
    pthread_mutex_unlock(&cuda->lock);
    return NULL;
}

static cudaError_t create_events(moe_cuda_device *cuda)
{
    cudaError_t code = cudaSuccess;
    const unsigned flags = cudaEventDisableTiming | cudaEventBlockingSync;
    for (uint32_t i = 0; code == cudaSuccess && i < MOE_MAX_COPIES; i++) {
        code = cudaEventCreateWithFlags(&cuda->to_device.ended[i], flags);
        if (code == cudaSuccess) {
            code = cudaEventCreateWithFlags(&cuda->to_host.ended[i], flags);
        }
    }
    for (uint32_t i = 0; code == cudaSuccess && i < MOE_CUDA_USES; i++) {
        code = cudaEventCreateWithFlags(&cuda->uses[i].done, cudaEventDisableTiming);
    }
    return code;
}

static int start_thread(moe_cuda_queue *queue, moe_error *err)
{
    int error = pthread_create(&queue->thread, NULL, queue_main, queue);
    queue->has_thread = error == 0;
    return error == 0 ? MOE_OK
                      : moe_fail(err, MOE_ERR_MEMORY, "cannot start the link's thread: %s",
                                 strerror(error));
}

int moe_cuda_link_open(moe_cuda_device *cuda, moe_error *err)
{
    cudaError_t code = create_events(cuda);
    if (code != cudaSuccess) {
        return moe_cuda_translate(code, "cudaEventCreateWithFlags", "opening the link", err);
    }
    MOE_TRY(start_thread(&cuda->to_device, err));
    return start_thread(&cuda->to_host, err);
}

static void close_queue(moe_cuda_queue *queue)
{
    if (queue->has_thread) {
        pthread_mutex_lock(&queue->cuda->lock);
        queue->cuda->stop = true;
        pthread_cond_signal(&queue->begun);
        pthread_mutex_unlock(&queue->cuda->lock);
        pthread_join(queue->thread, NULL);
    }
    for (uint32_t i = 0; i < MOE_MAX_COPIES; i++) {
        if (queue->ended[i] != NULL) {
            (void)cudaEventDestroy(queue->ended[i]);
        }
    }
}

void moe_cuda_link_close(moe_cuda_device *cuda)
{
    close_queue(&cuda->to_device);
    close_queue(&cuda->to_host);
    for (uint32_t i = 0; i < MOE_CUDA_USES; i++) {
        if (cuda->uses[i].done != NULL) {
            (void)cudaEventDestroy(cuda->uses[i].done);
        }
        free(cuda->uses[i].spans);
    }
    moe_cuda_host_memory_close(cuda);
}

/* Page-locked memory has one address for host and device (cuda_host_memory.c), also across the
 * border of two pieces. */
static bool link_reads_host(moe_device *device, const void *memory, size_t bytes)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    return cuda->maps_host && moe_cuda_enter(cuda, NULL) == MOE_OK &&
           moe_cuda_pin(cuda, memory, bytes);
}

const moe_link_ops moe_cuda_link_ops = {
    .host_alloc = moe_cuda_host_alloc,
    .host_free = moe_cuda_host_free,
    .host_give_up = moe_cuda_give_up_part,
    .host_take_back = moe_cuda_take_back_part,
    .copy_begin = link_copy_begin,
    .copy_state = link_copy_state,
    .copy_wait = link_copy_wait,
    .save_begin = link_save_begin,
    .save_state = link_save_state,
    .reads_host = link_reads_host,
    .host_share = moe_cuda_host_share,
    .copy_notify = link_copy_notify,
};
