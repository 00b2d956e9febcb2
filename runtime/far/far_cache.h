/* SPDX-License-Identifier: MIT */
/* The part of a far file that is on this drive. Two files in a folder:
 *
 *    NAME.gguf       as long as the far file; blocks that are not here are holes
 *    NAME.gguf.far   the book: a head (size, version of the far file), then a record for each block
 *
 * A block is written before its record. The record has the block's checksum and one of itself, and
 * the first read of a block in each process compares it; so a kill at any time, or a loss of power,
 * costs at most the blocks that were being written. A block that is damaged is fetched again.
 *
 *    absent -- fetch --> coming -- written --> here -- evict (a hole again) --> absent
 *                          \--- failed --> absent
 *
 * When all blocks are here, the whole is compared with the checksum that a hub names for the file.
 * If that is another one, the book is emptied, and nothing is read any more.
 *
 * If the limit is below the file's size, the block that was not used for longest leaves (by the
 * clock algorithm), and no other process may use the cache meanwhile. Else nothing ever leaves,
 * processes share the cache, and a thread fetches the rest while nobody waits for anything. */
#ifndef FAR_CACHE_H
#define FAR_CACHE_H

#include "far_origin.h"

enum {
    FAR_BLOCK_BYTES = 256 << 10,
    FAR_LEAST_BYTES = 16 << 20 /* beside the header, for what threads read at a time */
};

typedef struct far_cache far_cache;

typedef struct far_cache_counts {
    uint64_t bytes_here, bytes_limit;
    uint64_t n_evicted, n_damaged; /* blocks */
} far_cache_counts;

/* Opens the cache of this far file at `path`, whose folder is there, or begins it. limit: bytes.
 * origin must outlive the cache. Prints what is wrong; an exit code. */
int far_cache_open(far_cache **out, const char *path, far_origin *origin, uint64_t limit);
void far_cache_close(far_cache **cache);

/* Whether all of a far file is at `path`, and was written to the drive. Asks nobody. */
bool far_cache_has_all(const char *path);
const char *far_cache_path(const far_cache *cache);
/* Whether all of the file is here, and has been written to the drive. */
bool far_cache_is_whole(const far_cache *cache);

/* As pread() of the far file does: returns how many bytes it read, or -errno. Any thread. */
int64_t far_cache_read(far_cache *cache, void *dst, size_t size, uint64_t offset);
/* Fetches the first bytes, and keeps them whatever the limit is. 0 or an errno. */
int far_cache_need_head(far_cache *cache, uint64_t bytes);
/* Fetches one piece that is not here, unless someone waits for another one. Returns 0; 1: it is
 * all here; or an errno, for ever once the drive does not keep a block, or the whole is not what a
 * hub says (EBADMSG). Only if nothing is evicted. */
int far_cache_fill_more(far_cache *cache);
/* Whether the whole is not what a hub says. */
bool far_cache_is_spoilt(far_cache *cache);
/* The errno of a block that the drive did not keep; 0: it kept all. */
int far_cache_write_error(far_cache *cache);
/* Whether blocks leave again. */
bool far_cache_evicts(const far_cache *cache);
void far_cache_count(far_cache *cache, far_cache_counts *counts);

#endif
