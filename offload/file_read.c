/* SPDX-License-Identifier: MIT */
#include "offload/file_read.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"

/* The kernel caps one read at 2 GiB minus a page; smaller pieces keep signals responsive. */
#define MAX_READ (64u << 20)

int moe_file_read(const moe_gguf_file *file, uint64_t offset, void *dst, uint64_t size,
                  moe_error *err)
{
    uint8_t *out = dst;
    while (size > 0) {
        size_t want = size < MAX_READ ? (size_t)size : MAX_READ;
        ssize_t got = pread(file->fd, out, want, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return moe_fail(err, MOE_ERR_IO, "%s: cannot read at offset %llu: %s", file->path,
                            (unsigned long long)offset, strerror(errno));
        }
        if (got == 0) {
            return moe_fail(err, MOE_ERR_IO,
                            "%s: the file ends at offset %llu, before its tensors do; was it "
                            "truncated while open?",
                            file->path, (unsigned long long)offset);
        }
        out += got;
        offset += (uint64_t)got;
        size -= (uint64_t)got;
    }
    return MOE_OK;
}
