/* SPDX-License-Identifier: MIT */
/* Sources: the files of a range reader, and copies of them on other drives. A block is read from
 * the source that will deliver it soonest. That time is estimated as the bytes that the source must
 * read first, plus the block's own, divided by the source's measured speed. All parts of a split
 * file count as one drive. */
#ifndef MOE_OFFLOAD_READ_SOURCES_H
#define MOE_OFFLOAD_READ_SOURCES_H

#include <stdbool.h>
#include <stdint.h>

#include "offload/io/range_reader.h"

#define MOE_NO_SOURCE UINT32_MAX

typedef struct moe_read_source {
    uint64_t waiting_bytes; /* bytes of the blocks that it has been given and not delivered */
    uint32_t n_blocks;      /* the number of these blocks */
    uint64_t last_ns;       /* when it last answered, or got its first block after having none */
    /* The bytes that it has read lately, and the time during which it had blocks to read. */
    uint64_t bytes, busy_ns;
    uint32_t n_failed; /* blocks that it could not read */
    bool told_slow;
} moe_read_source;

typedef struct moe_read_sources {
    uint32_t n;
    uint32_t most_blocks; /* most blocks that one source may have */
    moe_read_source of[MOE_RANGE_COPIES + 1];
} moe_read_sources;

/* Chooses the source for a block of this size, except those whose bits are set in `failed`. Sources
 * that have failed repeatedly come last. MOE_NO_SOURCE: the best source has no room now, or all
 * sources are in `failed`. */
uint32_t moe_sources_choose(const moe_read_sources *sources, uint64_t bytes, uint32_t failed,
                            uint64_t now_ns);
/* The first notes that a source is given a block; the second, that the block has left it. */
void moe_sources_give(moe_read_sources *sources, uint32_t source, uint64_t bytes, uint64_t now_ns);
void moe_sources_take(moe_read_sources *sources, uint32_t source, uint64_t bytes);
/* Notes that a read that began at began_ns has delivered this many bytes. */
void moe_sources_note(moe_read_sources *sources, uint32_t source, uint64_t bytes, uint64_t began_ns,
                      uint64_t now_ns);
/* Counts a block that the source could not read. True if the source is chosen last from now on. */
bool moe_sources_blame(moe_read_sources *sources, uint32_t source);
/* Finds a source that answers much slower than another one, or not at all. Returns each such source
 * once. MOE_NO_SOURCE: there is none. */
uint32_t moe_sources_find_slow(moe_read_sources *sources, uint64_t now_ns);
/* The source's speed in bytes a second; 0: not known. */
double moe_sources_speed(const moe_read_sources *sources, uint32_t source);

#endif
