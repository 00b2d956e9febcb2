/* SPDX-License-Identifier: MIT */
/* Reads byte ranges of the model's files, many at a time, through one of the I/O engines.
 *
 * With O_DIRECT the reader reads the aligned superset of a range straight into the caller's buffer,
 * and the caller uses the range where it lies in the buffer: no byte is copied. The reader splits
 * ranges into blocks, keeps `depth` blocks in flight, continues short reads, retries transient
 * errors (EAGAIN, EINTR) and, a bounded number of times, EIO, falls back to buffered reads where
 * O_DIRECT is refused, and reports each range exactly once. One thread owns a reader: the first
 * that submits or waits. Only moe_range_reader_wake() may be called by others. Nothing is allocated
 * between open and close. */
#ifndef MOE_OFFLOAD_RANGE_READER_H
#define MOE_OFFLOAD_RANGE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>
#include <moe/types.h>

#include "runtime/base/byte_source.h"

typedef struct moe_range_reader moe_range_reader;
typedef struct moe_io_ops moe_io_ops; /* io_engine.h */

#define MOE_RANGE_COPIES 7u

typedef struct moe_range_reader_options {
    moe_io_kind kind;         /* AUTO: io_uring, else threads */
    const moe_io_ops *engine; /* if not NULL, tried first (fault injection in tests) */
    void *engine_context;
    /* [(1 + n_copies) * n_files]; the reader holds them. First the model's files, then the files of
     * each copy, which have the same bytes on another drive. Each block is read from the drive that
     * will deliver it soonest; if that fails, from another drive. */
    moe_byte_source *const *files;
    uint32_t n_files;
    uint32_t n_copies;         /* at most MOE_RANGE_COPIES */
    bool buffered;             /* do not try O_DIRECT */
    uint32_t block_bytes;      /* 0: 1 MiB */
    uint32_t depth;            /* blocks in flight on each drive; 0: 16 */
    uint32_t max_ranges;       /* ranges submitted and not yet reported; 0: 256 */
    uint32_t close_timeout_ms; /* how long close() waits for reads in flight; 0: 10 s */
    moe_log_fn log;            /* called once for each kind of fallback; may be NULL */
    void *user;
} moe_range_reader_options;

int moe_range_reader_open(moe_range_reader **out, const moe_range_reader_options *options,
                          moe_error *err);
/* Waits for reads in flight and reports nothing. False when the device did not complete a read in
 * time: the kernel may still write into its buffer, which must then be neither used nor freed. The
 * owner calls it, or another thread once nothing is in flight. */
bool moe_range_reader_close(moe_range_reader **reader);
/* Makes close() wait no longer than this. */
void moe_range_reader_hurry(moe_range_reader *reader, uint64_t timeout_ns);

/* Says that most buffers will lie in [arena, arena + bytes). An engine that can do so registers
 * this memory with the kernel, each piece when it is first read into, which saves work at every
 * read. Call at most once, before the first range, on the thread that opened the reader. The memory
 * must stay until close(); children of a fork do not get it. */
void moe_range_reader_use_arena(moe_range_reader *reader, void *arena, size_t bytes);

/* away: the pages of a part of the arena go back to the system; no read is under way. Not away:
 * they will be used again. The owner calls it. Returns false if the kernel still holds the
 * pages. */
bool moe_range_reader_set_away(moe_range_reader *reader, void *memory, size_t bytes, bool away);

/* The name of a file. */
const char *moe_range_reader_path(const moe_range_reader *reader, uint32_t file);
/* How many sources there are: 1 + n_copies. */
uint32_t moe_range_reader_n_sources(const moe_range_reader *reader);
/* Says that these sources (bits as in moe_range_done) delivered wrong bytes of a range, and logs
 * it. A source that is blamed repeatedly is read only if no other source can be. Call it on the
 * owner's thread. */
void moe_range_reader_blame(moe_range_reader *reader, uint32_t file, uint64_t offset,
                            uint32_t sources);
/* alignment: the alignment that buffers need. buffer_bytes: the bytes that a buffer needs for a
 * range of range_bytes. */
size_t moe_range_reader_alignment(const moe_range_reader *reader);
size_t moe_range_buffer_bytes(const moe_range_reader *reader, uint64_t range_bytes);

typedef struct moe_range {
    uint32_t file;
    uint64_t offset;
    uint64_t size;
    /* Aligned, moe_range_buffer_bytes(size) long; belongs to the reader until the range is
     * reported. */
    uint8_t *buffer;
    uint64_t tag; /* chosen by the caller; unique among the ranges under way */
    /* 0: the drive that is soonest; 1: only the model's files; 1 + c: only copy c. */
    uint32_t source;
} moe_range;

typedef struct moe_range_done {
    uint64_t tag;
    int status;          /* MOE_OK, MOE_ERR_IO, MOE_ERR_CANCELLED, MOE_ERR_ARGUMENT */
    const uint8_t *data; /* where the range begins in its buffer */
    /* The sources that were read, as bits: 1 << 0 the model's files, 1 << (1 + c) copy c. */
    uint32_t sources;
    moe_error error; /* file, offset, reason */
} moe_range_done;

/* Submits a range. False when max_ranges are under way. */
bool moe_range_reader_submit(moe_range_reader *reader, const moe_range *range);
/* Stops reading the range: blocks that the kernel has not got yet are not read. The range is still
 * reported, with MOE_ERR_CANCELLED unless all of it had been read. */
void moe_range_reader_cancel(moe_range_reader *reader, uint64_t tag);
/* Reports finished ranges: waits for at least one, for wake(), or for the timeout (< 0: none).
 * Returns how many. */
uint32_t moe_range_reader_wait(moe_range_reader *reader, moe_range_done *done, uint32_t capacity,
                               int64_t timeout_ns);
/* Makes the current wait, or the next one, return. Any thread may call it. */
void moe_range_reader_wake(moe_range_reader *reader);

typedef struct moe_range_reader_stats {
    uint64_t bytes_requested; /* of ranges submitted */
    uint64_t bytes_read;      /* of supersets, retries included */
    uint64_t n_reads;         /* reads handed to the engine */
    uint64_t n_short;         /* reads that brought less than was needed */
    uint64_t n_retries;       /* of n_reads: repeated, whole or for the rest */
    uint64_t n_errors;        /* ranges reported with an error, other than cancelled */
} moe_range_reader_stats;
void moe_range_reader_get_stats(const moe_range_reader *reader, moe_range_reader_stats *stats);
/* "io_uring, O_DIRECT, 16 x 1 MiB, registered buffers" */
void moe_range_reader_describe(const moe_range_reader *reader, char *out, size_t size);

#endif
