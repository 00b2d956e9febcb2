/* SPDX-License-Identifier: MIT */
#include "runtime/base/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

static void forget(moe_atomic_file *file)
{
    if (file->stream != NULL) {
        (void)fclose(file->stream);
    }
    free(file->path);
    free(file->temporary);
    *file = (moe_atomic_file){0};
}

/* True while `path` still names the file that fd has open: another writer may have renamed it
 * between our open() and our lock. */
static bool is_still_named(int fd, const char *path)
{
    struct stat ours;
    struct stat named;
    return fstat(fd, &ours) == 0 && stat(path, &named) == 0 && ours.st_ino == named.st_ino &&
           ours.st_dev == named.st_dev;
}

/* Opens the temporary file, empty and locked; -1 with a message. */
static int open_locked(const moe_atomic_file *file, moe_error *err)
{
    for (;;) {
        int fd = open(file->temporary, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) {
            moe_fail(err, MOE_ERR_IO, "%s: cannot create it: %s", file->temporary, strerror(errno));
            return -1;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK) {
                moe_fail(err, MOE_ERR_IO, "%s: another process is writing it", file->path);
            } else {
                moe_fail(err, MOE_ERR_IO, "%s: cannot lock it: %s", file->temporary,
                         strerror(errno));
            }
            close(fd);
            return -1;
        }
        if (!is_still_named(fd, file->temporary)) {
            close(fd);
            continue;
        }
        if (ftruncate(fd, 0) != 0) {
            moe_fail(err, MOE_ERR_IO, "%s: cannot write: %s", file->temporary, strerror(errno));
            (void)unlink(file->temporary);
            close(fd);
            return -1;
        }
        return fd;
    }
}

int moe_atomic_file_open(moe_atomic_file *file, const char *path, moe_error *err)
{
    size_t size = strlen(path) + sizeof ".tmp";
    *file = (moe_atomic_file){.path = moe_strdup(path), .temporary = moe_calloc(size, 1)};
    if (file->path == NULL || file->temporary == NULL) {
        forget(file);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to write %s", path);
    }
    snprintf(file->temporary, size, "%s.tmp", path);
    int fd = open_locked(file, err);
    if (fd < 0) {
        forget(file);
        return MOE_ERR_IO;
    }
    file->stream = fdopen(fd, "wb");
    if (file->stream == NULL) {
        close(fd);
        forget(file);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to write %s", path);
    }
    return MOE_OK;
}

int moe_atomic_file_write(moe_atomic_file *file, const void *data, size_t size, moe_error *err)
{
    if (size > 0 && fwrite(data, 1, size, file->stream) != size) {
        return moe_fail(err, MOE_ERR_IO, "%s: cannot write: %s", file->path, strerror(errno));
    }
    return MOE_OK;
}

/* Makes the rename survive a power cut. Ignores failures: on a file system that cannot do it,
 * nothing is worse than before. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL   ? moe_strdup(".")
                   : slash == path ? moe_strdup("/")
                                   : moe_strdup(path);
    if (folder == NULL) {
        return;
    }
    if (slash != NULL && slash != path) {
        folder[slash - path] = '\0';
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    free(folder);
}

int moe_atomic_file_commit(moe_atomic_file *file, moe_error *err)
{
    int status = MOE_OK;
    if (fflush(file->stream) != 0 || fsync(fileno(file->stream)) != 0) {
        status = moe_fail(err, MOE_ERR_IO, "%s: cannot write: %s", file->path, strerror(errno));
    } else if (rename(file->temporary, file->path) != 0) {
        status =
            moe_fail(err, MOE_ERR_IO, "%s: cannot replace it: %s", file->path, strerror(errno));
    }
    if (status != MOE_OK) {
        (void)unlink(file->temporary);
    } else {
        sync_folder(file->path);
    }
    forget(file);
    return status;
}

void moe_atomic_file_abandon(moe_atomic_file *file)
{
    if (file->stream != NULL) {
        (void)unlink(file->temporary);
    }
    forget(file);
}
