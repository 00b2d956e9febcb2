/* SPDX-License-Identifier: MIT */
#include "runtime/sidecar/idle_checksums.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define QUIET_NS    1000000000u
#define BATCH       256u         /* parts that one opened reader reads */
#define KEEP_BYTES  (4ull << 30) /* bytes read between two writings of the book */
#define IDLE_CLASS  (3 << 13)    /* class of ioprio_set(2): reads only when nobody else does */
#define OF_A_THREAD 1

struct moe_idle_checksums {
    moe_checksum_book *book;
    moe_model_reader_options reading;
    pthread_t thread;
    XXH3_state_t *hash;
    _Atomic bool stopped;
    _Atomic uint32_t n_steps; /* under way */
    _Atomic uint64_t quiet_since_ns;
    _Atomic uint64_t bytes;
    uint64_t bytes_kept; /* when the book was last written */
    pthread_mutex_t lock;
    pthread_cond_t stop; /* the thread waits here for a quiet moment */
};

/* The reader calls this before each piece, to learn whether it should continue. */
static bool is_wanted(void *user)
{
    moe_idle_checksums *idle = user;
    return atomic_load(&idle->stopped) || atomic_load(&idle->n_steps) > 0;
}

/* Waits until no step has run for some time. Returns false if the thread should end. */
static bool await_quiet(moe_idle_checksums *idle)
{
    pthread_mutex_lock(&idle->lock);
    for (;;) {
        uint64_t now = moe_now_ns();
        uint64_t since = atomic_load(&idle->quiet_since_ns);
        bool quiet = atomic_load(&idle->n_steps) == 0 && now - since >= QUIET_NS;
        if (atomic_load(&idle->stopped) || quiet) {
            break;
        }
        uint64_t until = atomic_load(&idle->n_steps) == 0 ? since + QUIET_NS : now + QUIET_NS;
        struct timespec deadline = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
        pthread_cond_timedwait(&idle->stop, &idle->lock, &deadline);
    }
    pthread_mutex_unlock(&idle->lock);
    return !atomic_load(&idle->stopped);
}

/* Makes the checksum of one part by reading it, unless a demand has made it meanwhile. */
static int make(moe_idle_checksums *idle, moe_model_reader *reader, uint32_t at, uint64_t size,
                moe_error *err)
{
    XXH3_64bits_reset(idle->hash);
    for (uint64_t done = 0; done < size;) {
        const uint8_t *bytes;
        size_t n;
        MOE_TRY(moe_model_reader_next(reader, SIZE_MAX, &bytes, &n, err));
        XXH3_64bits_update(idle->hash, bytes, n);
        atomic_fetch_add(&idle->bytes, n);
        done += n;
    }
    (void)moe_weight_sums_check(&idle->book->sums, at, XXH3_64bits_digest(idle->hash));
    return MOE_OK;
}

/* Lists the next parts whose checksums are missing, from *from on. */
static uint32_t list_missing(const moe_checksum_book *book, size_t *from, uint32_t *parts,
                             moe_model_range *ranges)
{
    uint32_t n = 0;
    for (; *from < book->n_parts && n < BATCH; ++*from) {
        uint32_t at = book->parts[*from];
        if (moe_weight_sums_get(&book->sums, at) == 0) {
            ranges[n] = moe_checksum_book_range(book, at);
            parts[n++] = at;
        }
    }
    return n;
}

static int read_batch(moe_idle_checksums *idle, const uint32_t *parts,
                      const moe_model_range *ranges, uint32_t n)
{
    moe_error err = {""};
    moe_model_reader *reader;
    int status = moe_model_reader_open(&reader, &idle->reading, &err);
    status = status == MOE_OK ? moe_model_reader_begin(reader, ranges, n, &err) : status;
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        status = make(idle, reader, parts[i], ranges[i].size, &err);
    }
    moe_model_reader_close(&reader);
    return status;
}

static void *run(void *arg)
{
    moe_idle_checksums *idle = arg;
    uint32_t parts[BATCH];
    moe_model_range ranges[BATCH];
    size_t from = 0;
    int status = MOE_OK;
    long self = syscall(SYS_gettid);
    (void)setpriority(PRIO_PROCESS, (id_t)self, 19);
    (void)syscall(SYS_ioprio_set, OF_A_THREAD, (int)self, IDLE_CLASS);
    while (status == MOE_OK && await_quiet(idle)) {
        size_t before = from;
        uint32_t n = list_missing(idle->book, &from, parts, ranges);
        if (n == 0) {
            break;
        }
        status = read_batch(idle, parts, ranges, n);
        if (status == MOE_ERR_CANCELLED) { /* a step began, or the engine closes */
            from = before;
            status = MOE_OK;
        }
        uint64_t bytes = atomic_load(&idle->bytes);
        if (bytes - idle->bytes_kept >= KEEP_BYTES) {
            idle->bytes_kept = bytes;
            moe_checksum_book_keep(idle->book);
        }
    }
    if (!atomic_load(&idle->stopped)) { /* otherwise closing writes the book */
        moe_checksum_book_keep(idle->book);
    }
    return NULL;
}

static int init_waiting(moe_idle_checksums *idle)
{
    pthread_condattr_t clock;
    int failed = pthread_condattr_init(&clock);
    if (failed == 0) {
        failed = pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
        failed = failed == 0 ? pthread_cond_init(&idle->stop, &clock) : failed;
        pthread_condattr_destroy(&clock);
    }
    return failed == 0 ? pthread_mutex_init(&idle->lock, NULL) : failed;
}

int moe_idle_checksums_start(moe_idle_checksums **out, moe_checksum_book *book,
                             const moe_model_reader_options *reading, moe_error *err)
{
    moe_weights_identity identity;
    *out = NULL;
    moe_checksum_book_identify(book, &identity);
    if (identity.whole != 0) {
        return MOE_OK;
    }
    moe_idle_checksums *idle = moe_calloc(1, sizeof *idle);
    XXH3_state_t *hash = XXH3_createState();
    if (idle == NULL || hash == NULL) {
        free(idle);
        XXH3_freeState(hash);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a thread that makes checksums");
    }
    idle->book = book;
    idle->hash = hash;
    idle->reading = *reading;
    idle->reading.is_cancelled = is_wanted;
    idle->reading.cancel_user = idle;
    idle->reading.log = NULL;
    idle->quiet_since_ns = moe_now_ns();
    int failed = init_waiting(idle);
    failed = failed == 0 ? pthread_create(&idle->thread, NULL, run, idle) : failed;
    if (failed != 0) {
        XXH3_freeState(hash);
        free(idle);
        return moe_fail(err, MOE_ERR_MEMORY, "a thread that makes checksums cannot be started");
    }
    *out = idle;
    return MOE_OK;
}

void moe_idle_checksums_pause(moe_idle_checksums *idle)
{
    if (idle != NULL) {
        atomic_fetch_add(&idle->n_steps, 1);
    }
}

void moe_idle_checksums_resume(moe_idle_checksums *idle)
{
    if (idle != NULL) {
        atomic_store(&idle->quiet_since_ns, moe_now_ns());
        atomic_fetch_sub(&idle->n_steps, 1);
    }
}

uint64_t moe_idle_checksums_bytes(const moe_idle_checksums *idle)
{
    return idle != NULL ? atomic_load(&idle->bytes) : 0;
}

void moe_idle_checksums_stop(moe_idle_checksums **idle)
{
    moe_idle_checksums *i = *idle;
    if (i == NULL) {
        return;
    }
    pthread_mutex_lock(&i->lock);
    atomic_store(&i->stopped, true);
    pthread_cond_signal(&i->stop);
    pthread_mutex_unlock(&i->lock);
    pthread_join(i->thread, NULL);
    pthread_cond_destroy(&i->stop);
    pthread_mutex_destroy(&i->lock);
    XXH3_freeState(i->hash);
    free(i);
    *idle = NULL;
}
