/* SPDX-License-Identifier: MIT */
/* The pieces of a file that is being downloaded. A book on disk says which bytes are there, so that
 * a later run can continue, also after a kill. */
#ifndef HUB_PIECES_H
#define HUB_PIECES_H

#include <stdbool.h>
#include <stdint.h>

#include "hub_cache.h"

enum { HUB_PIECE_BYTES = 8 << 20 };

typedef struct hub_pieces {
    int fd;      /* SUM.moe-part */
    int book_fd; /* SUM.moe-pieces: a head, then for each piece the number of its bytes that are
                  * there */
    uint64_t size;
    uint32_t n;
    uint32_t *got;
    bool *taken;    /* whether a connection is fetching the rest of the piece */
    uint64_t there; /* bytes of all pieces */
    uint32_t whole; /* complete pieces from the beginning of the file */
    int error;      /* errno of a write that failed; 0: none */
} hub_pieces;

/* Opens the pieces that an earlier run has left, or begins anew. Returns an exit code. */
int hub_pieces_open(hub_pieces *pieces, const hub_cache *cache, const hub_file *file);
void hub_pieces_close(hub_pieces *pieces);
/* Returns how many bytes of the blob an earlier run has left. */
uint64_t hub_pieces_left(const hub_cache *cache, const char *sum);

/* Takes the first piece that lacks bytes and that no connection fetches. Sets the range that is
 * missing. False: there is no such piece. */
bool hub_pieces_take(hub_pieces *pieces, uint64_t *from, uint64_t *end);
/* Gives back the piece that contains this byte. */
void hub_pieces_give(hub_pieces *pieces, uint64_t at);
/* Writes bytes that have arrived. False: writing failed, and `error` says why. */
bool hub_pieces_write(hub_pieces *pieces, uint64_t at, const char *bytes, size_t size);
/* Returns how many bytes from the beginning are there without a gap. */
uint64_t hub_pieces_prefix(hub_pieces *pieces);

/* Ends the download: renames the complete file to the blob, or removes it. */
int hub_pieces_finish(hub_pieces *pieces, const hub_cache *cache, const char *sum, bool right);

#endif
