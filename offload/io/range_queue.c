/* SPDX-License-Identifier: MIT */
#include "offload/io/range_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/io/io_signal.h"
#include "offload/io/range_state.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define DEFAULT_BLOCK_BYTES      (1u << 20)
#define DEFAULT_DEPTH            16u
#define DEFAULT_MAX_RANGES       256u
#define DEFAULT_CLOSE_TIMEOUT_MS 10000u
#define MAX_BLOCK_BYTES          (256u << 20)
#define MAX_DEPTH                4096u
#define MAX_MAX_RANGES           (1u << 20)
#define MAX_FILES                (1u << 16)
/* A page. The kernel often allows 512 bytes. But the device's own block is mostly 4 KiB, and a read
 * that begins inside such a block costs the whole block. */
#define LEAST_ALIGNMENT 4096u

static int check_options(const moe_range_reader_options *options, moe_error *err)
{
    if (options->n_files == 0 || options->n_files > MAX_FILES || options->files == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "range reader: %u files, should be 1 to %u",
                        options->n_files, MAX_FILES);
    }
    if (options->block_bytes > MAX_BLOCK_BYTES) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "range reader: blocks of %u bytes, at most %u",
                        options->block_bytes, MAX_BLOCK_BYTES);
    }
    if (options->depth > MAX_DEPTH || options->max_ranges > MAX_MAX_RANGES) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "range reader: depth %u (at most %u), %u ranges (at most %u)",
                        options->depth, MAX_DEPTH, options->max_ranges, MAX_MAX_RANGES);
    }
    if (options->n_copies > MOE_RANGE_COPIES ||
        (options->n_copies + 1) * (uint64_t)options->n_files > MAX_FILES) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "range reader: %u copies of %u files (at most %u)",
                        options->n_copies, options->n_files, MOE_RANGE_COPIES);
    }
    for (uint32_t i = 0; i < options->n_copies * options->n_files; i++) {
        const moe_byte_source *copy = options->files[options->n_files + i];
        const moe_byte_source *file = options->files[i % options->n_files];
        if (copy->size != file->size) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "%s: %llu bytes long, and not %llu like %s; it is no copy", copy->name,
                            (unsigned long long)copy->size, (unsigned long long)file->size,
                            file->name);
        }
    }
    for (uint32_t i = 0; i < options->n_files; i++) {
        if (options->files[i]->size > INT64_MAX / 2) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "%s: no file is %llu bytes long",
                            options->files[i]->name, (unsigned long long)options->files[i]->size);
        }
    }
    return MOE_OK;
}

/* Opens the engine that the options name. If they leave the choice open, falls back on engines that
 * work on every machine. */
static int open_engine(moe_range_reader *r, const moe_range_reader_options *options, moe_error *err)
{
    static const moe_io_ops *const by_kind[] = {
        [MOE_IO_AUTO] = &moe_io_uring_ops,
        [MOE_IO_URING] = &moe_io_uring_ops,
        [MOE_IO_THREADS] = &moe_io_threads_ops,
        [MOE_IO_SYNC] = &moe_io_sync_ops,
    };
    moe_io_params params = {.files = r->files,
                            .n_files = r->n_all_files,
                            .depth = r->depth,
                            .log = options->log,
                            .user = options->user,
                            .context = options->engine_context};
    r->ops = options->engine != NULL ? options->engine : by_kind[options->kind];
    moe_error reason; /* why the first engine refused: the user can act on it */
    moe_error later;
    int rc = r->ops->open(&r->engine, &params, &reason);
    const moe_io_ops *others[] = {&moe_io_threads_ops, &moe_io_sync_ops};
    for (int i = 0; i < 2 && rc != MOE_OK && options->kind == MOE_IO_AUTO; i++) {
        r->ops = others[i];
        rc = r->ops->open(&r->engine, &params, &later);
        if (rc == MOE_OK && r->log != NULL) {
            char line[MOE_ERROR_MESSAGE_SIZE + 64];
            snprintf(line, sizeof line, "%s: reading with the engine \"%s\" instead",
                     reason.message, r->ops->name);
            r->log(line, r->user);
        }
    }
    if (rc != MOE_OK) {
        r->ops = NULL;
        moe_fail(err, rc, "%s", reason.message);
    }
    return rc;
}

static int allocate(moe_range_reader *r, moe_error *err)
{
    r->ranges = moe_calloc(r->max_ranges, sizeof *r->ranges);
    r->blocks = moe_calloc(r->depth, sizeof *r->blocks);
    r->batch = moe_calloc(r->depth, sizeof *r->batch);
    r->results = moe_calloc(r->depth, sizeof *r->results);
    if (r->ranges == NULL || r->blocks == NULL || r->batch == NULL || r->results == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "range reader: out of memory");
    }
    r->queue.first = MOE_IO_NONE;
    r->finished.first = MOE_IO_NONE;
    r->retries = MOE_IO_NONE;
    for (uint32_t i = 0; i < r->max_ranges; i++) {
        r->ranges[i].next = i + 1 < r->max_ranges ? i + 1 : MOE_IO_NONE;
    }
    for (uint32_t i = 0; i < r->depth; i++) {
        r->blocks[i].next = i + 1 < r->depth ? i + 1 : MOE_IO_NONE;
    }
    return MOE_OK;
}

static bool release(moe_range_reader *r)
{
    bool ended = r->ops == NULL || r->ops->close(r->engine, r->close_timeout_ns);
    if (!ended && r->log != NULL) {
        r->log("reads did not complete before the reader was closed: their buffers stay in use",
               r->user);
    }
    for (uint32_t i = 0; i < r->n_all_files; i++) {
        moe_byte_source_let_go(&r->files[i]);
    }
    free(r->files);
    free(r->direct);
    free(r->ranges);
    free(r->blocks);
    free(r->batch);
    free(r->results);
    free(r);
    return ended;
}

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value != 0 ? value : fallback;
}

static void tell_no_direct(moe_range_reader *r, const moe_byte_source *file)
{
    char line[384];
    snprintf(line, sizeof line, "%s: no direct I/O (%s)", file->name,
             file->direct_error != 0 ? strerror(file->direct_error) : "the file system has none");
    moe_range_reader_tell_buffered(r, line);
}

static int hold_files(moe_range_reader *r, const moe_range_reader_options *options, moe_error *err)
{
    uint32_t n = r->sources.n * r->n_files;
    r->files = moe_calloc(n, sizeof *r->files);
    r->direct = moe_calloc(n, sizeof *r->direct);
    if (r->files == NULL || r->direct == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "range reader: out of memory");
    }
    r->alignment = LEAST_ALIGNMENT;
    for (; r->n_all_files < n; r->n_all_files++) {
        moe_byte_source *file = moe_byte_source_hold(options->files[r->n_all_files]);
        r->files[r->n_all_files] = file;
        r->direct[r->n_all_files] = !options->buffered && file->direct_alignment > 0;
        if (r->direct[r->n_all_files] && file->direct_alignment > r->alignment) {
            r->alignment = file->direct_alignment;
        }
    }
    return MOE_OK;
}

static uint64_t round_up(uint64_t value, uint64_t alignment)
{
    MOE_ASSERT(alignment > 0 && (alignment & (alignment - 1)) == 0);
    return (value + alignment - 1) & ~(alignment - 1);
}

int moe_range_reader_open(moe_range_reader **out, const moe_range_reader_options *options,
                          moe_error *err)
{
    *out = NULL;
    int rc = check_options(options, err);
    if (rc != MOE_OK) {
        return rc;
    }
    moe_range_reader *r = moe_calloc(1, sizeof *r);
    if (r == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "range reader: out of memory");
    }
    r->n_files = options->n_files;
    r->sources.n = options->n_copies + 1;
    r->sources.most_blocks = or_default(options->depth, DEFAULT_DEPTH);
    r->depth = r->sources.n * r->sources.most_blocks;
    r->max_ranges = or_default(options->max_ranges, DEFAULT_MAX_RANGES);
    r->close_timeout_ns =
        1000000u * (uint64_t)or_default(options->close_timeout_ms, DEFAULT_CLOSE_TIMEOUT_MS);
    r->log = options->log;
    r->user = options->user;
    rc = hold_files(r, options, err);
    rc = rc == MOE_OK ? allocate(r, err) : rc;
    rc = rc == MOE_OK ? open_engine(r, options, err) : rc;
    if (rc != MOE_OK) {
        release(r);
        return rc;
    }
    r->block_bytes =
        (uint32_t)round_up(or_default(options->block_bytes, DEFAULT_BLOCK_BYTES), r->alignment);
    for (uint32_t i = 0; i < r->n_all_files && !options->buffered; i++) {
        if (!r->direct[i]) {
            tell_no_direct(r, r->files[i]);
        }
    }
    *out = r;
    return MOE_OK;
}

void moe_range_reader_hurry(moe_range_reader *reader, uint64_t timeout_ns)
{
    if (timeout_ns < reader->close_timeout_ns) {
        reader->close_timeout_ns = timeout_ns;
    }
}

bool moe_range_reader_close(moe_range_reader **reader)
{
    moe_range_reader *r = *reader;
    *reader = NULL;
    return r == NULL || release(r);
}

void moe_range_reader_use_arena(moe_range_reader *reader, void *arena, size_t bytes)
{
    if (bytes > 0) {
        reader->ops->use_arena(reader->engine, arena, bytes);
    }
}

bool moe_range_reader_set_away(moe_range_reader *reader, void *memory, size_t bytes, bool away)
{
    return reader->ops->set_away(reader->engine, memory, bytes, away);
}

const char *moe_range_reader_path(const moe_range_reader *r, uint32_t file)
{
    MOE_ASSERT(file < r->n_all_files);
    return r->files[file]->name;
}

uint32_t moe_range_reader_n_sources(const moe_range_reader *reader)
{
    return reader->sources.n;
}

void moe_range_reader_blame(moe_range_reader *r, uint32_t file, uint64_t offset, uint32_t sources)
{
    for (uint32_t s = 0; s < r->sources.n && r->sources.n > 1; s++) {
        if ((sources & 1u << s) != 0) {
            char line[512];
            snprintf(line, sizeof line,
                     "%s: damaged at offset %llu ('moe-offload verify' finds all damage)",
                     r->files[s * r->n_files + file]->name, (unsigned long long)offset);
            moe_source_blame(r, s, line);
        }
    }
}

size_t moe_range_reader_alignment(const moe_range_reader *reader)
{
    return reader->alignment;
}

size_t moe_range_buffer_bytes(const moe_range_reader *reader, uint64_t range_bytes)
{
    /* In the worst case the range begins at the last byte of an aligned unit. */
    uint64_t alignment = reader->alignment;
    return (size_t)round_up(alignment - 1 + range_bytes, alignment);
}

/* Checks a range. If it is not valid, fails it at once, with the reason. */
static bool is_valid(const moe_range_reader *r, moe_range_state *state)
{
    const moe_range *range = &state->range;
    if (range->file >= r->n_files) {
        moe_fail(&state->error, MOE_ERR_ARGUMENT, "range of file %u, there are %u", range->file,
                 r->n_files);
        return false;
    }
    if (range->source > r->sources.n) {
        moe_fail(&state->error, MOE_ERR_ARGUMENT, "range of source %u, there are %u", range->source,
                 r->sources.n);
        return false;
    }
    const moe_byte_source *file = r->files[range->file];
    if (range->offset > file->size || range->size > file->size - range->offset) {
        moe_fail(&state->error, MOE_ERR_ARGUMENT,
                 "%s: %llu bytes at offset %llu reach past the end of the file (%llu bytes)",
                 file->name, (unsigned long long)range->size, (unsigned long long)range->offset,
                 (unsigned long long)file->size);
        return false;
    }
    if (range->size > 0 && ((uintptr_t)range->buffer & (r->alignment - 1)) != 0) {
        moe_fail(&state->error, MOE_ERR_ARGUMENT,
                 "%s: the buffer of a range must be aligned to %zu bytes", file->name,
                 r->alignment);
        return false;
    }
    return true;
}

/* Cuts a range into pieces of equal size, close to block_bytes: a short last piece would cost a
 * whole request. */
static uint32_t piece_bytes(const moe_range_reader *r, uint64_t bytes)
{
    uint64_t n = (bytes + r->block_bytes / 2) / r->block_bytes;
    n = n > 0 ? n : 1;
    return (uint32_t)round_up((bytes + n - 1) / n, r->alignment);
}

bool moe_range_reader_submit(moe_range_reader *reader, const moe_range *range)
{
    moe_range_reader *r = reader;
    uint32_t index = r->free_ranges;
    if (index == MOE_IO_NONE) {
        return false;
    }
    moe_range_state *state = &r->ranges[index];
    MOE_ASSERT(index < r->max_ranges && state->phase == MOE_RANGE_FREE);
    r->free_ranges = state->next;
    uint64_t mask = r->alignment - 1;
    state->range = *range;
    state->status = MOE_OK;
    state->cancelled = false;
    state->n_blocks = 0;
    state->sources = 0;
    state->error.message[0] = '\0';
    state->superset = range->offset & ~mask;
    r->stats.bytes_requested += range->size;
    bool valid = is_valid(r, state);
    if (!valid || range->size == 0) {
        moe_range_set_phase(state, MOE_RANGE_READING);
        moe_range_stop(r, index, valid ? MOE_OK : MOE_ERR_ARGUMENT);
        return true;
    }
    state->end = range->offset + range->size;
    state->superset_end = round_up(state->end, r->alignment);
    state->cursor = state->superset;
    state->piece_bytes = piece_bytes(r, state->superset_end - state->superset);
    moe_range_set_phase(state, MOE_RANGE_WAITING);
    moe_range_list_push(r, &r->queue, index);
    moe_blocks_dispatch(r);
    return true;
}

void moe_range_reader_cancel(moe_range_reader *reader, uint64_t tag)
{
    for (uint32_t i = 0; i < reader->max_ranges; i++) {
        moe_range_state *state = &reader->ranges[i];
        bool under_way = state->phase == MOE_RANGE_WAITING || state->phase == MOE_RANGE_READING;
        if (under_way && state->range.tag == tag) {
            state->cancelled = true;
            if (state->phase == MOE_RANGE_WAITING) {
                moe_range_stop(reader, i, MOE_ERR_CANCELLED);
            }
        }
    }
}

static uint32_t report_finished(moe_range_reader *r, moe_range_done *done, uint32_t capacity)
{
    uint32_t n = 0;
    while (n < capacity && r->finished.first != MOE_IO_NONE) {
        uint32_t index = moe_range_list_pop(r, &r->finished);
        moe_range_state *state = &r->ranges[index];
        MOE_ASSERT(state->n_blocks == 0); /* no block writes to the buffer any more */
        moe_range_done *d = &done[n++];
        d->tag = state->range.tag;
        d->status = state->status;
        d->data = state->status != MOE_OK
                      ? NULL
                      : state->range.buffer + (state->range.offset - state->superset);
        d->sources = state->sources;
        d->error = state->error;
        if (state->status == MOE_ERR_CANCELLED) {
            moe_fail(&d->error, MOE_ERR_CANCELLED, "%s: read cancelled",
                     r->files[state->range.file]->name);
        }
        r->stats.n_errors += state->status != MOE_OK && state->status != MOE_ERR_CANCELLED;
        moe_range_set_phase(state, MOE_RANGE_FREE);
        state->next = r->free_ranges;
        r->free_ranges = index;
    }
    return n;
}

/* How long the engine may wait: until the caller's deadline or the next retry; 0 when there is
 * something to report. */
static int64_t engine_timeout(const moe_range_reader *r, uint64_t deadline)
{
    if (r->finished.first != MOE_IO_NONE) {
        return 0;
    }
    uint64_t retry = moe_blocks_next_retry(r);
    uint64_t until = retry < deadline ? retry : deadline;
    if (until == UINT64_MAX) {
        return -1;
    }
    uint64_t now = moe_now_ns();
    return until > now ? (int64_t)(until - now) : 0;
}

uint32_t moe_range_reader_wait(moe_range_reader *reader, moe_range_done *done, uint32_t capacity,
                               int64_t timeout_ns)
{
    MOE_ASSERT(capacity > 0);
    moe_range_reader *r = reader;
    uint64_t deadline = moe_io_deadline(timeout_ns);
    bool woken = false;
    for (;;) {
        moe_blocks_dispatch(r);
        uint32_t n =
            r->ops->wait(r->engine, r->results, r->depth, engine_timeout(r, deadline), &woken);
        for (uint32_t i = 0; i < n; i++) {
            moe_block_complete(r, &r->results[i]);
        }
        if (r->sources.n > 1) {
            moe_sources_tell_slow(r);
        }
        if (n > 0) {
            moe_blocks_dispatch(r); /* keeps the device busy while the caller works */
        }
        if (woken || r->finished.first != MOE_IO_NONE ||
            (deadline != UINT64_MAX && moe_now_ns() >= deadline)) {
            return report_finished(r, done, capacity);
        }
    }
}

void moe_range_reader_wake(moe_range_reader *reader)
{
    reader->ops->wake(reader->engine);
}

void moe_range_reader_get_stats(const moe_range_reader *reader, moe_range_reader_stats *stats)
{
    *stats = reader->stats;
}

void moe_range_reader_describe(const moe_range_reader *reader, char *out, size_t size)
{
    uint32_t n_direct = 0;
    for (uint32_t i = 0; i < reader->n_all_files; i++) {
        n_direct += reader->direct[i];
    }
    const char *how = n_direct == reader->n_all_files ? "O_DIRECT"
                      : n_direct == 0                 ? "buffered"
                                                      : "partly O_DIRECT";
    const char *detail = reader->ops->detail(reader->engine);
    char block[32];
    bool mib = reader->block_bytes % (1u << 20) == 0;
    snprintf(block, sizeof block, "%u %s", reader->block_bytes >> (mib ? 20 : 10),
             mib ? "MiB" : "KiB");
    char copies[32] = "";
    if (reader->sources.n > 1) {
        snprintf(copies, sizeof copies, " on each of %u drives", reader->sources.n);
    }
    snprintf(out, size, "%s, %s, %u x %s%s%s%s", reader->ops->name, how,
             reader->sources.most_blocks, block, copies, detail[0] != '\0' ? ", " : "", detail);
}
