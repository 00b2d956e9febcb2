/* SPDX-License-Identifier: MIT */
/* A local file as a source: a descriptor for buffered reads and, where the file system allows it,
 * one for direct reads. */
#include "runtime/base/byte_source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define ASSUMED_ALIGNMENT 4096u
/* A larger alignment must be an error of the file system. */
#define MAX_ALIGNMENT (1u << 20)

static int64_t file_read(const moe_byte_source *source, void *dst, size_t size, uint64_t offset,
                         unsigned flags)
{
    bool direct = (flags & MOE_READ_DIRECT) != 0 && source->direct_fd >= 0;
    int fd = direct ? source->direct_fd : source->fd;
    struct iovec to = {dst, size};
    ssize_t got = (flags & MOE_READ_AT_HAND) != 0 ? preadv2(fd, &to, 1, (off_t)offset, RWF_NOWAIT)
                                                  : pread(fd, dst, size, (off_t)offset);
    return got < 0 ? -errno : got;
}

static moe_byte_identity identity_of(const struct stat *state)
{
    return (moe_byte_identity){.device = state->st_dev,
                               .object = state->st_ino,
                               .size = (uint64_t)state->st_size,
                               .modified = state->st_mtim,
                               .changed = state->st_ctim};
}

static bool file_identify(const moe_byte_source *source, bool by_name, moe_byte_identity *identity)
{
    struct stat now;
    if ((by_name ? stat(source->name, &now) : fstat(source->fd, &now)) != 0) {
        return false;
    }
    *identity = identity_of(&now);
    return true;
}

static void file_close(moe_byte_source *source)
{
    if (source->direct_fd >= 0) {
        close(source->direct_fd);
    }
    if (source->fd >= 0) {
        close(source->fd);
    }
    free(source->name);
    free(source);
}

static const moe_byte_source_ops file_ops = {file_read, file_identify, file_close};

/* The alignment that direct reads of the file need; 0: the file has no direct reads. If the kernel
 * (before 6.1) or the file system does not say, a page is assumed, and the first refused read
 * corrects it. */
static uint32_t direct_alignment(int fd)
{
    struct statx state;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &state) != 0 ||
        (state.stx_mask & STATX_DIOALIGN) == 0) {
        return ASSUMED_ALIGNMENT;
    }
    uint32_t memory = state.stx_dio_mem_align;
    uint32_t offset = state.stx_dio_offset_align;
    uint32_t larger = memory > offset ? memory : offset;
    bool usable = offset != 0 && larger <= MAX_ALIGNMENT && (memory & (memory - 1)) == 0 &&
                  (offset & (offset - 1)) == 0;
    return usable ? larger : 0;
}

/* Opens this very file once more, through /proc/self/fd, even if its name leads elsewhere now. */
static void open_direct(moe_byte_source *source)
{
    uint32_t alignment = direct_alignment(source->fd);
    if (alignment == 0) {
        return;
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", source->fd);
    source->direct_fd = open(link, O_RDONLY | O_DIRECT | O_CLOEXEC);
    source->direct_error = source->direct_fd < 0 ? errno : 0;
    source->direct_alignment = source->direct_fd < 0 ? 0 : alignment;
}

static int examine(moe_byte_source *source, moe_error *err)
{
    struct stat about;
    if (fstat(source->fd, &about) != 0) {
        return moe_fail(err, MOE_ERR_IO, "cannot stat: %s", strerror(errno));
    }
    if (!S_ISREG(about.st_mode) && !S_ISBLK(about.st_mode)) {
        return moe_fail(err, MOE_ERR_IO, "is %s",
                        S_ISDIR(about.st_mode)
                            ? "a directory, not a file (of a folder of safetensors llama.cpp's "
                              "convert_hf_to_gguf.py makes one)"
                            : "a pipe or device, not a file");
    }
    off_t end = S_ISREG(about.st_mode) ? about.st_size : lseek(source->fd, 0, SEEK_END);
    if (end < 0) {
        return moe_fail(err, MOE_ERR_IO, "cannot find its size: %s", strerror(errno));
    }
    source->size = (uint64_t)end;
    source->opened = identity_of(&about);
    return MOE_OK;
}

/* Makes a source from the descriptor, or from the errno of the failure to get one. */
static int make(moe_byte_source **out, const char *name, int fd, int error, moe_error *err)
{
    *out = NULL;
    if (fd < 0) {
        return moe_fail(err, MOE_ERR_IO, "cannot open: %s%s", strerror(error),
                        error == EMFILE ? "; a higher limit of open files (ulimit -n) is needed"
                                        : "");
    }
    moe_byte_source *source = moe_calloc(1, sizeof *source);
    if (source == NULL) {
        close(fd);
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for a file");
    }
    source->ops = &file_ops;
    atomic_init(&source->n_holders, 1);
    source->fd = fd;
    source->direct_fd = -1;
    source->name = moe_strdup(name);
    int status = source->name == NULL ? moe_fail(err, MOE_ERR_MEMORY, "out of memory for a name")
                                      : examine(source, err);
    if (status != MOE_OK) {
        file_close(source);
        return status;
    }
    open_direct(source);
    *out = source;
    return MOE_OK;
}

int moe_file_source_open(moe_byte_source **out, const char *path, moe_error *err)
{
    /* Not blocking: a named pipe is refused, and opening it does not wait for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return make(out, path, fd, errno, err);
}

int moe_file_source_of(moe_byte_source **out, const char *name, int fd, moe_error *err)
{
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return make(out, name, own, errno, err);
}
