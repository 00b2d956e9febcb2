/* SPDX-License-Identifier: MIT */
#include "offload/io/reader_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* A larger alignment must be a mistake of the file system's. */
#define MAX_ALIGNMENT (1u << 20)

/* The alignment that direct reads of the file need; 0: the file has no direct reads. If kernel
 * (before 6.1) or file system do not tell, a page is assumed, and the first refused read corrects
 * it. */
static uint32_t direct_alignment(int fd)
{
    struct statx state;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &state) != 0 ||
        (state.stx_mask & STATX_DIOALIGN) == 0) {
        return MOE_READER_ALIGNMENT;
    }
    uint32_t memory = state.stx_dio_mem_align;
    uint32_t offset = state.stx_dio_offset_align;
    uint32_t larger = memory > offset ? memory : offset;
    bool usable = offset != 0 && larger <= MAX_ALIGNMENT && (memory & (memory - 1)) == 0 &&
                  (offset & (offset - 1)) == 0;
    return usable ? larger : 0;
}

static void refuse(moe_reader_files *files, const char *path, const char *reason)
{
    if (files->refusal[0] == '\0') {
        snprintf(files->refusal, sizeof files->refusal, "%s: no direct I/O (%s)", path, reason);
    }
}

/* Opens the caller's own file through /proc/self/fd, whatever its path leads to now. */
static int open_direct(moe_reader_files *files, const moe_range_file *file)
{
    uint32_t alignment = direct_alignment(file->fd);
    if (alignment == 0) {
        refuse(files, file->path, "the file system has none");
        return -1;
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file->fd);
    int fd = open(link, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        refuse(files, file->path, strerror(errno));
    } else if (alignment > files->alignment) {
        files->alignment = alignment;
    }
    return fd;
}

static int open_file(moe_reader_files *out, uint32_t i, const moe_range_file *file, bool buffered,
                     moe_error *err)
{
    moe_reader_file *f = &out->files[i];
    int *direct = &out->fds[i];
    int *plain = &out->fds[out->n_files + i];
    f->size = file->size;
    f->path = moe_strdup(file->path);
    if (f->path == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", file->path);
    }
    *plain = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
    if (*plain < 0) {
        return moe_fail(err, MOE_ERR_IO, "%s: %s%s", file->path, strerror(errno),
                        errno == EMFILE ? "; a higher limit of open files (ulimit -n) is needed"
                                        : "");
    }
    *direct = buffered ? -1 : open_direct(out, file);
    f->direct = *direct >= 0;
    if (!f->direct) {
        *direct = *plain;
    }
    return MOE_OK;
}

int moe_reader_files_open(moe_reader_files *out, const moe_range_file *files, uint32_t n_files,
                          bool buffered, moe_error *err)
{
    memset(out, 0, sizeof *out);
    out->alignment = MOE_READER_ALIGNMENT;
    out->files = moe_calloc(n_files, sizeof *out->files);
    out->fds = moe_calloc(n_files, 2 * sizeof *out->fds);
    if (out->files == NULL || out->fds == NULL) {
        moe_reader_files_close(out);
        return moe_fail(err, MOE_ERR_MEMORY, "range reader: out of memory");
    }
    out->n_files = n_files;
    memset(out->fds, 0xff, 2 * (size_t)n_files * sizeof *out->fds);
    for (uint32_t i = 0; i < n_files; i++) {
        int rc = open_file(out, i, &files[i], buffered, err);
        if (rc != MOE_OK) {
            moe_reader_files_close(out);
            return rc;
        }
    }
    return MOE_OK;
}

void moe_reader_files_close(moe_reader_files *files)
{
    for (uint32_t i = 0; i < files->n_files; i++) {
        int direct = files->fds[i];
        int plain = files->fds[files->n_files + i];
        if (direct >= 0 && direct != plain) {
            close(direct);
        }
        if (plain >= 0) {
            close(plain);
        }
        free(files->files[i].path);
    }
    free(files->files);
    free(files->fds);
    memset(files, 0, sizeof *files);
}

uint64_t moe_reader_files_size_now(const moe_reader_files *files, uint32_t file)
{
    struct stat state;
    bool known = fstat(files->fds[files->n_files + file], &state) == 0 && state.st_size >= 0;
    return known ? (uint64_t)state.st_size : files->files[file].size;
}
