/* SPDX-License-Identifier: MIT */
/* The folder stays open while a file of it is written: all names are looked up in that folder, even
 * if its path comes to mean another one. A lock distinguishes the temporary files of working
 * writers from those of killed ones: a writer holds it from just after it has created its file. */
#include <moe/files.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define PREFIX "moe-offload-"
#define SUFFIX ".tmp"

enum { N_DIGITS = 16, N_TRIES = 100, NAME_SIZE = sizeof PREFIX + N_DIGITS + sizeof SUFFIX - 1 };

struct moe_atomic_file {
    FILE *stream;
    char *path;
    const char *name; /* of the file in its folder: the end of path */
    char temporary[NAME_SIZE];
    int folder; /* < 0: a device or a pipe, written to in place */
};

static void forget(moe_atomic_file **out)
{
    moe_atomic_file *file = *out;
    if (file->stream != NULL) {
        (void)fclose(file->stream);
    }
    if (file->folder >= 0) {
        close(file->folder);
    }
    free(file->path);
    free(file);
    *out = NULL;
}

static bool is_temporary(const char *name)
{
    size_t prefix = sizeof PREFIX - 1;
    return strlen(name) == NAME_SIZE - 1 && strncmp(name, PREFIX, prefix) == 0 &&
           strspn(name + prefix, "0123456789abcdef") == N_DIGITS &&
           strcmp(name + prefix + N_DIGITS, SUFFIX) == 0;
}

/* Whether the name still refers to the file that is open as fd. */
static bool is_still_named(int folder, const char *name, int fd)
{
    struct stat ours;
    struct stat named;
    return fstat(fd, &ours) == 0 && fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

static void remove_leftover(int folder, const char *name)
{
    struct stat about;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
        flock(fd, LOCK_EX | LOCK_NB) == 0 && is_still_named(folder, name, fd)) {
        (void)unlinkat(folder, name, 0);
    }
    close(fd);
}

/* Removes leftovers. They only take room, so a failure to remove them is not an error. */
static void remove_leftovers(int folder)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    if (list == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    while ((entry = readdir(list)) != NULL) {
        if (is_temporary(entry->d_name)) {
            remove_leftover(folder, entry->d_name);
        }
    }
    closedir(list);
}

static int open_folder(moe_atomic_file *file, moe_error *err)
{
    const char *slash = strrchr(file->path, '/');
    size_t size = slash == NULL ? 0 : slash == file->path ? 1 : (size_t)(slash - file->path);
    char *folder = size == 0 ? moe_strdup(".") : moe_strdup(file->path);
    if (folder == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to write %s", file->path);
    }
    folder[size == 0 ? 1 : size] = '\0';
    file->name = slash == NULL ? file->path : slash + 1;
    file->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file->folder < 0 && errno == EACCES) { /* files may be made in it, but not listed */
        file->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    free(folder);
    return file->folder >= 0
               ? MOE_OK
               : moe_fail(err, MOE_ERR_IO, "%s: cannot create it: %s", file->path, strerror(errno));
}

/* Checks the target: a device or a pipe must not be replaced by a file. */
static int check_target(const moe_atomic_file *file, moe_error *err)
{
    struct stat about;
    if (file->name[0] == '\0' ||
        (fstatat(file->folder, file->name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
         !S_ISREG(about.st_mode) && !S_ISLNK(about.st_mode))) {
        return moe_fail(err, MOE_ERR_IO, "%s: cannot replace it: it is not a regular file",
                        file->path);
    }
    return MOE_OK;
}

/* Creates the temporary file and locks it. Returns its descriptor, or -1 with errno set. */
static int create(moe_atomic_file *file, mode_t mode)
{
    for (int i = 0; i < N_TRIES; i++) {
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
            return -1;
        }
        snprintf(file->temporary, NAME_SIZE, PREFIX "%016" PRIx64 SUFFIX, random);
        int fd = openat(file->folder, file->temporary,
                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0 && errno != EEXIST) {
            return -1;
        }
        if (fd < 0) {
            continue;
        }
        /* Another writer may have taken the file for a leftover: then its lock and its unlink came
         * before our lock. On a file system without locks no leftovers are removed. */
        bool is_taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (!is_taken && is_still_named(file->folder, file->temporary, fd)) {
            return fd;
        }
        (void)unlinkat(file->folder, file->temporary, 0);
        close(fd);
    }
    errno = EBUSY;
    return -1;
}

static int open_temporary(moe_atomic_file *file, mode_t mode, moe_error *err)
{
    MOE_TRY(open_folder(file, err));
    MOE_TRY(check_target(file, err));
    remove_leftovers(file->folder);
    int fd = create(file, mode);
    if (fd < 0) {
        return moe_fail(err, MOE_ERR_IO, "%s: cannot create a file beside it: %s", file->path,
                        strerror(errno));
    }
    file->stream = fdopen(fd, "wb");
    if (file->stream == NULL) {
        (void)unlinkat(file->folder, file->temporary, 0);
        close(fd);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to write %s", file->path);
    }
    return MOE_OK;
}

static bool is_special(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode);
}

static int open_in_place(moe_atomic_file *file, moe_error *err)
{
    file->stream = fopen(file->path, "wbe");
    return file->stream != NULL ? MOE_OK
                                : moe_fail(err, MOE_ERR_IO, "%s: %s", file->path, strerror(errno));
}

int moe_atomic_file_open(moe_atomic_file **out, const char *path, unsigned flags, moe_error *err)
{
    if (out == NULL || path == NULL) {
        return moe_fail_null(err, "moe_atomic_file_open", "out or path");
    }
    *out = NULL;
    if (flags > (MOE_FILE_PRIVATE | MOE_FILE_OR_DEVICE)) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "moe_atomic_file_open: unknown flags %#x", flags);
    }
    moe_atomic_file *file = moe_calloc(1, sizeof *file);
    if (file == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to write %s", path);
    }
    file->folder = -1;
    file->path = moe_strdup(path);
    int status = file->path == NULL ? moe_fail(err, MOE_ERR_MEMORY, "no memory to write %s", path)
                 : (flags & MOE_FILE_OR_DEVICE) != 0 && is_special(path)
                     ? open_in_place(file, err)
                     : open_temporary(file, (flags & MOE_FILE_PRIVATE) != 0 ? 0600 : 0666, err);
    if (status != MOE_OK) {
        forget(&file);
        return status;
    }
    *out = file;
    return MOE_OK;
}

static int fail_to_write(const moe_atomic_file *file, moe_error *err)
{
    return moe_fail(err, MOE_ERR_IO, "%s: cannot write: %s", file->path, strerror(errno));
}

int moe_atomic_file_write(moe_atomic_file *file, const void *data, size_t size, moe_error *err)
{
    if (file == NULL || (data == NULL && size > 0)) {
        return moe_fail_null(err, "moe_atomic_file_write", "file or data");
    }
    return size > 0 && fwrite(data, 1, size, file->stream) != size ? fail_to_write(file, err)
                                                                   : MOE_OK;
}

FILE *moe_atomic_file_stream(moe_atomic_file *file)
{
    return file == NULL ? NULL : file->stream;
}

/* Whether the file was synced, as far as possible. If a file system, a device or a folder without
 * read permission cannot sync, the data is as safe as it can be. */
static bool synced(int fd)
{
    return fsync(fd) == 0 || errno == EINVAL || errno == EBADF || errno == ENOTSUP;
}

int moe_atomic_file_sync(moe_atomic_file *file, moe_error *err)
{
    if (file == NULL) {
        return moe_fail_null(err, "moe_atomic_file_sync", "file");
    }
    bool failed = ferror(file->stream) != 0;
    errno = EIO;
    return failed || fflush(file->stream) != 0 || !synced(fileno(file->stream))
               ? fail_to_write(file, err)
               : MOE_OK;
}

int moe_atomic_file_commit(moe_atomic_file **out, moe_error *err)
{
    if (out == NULL || *out == NULL) {
        return moe_fail_null(err, "moe_atomic_file_commit", "file");
    }
    moe_atomic_file *file = *out;
    int status = moe_atomic_file_sync(file, err);
    bool renames = status == MOE_OK && file->folder >= 0;
    if (renames && renameat(file->folder, file->temporary, file->folder, file->name) != 0) {
        status =
            moe_fail(err, MOE_ERR_IO, "%s: cannot replace it: %s", file->path, strerror(errno));
    }
    if (status != MOE_OK) {
        moe_atomic_file_abandon(out);
        return status;
    }
    if (renames && !synced(file->folder)) { /* or a power cut may undo the rename */
        status = moe_fail(err, MOE_ERR_IO,
                          "%s: written, but its folder cannot be synced, so that a power cut may "
                          "undo it: %s",
                          file->path, strerror(errno));
    }
    forget(out);
    return status;
}

void moe_atomic_file_abandon(moe_atomic_file **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    if ((*out)->folder >= 0) {
        (void)unlinkat((*out)->folder, (*out)->temporary, 0);
    }
    forget(out);
}
