/* SPDX-License-Identifier: MIT */
/* An engine that carries reads out by another one and makes faults happen on the way, so that what
 * disks and kernels do once in years happens in every test run. Pass moe_io_fault_ops as the
 * reader's engine and a moe_io_fault as its context. */
#ifndef MOE_OFFLOAD_IO_FAULT_H
#define MOE_OFFLOAD_IO_FAULT_H

#include <stdatomic.h>

#include "offload/io/io_engine.h"

typedef enum moe_fault_kind {
    MOE_FAULT_NONE,
    MOE_FAULT_SHORT, /* value bytes are reported; what lies behind them is spoilt */
    MOE_FAULT_ERROR, /* -value is reported, and the buffer spoilt */
    MOE_FAULT_DELAY, /* reported value nanoseconds late: out of order */
    MOE_FAULT_FLIP,  /* bit (value % bits read) is wrong, and nothing says so */
    MOE_FAULT_TWICE, /* reported two times */
    MOE_FAULT_LOST,  /* never reported, nor carried out */
    MOE_FAULT_STUCK, /* not carried out, and so not reported, before the plan's let_go */
    MOE_FAULT_KINDS
} moe_fault_kind;

typedef struct moe_fault {
    moe_fault_kind kind;
    uint32_t value;
} moe_fault;

typedef struct moe_io_fault {
    const moe_io_ops *inner;
    int open_errno; /* not 0: the engine is not available, for that reason */
    /* What happens to the n-th read (from 0); on the reader's thread. */
    moe_fault (*choose)(void *user, const moe_io_read *read, uint64_t n);
    void *user;
    _Atomic bool let_go; /* any thread: what is stuck goes on */
    /* counted by the engine */
    uint64_t n_reads;
    uint64_t n_faults[MOE_FAULT_KINDS];
} moe_io_fault;

extern const moe_io_ops moe_io_fault_ops;

#endif
