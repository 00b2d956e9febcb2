/* SPDX-License-Identifier: MIT */
/* A panel of weights as codes of 8 bits. The files for each type unpack blocks into it, and the
 * products of the matrix unit (tile_products_amx.c) read it, without transposing it.
 *
 *     codes   16 weight rows with 64 elements each: with runs of 32, two tiles side by side
 *     scales  of each group and row, by run; minima in the same order
 */
#ifndef MOE_X86_TILE_PRODUCTS_H
#define MOE_X86_TILE_PRODUCTS_H

#include "cpu/kernels/block_formats.h"
#include "cpu/kernels/matmul.h"

#include <stddef.h>
#include <stdint.h>

enum {
    TILE = 16,       /* weight rows of a tile, and activation rows */
    TILE_GROUPS = 8, /* of 256 elements of a weight row that are unpacked at a time */
    TILE_PANEL = TILE_GROUPS * MOE_GROUP
};

struct moe_weight_tiles {
    /* [quarter of a group][group]: all codes that a lane needs lie together. Offsets are already
     * subtracted. */
    _Alignas(64) int8_t codes[4][TILE_GROUPS][TILE][64];
    float scales[TILE_GROUPS][TILE][16];
    float mins[TILE_GROUPS][TILE][16];
};

/* moe_tile_products_fn. Each call sets up the tile registers at its begin and releases them at its
 * end, so that the operating system has no tile registers to save for idle threads. */
void moe_tile_products_amx(const moe_matmul_args *args, moe_unpack_tiles_fn unpack, void *scratch);

#endif
