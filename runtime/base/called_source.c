/* SPDX-License-Identifier: MIT */
/* A file whose bytes a function of the program reads, such as one that is still being downloaded:
 * the file has its whole size, and bytes that have not come yet are holes. */
#include "runtime/base/called_source.h"

#include <errno.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

typedef struct called_source {
    moe_byte_source source;
    moe_byte_source *file; /* held: it has the name and the size */
    moe_called_read_fn read;
    void *user;
} called_source;

static int64_t called_read(const moe_byte_source *source, void *dst, size_t size, uint64_t offset,
                           unsigned flags)
{
    const called_source *s = (const called_source *)source;
    if ((flags & MOE_READ_AT_HAND) != 0) {
        return -EAGAIN; /* only the function knows */
    }
    const int64_t got = s->read(source->name, dst, size, offset, s->user);
    return got <= (int64_t)size ? got : -EIO;
}

/* The function answers for the content: the file itself changes while bytes come. */
static bool called_identify(const moe_byte_source *source, bool by_name,
                            moe_byte_identity *identity)
{
    (void)source, (void)by_name, (void)identity;
    return false;
}

static void called_close(moe_byte_source *source)
{
    called_source *s = (called_source *)source;
    moe_byte_source_let_go(&s->file);
    free(s);
}

static const moe_byte_source_ops called_ops = {called_read, called_identify, called_close};

int moe_called_source_open(moe_byte_source **out, moe_byte_source *file, moe_called_read_fn read,
                           void *user, moe_error *err)
{
    called_source *s = moe_calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for a file");
    }
    *s = (called_source){.source = {.ops = &called_ops,
                                    .name = file->name,
                                    .size = file->size,
                                    .fd = -1,
                                    .direct_fd = -1},
                         .file = moe_byte_source_hold(file),
                         .read = read,
                         .user = user};
    atomic_init(&s->source.n_holders, 1);
    *out = &s->source;
    return MOE_OK;
}
