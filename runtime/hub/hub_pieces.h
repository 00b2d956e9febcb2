/* SPDX-License-Identifier: MIT */
/* The pieces of a file that is being downloaded: which bytes are there, also after a kill. */
#ifndef HUB_PIECES_H
#define HUB_PIECES_H

#include <stdbool.h>
#include <stdint.h>

#include "hub_cache.h"

enum { HUB_PIECE_BYTES = 8 << 20 };

typedef struct hub_pieces {
    int fd;      /* SUM.moe-part */
    int book_fd; /* SUM.moe-pieces: a head, and for each piece how many of its bytes are there */
    uint64_t size;
    uint32_t n;
    uint32_t *got;
    bool *taken;    /* a connection fetches the rest of it */
    uint64_t there; /* bytes of all pieces */
    uint32_t whole; /* pieces from the beginning that are whole */
    int error;      /* errno of a write that failed; 0: none */
} hub_pieces;

/* Opens what an earlier run has left, or begins. Exit codes. */
int hub_pieces_open(hub_pieces *pieces, const hub_cache *cache, const hub_file *file);
void hub_pieces_close(hub_pieces *pieces);
/* Bytes of the blob that an earlier run has left. */
uint64_t hub_pieces_left(const hub_cache *cache, const char *sum);

/* Takes the first piece that lacks bytes and nobody fetches: the range that it lacks. False: there
 * is none. */
bool hub_pieces_take(hub_pieces *pieces, uint64_t *from, uint64_t *end);
/* Gives back the piece with this byte. */
void hub_pieces_give(hub_pieces *pieces, uint64_t at);
/* Writes bytes that have come. False: it failed; `error` says why. */
bool hub_pieces_write(hub_pieces *pieces, uint64_t at, const char *bytes, size_t size);
/* Bytes from the beginning that are there without a gap. */
uint64_t hub_pieces_prefix(hub_pieces *pieces);

/* Makes the whole file the blob, or forgets it. */
int hub_pieces_finish(hub_pieces *pieces, const hub_cache *cache, const char *sum, bool right);

#endif
