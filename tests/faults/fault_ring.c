/* SPDX-License-Identifier: MIT */
/* Hooks for io_uring: liburing's functions that enter the kernel. Between the program and the
 * kernel stand the two rings, in memory that both may write:
 *
 *   program --> SQ --> [hang: the entry becomes a read of an empty pipe] --> kernel
 *   program <-- CQ <-- [fail, short, lie: the entry's result, and the read's buffer] <-- kernel
 *
 * A read is known from its submission to its completion by ring and user data. */
#include "tests/faults/fault_hooks.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_READS 1024
#define SPOILT    0xa5
#define CALLER    __builtin_return_address(0)
#define BIT(kind) (1u << FAULT_##kind)
#define HOOK      __attribute__((visibility("default")))

typedef struct known_read {
    struct io_uring *ring; /* NULL: unused */
    uint64_t user_data;
    unsigned char *bytes;
    bool hangs;
} known_read;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static known_read reads[MAX_READS];
static int pipe_fds[2] = {-1, -1};
static unsigned n_hanging;

/* ---- The SQ. The lock is held. ---- */

static known_read *find_read(struct io_uring *ring, uint64_t user_data)
{
    for (size_t i = 0; i < MAX_READS; i++) {
        if (reads[i].ring == ring && (ring == NULL || reads[i].user_data == user_data)) {
            return &reads[i];
        }
    }
    return NULL;
}

/* Before the program counts its descriptors. */
__attribute__((constructor)) static void open_pipe(void)
{
    if (getenv("FAULT_PAGE") != NULL && pipe2(pipe_fds, O_CLOEXEC) != 0) {
        pipe_fds[0] = -1;
    }
}

static void make_hang(struct io_uring_sqe *sqe, known_read *read)
{
    static char nowhere;
    if (pipe_fds[0] < 0) {
        fault_uncount(FAULT_COMPLETION, FAULT_HANG);
        return;
    }
    uint64_t user_data = sqe->user_data;
    io_uring_prep_read(sqe, pipe_fds[0], &nowhere, 1, 0);
    sqe->user_data = user_data;
    read->hangs = true;
    n_hanging++;
}

static void look_at_submissions(struct io_uring *ring, const void *caller)
{
    struct io_uring_sq *sq = &ring->sq;
    pthread_mutex_lock(&lock);
    for (unsigned i = sq->sqe_head; i != sq->sqe_tail; i++) {
        struct io_uring_sqe *sqe = &sq->sqes[i & *sq->kring_mask];
        known_read *read = find_read(ring, sqe->user_data);
        read = read != NULL ? read : find_read(NULL, 0);
        if ((sqe->opcode != IORING_OP_READ && sqe->opcode != IORING_OP_READ_FIXED) ||
            read == NULL) {
            continue;
        }
        *read = (known_read){ring, sqe->user_data, (unsigned char *)(uintptr_t)sqe->addr, false};
        if (fault_choose(caller, FAULT_COMPLETION, BIT(HANG)).kind == FAULT_HANG) {
            make_hang(sqe, read);
        }
    }
    pthread_mutex_unlock(&lock);
}

/* ---- The CQ. The lock is held. ---- */

static void change_result(struct io_uring_cqe *cqe, const known_read *read, const void *caller)
{
    static const int errors[] = {EIO, EAGAIN, EINTR, ECANCELED};
    fault_chosen chosen = fault_choose(caller, FAULT_COMPLETION,
                                       BIT(FAIL) | BIT(SHORT) | BIT(LATE) | BIT(LIE) | BIT(WAKE));
    size_t got = (size_t)cqe->res;
    if (chosen.kind == FAULT_FAIL || chosen.kind == FAULT_WAKE) {
        memset(read->bytes, SPOILT, got);
        cqe->res = chosen.kind == FAULT_WAKE ? -EINTR : -errors[chosen.random % 4];
    } else if (chosen.kind == FAULT_SHORT && got > 1) {
        size_t kept = 1 + chosen.random % (got - 1);
        memset(read->bytes + kept, SPOILT, got - kept);
        cqe->res = (int)kept;
    } else if (chosen.kind == FAULT_LIE) {
        read->bytes[chosen.random % got] ^= 1u << (chosen.random >> 61);
    }
}

static void look_at_completions(struct io_uring *ring, const void *caller)
{
    struct io_uring_cq *cq = &ring->cq;
    unsigned tail = io_uring_smp_load_acquire(cq->ktail);
    pthread_mutex_lock(&lock);
    for (unsigned i = *cq->khead; i != tail; i++) {
        struct io_uring_cqe *cqe = &cq->cqes[i & *cq->kring_mask];
        known_read *read = find_read(ring, cqe->user_data);
        if (read == NULL) {
            continue;
        }
        if (read->hangs) {
            n_hanging--;
            cqe->res = cqe->res > 0 ? -EAGAIN : cqe->res; /* to be asked again */
        } else if (cqe->res > 0) {
            change_result(cqe, read, caller);
        }
        read->ring = NULL;
    }
    if (n_hanging > 0 && fault_let_go()) {
        static const char answers[MAX_READS];
        ssize_t written = write(pipe_fds[1], answers, n_hanging);
        (void)written;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- Calls ---- */

static int refusal(fault_chosen chosen)
{
    static const int errors[] = {EAGAIN, EBUSY, ENOMEM};
    return -errors[chosen.random % 3];
}

/* Of the calls that enter the kernel with the ring alone. */
static int submit(struct io_uring *ring, int (**true_call)(struct io_uring *), const char *name,
                  const void *caller)
{
    if (*true_call == NULL) {
        *true_call = fault_true_call(name);
    }
    fault_chosen chosen = fault_choose(caller, FAULT_ENTER, BIT(FAIL) | BIT(LATE));
    if (chosen.kind == FAULT_FAIL) {
        return refusal(chosen);
    }
    look_at_submissions(ring, caller);
    int rc = (*true_call)(ring);
    look_at_completions(ring, caller);
    return rc;
}

HOOK int io_uring_submit(struct io_uring *ring)
{
    static int (*true_call)(struct io_uring *);
    return submit(ring, &true_call, "io_uring_submit", CALLER);
}

HOOK int io_uring_submit_and_get_events(struct io_uring *ring)
{
    static int (*true_call)(struct io_uring *);
    return submit(ring, &true_call, "io_uring_submit_and_get_events", CALLER);
}

HOOK int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
                                          unsigned n, struct __kernel_timespec *limit,
                                          sigset_t *signals)
{
    static int (*true_call)(struct io_uring *, struct io_uring_cqe **, unsigned,
                            struct __kernel_timespec *, sigset_t *);
    if (true_call == NULL) {
        true_call = fault_true_call("io_uring_submit_and_wait_timeout");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_ENTER, BIT(FAIL) | BIT(LATE) | BIT(WAKE));
    if (chosen.kind == FAULT_FAIL) {
        return refusal(chosen);
    }
    look_at_submissions(ring, CALLER);
    struct __kernel_timespec now = {0};
    int rc = true_call(ring, cqe, n, chosen.kind == FAULT_WAKE ? &now : limit, signals);
    look_at_completions(ring, CALLER);
    return chosen.kind == FAULT_WAKE && rc < 0 ? -EINTR : rc;
}

/* Ring, files and buffers: calls that return a negative error. */
#define RING_HOOK(name, parameters, arguments, ...)                                                \
    HOOK int name parameters                                                                       \
    {                                                                                              \
        static int(*true_call) parameters;                                                         \
        static const int errors[] = {__VA_ARGS__};                                                 \
        if (true_call == NULL) {                                                                   \
            true_call = fault_true_call(#name);                                                    \
        }                                                                                          \
        fault_chosen chosen = fault_choose(CALLER, FAULT_RING, BIT(FAIL) | BIT(LATE));             \
        return chosen.kind == FAULT_FAIL                                                           \
                   ? -errors[chosen.random % (sizeof errors / sizeof errors[0])]                   \
                   : true_call arguments;                                                          \
    }

RING_HOOK(io_uring_queue_init_params,
          (unsigned n, struct io_uring *ring, struct io_uring_params *params), (n, ring, params),
          ENOSYS, EPERM, ENOMEM, EMFILE, EINVAL)
RING_HOOK(io_uring_register_buffers_sparse, (struct io_uring * ring, unsigned n), (ring, n), ENOMEM,
          EINVAL, EPERM)
RING_HOOK(io_uring_register_files, (struct io_uring * ring, const int *files, unsigned n),
          (ring, files, n), EMFILE, ENOMEM)
RING_HOOK(io_uring_register_buffers_update_tag,
          (struct io_uring * ring, unsigned at, const struct iovec *memory, const __u64 *tags,
           unsigned n),
          (ring, at, memory, tags, n), ENOMEM, EFAULT, EOPNOTSUPP)
RING_HOOK(io_uring_unregister_buffers, (struct io_uring * ring), (ring), ENXIO)

HOOK void io_uring_queue_exit(struct io_uring *ring)
{
    static void (*true_call)(struct io_uring *);
    if (true_call == NULL) {
        true_call = fault_true_call("io_uring_queue_exit");
    }
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MAX_READS; i++) {
        if (reads[i].ring == ring) {
            n_hanging -= reads[i].hangs;
            reads[i].ring = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    true_call(ring);
}
