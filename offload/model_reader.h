/* SPDX-License-Identifier: MIT */
/* Reads a model's files from front to back, outside of passes: for the fingerprint, resident
 * weights, calibration and verification. It uses the range reader, so it meets faults as reads of
 * experts do: short reads are continued, transient errors retried, and O_DIRECT is dropped where it
 * does not work. A few pieces are being read while the caller uses the piece before them.
 *
 * A wait ends when no byte arrives for the I/O time-out, or as soon as is_cancelled() returns true.
 * Use from one thread. */
#ifndef MOE_OFFLOAD_MODEL_READER_H
#define MOE_OFFLOAD_MODEL_READER_H

#include "offload/io/range_reader.h"
#include "runtime/model/gguf.h"

/* Host memory that a reader takes, apart from its tables. */
#define MOE_MODEL_READER_BYTES ((4u << 19) + (4u << 14))

typedef struct moe_model_reader moe_model_reader;

typedef struct moe_model_range {
    uint32_t file;
    uint64_t offset;
    uint64_t size;
} moe_model_range;

typedef struct moe_model_reader_options {
    const moe_gguf *gguf; /* must outlive the reader; NULL: the reader reads `files` instead */
    moe_byte_source *const *files; /* [n_files] */
    size_t n_files;
    moe_io_kind io;              /* for SYNC a thread reads, so that waits can end */
    const moe_io_ops *io_engine; /* tests: used in place of `io`, with its context; or NULL */
    void *io_context;
    /* Read through the page cache. The reader also does so when the page cache has most of the
     * first ranges, because that is faster. */
    bool buffered;
    uint64_t io_timeout_ns; /* 0: 30 s */
    /* Called before every piece, and 50 times a second during a wait. When it returns true the
     * current call ends with MOE_ERR_CANCELLED. May be NULL. */
    bool (*is_cancelled)(void *cancel_user);
    void *cancel_user;
    moe_log_fn log; /* is told of each fallback once; may be NULL */
    void *user;
} moe_model_reader_options;

int moe_model_reader_open(moe_model_reader **out, const moe_model_reader_options *options,
                          moe_error *err);
/* Does not wait for reads that hang; the memory that these may still write to is never freed. */
void moe_model_reader_close(moe_model_reader **reader);

/* Sets the ranges that next() reads from now on, one after the other. The array must live until
 * they are read. Drops what is left of earlier ranges. After a failure the reader can only be
 * closed. */
int moe_model_reader_begin(moe_model_reader *reader, const moe_model_range *ranges, size_t n,
                           moe_error *err);
/* Returns the next bytes, at most `most` (> 0). They are all of one range, and valid until the next
 * call. *n: out, their number; 0 after the last range. */
int moe_model_reader_next(moe_model_reader *reader, size_t most, const uint8_t **bytes, size_t *n,
                          moe_error *err);
/* Copies exactly the next `size` bytes to dst. */
int moe_model_reader_take(moe_model_reader *reader, void *dst, size_t size, moe_error *err);
/* Reads one range to dst. */
int moe_model_reader_read(moe_model_reader *reader, const moe_model_range *range, void *dst,
                          moe_error *err);

#endif
