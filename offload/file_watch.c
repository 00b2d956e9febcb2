/* SPDX-License-Identifier: MIT */
#include "offload/file_watch.h"

#include <stdio.h>
#include <sys/stat.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define INTERVAL_NS 1000000000u

void moe_file_watch_init(moe_file_watch *watch, const moe_gguf *gguf, moe_log_fn log, void *user)
{
    *watch = (moe_file_watch){.gguf = gguf, .log = log, .user = user, .last_look_ns = moe_now_ns()};
}

/* A file that cannot be examined counts as unchanged; reading it will report the error. */
static int look_at_content(const moe_gguf_file *file, moe_error *err)
{
    struct stat now;
    if (fstat(file->fd, &now) != 0) {
        return MOE_OK;
    }
    const struct stat *then = &file->opened;
    if (now.st_size != then->st_size) {
        return moe_fail(err, MOE_ERR_IO,
                        "%s: %s while in use: it had %lld bytes when it was opened and has %lld; "
                        "put the right file in place and open it again",
                        file->path, now.st_size < then->st_size ? "truncated" : "written to",
                        (long long)then->st_size, (long long)now.st_size);
    }
    if (now.st_mtim.tv_sec != then->st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != then->st_mtim.tv_nsec) {
        return moe_fail(err, MOE_ERR_IO,
                        "%s: written to while in use: it has another time of modification than "
                        "when it was opened; open it again",
                        file->path);
    }
    return MOE_OK;
}

static bool is_replaced(const moe_gguf_file *file)
{
    struct stat named;
    return stat(file->path, &named) == 0 &&
           (named.st_ino != file->opened.st_ino || named.st_dev != file->opened.st_dev);
}

static void tell_replaced(moe_file_watch *watch, const moe_gguf_file *file)
{
    if (watch->log != NULL) {
        char line[MOE_ERROR_MESSAGE_SIZE];
        snprintf(line, sizeof line,
                 "%s: replaced by another file while in use: the one that was opened is used on",
                 file->path);
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
        const moe_gguf_file *file = moe_gguf_file_at(watch->gguf, i);
        status = look_at_content(file, err);
        if (status == MOE_OK && !watch->told_replaced && is_replaced(file)) {
            tell_replaced(watch, file);
        }
    }
    /* Once a change is seen, every step sees it. */
    watch->last_look_ns = status == MOE_OK ? time_ns : 0;
    return status;
}
