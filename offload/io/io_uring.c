/* SPDX-License-Identifier: MIT */
/* Reads by io_uring: one ring with registered files and buffers. Completions run only when the
 * owner enters the kernel (DEFER_TASKRUN), so no interrupt breaks into its work.
 *
 *  submit(): reads -> SQ -> kernel          wait(): CQ -> completions
 *  wake():   eventfd, which the ring itself polls
 *
 * The CQ has room for every read in flight, the eventfd's poll and a cancellation, so it cannot
 * overflow. If the kernel refuses entries, the engine takes them out of the SQ and completes them
 * with the refusal, so that every read completes.
 *
 * The ring belongs to the thread that first uses it, which may differ from the thread that opened
 * it. So the ring is set up disabled, and the first submit() or wait() enables it. */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "offload/io/io_engine.h"
#include "offload/io/io_signal.h"
#include "offload/io/uring_buffers.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

#define WAKE_DATA   UINT64_MAX
#define CANCEL_DATA (UINT64_MAX - 1)
/* SQ entries beside the reads: the eventfd's poll and the cancellation. */
#define EXTRA_ENTRIES 2u

typedef struct uring_engine {
    /* set at open */
    struct io_uring ring;
    /* [2 * n_files]: for direct reads (buffered where a file has no others), then for buffered
     * reads */
    int *fds;
    uint32_t n_files;
    uint32_t depth;
    int wake_fd;
    bool fixed_files;
    bool starts_disabled;
    moe_log_fn log;
    void *user;
    /* only the owner touches these */
    moe_uring_buffers buffers;
    bool enabled;
    pid_t owner;
    bool wake_armed;
    uint32_t in_flight;         /* reads that the engine has taken and not completed */
    moe_io_completion *refused; /* [depth] */
    uint32_t n_refused;
} uring_engine;

/* Tries the newest flags first: an older kernel refuses flags that it does not know. */
static int set_up_ring(uring_engine *e)
{
    static const unsigned flags[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED |
            IORING_SETUP_SUBMIT_ALL,
        IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL,
        0,
    };
    int rc = -EINVAL;
    for (size_t i = 0; i < sizeof flags / sizeof flags[0] && rc == -EINVAL; i++) {
        struct io_uring_params p = {.flags = flags[i] | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
                                    .cq_entries = 2 * (e->depth + EXTRA_ENTRIES)};
        rc = io_uring_queue_init_params(e->depth + EXTRA_ENTRIES, &e->ring, &p);
        e->starts_disabled = (flags[i] & IORING_SETUP_R_DISABLED) != 0;
    }
    if (rc < 0) {
        return rc;
    }
    /* A wait with a timeout must not need an entry (EXT_ARG). CLAMP may have made the ring smaller
     * than asked for. */
    if ((e->ring.features & IORING_FEAT_EXT_ARG) == 0 ||
        e->ring.sq.ring_entries < e->depth + EXTRA_ENTRIES ||
        e->ring.cq.ring_entries < e->depth + EXTRA_ENTRIES) {
        io_uring_queue_exit(&e->ring);
        return -EOPNOTSUPP;
    }
    return 0;
}

static void release(uring_engine *e)
{
    if (e->wake_fd >= 0) {
        close(e->wake_fd);
    }
    free(e->refused);
    free(e->fds);
    free(e);
}

/* Lists the files' descriptors: the kernel can read from nothing else. */
static int list_descriptors(uring_engine *e, const moe_io_params *params, moe_error *err)
{
    e->n_files = params->n_files;
    for (uint32_t i = 0; i < e->n_files; i++) {
        const moe_byte_source *file = params->files[i];
        if (file->fd < 0) {
            return moe_fail(err, MOE_ERR_UNSUPPORTED, "io_uring cannot read %s, which is no file",
                            file->name);
        }
        e->fds[i] = file->direct_fd >= 0 ? file->direct_fd : file->fd;
        e->fds[e->n_files + i] = file->fd;
    }
    return MOE_OK;
}

static int uring_open(void **out, const moe_io_params *params, moe_error *err)
{
    uring_engine *e = moe_calloc(1, sizeof *e);
    if (e == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "io_uring: out of memory");
    }
    e->depth = params->depth;
    e->log = params->log;
    e->user = params->user;
    e->wake_fd = -1;
    e->refused = moe_calloc(params->depth, sizeof *e->refused);
    e->fds = moe_calloc(params->n_files, 2 * sizeof *e->fds);
    int status = e->refused == NULL || e->fds == NULL
                     ? moe_fail(err, MOE_ERR_MEMORY, "io_uring: out of memory")
                     : list_descriptors(e, params, err);
    if (status != MOE_OK) {
        release(e);
        return status;
    }
    e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = e->wake_fd < 0 ? -errno : set_up_ring(e);
    if (rc < 0) {
        release(e);
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "io_uring is not available here: %s%s",
                        strerror(-rc),
                        rc == -EPERM ? " (see the sysctl kernel.io_uring_disabled)" : "");
    }
    /* The child of a fork gets no part of the ring. */
    io_uring_ring_dontfork(&e->ring);
    e->fixed_files = io_uring_register_files(&e->ring, e->fds, 2 * e->n_files) == 0;
    *out = e;
    return MOE_OK;
}

static void uring_use_arena(void *engine, void *arena, size_t bytes)
{
    uring_engine *e = engine;
    moe_uring_buffers_use(&e->buffers, &e->ring, arena, bytes, e->log, e->user);
}

static bool uring_set_away(void *engine, void *memory, size_t bytes, bool away)
{
    uring_engine *e = engine;
    return moe_uring_buffers_set_away(&e->buffers, &e->ring, memory, bytes, away);
}

static void enable(uring_engine *e)
{
    if (!e->enabled) {
        e->enabled = true;
        e->owner = gettid();
        if (e->starts_disabled) {
            /* Some builds of the library lack io_uring_enable_rings(). */
            io_uring_register((unsigned)e->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
        }
    }
}

/* Takes the entries that the kernel has not taken back out of the SQ, and completes them with the
 * error. */
static void take_back(uring_engine *e, int error)
{
    struct io_uring_sq *sq = &e->ring.sq;
    unsigned head = *sq->khead;
    for (unsigned i = head; i != sq->sqe_tail; i++) {
        uint64_t user_data = sq->sqes[i & sq->ring_mask].user_data;
        if (user_data == WAKE_DATA) {
            e->wake_armed = false;
        } else if (user_data != CANCEL_DATA) {
            MOE_ASSERT(e->n_refused < e->depth);
            e->refused[e->n_refused++] =
                (moe_io_completion){.user_data = user_data, .result = error};
        }
    }
    sq->sqe_head = head;
    sq->sqe_tail = head;
    io_uring_smp_store_release(sq->ktail, head);
}

/* If a call fails to submit an entry, it does not wait either. Takes the failed entry out of the
 * SQ: otherwise every later call would fail on it, and no completion would ever be collected. */
static void check_submitted(uring_engine *e, int rc)
{
    if (rc < 0 && rc != -EINTR && rc != -ETIME) {
        take_back(e, rc);
    }
}

static void prepare_read(uring_engine *e, struct io_uring_sqe *sqe, const moe_io_read *read)
{
    uint32_t at = read->direct ? read->file : e->n_files + read->file;
    int fd = e->fixed_files ? (int)at : e->fds[at];
    int buffer = moe_uring_buffers_index(&e->buffers, &e->ring, read->dst, read->size);
    if (buffer >= 0) {
        io_uring_prep_read_fixed(sqe, fd, read->dst, read->size, read->offset, buffer);
    } else {
        io_uring_prep_read(sqe, fd, read->dst, read->size, read->offset);
    }
    if (e->fixed_files) {
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    }
    io_uring_sqe_set_data64(sqe, read->user_data);
}

static uint32_t uring_submit(void *engine, const moe_io_read *reads, uint32_t n)
{
    uring_engine *e = engine;
    enable(e);
    MOE_ASSERT(e->owner == gettid());
    uint32_t taken = 0;
    for (; taken < n && e->in_flight < e->depth; taken++, e->in_flight++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&e->ring);
        if (sqe == NULL) {
            break;
        }
        prepare_read(e, sqe, &reads[taken]);
    }
    check_submitted(e, io_uring_submit(&e->ring));
    return taken;
}

static void arm_wake(uring_engine *e)
{
    struct io_uring_sqe *sqe = e->wake_armed ? NULL : io_uring_get_sqe(&e->ring);
    if (sqe != NULL) {
        io_uring_prep_poll_add(sqe, e->wake_fd, POLLIN);
        io_uring_sqe_set_data64(sqe, WAKE_DATA);
        e->wake_armed = true;
    }
}

/* Collects completions, matched by user_data. A call into the kernel may return without any, for
 * instance after a signal. */
static uint32_t reap(uring_engine *e, moe_io_completion *done, uint32_t capacity, bool *woken)
{
    uint32_t n = 0;
    while (n < capacity && e->n_refused > 0) {
        MOE_ASSERT(e->in_flight > 0);
        done[n++] = e->refused[--e->n_refused];
        e->in_flight--;
    }
    unsigned head;
    unsigned seen = 0;
    struct io_uring_cqe *cqe;
    io_uring_for_each_cqe(&e->ring, head, cqe)
    {
        if (cqe->user_data == WAKE_DATA) {
            uint64_t wakes;
            e->wake_armed = false;
            *woken = read(e->wake_fd, &wakes, sizeof wakes) == sizeof wakes || *woken;
        } else if (cqe->user_data != CANCEL_DATA) {
            if (n == capacity) {
                break;
            }
            MOE_ASSERT(e->in_flight > e->n_refused);
            done[n++] = (moe_io_completion){.user_data = cqe->user_data, .result = cqe->res};
            e->in_flight--;
        }
        seen++;
    }
    io_uring_cq_advance(&e->ring, seen);
    return n;
}

static uint32_t uring_wait(void *engine, moe_io_completion *done, uint32_t capacity,
                           int64_t timeout_ns, bool *woken)
{
    uring_engine *e = engine;
    enable(e);
    MOE_ASSERT(e->owner == gettid());
    arm_wake(e);
    int rc;
    if (timeout_ns == 0 || e->n_refused > 0) {
        rc = io_uring_submit_and_get_events(&e->ring);
    } else {
        struct __kernel_timespec limit = {.tv_sec = timeout_ns / 1000000000,
                                          .tv_nsec = timeout_ns % 1000000000};
        struct io_uring_cqe *cqe;
        rc = io_uring_submit_and_wait_timeout(&e->ring, &cqe, 1, timeout_ns < 0 ? NULL : &limit,
                                              NULL);
    }
    check_submitted(e, rc);
    return reap(e, done, capacity, woken);
}

static void uring_wake(void *engine)
{
    uring_engine *e = engine;
    uint64_t one = 1;
    /* The write fails only when the counter is full of wakes that were not consumed; then the
     * eventfd is readable anyway. */
    ssize_t written = write(e->wake_fd, &one, sizeof one);
    (void)written;
}

/* Cancels reads. Direct reads cannot be cancelled, but reads that wait for a kernel worker can. */
static void cancel_all(uring_engine *e)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&e->ring);
    if (sqe != NULL) {
        io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY);
        io_uring_sqe_set_data64(sqe, CANCEL_DATA);
    }
}

static bool uring_close(void *engine, uint64_t timeout_ns)
{
    uring_engine *e = engine;
    bool drained = e->in_flight == 0;
    /* Only the ring's owner can collect what is in flight. */
    if (!drained && e->owner == gettid()) {
        uint64_t deadline = moe_io_deadline((int64_t)timeout_ns);
        cancel_all(e);
        for (uint64_t now = moe_now_ns(); e->in_flight > 0 && now < deadline; now = moe_now_ns()) {
            moe_io_completion ignored[16];
            bool woken = false;
            uring_wait(e, ignored, 16, (int64_t)(deadline - now), &woken);
        }
        drained = e->in_flight == 0;
    }
    moe_uring_buffers_release(&e->buffers, &e->ring, drained);
    io_uring_queue_exit(&e->ring);
    release(e);
    return drained;
}

static const char *uring_detail(const void *engine)
{
    const uring_engine *e = engine;
    bool some = e->buffers.arena != NULL && (e->buffers.n_registered > 0 || !e->buffers.refused);
    return some ? "registered buffers" : "";
}

const moe_io_ops moe_io_uring_ops = {
    .name = "io_uring",
    .open = uring_open,
    .use_arena = uring_use_arena,
    .set_away = uring_set_away,
    .close = uring_close,
    .submit = uring_submit,
    .wait = uring_wait,
    .wake = uring_wake,
    .detail = uring_detail,
};
