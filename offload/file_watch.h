/* SPDX-License-Identifier: MIT */
/* Whether the model's files are still those that were opened. A file that somebody writes to or
 * cuts is an error: what was read of it before and what is read from now on belong to two models. A
 * file that another one has replaced under its name is not: what was opened is still there, and is
 * what is read. That is told once. */
#ifndef MOE_OFFLOAD_FILE_WATCH_H
#define MOE_OFFLOAD_FILE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/moe.h>

#include "runtime/model/gguf.h"

typedef struct moe_file_watch {
    const moe_gguf *gguf; /* must outlive the watch */
    moe_log_fn log;       /* may be NULL */
    void *user;
    uint64_t last_look_ns;
    bool told_replaced;
} moe_file_watch;

void moe_file_watch_init(moe_file_watch *watch, const moe_gguf *gguf, moe_log_fn log, void *user);
/* Looks, at most once a second unless it has to be now. MOE_ERR_IO, which says what has changed. */
int moe_file_watch_look(moe_file_watch *watch, bool now, moe_error *err);

#endif
