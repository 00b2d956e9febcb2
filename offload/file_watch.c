/* SPDX-License-Identifier: MIT */
#include "offload/file_watch.h"

#include <stdio.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define INTERVAL_NS 1000000000u

void moe_file_watch_init(moe_file_watch *watch, const moe_gguf *gguf, moe_log_fn log, void *user)
{
    *watch = (moe_file_watch){.gguf = gguf, .log = log, .user = user, .last_look_ns = moe_now_ns()};
}

/* A file that cannot be examined counts as unchanged: reading it will report the error. */
static int look_at_content(const moe_byte_source *file, moe_error *err)
{
    moe_byte_identity now;
    const moe_byte_identity *then = &file->opened;
    if (!file->ops->identify(file, false, &now)) {
        return MOE_OK;
    }
    if (now.size != then->size) {
        return moe_fail(err, MOE_ERR_IO,
                        "%s: %s while in use: it had %llu bytes when it was opened and has %llu; "
                        "put the right file in place and open it again",
                        file->name, now.size < then->size ? "truncated" : "written to",
                        (unsigned long long)then->size, (unsigned long long)now.size);
    }
    if (now.modified.tv_sec != then->modified.tv_sec ||
        now.modified.tv_nsec != then->modified.tv_nsec) {
        return moe_fail(err, MOE_ERR_IO,
                        "%s: written to while in use: it has another time of modification than "
                        "when it was opened; open it again",
                        file->name);
    }
    return MOE_OK;
}

static bool is_replaced(const moe_byte_source *file)
{
    moe_byte_identity named;
    return file->ops->identify(file, true, &named) &&
           !moe_byte_identity_is_same(&named, &file->opened);
}

static void tell_replaced(moe_file_watch *watch, const moe_byte_source *file)
{
    if (watch->log != NULL) {
        char line[MOE_ERROR_MESSAGE_SIZE];
        snprintf(line, sizeof line,
                 "%s: replaced by another file while in use: the one that was opened is used on",
                 file->name);
        watch->log(line, watch->user);
    }
    watch->told_replaced = true;
}

int moe_file_watch_look(moe_file_watch *watch, bool now, moe_error *err)
{
    uint64_t time_ns = moe_now_ns();
    if (!now && time_ns - watch->last_look_ns < INTERVAL_NS) {
        return MOE_OK;
    }
    watch->last_look_ns = time_ns;
    int status = MOE_OK;
    for (size_t i = 0; i < moe_gguf_n_files(watch->gguf) && status == MOE_OK; i++) {
        const moe_byte_source *file = moe_gguf_file_at(watch->gguf, i)->source;
        status = look_at_content(file, err);
        if (status == MOE_OK && !watch->told_replaced && is_replaced(file)) {
            tell_replaced(watch, file);
        }
    }
    /* Once a change has been seen, every further step looks again, and fails. */
    watch->last_look_ns = status == MOE_OK ? time_ns : 0;
    return status;
}
