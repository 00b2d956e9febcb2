/* SPDX-License-Identifier: MIT */
/* Sources: the files of a range reader, and copies of them on other drives. A block is read from
 * the source that will deliver it soonest. That time is the bytes that the source must read first
 * and the block's own, over the source's measured speed. All parts of a split file count as one
 * drive. */
#ifndef MOE_OFFLOAD_READ_SOURCES_H
#define MOE_OFFLOAD_READ_SOURCES_H

#include <stdbool.h>
#include <stdint.h>

#include "offload/io/range_reader.h"

#define MOE_NO_SOURCE UINT32_MAX

typedef struct moe_read_source {
    uint64_t waiting_bytes; /* of the blocks that were given to it */
    uint32_t n_blocks;      /* given to it */
    uint64_t last_ns;       /* when it last answered, or was given a block after having none */
    /* Bytes that it has read lately, and the time for which it had blocks to read. */
    uint64_t bytes, busy_ns;
    uint32_t n_failed; /* blocks that it could not read */
    bool told_slow;
} moe_read_source;

typedef struct moe_read_sources {
    uint32_t n;
    uint32_t most_blocks; /* of one source */
    moe_read_source of[MOE_RANGE_COPIES + 1];
} moe_read_sources;

/* Chooses the source for a block of this size, except those whose bits are set in `failed`.
 * MOE_NO_SOURCE: the best one has no room now, or (if n bits are set) there is none. Sources that
 * have failed repeatedly come last. */
uint32_t moe_sources_choose(const moe_read_sources *sources, uint64_t bytes, uint32_t failed,
                            uint64_t now_ns);
/* give() notes that a source is given a block; the second, that the block has left it. */
void moe_sources_give(moe_read_sources *sources, uint32_t source, uint64_t bytes, uint64_t now_ns);
void moe_sources_take(moe_read_sources *sources, uint32_t source, uint64_t bytes);
/* Notes that a read that began at began_ns has delivered this many bytes. */
void moe_sources_note(moe_read_sources *sources, uint32_t source, uint64_t bytes, uint64_t began_ns,
                      uint64_t now_ns);
/* Counts a block that the source could not read. True if the source comes last from now on. */
bool moe_sources_blame(moe_read_sources *sources, uint32_t source);
/* Finds a source that answers much slower than another one, or not at all. Returns each once.
 * MOE_NO_SOURCE: there is none. */
uint32_t moe_sources_find_slow(moe_read_sources *sources, uint64_t now_ns);
/* Bytes a second; 0: not known. */
double moe_sources_speed(const moe_read_sources *sources, uint32_t source);

#endif
