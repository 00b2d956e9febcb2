/* SPDX-License-Identifier: MIT */
/* A source of bytes: one object with a size, any range of which can be read. A local file is one
 * (file_source.c). Any other holder of bytes only needs the functions of moe_byte_source_ops. A
 * source does not change after it is opened, and any thread may use it. */
#ifndef MOE_BASE_BYTE_SOURCE_H
#define MOE_BASE_BYTE_SOURCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <moe/status.h>

/* Identifies an object (such as a file) and its version. */
typedef struct moe_byte_identity {
    uint64_t device, object; /* together they name the object; no other one has both */
    uint64_t size;
    struct timespec modified;
    struct timespec changed; /* by anything; nobody can set it back */
} moe_byte_identity;

/* Whether both identify the same object, perhaps in different versions. */
static inline bool moe_byte_identity_is_same(const moe_byte_identity *a, const moe_byte_identity *b)
{
    return a->device == b->device && a->object == b->object;
}

enum {
    MOE_READ_DIRECT = 1,  /* past the page cache; offset, size and memory are aligned */
    MOE_READ_AT_HAND = 2, /* only what can be had without waiting */
};

typedef struct moe_byte_source moe_byte_source;

typedef struct moe_byte_source_ops {
    /* As pread() does: returns how many bytes it read, 0 at the end, or -errno. */
    int64_t (*read)(const moe_byte_source *source, void *dst, size_t size, uint64_t offset,
                    unsigned flags);
    /* Identifies the source as it is now or, with by_name, the object that its name leads to now.
     * False: not known. */
    bool (*identify)(const moe_byte_source *source, bool by_name, moe_byte_identity *identity);
    void (*close)(moe_byte_source *source);
} moe_byte_source_ops;

struct moe_byte_source {
    const moe_byte_source_ops *ops;
    atomic_uint n_holders;
    char *name;               /* in messages */
    uint64_t size;            /* when it was opened, like the next one */
    moe_byte_identity opened; /* all 0: not known */
    /* Direct reads need this alignment, a power of two. 0: the source has no direct reads, because
     * of this errno (errno 0: nothing in that place has them). */
    uint32_t direct_alignment;
    int direct_error;
    /* Descriptors that the kernel may read from instead of calls of read(), for buffered and for
     * direct reads; -1: none. */
    int fd, direct_fd;
};

/* Opens a file, or a block device. *out is NULL after a failure. Messages do not name the file. */
int moe_file_source_open(moe_byte_source **out, const char *path, moe_error *err);
/* Like open, for a file that is open already: the source gets further descriptors of this very
 * file, even if its name leads elsewhere now. */
int moe_file_source_of(moe_byte_source **out, const char *name, int fd, moe_error *err);

/* A source lives until its last holder releases it. Its opener is the first holder. */
static inline moe_byte_source *moe_byte_source_hold(moe_byte_source *source)
{
    atomic_fetch_add(&source->n_holders, 1);
    return source;
}

static inline void moe_byte_source_let_go(moe_byte_source **source)
{
    if (*source != NULL && atomic_fetch_sub(&(*source)->n_holders, 1) == 1) {
        (*source)->ops->close(*source);
    }
    *source = NULL;
}

#endif
