/* SPDX-License-Identifier: MIT */
/* Buffers that are registered with a ring: the kernel pins their pages once instead of at every
 * read. The arena is cut into pieces, and a piece is registered when it is first read into:
 * registering brings all of its pages into memory, and what is never used should cost nothing.
 * Pinned memory counts against RLIMIT_MEMLOCK; once a piece is refused, what is registered stays
 * so and the rest is read into without. */
#ifndef MOE_OFFLOAD_URING_BUFFERS_H
#define MOE_OFFLOAD_URING_BUFFERS_H

#include <liburing.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/moe.h>

#define MOE_URING_PIECE_SHIFT 26
#define MOE_URING_PIECE_BYTES ((size_t)1 << MOE_URING_PIECE_SHIFT)

typedef struct moe_uring_buffers {
    uint8_t *arena; /* NULL: none */
    size_t bytes;
    bool *registered; /* [pieces] */
    uint32_t *n_away; /* [pieces] parts whose pages went back to the system */
    uint32_t n_registered;
    bool refused; /* no more are tried */
    moe_log_fn log;
    void *user;
} moe_uring_buffers;

/* Once, before the ring's first read. The arena stays where it is until the ring is closed, and the
 * child of a fork does not get it: to copy pinned pages for it would take as much memory again.
 * What cannot be is told by one line to log (which may be NULL), here or later. */
void moe_uring_buffers_use(moe_uring_buffers *b, struct io_uring *ring, void *arena, size_t bytes,
                           moe_log_fn log, void *user);
/* Which registered buffer holds all of [dst, dst + size), registering it if need be; -1: none. By
 * the ring's owner. */
int moe_uring_buffers_index(moe_uring_buffers *b, struct io_uring *ring, const uint8_t *dst,
                            size_t size);
/* The pages of [memory, memory + bytes) go back to the system, or will be used again. The kernel
 * lets go of a registered piece that they are in, and does not register it while any of its parts
 * is away: that would bring the pages back. By the ring's owner, nothing being in flight. False:
 * the kernel did not let go. */
bool moe_uring_buffers_set_away(moe_uring_buffers *b, struct io_uring *ring, const void *memory,
                                size_t bytes, bool away);
/* Before the ring is closed. drained: nothing is in flight. */
void moe_uring_buffers_release(moe_uring_buffers *b, struct io_uring *ring, bool drained);

#endif
