/* SPDX-License-Identifier: MIT */
/* Reads a model's files from front to back, for all that is not a pass: the fingerprint, resident
 * weights, calibration, verification. The range reader does the reading, so faults are met as they
 * are for experts: short reads are continued, transient errors asked again, direct reads given up
 * where they do not work. A few pieces are in flight while the one before is used.
 *
 * Nothing is waited for without end: not past the io time-out, when no byte arrives, and not past
 * the moment when is_cancelled() says so. One thread. */
#ifndef MOE_OFFLOAD_MODEL_READER_H
#define MOE_OFFLOAD_MODEL_READER_H

#include "offload/io/range_reader.h"
#include "runtime/model/gguf.h"

/* Host memory that a reader takes, but for its tables. */
#define MOE_MODEL_READER_BYTES ((4u << 19) + (4u << 14))

typedef struct moe_model_reader moe_model_reader;

typedef struct moe_model_range {
    uint32_t file;
    uint64_t offset;
    uint64_t size;
} moe_model_range;

typedef struct moe_model_reader_options {
    const moe_gguf *gguf;        /* must outlive the reader; or NULL, and instead of its files: */
    const moe_range_file *files; /* [n_files] */
    size_t n_files;
    moe_io_kind io;              /* SYNC is read by a thread: a wait for it must be able to end */
    const moe_io_ops *io_engine; /* tests: instead of `io`, with its context; or NULL */
    void *io_context;
    /* Through the page cache. Else that is done where it holds most of the ranges that are read
     * first, since it is faster then. */
    bool buffered;
    uint64_t io_timeout_ns; /* 0: 30 s */
    /* Asked before every piece, and 50 times a second while one is waited for; true: what is asked
     * for ends with MOE_ERR_CANCELLED. May be NULL. */
    bool (*is_cancelled)(void *cancel_user);
    void *cancel_user;
    moe_log_fn log; /* fall-backs, once; may be NULL */
    void *user;
} moe_model_reader_options;

int moe_model_reader_open(moe_model_reader **out, const moe_model_reader_options *options,
                          moe_error *err);
/* Does not wait for reads that hang: the memory that they may still write to is left to them. */
void moe_model_reader_close(moe_model_reader **reader);

/* From here on next() gives the bytes of these ranges, one after the other; they must live as long.
 * What is left of the ones before is given up. After a failure a reader can only be closed. */
int moe_model_reader_begin(moe_model_reader *reader, const moe_model_range *ranges, size_t n,
                           moe_error *err);
/* The next bytes, at most `most` (> 0) and all of one range, valid until the next call. *n is 0
 * behind the last. */
int moe_model_reader_next(moe_model_reader *reader, size_t most, const uint8_t **bytes, size_t *n,
                          moe_error *err);
/* Exactly so many of the next bytes, to dst. */
int moe_model_reader_take(moe_model_reader *reader, void *dst, size_t size, moe_error *err);
/* One range, to dst. */
int moe_model_reader_read(moe_model_reader *reader, const moe_model_range *range, void *dst,
                          moe_error *err);

/* As moe_range_reader_get_stats(). */
void moe_model_reader_get_stats(const moe_model_reader *reader, moe_range_reader_stats *stats);

#endif
