/* SPDX-License-Identifier: MIT */
/* Reads rows of a tensor that stays on disk: a table too large for memory, of which each token
 * reads a few rows. It is known before a pass begins which rows the pass will read. So they are
 * requested then (want()), and usually are there when the pass needs them (take()).
 *
 *    want() -> QUEUED -> READING -> READY -> overwritten by another row
 *                 ^---------|  from the next copy of the model, if there is one
 *                           |-> FAILED, until a take() has reported it
 *
 * A thread of its own owns the range reader. Rows that were read stay in a fixed number of slots.
 * By the CLOCK algorithm, a hand that goes round takes the first slot whose row has not been used
 * since the hand last passed it. One thread calls want() and take().
 *
 * A row has no checksum of its own. So rows are read from the model's own file, and from a copy
 * only if that read fails: as long as the file can be read, damage in a copy changes nothing. */
#ifndef MOE_OFFLOAD_ROW_TABLE_H
#define MOE_OFFLOAD_ROW_TABLE_H

#include "offload/model_reader.h"
#include "runtime/model/tensor_map.h"

typedef struct moe_row_table moe_row_table;

typedef struct moe_row_table_options {
    const moe_gguf *gguf;
    const moe_gguf *const *copies; /* [n_copies] of the model's files, on other drives */
    uint32_t n_copies;             /* at most MOE_RANGE_COPIES */
    const moe_tensor_ref *tensor;
    const char *name; /* the tensor's name, for messages; a constant string */
    uint32_t n_slots; /* at least 1 */
    moe_io_kind io;
    const moe_io_ops *io_engine; /* tests: used in place of `io`, with its context; or NULL */
    void *io_context;
    bool buffered_io;
    uint64_t io_timeout_ns; /* 0: 30 s */
    moe_log_fn log;
    void *user;
} moe_row_table_options;

typedef struct moe_row_table_stats {
    uint64_t n_taken;  /* rows that passes took */
    uint64_t n_waited; /* rows taken that a pass had to wait for */
    uint64_t n_read;   /* rows read from the disk, some of them in vain */
    uint64_t wait_ns;
    uint64_t bytes_read; /* from the disk, with alignment and retries */
    uint64_t n_failed;   /* rows that could not be read, not even from a copy */
} moe_row_table_stats;

/* Host memory that a table with n_slots slots takes. */
uint64_t moe_row_table_bytes(const moe_tensor_ref *tensor, uint32_t n_slots);
int moe_row_table_open(moe_row_table **out, const moe_row_table_options *options, moe_error *err);
/* Does not wait for reads that hang; the memory that these may still write to is never freed. */
void moe_row_table_close(moe_row_table **table);

/* Requests rows that are not there. This is a hint: if no slot is free for a row, it is not
 * requested. */
void moe_row_table_want(moe_row_table *table, const uint64_t *rows, size_t n);
/* Finds a row's bytes, valid until the next want() or take(); waits if they are still being read.
 * is_cancelled: may be NULL. MOE_ERR_IO, with the row and the reason; MOE_ERR_CANCELLED. A row that
 * failed is read again when it is next wanted. */
int moe_row_table_take(moe_row_table *table, uint64_t row, const uint8_t **bytes,
                       bool (*is_cancelled)(void *user), void *user, moe_error *err);
void moe_row_table_get_stats(moe_row_table *table, moe_row_table_stats *stats);

#endif
