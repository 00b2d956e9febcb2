/* SPDX-License-Identifier: MIT */
/* A part file: some ranges of another file, such as the experts that one worker computes. It reads
 * like the whole file, with the same size, and reads of other ranges fail with -ENODATA.
 *
 *    head | table of ranges | zeros | range | range | ...
 *
 * Ranges begin and end at multiples of MOE_PART_BLOCK, in both files, so that direct reads stay
 * direct. Only the last one may end with the whole file. */
#ifndef MOE_BASE_PART_SOURCE_H
#define MOE_BASE_PART_SOURCE_H

#include "runtime/base/byte_source.h"

#define MOE_PART_BLOCK 4096u

typedef struct moe_part_range {
    uint64_t from, size; /* in the whole file */
    uint64_t at;         /* in the part file; follows from the ranges before it */
} moe_part_range;

/* Rounds n > 0 ranges to blocks of a file of this size, sorts them, joins those that meet, and sets
 * their places. Returns how many are left. */
uint32_t moe_part_ranges_lay(moe_part_range *ranges, uint32_t n, uint64_t file_size);
/* Makes what stands before the first range; *n_bytes is where it begins. Free it with free().
 * NULL: memory is short. */
uint8_t *moe_part_head_make(const moe_part_range *ranges, uint32_t n, uint64_t file_size,
                            size_t *n_bytes);

/* How the head and the table of *source are read, so that a disk that hangs is not waited for.
 * MOE_OK: all bytes were read. */
typedef struct moe_part_reading {
    int (*read)(uint64_t offset, void *dst, size_t size, void *user, moe_error *err);
    void *user;
} moe_part_reading;

/* If *source is a part file, replaces it by a source that reads like the whole file, and has the
 * part file's name. Other sources stay as they are. Messages do not name the file. */
int moe_part_source_open(moe_byte_source **source, const moe_part_reading *reading, moe_error *err);
bool moe_part_source_is(const moe_byte_source *source);
/* Whether the bytes can be read. True for any range of a source that is no part file. */
bool moe_part_source_has(const moe_byte_source *source, uint64_t from, uint64_t size);

#endif
