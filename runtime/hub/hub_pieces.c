/* SPDX-License-Identifier: MIT */
#include "hub_pieces.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli_options.h"

typedef struct book_head {
    char mark[8];
    uint64_t size;
    uint32_t piece_bytes;
    uint32_t n;
} book_head;

#define PART ".moe-part"
#define BOOK ".moe-pieces"

static book_head head_of(const hub_pieces *pieces)
{
    return (book_head){
        .mark = "MOEPCS1", .size = pieces->size, .piece_bytes = HUB_PIECE_BYTES, .n = pieces->n};
}

static uint64_t piece_bytes(const hub_pieces *pieces, uint32_t i)
{
    uint64_t from = (uint64_t)i * HUB_PIECE_BYTES;
    return pieces->size - from < HUB_PIECE_BYTES ? pieces->size - from : HUB_PIECE_BYTES;
}

/* Reads the book (SUM.moe-pieces), if it belongs to this file. */
static bool read_book(hub_pieces *pieces)
{
    book_head head, own = head_of(pieces);
    size_t bytes = pieces->n * sizeof *pieces->got;
    bool valid = pread(pieces->book_fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
                 memcmp(&head, &own, sizeof head) == 0 &&
                 pread(pieces->book_fd, pieces->got, bytes, sizeof head) == (ssize_t)bytes;
    for (uint32_t i = 0; valid && i < pieces->n; i++) {
        valid = pieces->got[i] <= piece_bytes(pieces, i);
    }
    return valid;
}

static bool write_book(const hub_pieces *pieces)
{
    book_head own = head_of(pieces);
    size_t bytes = pieces->n * sizeof *pieces->got;
    return pwrite(pieces->book_fd, &own, sizeof own, 0) == (ssize_t)sizeof own &&
           pwrite(pieces->book_fd, pieces->got, bytes, sizeof own) == (ssize_t)bytes;
}

static int open_one(int *fd, const hub_cache *cache, const char *sum, const char *ending)
{
    char path[PATH_MAX];
    if (!hub_cache_blob(path, sizeof path, cache, sum, ending)) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: the path is too long", cache->repo);
    }
    int code = hub_make_parents(path);
    if (code == CLI_EXIT_OK && (*fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666)) < 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s cannot be opened: %s", path, strerror(errno));
    }
    return code;
}

int hub_pieces_open(hub_pieces *pieces, const hub_cache *cache, const hub_file *file)
{
    struct stat facts;
    *pieces = (hub_pieces){.fd = -1, .book_fd = -1, .size = file->size};
    pieces->n = (uint32_t)((file->size + HUB_PIECE_BYTES - 1) / HUB_PIECE_BYTES);
    pieces->got = calloc(pieces->n, sizeof *pieces->got);
    pieces->taken = calloc(pieces->n, sizeof *pieces->taken);
    if (pieces->got == NULL || pieces->taken == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the pieces of %s", file->path);
    }
    int code = open_one(&pieces->fd, cache, file->sum, PART);
    code = code == CLI_EXIT_OK ? open_one(&pieces->book_fd, cache, file->sum, BOOK) : code;
    if (code != CLI_EXIT_OK) {
        return code;
    }
    bool kept = fstat(pieces->fd, &facts) == 0 && (uint64_t)facts.st_size == file->size &&
                read_book(pieces);
    if (!kept) {
        memset(pieces->got, 0, pieces->n * sizeof *pieces->got);
        if (ftruncate(pieces->book_fd, 0) != 0 || ftruncate(pieces->fd, 0) != 0 ||
            ftruncate(pieces->fd, (off_t)file->size) != 0 || !write_book(pieces)) {
            return cli_fail(CLI_EXIT_FAILURE, "%s cannot be begun in %s: %s", file->path,
                            cache->repo, strerror(errno));
        }
    }
    for (uint32_t i = 0; i < pieces->n; i++) {
        pieces->there += pieces->got[i];
    }
    return CLI_EXIT_OK;
}

void hub_pieces_close(hub_pieces *pieces)
{
    if (pieces->fd >= 0) {
        close(pieces->fd);
    }
    if (pieces->book_fd >= 0) {
        close(pieces->book_fd);
    }
    free(pieces->got);
    free(pieces->taken);
    *pieces = (hub_pieces){.fd = -1, .book_fd = -1};
}

uint64_t hub_pieces_left(const hub_cache *cache, const char *sum)
{
    char path[PATH_MAX];
    struct stat facts;
    return hub_cache_blob(path, sizeof path, cache, sum, PART) && stat(path, &facts) == 0
               ? 512 * (uint64_t)facts.st_blocks
               : 0;
}

bool hub_pieces_take(hub_pieces *pieces, uint64_t *from, uint64_t *end)
{
    for (uint32_t i = pieces->whole; i < pieces->n; i++) {
        if (!pieces->taken[i] && pieces->got[i] < piece_bytes(pieces, i)) {
            pieces->taken[i] = true;
            *from = (uint64_t)i * HUB_PIECE_BYTES + pieces->got[i];
            *end = (uint64_t)i * HUB_PIECE_BYTES + piece_bytes(pieces, i);
            return true;
        }
    }
    return false;
}

void hub_pieces_give(hub_pieces *pieces, uint64_t at)
{
    pieces->taken[at / HUB_PIECE_BYTES] = false;
}

/* Notes in the book how many bytes of a piece are there. */
static bool note(hub_pieces *pieces, uint32_t piece, uint32_t got)
{
    if (got <= pieces->got[piece]) { /* a server without ranges sends known bytes again */
        return true;
    }
    pieces->there += got - pieces->got[piece];
    pieces->got[piece] = got;
    off_t at = (off_t)(sizeof(book_head) + piece * sizeof got);
    return pwrite(pieces->book_fd, &got, sizeof got, at) == (ssize_t)sizeof got;
}

bool hub_pieces_write(hub_pieces *pieces, uint64_t at, const char *bytes, size_t size)
{
    while (size > 0) {
        uint32_t piece = (uint32_t)(at / HUB_PIECE_BYTES);
        uint64_t room = (uint64_t)(piece + 1) * HUB_PIECE_BYTES - at;
        ssize_t n = pwrite(pieces->fd, bytes, size < room ? size : (size_t)room, (off_t)at);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0 || !note(pieces, piece, (uint32_t)(at % HUB_PIECE_BYTES + (uint64_t)n))) {
            pieces->error = errno != 0 ? errno : EIO;
            return false;
        }
        at += (uint64_t)n;
        bytes += n;
        size -= (size_t)n;
    }
    return true;
}

uint64_t hub_pieces_prefix(hub_pieces *pieces)
{
    while (pieces->whole < pieces->n &&
           pieces->got[pieces->whole] == piece_bytes(pieces, pieces->whole)) {
        pieces->whole++;
    }
    return pieces->whole == pieces->n
               ? pieces->size
               : (uint64_t)pieces->whole * HUB_PIECE_BYTES + pieces->got[pieces->whole];
}

int hub_pieces_finish(hub_pieces *pieces, const hub_cache *cache, const char *sum, bool right)
{
    char part[PATH_MAX], blob[PATH_MAX], book[PATH_MAX];
    if (!hub_cache_blob(part, sizeof part, cache, sum, PART) ||
        !hub_cache_blob(book, sizeof book, cache, sum, BOOK) ||
        !hub_cache_blob(blob, sizeof blob, cache, sum, "")) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: the path is too long", cache->repo);
    }
    if (!right) {
        unlink(part);
    } else if (fsync(pieces->fd) != 0 || rename(part, blob) != 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s cannot be written: %s", blob, strerror(errno));
    }
    unlink(book);
    return CLI_EXIT_OK;
}
