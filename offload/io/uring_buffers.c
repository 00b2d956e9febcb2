/* SPDX-License-Identifier: MIT */
#include "offload/io/uring_buffers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"

static void refuse(moe_uring_buffers *b, int error)
{
    b->refused = true;
    if (b->log != NULL) {
        char line[320];
        bool limited = error == ENOMEM || error == EPERM;
        snprintf(line, sizeof line,
                 "io_uring: of %zu MiB of buffers, %zu MiB are registered and no more can be (%s): "
                 "reading into the rest without%s",
                 b->bytes >> 20, (size_t)b->n_registered << (MOE_URING_PIECE_SHIFT - 20),
                 strerror(error),
                 limited ? "; a higher RLIMIT_MEMLOCK (ulimit -l) would allow it" : "");
        b->log(line, b->user);
    }
}

void moe_uring_buffers_use(moe_uring_buffers *b, struct io_uring *ring, void *arena, size_t bytes,
                           moe_log_fn log, void *user)
{
    size_t n = (bytes + MOE_URING_PIECE_BYTES - 1) >> MOE_URING_PIECE_SHIFT;
    *b = (moe_uring_buffers){.bytes = bytes, .log = log, .user = user};
    b->registered = moe_calloc(n, sizeof *b->registered);
    b->n_away = moe_calloc(n, sizeof *b->n_away);
    int rc = b->registered == NULL || b->n_away == NULL ? -ENOMEM
             : n > UINT32_MAX                           ? -E2BIG
                              : io_uring_register_buffers_sparse(ring, (unsigned)n);
    if (rc != 0) {
        free(b->registered);
        free(b->n_away);
        b->registered = NULL;
        b->n_away = NULL;
        refuse(b, -rc);
        return;
    }
    b->arena = arena;
    (void)madvise(arena, bytes, MADV_DONTFORK);
}

static bool register_piece(moe_uring_buffers *b, struct io_uring *ring, size_t piece)
{
    MOE_ASSERT(!b->registered[piece] && b->n_away[piece] == 0 && !b->refused);
    size_t at = piece << MOE_URING_PIECE_SHIFT;
    size_t left = b->bytes - at;
    struct iovec memory = {.iov_base = b->arena + at,
                           .iov_len = left < MOE_URING_PIECE_BYTES ? left : MOE_URING_PIECE_BYTES};
    int rc = io_uring_register_buffers_update_tag(ring, (unsigned)piece, &memory, NULL, 1);
    b->registered[piece] = rc == 1;
    b->n_registered += rc == 1;
    if (rc != 1) {
        refuse(b, rc < 0 ? -rc : EINVAL);
    }
    return rc == 1;
}

int moe_uring_buffers_index(moe_uring_buffers *b, struct io_uring *ring, const uint8_t *dst,
                            size_t size)
{
    size_t at = (size_t)((uintptr_t)dst - (uintptr_t)b->arena);
    size_t piece = at >> MOE_URING_PIECE_SHIFT;
    if (b->arena == NULL || at >= b->bytes || size > b->bytes - at ||
        (at + size - 1) >> MOE_URING_PIECE_SHIFT != piece) {
        return -1;
    }
    bool usable = b->registered[piece] ||
                  (!b->refused && b->n_away[piece] == 0 && register_piece(b, ring, piece));
    return usable ? (int)piece : -1;
}

static bool let_go(moe_uring_buffers *b, struct io_uring *ring, size_t piece)
{
    MOE_ASSERT(b->registered[piece] && b->n_registered > 0);
    struct iovec none = {0};
    if (io_uring_register_buffers_update_tag(ring, (unsigned)piece, &none, NULL, 1) != 1) {
        return false;
    }
    b->registered[piece] = false;
    b->n_registered--;
    return true;
}

bool moe_uring_buffers_set_away(moe_uring_buffers *b, struct io_uring *ring, const void *memory,
                                size_t bytes, bool away)
{
    size_t at = (size_t)((uintptr_t)memory - (uintptr_t)b->arena);
    if (b->arena == NULL || at >= b->bytes || bytes == 0 || bytes > b->bytes - at) {
        return true;
    }
    size_t first = at >> MOE_URING_PIECE_SHIFT;
    size_t last = (at + bytes - 1) >> MOE_URING_PIECE_SHIFT;
    for (size_t piece = first; piece <= last && away; piece++) {
        if (b->registered[piece] && !let_go(b, ring, piece)) {
            return false;
        }
    }
    for (size_t piece = first; piece <= last; piece++) {
        MOE_ASSERT(away ? !b->registered[piece] : b->n_away[piece] > 0);
        b->n_away[piece] += away ? 1u : UINT32_MAX;
    }
    return true;
}

void moe_uring_buffers_release(moe_uring_buffers *b, struct io_uring *ring, bool drained)
{
    if (b->arena != NULL) {
        /* Closing the ring would unregister the pieces, too, but some time later. Kernels before
         * 6.13 wait here for reads in flight, possibly for ever. */
        if (drained) {
            (void)io_uring_unregister_buffers(ring);
        }
        (void)madvise(b->arena, b->bytes, MADV_DOFORK);
        free(b->registered);
        free(b->n_away);
    }
    *b = (moe_uring_buffers){0};
}
