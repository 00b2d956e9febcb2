/* SPDX-License-Identifier: MIT */
/* Checks whether the model's files are still those that were opened. If a file was written to or
 * truncated, that is an error: bytes read before and bytes read afterwards belong to two models. If
 * another file has taken over its name, that is no error: the opened file still exists and is still
 * read. The log says so once. */
#ifndef MOE_OFFLOAD_FILE_WATCH_H
#define MOE_OFFLOAD_FILE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/status.h>
#include <moe/types.h>

#include "runtime/model/gguf.h"

typedef struct moe_file_watch {
    const moe_gguf *gguf; /* must outlive the watch */
    moe_log_fn log;       /* may be NULL */
    void *user;
    uint64_t last_look_ns;
    bool told_replaced;
} moe_file_watch;

void moe_file_watch_init(moe_file_watch *watch, const moe_gguf *gguf, moe_log_fn log, void *user);
/* Looks at most once a second, or at once if `now`. MOE_ERR_IO, with what has changed. */
int moe_file_watch_look(moe_file_watch *watch, bool now, moe_error *err);

#endif
