/* SPDX-License-Identifier: MIT */
#include "offload/row_table.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "offload/io/io_signal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

#define N_BUFFERS       64u /* reads under way, at most */
#define BLOCK_BYTES     (64u << 10)
#define DEFAULT_TIMEOUT 30000000000u
#define LOOK_NS         20000000 /* between two looks at is_cancelled(), and for rows to read */
#define JOIN_SLACK_NS   1000000000u
#define NONE            UINT32_MAX

typedef enum slot_state {
    SLOT_EMPTY,
    SLOT_QUEUED,
    SLOT_READING,
    SLOT_READY,
    SLOT_FAILED
} slot_state;

typedef struct row_slot {
    uint64_t row;
    uint32_t next;   /* the next slot in the same bucket */
    uint32_t buffer; /* while the row is read: its buffer */
    slot_state state;
    uint32_t source; /* where the row is read from: 0 the model's file, then its copies */
    bool used;       /* used since the hand last passed */
    bool wanted;     /* wanted again while it is being read: if that fails, it is read once more */
} row_slot;

struct moe_row_table {
    moe_tensor_ref tensor;
    const char *name;
    uint64_t row_bytes, io_timeout_ns;
    moe_log_fn log; /* is told once when copies are used */
    void *user;
    moe_range_reader *reader;
    uint8_t *buffers; /* [N_BUFFERS][buffer_bytes] */
    size_t buffer_bytes;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all that follows */
    pthread_cond_t requested, changed;
    bool uses_copies; /* copies are used; the reason is `error` */
    row_slot *slots;  /* [n_slots] */
    uint8_t *bytes;   /* [n_slots][row_bytes] */
    uint32_t n_slots, hand, n_copies;
    uint32_t *buckets; /* [n_buckets], a power of two */
    uint32_t n_buckets;
    uint32_t *queue; /* a ring, [n_slots] */
    uint32_t queue_at, n_queued;
    uint32_t free_buffers[N_BUFFERS], n_free_buffers;
    uint64_t progress_ns; /* when a row last arrived, or when reading began */
    moe_error error;      /* why the last row that failed did so */
    moe_row_table_stats stats;
    bool stop, ended, hangs;
};

/* ---- Slots; call all with the lock held ---- */

static uint32_t *bucket_of(moe_row_table *t, uint64_t row)
{
    return &t->buckets[(row * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (t->n_buckets - 1)];
}

static uint32_t find(moe_row_table *t, uint64_t row)
{
    uint32_t i = *bucket_of(t, row);
    while (i != NONE && t->slots[i].row != row) {
        i = t->slots[i].next;
    }
    return i;
}

static void forget(moe_row_table *t, uint32_t index)
{
    row_slot *slot = &t->slots[index];
    uint32_t *link = bucket_of(t, slot->row);
    while (*link != index) {
        link = &t->slots[*link].next;
    }
    *link = slot->next;
    slot->state = SLOT_EMPTY;
}

/* Finds a slot for another row; NONE: all are being read. */
static uint32_t free_slot(moe_row_table *t)
{
    for (uint64_t tries = 0; tries < 2 * (uint64_t)t->n_slots; tries++) {
        const uint32_t i = t->hand;
        row_slot *slot = &t->slots[i];
        const bool holds = slot->state == SLOT_READY || slot->state == SLOT_FAILED;
        t->hand = (t->hand + 1) % t->n_slots;
        if (holds && !slot->used) {
            forget(t, i);
        }
        if (slot->state == SLOT_EMPTY) {
            return i;
        }
        slot->used = holds ? false : slot->used;
    }
    return NONE;
}

static void enqueue(moe_row_table *t, uint32_t index)
{
    MOE_ASSERT(t->n_queued < t->n_slots);
    t->slots[index].state = SLOT_QUEUED;
    t->queue[(t->queue_at + t->n_queued++) % t->n_slots] = index;
}

/* Finds the row's slot, and requests the row if that has not been done. NONE: no slot is free
 * now. */
static uint32_t request(moe_row_table *t, uint64_t row)
{
    uint32_t i = find(t, row);
    if (i == NONE) {
        i = free_slot(t);
        if (i == NONE) {
            return NONE;
        }
        uint32_t *bucket = bucket_of(t, row);
        t->slots[i] = (row_slot){.row = row, .next = *bucket, .buffer = NONE};
        *bucket = i;
        enqueue(t, i);
    } else if (t->slots[i].state == SLOT_FAILED) {
        t->slots[i].source = 0;
        enqueue(t, i);
    } else if (t->slots[i].state == SLOT_READING) {
        t->slots[i].wanted = true;
    }
    t->slots[i].used = true;
    return i;
}

/* ---- The thread ---- */

static void begin_read(moe_row_table *t, uint32_t index)
{
    const row_slot *slot = &t->slots[index];
    const moe_range range = {.file = t->tensor.file_index,
                             .offset = t->tensor.offset + slot->row * t->row_bytes,
                             .size = t->row_bytes,
                             .buffer = t->buffers + slot->buffer * t->buffer_bytes,
                             .tag = index,
                             .source = 1 + slot->source};
    const bool submitted = moe_range_reader_submit(t->reader, &range);
    MOE_ASSERT(submitted); /* the reader takes as many ranges as there are buffers */
    (void)submitted;
}

/* Hands rows to the reader. Sleeps while there are none. False when the thread should stop. */
static bool begin_reads(moe_row_table *t)
{
    uint32_t begun[N_BUFFERS], n = 0;
    pthread_mutex_lock(&t->lock);
    while (!t->stop && t->n_queued == 0 && t->n_free_buffers == N_BUFFERS) {
        pthread_cond_wait(&t->requested, &t->lock);
    }
    if (t->n_free_buffers == N_BUFFERS) {
        t->progress_ns = moe_now_ns();
    }
    while (!t->stop && t->n_queued > 0 && t->n_free_buffers > 0) {
        row_slot *slot = &t->slots[t->queue[t->queue_at]];
        slot->buffer = t->free_buffers[--t->n_free_buffers];
        slot->state = SLOT_READING;
        slot->wanted = false;
        begun[n++] = t->queue[t->queue_at];
        t->queue_at = (t->queue_at + 1) % t->n_slots;
        t->n_queued--;
    }
    const bool goes_on = !t->stop;
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < n; i++) {
        begin_read(t, begun[i]); /* no other thread changes a slot that is being read */
    }
    return goes_on;
}

static void end_read(moe_row_table *t, const moe_range_done *done)
{
    row_slot *slot = &t->slots[done->tag];
    MOE_ASSERT(slot->state == SLOT_READING);
    t->free_buffers[t->n_free_buffers++] = slot->buffer;
    t->progress_ns = moe_now_ns();
    slot->state = done->status == MOE_OK ? SLOT_READY : SLOT_FAILED;
    if (done->status == MOE_OK) {
        memcpy(t->bytes + done->tag * t->row_bytes, done->data, t->row_bytes);
        t->stats.n_read++;
    } else if (slot->source < t->n_copies) {
        t->error = t->uses_copies ? t->error : done->error;
        t->uses_copies = true;
        slot->source++;
        enqueue(t, (uint32_t)done->tag);
    } else {
        t->error = done->error;
        t->stats.n_failed++;
        if (slot->wanted) {
            slot->source = 0;
            enqueue(t, (uint32_t)done->tag);
        }
    }
}

static void tell_of_copies(moe_row_table *t, const char *reason)
{
    char line[MOE_ERROR_MESSAGE_SIZE + 128];
    snprintf(line, sizeof line, "rows of tensor '%s' are read from a copy: %s", t->name, reason);
    if (t->log != NULL) {
        t->log(line, t->user);
    }
}

static void *run(void *arg)
{
    moe_row_table *t = arg;
    moe_range_done done[N_BUFFERS];
    bool told = false;
    while (begin_reads(t)) {
        const uint32_t n = moe_range_reader_wait(t->reader, done, N_BUFFERS, LOOK_NS);
        moe_range_reader_stats reads;
        moe_range_reader_get_stats(t->reader, &reads);
        pthread_mutex_lock(&t->lock);
        for (uint32_t i = 0; i < n; i++) {
            end_read(t, &done[i]);
        }
        const bool tells = t->uses_copies && !told;
        const moe_error reason = t->error;
        t->stats.bytes_read = reads.bytes_read;
        pthread_cond_broadcast(&t->changed);
        pthread_mutex_unlock(&t->lock);
        if (tells) {
            tell_of_copies(t, reason.message);
            told = true;
        }
    }
    moe_range_reader_hurry(t->reader, t->io_timeout_ns);
    const bool read = moe_range_reader_close(&t->reader);
    pthread_mutex_lock(&t->lock);
    t->ended = true;
    t->hangs = !read;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* ---- Opening and closing ---- */

static uint32_t buckets_for(uint32_t n_slots)
{
    uint32_t n = 1;
    while (n < n_slots) {
        n *= 2;
    }
    return n;
}

/* Counts the slots, and the buffers for reads on 4 KiB boundaries. */
uint64_t moe_row_table_bytes(const moe_tensor_ref *tensor, uint32_t n_slots)
{
    const uint64_t row = moe_dtype_row_bytes(tensor->type, tensor->n_in);
    const uint64_t slot = row + sizeof(row_slot) + sizeof(uint32_t);
    return n_slots * slot + buckets_for(n_slots) * sizeof(uint32_t) +
           N_BUFFERS * ((row + 2 * 4096 - 1) & ~UINT64_C(4095));
}

static void free_table(moe_row_table *t)
{
    if (t->buffers != MAP_FAILED) {
        munmap(t->buffers, N_BUFFERS * t->buffer_bytes);
    }
    free(t->slots);
    free(t->bytes);
    free(t->buckets);
    free(t->queue);
    free(t);
}

static int open_reader(moe_row_table *t, const moe_row_table_options *o, moe_error *err)
{
    const size_t n_files = moe_gguf_n_files(o->gguf), n_all = (1 + (size_t)o->n_copies) * n_files;
    moe_byte_source **files = moe_calloc(n_all, sizeof *files);
    if (files == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to read rows of '%s'", o->name);
    }
    for (size_t i = 0; i < n_all; i++) {
        const moe_gguf *gguf = i < n_files ? o->gguf : o->copies[i / n_files - 1];
        files[i] = moe_gguf_file_at(gguf, i % n_files)->source;
    }
    const moe_range_reader_options options = {.kind = o->io,
                                              .engine = o->io_engine,
                                              .engine_context = o->io_context,
                                              .files = files,
                                              .n_files = (uint32_t)n_files,
                                              .n_copies = o->n_copies,
                                              .buffered = o->buffered_io,
                                              .block_bytes = BLOCK_BYTES,
                                              .depth = N_BUFFERS,
                                              .max_ranges = N_BUFFERS,
                                              .log = o->log,
                                              .user = o->user};
    const int status = moe_range_reader_open(&t->reader, &options, err);
    free(files);
    return status;
}

static int allocate(moe_row_table *t, moe_error *err)
{
    t->buffer_bytes = (moe_range_buffer_bytes(t->reader, t->row_bytes) + 4095) & ~(size_t)4095;
    t->buffers = mmap(NULL, N_BUFFERS * t->buffer_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    t->slots = moe_calloc(t->n_slots, sizeof *t->slots);
    t->bytes = moe_calloc(t->n_slots, t->row_bytes);
    t->buckets = moe_calloc(t->n_buckets, sizeof *t->buckets);
    t->queue = moe_calloc(t->n_slots, sizeof *t->queue);
    if (t->buffers == MAP_FAILED || t->slots == NULL || t->bytes == NULL || t->buckets == NULL ||
        t->queue == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for %" PRIu32 " rows of '%s'", t->n_slots,
                        t->name);
    }
    for (uint32_t i = 0; i < t->n_buckets; i++) {
        t->buckets[i] = NONE;
    }
    for (uint32_t i = 0; i < N_BUFFERS; i++) {
        t->free_buffers[t->n_free_buffers++] = i;
    }
    return MOE_OK;
}

static int start(moe_row_table *t, moe_error *err)
{
    if (!moe_io_condition_init(&t->requested)) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to wait for rows of '%s'", t->name);
    }
    if (!moe_io_condition_init(&t->changed)) {
        pthread_cond_destroy(&t->requested);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to wait for rows of '%s'", t->name);
    }
    pthread_mutex_init(&t->lock, NULL);
    const int code = pthread_create(&t->thread, NULL, run, t);
    if (code != 0) {
        pthread_cond_destroy(&t->requested);
        pthread_cond_destroy(&t->changed);
        pthread_mutex_destroy(&t->lock);
        return moe_fail(err, MOE_ERR_MEMORY, "cannot start the thread that reads rows (error %d)",
                        code);
    }
    return MOE_OK;
}

int moe_row_table_open(moe_row_table **out, const moe_row_table_options *o, moe_error *err)
{
    MOE_ASSERT(o->n_slots > 0);
    *out = NULL;
    moe_row_table *t = moe_calloc(1, sizeof *t);
    if (t == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for rows of '%s'", o->name);
    }
    t->tensor = *o->tensor;
    t->name = o->name;
    t->row_bytes = moe_dtype_row_bytes(o->tensor->type, o->tensor->n_in);
    t->io_timeout_ns = o->io_timeout_ns != 0 ? o->io_timeout_ns : DEFAULT_TIMEOUT;
    t->n_slots = o->n_slots;
    t->n_copies = o->n_copies;
    t->log = o->log;
    t->user = o->user;
    t->n_buckets = buckets_for(o->n_slots);
    t->buffers = MAP_FAILED;
    int status = open_reader(t, o, err);
    status = status == MOE_OK ? allocate(t, err) : status;
    status = status == MOE_OK ? start(t, err) : status;
    if (status != MOE_OK) {
        moe_range_reader_close(&t->reader);
        free_table(t);
        return status;
    }
    *out = t;
    return MOE_OK;
}

void moe_row_table_close(moe_row_table **table)
{
    moe_row_table *t = *table;
    *table = NULL;
    if (t == NULL) {
        return;
    }
    const uint64_t deadline = moe_now_ns() + 2 * t->io_timeout_ns + JOIN_SLACK_NS;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    moe_range_reader_wake(t->reader);
    pthread_cond_signal(&t->requested);
    while (!t->ended && moe_io_condition_wait(&t->changed, &t->lock, deadline)) {
    }
    const bool ended = t->ended, hangs = t->hangs;
    pthread_mutex_unlock(&t->lock);
    if (!ended) {
        pthread_detach(t->thread);
        return;
    }
    pthread_join(t->thread, NULL);
    if (hangs) {
        return;
    }
    pthread_cond_destroy(&t->requested);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free_table(t);
}

/* ---- Rows ---- */

/* With the lock held. Wakes the thread, which sleeps or waits for its reads. */
static void wake(moe_row_table *t)
{
    if (t->n_queued > 0) {
        moe_range_reader_wake(t->reader);
        pthread_cond_signal(&t->requested);
    }
}

void moe_row_table_want(moe_row_table *t, const uint64_t *rows, size_t n)
{
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < n; i++) {
        (void)request(t, rows[i]);
    }
    wake(t);
    pthread_mutex_unlock(&t->lock);
}

static int fail_row(moe_row_table *t, uint64_t row, moe_error *err)
{
    return moe_fail(err, MOE_ERR_IO, "row %" PRIu64 " of tensor '%s': %s", row, t->name,
                    t->error.message);
}

/* Asks the caller's function, without holding the lock meanwhile. */
static bool asks(moe_row_table *t, bool (*is_cancelled)(void *), void *user)
{
    pthread_mutex_unlock(&t->lock);
    const bool cancelled = is_cancelled(user);
    pthread_mutex_lock(&t->lock);
    return cancelled;
}

static bool is_settled(moe_row_table *t, uint64_t row)
{
    const uint32_t i = find(t, row);
    return i != NONE && (t->slots[i].state == SLOT_READY || t->slots[i].state == SLOT_FAILED);
}

/* With the lock held. Waits until the row is there or has failed. */
static int await(moe_row_table *t, uint64_t row, uint32_t *slot, bool (*is_cancelled)(void *),
                 void *user, moe_error *err)
{
    const uint64_t began = moe_now_ns();
    bool failed = false;
    for (;;) {
        const uint64_t now = moe_now_ns();
        *slot = find(t, row);
        failed = *slot != NONE && t->slots[*slot].state == SLOT_FAILED;
        if (failed || (*slot != NONE && t->slots[*slot].state == SLOT_READY)) {
            t->stats.wait_ns += now - began;
            return failed ? fail_row(t, row, err) : MOE_OK;
        }
        if (*slot == NONE && request(t, row) != NONE) {
            wake(t);
        }
        if (is_cancelled != NULL && asks(t, is_cancelled, user)) {
            return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
        }
        if (now - began > t->io_timeout_ns && now - t->progress_ns > t->io_timeout_ns) {
            return moe_fail(err, MOE_ERR_IO,
                            "row %" PRIu64 " of tensor '%s': the disk has sent nothing for %.1f s",
                            row, t->name, (double)t->io_timeout_ns * 1e-9);
        }
        if (!is_settled(t, row)) {
            (void)moe_io_condition_wait(&t->changed, &t->lock, now + LOOK_NS);
        }
    }
}

int moe_row_table_take(moe_row_table *t, uint64_t row, const uint8_t **bytes,
                       bool (*is_cancelled)(void *user), void *user, moe_error *err)
{
    pthread_mutex_lock(&t->lock);
    uint32_t slot = find(t, row);
    const bool ready = slot != NONE && t->slots[slot].state == SLOT_READY;
    const int status = ready ? MOE_OK : await(t, row, &slot, is_cancelled, user, err);
    t->stats.n_taken++;
    t->stats.n_waited += !ready;
    if (status == MOE_OK) {
        t->slots[slot].used = true;
        *bytes = t->bytes + slot * t->row_bytes;
    }
    pthread_mutex_unlock(&t->lock);
    return status;
}

void moe_row_table_get_stats(moe_row_table *t, moe_row_table_stats *stats)
{
    pthread_mutex_lock(&t->lock);
    *stats = t->stats;
    pthread_mutex_unlock(&t->lock);
}
