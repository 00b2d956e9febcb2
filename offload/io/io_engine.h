/* SPDX-License-Identifier: MIT */
/* The contract of an I/O engine: the reader submits block reads, and they complete in any order. An
 * engine carries reads out and reports the result of each exactly once, as the kernel gave it.
 * Splitting, alignment, retries and accounting are the range reader's work.
 *
 * Between open() and close() only one thread calls submit() and wait(): the first thread that does.
 * Any thread may call wake(). That one thread calls close(), or another thread does once nothing is
 * in flight. The reader keeps at most `depth` reads in flight; an engine has room for these. */
#ifndef MOE_OFFLOAD_IO_ENGINE_H
#define MOE_OFFLOAD_IO_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>
#include <moe/types.h>

#include "runtime/base/byte_source.h"

typedef struct moe_io_read {
    uint32_t file; /* index into the files given at open */
    uint32_t size;
    uint64_t offset;
    bool direct; /* read the file with MOE_READ_DIRECT */
    uint8_t *dst;
    uint64_t user_data; /* returned with the completion; never UINT64_MAX or the number below */
} moe_io_read;

typedef struct moe_io_completion {
    uint64_t user_data;
    int32_t result; /* bytes read, 0 at the end of the file, or -errno */
} moe_io_completion;

typedef struct moe_io_params {
    moe_byte_source *const *files; /* valid until close() */
    uint32_t n_files;
    uint32_t depth;
    moe_log_fn log; /* may be NULL */
    void *user;
    void *context; /* for the engine itself, e.g. a moe_io_fault */
} moe_io_params;

typedef struct moe_io_ops {
    const char *name;
    /* MOE_ERR_UNSUPPORTED, with the reason: this machine lacks the engine, or the engine cannot
     * read one of the files. */
    int (*open)(void **engine, const moe_io_params *params, moe_error *err);
    /* Says where most buffers will lie. Called once, before the first read. */
    void (*use_arena)(void *engine, void *arena, size_t bytes);
    /* away: the pages of a part of the arena go back to the system; no read is in flight. Not away:
     * they will be used again. The owner calls it. Returns false if the kernel still holds the
     * pages. */
    bool (*set_away)(void *engine, void *memory, size_t bytes, bool away);
    /* Waits for the reads in flight, but no longer than timeout_ns. Then abandons them and returns
     * false: the kernel may write into their buffers at any later time. */
    bool (*close)(void *engine, uint64_t timeout_ns);
    /* Submits the reads in order and returns how many the engine took. */
    uint32_t (*submit)(void *engine, const moe_io_read *reads, uint32_t n);
    /* Waits for a completion, a wake() or the timeout (< 0: none); may also return 0 without any of
     * these. Sets *woken to true if it consumed a wake(), and otherwise does not change it. */
    uint32_t (*wait)(void *engine, moe_io_completion *done, uint32_t capacity, int64_t timeout_ns,
                     bool *woken);
    void (*wake)(void *engine);
    /* A detail to print behind the name: "registered buffers", or "". */
    const char *(*detail)(const void *engine);
} moe_io_ops;

/* Reads on the calling thread. Returns what a completion's result would be. */
static inline int32_t moe_io_read_now(const moe_byte_source *file, const moe_io_read *read)
{
    unsigned flags = read->direct ? MOE_READ_DIRECT : 0;
    return (int32_t)file->ops->read(file, read->dst, read->size, read->offset, flags);
}

extern const moe_io_ops moe_io_uring_ops;
extern const moe_io_ops moe_io_threads_ops;
extern const moe_io_ops moe_io_sync_ops;

#endif
