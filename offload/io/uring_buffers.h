/* SPDX-License-Identifier: MIT */
/* Buffers registered with a ring: the kernel pins their pages once instead of at every read. The
 * arena is cut into pieces. A piece is registered when it is first read into, because registering
 * brings all of its pages into memory, and unused pieces should cost nothing. Pinned memory counts
 * against RLIMIT_MEMLOCK. Once the kernel refuses a piece, the registered pieces stay registered,
 * and no others are tried. */
#ifndef MOE_OFFLOAD_URING_BUFFERS_H
#define MOE_OFFLOAD_URING_BUFFERS_H

#include <liburing.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>
#include <moe/types.h>

#define MOE_URING_PIECE_SHIFT 26
#define MOE_URING_PIECE_BYTES ((size_t)1 << MOE_URING_PIECE_SHIFT)

typedef struct moe_uring_buffers {
    uint8_t *arena; /* NULL: none */
    size_t bytes;
    bool *registered; /* [pieces] */
    uint32_t *n_away; /* [pieces]: parts of each piece whose pages went back to the system */
    uint32_t n_registered;
    bool refused; /* the kernel has refused a piece; no more are tried */
    moe_log_fn log;
    void *user;
} moe_uring_buffers;

/* Call once, before the ring's first read. The arena must stay where it is until the ring is
 * closed. The child of a fork does not get the arena, because copying pinned pages for it would
 * take as much memory again. Logs one line if registering fails, now or later (log may be NULL). */
void moe_uring_buffers_use(moe_uring_buffers *b, struct io_uring *ring, void *arena, size_t bytes,
                           moe_log_fn log, void *user);
/* The index of the registered buffer that holds all of [dst, dst + size); registers it if
 * necessary. -1: there is none. The ring's owner calls it. */
int moe_uring_buffers_index(moe_uring_buffers *b, struct io_uring *ring, const uint8_t *dst,
                            size_t size);
/* away: the pages of [memory, memory + bytes) go back to the system; no read is in flight. Not
 * away: they will be used again. Unregisters a piece that holds such pages. Registers no piece
 * while one of its parts is away, because that would bring the pages back. The ring's owner calls
 * it. Returns false if the kernel did not release the piece. */
bool moe_uring_buffers_set_away(moe_uring_buffers *b, struct io_uring *ring, const void *memory,
                                size_t bytes, bool away);
/* Call before the ring is closed. drained: nothing is in flight. */
void moe_uring_buffers_release(moe_uring_buffers *b, struct io_uring *ring, bool drained);

#endif
