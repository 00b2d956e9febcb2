/* SPDX-License-Identifier: MIT */
/* The pieces form a ring: they are submitted at its tail and used in the same order at its head. */
#include "offload/model_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define N_PIECES        4u
#define PIECE_BYTES     (512u << 10)
#define PAGE            4096u
#define DEFAULT_TIMEOUT 30000000000u
#define LOOK_NS         20000000  /* between two looks at is_cancelled() */
#define CLOSE_NS        50000000u /* how long close() waits for a read that is no longer wanted */
#define N_PROBES        64u

typedef struct piece {
    moe_model_range range;
    uint8_t *buffer;
    const uint8_t *data;
    size_t used; /* bytes of the piece that the caller has got */
    int status;
    bool done;
    moe_error error;
} piece;

struct moe_model_reader {
    moe_model_reader_options options;
    moe_byte_source **files; /* the reader holds them */
    size_t n_files;
    moe_range_reader *ranges_reader; /* NULL until the first ranges are known */
    uint8_t *memory;
    size_t memory_bytes;
    const moe_model_range *ranges;
    size_t n_ranges;
    size_t at_range; /* the next range to submit; its bytes from at_offset on */
    uint64_t at_offset;
    piece pieces[N_PIECES];
    uint32_t head, n; /* pieces in the ring: submitted, and not used up */
    uint64_t n_bytes_seen;
    uint64_t last_progress_ns;
    bool given_up;
};

int moe_model_reader_open(moe_model_reader **out, const moe_model_reader_options *options,
                          moe_error *err)
{
    *out = NULL;
    bool is_model = options->gguf != NULL;
    size_t n_files = is_model ? moe_gguf_n_files(options->gguf) : options->n_files;
    moe_model_reader *r = moe_calloc(1, sizeof *r);
    moe_byte_source **files = moe_calloc(n_files, sizeof *files);
    if (r == NULL || files == NULL) {
        free(r);
        free(files);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to read %zu files", n_files);
    }
    for (size_t i = 0; i < n_files; i++) {
        files[i] = moe_byte_source_hold(is_model ? moe_gguf_file_at(options->gguf, i)->source
                                                 : options->files[i]);
    }
    r->options = *options;
    r->options.io_timeout_ns =
        options->io_timeout_ns != 0 ? options->io_timeout_ns : DEFAULT_TIMEOUT;
    r->files = files;
    r->n_files = n_files;
    r->memory = MAP_FAILED;
    *out = r;
    return MOE_OK;
}

void moe_model_reader_close(moe_model_reader **reader)
{
    moe_model_reader *r = *reader;
    if (r == NULL) {
        return;
    }
    *reader = NULL;
    if (r->ranges_reader != NULL) {
        moe_range_reader_hurry(r->ranges_reader, r->given_up ? CLOSE_NS : r->options.io_timeout_ns);
    }
    bool ended = moe_range_reader_close(&r->ranges_reader);
    if (ended && r->memory != MAP_FAILED) {
        munmap(r->memory, r->memory_bytes);
    }
    for (size_t i = 0; i < r->n_files; i++) {
        moe_byte_source_let_go(&r->files[i]);
    }
    free(r->files);
    free(r);
}

/* ---- Opening the range reader ---- */

static uint64_t total_bytes(const moe_model_range *ranges, size_t n)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        bytes += ranges[i].size;
    }
    return bytes;
}

/* True when a read of the byte would not wait, for instance because it is in the page cache. */
static bool is_cached(const moe_model_reader *r, uint32_t file, uint64_t offset)
{
    uint8_t byte;
    const moe_byte_source *source = r->files[file];
    return source->ops->read(source, &byte, 1, offset, MOE_READ_AT_HAND) == 1;
}

/* Whether the page cache holds most of the ranges, judged by sampled bytes at equal distances. */
static bool are_cached(const moe_model_reader *r, const moe_model_range *ranges, size_t n)
{
    uint64_t step = total_bytes(ranges, n) / N_PROBES + 1;
    uint64_t next = step / 2; /* a position in the ranges' bytes, counted through all ranges */
    uint64_t begin = 0;
    uint32_t n_probes = 0;
    uint32_t n_cached = 0;
    for (size_t i = 0; i < n; begin += ranges[i].size, i++) {
        for (; next < begin + ranges[i].size; next += step) {
            n_cached += is_cached(r, ranges[i].file, ranges[i].offset + (next - begin));
            n_probes++;
        }
    }
    return n_probes > 0 && 2 * n_cached > n_probes;
}

static int open_ranges(moe_model_reader *r, const moe_model_range *ranges, size_t n, moe_error *err)
{
    const moe_model_reader_options *o = &r->options;
    bool cached = !o->buffered && are_cached(r, ranges, n);
    /* Threads suit cached bytes: the kernel copies a piece while the caller uses the piece before
     * it. */
    bool threads = o->io == MOE_IO_SYNC || (o->io == MOE_IO_AUTO && (cached || o->buffered));
    moe_range_reader_options options = {.kind = threads ? MOE_IO_THREADS : o->io,
                                        .engine = o->io_engine,
                                        .engine_context = o->io_context,
                                        .files = r->files,
                                        .n_files = (uint32_t)r->n_files,
                                        .buffered = cached || o->buffered,
                                        .block_bytes = PIECE_BYTES,
                                        .depth = N_PIECES,
                                        .max_ranges = N_PIECES,
                                        .log = o->log,
                                        .user = o->user};
    MOE_TRY(moe_range_reader_open(&r->ranges_reader, &options, err));
    size_t buffer_bytes = moe_range_buffer_bytes(r->ranges_reader, PIECE_BYTES);
    r->memory_bytes = N_PIECES * buffer_bytes;
    r->memory =
        mmap(NULL, r->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->memory == MAP_FAILED) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for %zu bytes to read into",
                        r->memory_bytes);
    }
    for (uint32_t i = 0; i < N_PIECES; i++) {
        r->pieces[i].buffer = r->memory + i * buffer_bytes;
    }
    return MOE_OK;
}

/* ---- Pieces ---- */

/* Cuts the next piece of the ranges. It ends at a page of the file, so no page is read twice. */
static bool cut_piece(moe_model_reader *r, moe_model_range *out)
{
    while (r->at_range < r->n_ranges && r->at_offset == r->ranges[r->at_range].size) {
        r->at_range++;
        r->at_offset = 0;
    }
    if (r->at_range == r->n_ranges) {
        return false;
    }
    const moe_model_range *range = &r->ranges[r->at_range];
    uint64_t offset = range->offset + r->at_offset;
    uint64_t left = range->size - r->at_offset;
    uint64_t most = PIECE_BYTES - offset % PAGE;
    *out = (moe_model_range){range->file, offset, left < most ? left : most};
    r->at_offset += out->size;
    return true;
}

static void submit_pieces(moe_model_reader *r)
{
    moe_model_range range;
    while (r->n < N_PIECES && cut_piece(r, &range)) {
        uint32_t index = (r->head + r->n) % N_PIECES;
        piece *p = &r->pieces[index];
        p->range = range;
        p->used = 0;
        p->done = false;
        r->n++;
        moe_range asked = {.file = range.file,
                           .offset = range.offset,
                           .size = range.size,
                           .buffer = p->buffer,
                           .tag = index};
        if (!moe_range_reader_submit(r->ranges_reader, &asked)) {
            p->done = true;
            p->status = moe_fail(&p->error, MOE_ERR_INTERNAL, "the range reader is full");
        }
    }
}

/* Waits a moment, and notes which reads have arrived. */
static void collect(moe_model_reader *r)
{
    moe_range_done done[N_PIECES];
    moe_range_reader_stats stats;
    uint32_t n = moe_range_reader_wait(r->ranges_reader, done, N_PIECES, LOOK_NS);
    for (uint32_t i = 0; i < n; i++) {
        piece *p = &r->pieces[done[i].tag];
        p->done = true;
        p->status = done[i].status;
        p->data = done[i].data;
        p->error = done[i].error;
    }
    moe_range_reader_get_stats(r->ranges_reader, &stats);
    if (n > 0 || stats.bytes_read != r->n_bytes_seen) {
        r->n_bytes_seen = stats.bytes_read;
        r->last_progress_ns = moe_now_ns();
    }
}

static bool is_cancelled(const moe_model_reader *r)
{
    return r->options.is_cancelled != NULL && r->options.is_cancelled(r->options.cancel_user);
}

/* Waits for the piece. A wait that ends early leaves the read under way. */
static int await_piece(moe_model_reader *r, const piece *p, moe_error *err)
{
    int status = MOE_OK;
    r->last_progress_ns = moe_now_ns();
    while (status == MOE_OK && !p->done) {
        collect(r);
        if (p->done) {
            break;
        }
        const char *path = r->files[p->range.file]->name;
        if (is_cancelled(r)) {
            status = moe_fail(err, MOE_ERR_CANCELLED, "%s: reading was cancelled", path);
        } else if (moe_now_ns() - r->last_progress_ns >= r->options.io_timeout_ns) {
            status =
                moe_fail(err, MOE_ERR_IO,
                         "%s: the disk has not answered for %.3g s while %llu bytes at offset "
                         "%llu were read; it may hang (look into dmesg), or need a longer "
                         "I/O time-out",
                         path, (double)r->options.io_timeout_ns / 1e9,
                         (unsigned long long)p->range.size, (unsigned long long)p->range.offset);
        }
    }
    r->given_up = r->given_up || status != MOE_OK;
    return status;
}

/* Waits for all reads under way, or until the time-out. */
static int drain(moe_model_reader *r, moe_error *err)
{
    int status = MOE_OK;
    for (; r->n > 0 && status == MOE_OK; r->n--) {
        piece *p = &r->pieces[r->head];
        moe_range_reader_cancel(r->ranges_reader, r->head);
        status = await_piece(r, p, err);
        r->head = (r->head + 1) % N_PIECES;
    }
    return status;
}

/* ---- What readers of models call ---- */

int moe_model_reader_begin(moe_model_reader *r, const moe_model_range *ranges, size_t n,
                           moe_error *err)
{
    MOE_TRY(r->ranges_reader == NULL ? open_ranges(r, ranges, n, err) : drain(r, err));
    r->ranges = ranges;
    r->n_ranges = n;
    r->at_range = 0;
    r->at_offset = 0;
    submit_pieces(r);
    return MOE_OK;
}

/* Removes the used piece at the head. */
static void drop_head(moe_model_reader *r)
{
    r->head = (r->head + 1) % N_PIECES;
    r->n--;
    submit_pieces(r);
}

int moe_model_reader_next(moe_model_reader *r, size_t most, const uint8_t **bytes, size_t *n,
                          moe_error *err)
{
    *n = 0;
    if (r->n > 0 && r->pieces[r->head].done &&
        r->pieces[r->head].used == r->pieces[r->head].range.size) {
        drop_head(r);
    }
    if (r->n == 0) {
        return MOE_OK;
    }
    piece *p = &r->pieces[r->head];
    if (p->used == 0 && is_cancelled(r)) {
        r->given_up = true;
        return moe_fail(err, MOE_ERR_CANCELLED, "%s: reading was cancelled",
                        r->files[p->range.file]->name);
    }
    int status = p->done ? MOE_OK : await_piece(r, p, err);
    if (status == MOE_OK && p->status != MOE_OK) {
        r->given_up = true;
        status = moe_fail(err, p->status, "%s", p->error.message);
    }
    if (status == MOE_OK) {
        size_t left = p->range.size - p->used;
        *bytes = p->data + p->used;
        *n = left < most ? left : most;
        p->used += *n;
    }
    return status;
}

int moe_model_reader_take(moe_model_reader *r, void *dst, size_t size, moe_error *err)
{
    uint8_t *out = dst;
    while (size > 0) {
        const uint8_t *bytes;
        size_t n;
        MOE_TRY(moe_model_reader_next(r, size, &bytes, &n, err));
        if (n == 0) {
            return moe_fail(err, MOE_ERR_INTERNAL, "the ranges are shorter than what is taken");
        }
        memcpy(out, bytes, n);
        out += n;
        size -= n;
    }
    return MOE_OK;
}

int moe_model_reader_read(moe_model_reader *r, const moe_model_range *range, void *dst,
                          moe_error *err)
{
    MOE_TRY(moe_model_reader_begin(r, range, 1, err));
    return moe_model_reader_take(r, dst, range->size, err);
}
