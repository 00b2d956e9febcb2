/* SPDX-License-Identifier: MIT */
/* An engine that passes reads on to another engine and injects faults, so that every test run meets
 * faults that real disks and kernels show once in years. Pass moe_io_fault_ops as the reader's
 * engine and a moe_io_fault as its context. */
#ifndef MOE_OFFLOAD_IO_FAULT_H
#define MOE_OFFLOAD_IO_FAULT_H

#include <stdatomic.h>

#include "offload/io/io_engine.h"

typedef enum moe_fault_kind {
    MOE_FAULT_NONE,
    MOE_FAULT_SHORT, /* reports `value` bytes, and spoils the bytes behind them */
    MOE_FAULT_ERROR, /* reports the error -value, and spoils the buffer */
    MOE_FAULT_DELAY, /* reports `value` nanoseconds late, so out of order */
    MOE_FAULT_FLIP,  /* flips bit (value % bits read), and reports success */
    MOE_FAULT_TWICE, /* reports the read twice */
    MOE_FAULT_LOST,  /* neither reads nor reports, ever */
    MOE_FAULT_STUCK, /* neither reads nor reports until let_go is set */
    MOE_FAULT_KINDS
} moe_fault_kind;

typedef struct moe_fault {
    moe_fault_kind kind;
    uint32_t value;
} moe_fault;

typedef struct moe_io_fault {
    const moe_io_ops *inner;
    int open_errno; /* not 0: the engine fails to open, with this errno */
    /* Chooses the fault of the n-th read (from 0). Called on the reader's thread. */
    moe_fault (*choose)(void *user, const moe_io_read *read, uint64_t n);
    void *user;
    _Atomic bool let_go; /* any thread sets it: stuck reads go on */
    /* counted by the engine */
    uint64_t n_reads;
    uint64_t n_faults[MOE_FAULT_KINDS];
} moe_io_fault;

extern const moe_io_ops moe_io_fault_ops;

#endif
