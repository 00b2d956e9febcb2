/* SPDX-License-Identifier: MIT */
/* A panel: TILE_PANEL elements of 16 weight rows, unpacked to codes of 8 bits. The files for each
 * type unpack blocks into the panel, and the products of the matrix unit (tile_products_amx.c) read
 * it, without transposing it. A group is 256 elements of a row. A run is the 16 or 32 elements that
 * share a scale (matmul.h); the matrix unit multiplies one run of 16 weight rows, a tile, at a
 * time.
 *
 *     codes   of 64 elements of each row: two tiles side by side with runs of 32, four with runs
 *             of 16
 *     scales  one for each run of each row and group; minima likewise
 */
#ifndef MOE_X86_TILE_PRODUCTS_H
#define MOE_X86_TILE_PRODUCTS_H

#include "cpu/kernels/block_formats.h"
#include "cpu/kernels/matmul.h"

#include <stddef.h>
#include <stdint.h>

enum {
    TILE = 16,       /* weight rows of a tile, and activation rows */
    TILE_GROUPS = 8, /* groups of a weight row that are unpacked at a time */
    TILE_PANEL = TILE_GROUPS * MOE_GROUP
};

struct moe_weight_tiles {
    /* [quarter of a group][group]: all codes of a lane (matmul.h), which adds the same run of every
     * group, lie together. The formats' offsets are already subtracted. */
    _Alignas(64) int8_t codes[4][TILE_GROUPS][TILE][64];
    float scales[TILE_GROUPS][TILE][16];
    float mins[TILE_GROUPS][TILE][16];
};

/* moe_tile_products_fn. Each call sets up the tile registers at its begin and releases them at its
 * end, so that the operating system has no tile registers to save for idle threads. */
void moe_tile_products_amx(const moe_matmul_args *args, moe_unpack_tiles_fn unpack, void *scratch);

#endif
