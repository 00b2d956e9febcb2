/* SPDX-License-Identifier: MIT */
/* Sources: the files of a range reader, and copies of them on other drives. A block is read from
 * the source that will have it soonest: the bytes that the source has to read first, and the
 * block's own, by the speed that was measured. All parts of a split file count as one drive. */
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
    /* What it has read lately, and in what time while it had blocks. */
    uint64_t bytes, busy_ns;
    uint32_t n_failed; /* blocks that it could not read */
    bool told_slow;
} moe_read_source;

typedef struct moe_read_sources {
    uint32_t n;
    uint32_t most_blocks; /* of one source */
    moe_read_source of[MOE_RANGE_COPIES + 1];
} moe_read_sources;

/* The source for a block of so many bytes, other than those whose bits are set in `failed`.
 * MOE_NO_SOURCE: the best one has no room now, or (if n bits are set) there is none. Sources that
 * have failed repeatedly are taken last. */
uint32_t moe_sources_choose(const moe_read_sources *sources, uint64_t bytes, uint32_t failed,
                            uint64_t now_ns);
/* A source is given a block, and is rid of it. */
void moe_sources_give(moe_read_sources *sources, uint32_t source, uint64_t bytes, uint64_t now_ns);
void moe_sources_take(moe_read_sources *sources, uint32_t source, uint64_t bytes);
/* A read that began at began_ns brought so many bytes. */
void moe_sources_note(moe_read_sources *sources, uint32_t source, uint64_t bytes, uint64_t began_ns,
                      uint64_t now_ns);
/* Counts a block that the source could not read. True if it is now taken last. */
bool moe_sources_blame(moe_read_sources *sources, uint32_t source);
/* A source that answers much slower than another one, or not at all; each is returned once.
 * MOE_NO_SOURCE: none. */
uint32_t moe_sources_find_slow(moe_read_sources *sources, uint64_t now_ns);
/* Bytes a second; 0: not known. */
double moe_sources_speed(const moe_read_sources *sources, uint32_t source);

#endif
