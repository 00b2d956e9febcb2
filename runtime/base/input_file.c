/* SPDX-License-Identifier: MIT */
#include <moe/files.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "runtime/base/error.h"

/* A pipe that has no name in a file system is open already, so it was made for this purpose. A
 * named pipe may never get a writer, unless it is the standard input. */
static bool is_open_already(int fd, const struct stat *about)
{
    struct statfs system;
    struct stat input;
    return (S_ISFIFO(about->st_mode) && fstatfs(fd, &system) == 0 &&
            system.f_type == PIPEFS_MAGIC) ||
           (fstat(STDIN_FILENO, &input) == 0 && input.st_dev == about->st_dev &&
            input.st_ino == about->st_ino);
}

int moe_input_open(int *fd, const char *path, unsigned flags, moe_error *err)
{
    struct stat about;
    if (fd == NULL || path == NULL) {
        return moe_fail_null(err, "moe_input_open", "fd or path");
    }
    *fd = -1;
    if ((flags & ~(unsigned)MOE_INPUT_PIPES) != 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "moe_input_open: unknown flags %#x", flags);
    }
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (opened < 0 || fstat(opened, &about) != 0) {
        int status = moe_fail(err, MOE_ERR_IO, "%s: %s", path, strerror(errno));
        if (opened >= 0) {
            close(opened);
        }
        return status;
    }
    bool waits = !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode) &&
                 (flags & MOE_INPUT_PIPES) != 0 && is_open_already(opened, &about);
    if (!S_ISREG(about.st_mode) && !waits) {
        close(opened);
        return moe_fail(err, MOE_ERR_IO, "%s: %s", path,
                        S_ISDIR(about.st_mode) ? strerror(EISDIR) : "is not a regular file");
    }
    if (waits && fcntl(opened, F_SETFL, 0) != 0) {
        int status = moe_fail(err, MOE_ERR_IO, "%s: %s", path, strerror(errno));
        close(opened);
        return status;
    }
    *fd = opened;
    return MOE_OK;
}

FILE *moe_input_stream(const char *path, unsigned flags, int *status, moe_error *err)
{
    int fd = -1;
    if (status == NULL) {
        (void)moe_fail_null(err, "moe_input_stream", "status");
        return NULL;
    }
    *status = moe_input_open(&fd, path, flags, err);
    FILE *stream = *status == MOE_OK ? fdopen(fd, "rb") : NULL;
    if (*status == MOE_OK && stream == NULL) {
        *status = moe_fail(err, MOE_ERR_MEMORY, "no memory to read %s", path);
        close(fd);
    }
    return stream;
}
