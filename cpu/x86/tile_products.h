/* SPDX-License-Identifier: MIT */
/* What the products of the matrix unit (tile_products_amx.c) share with the files that take each
 * type's blocks apart: a panel of weights as codes of 8 bits, which need no transposition.
 *
 *     codes   16 weight rows, each 64 elements in a line: with runs of 32 two tiles side by side
 *     scales  of each group and row, by run; minima likewise
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
    /* Of each quarter of a group, the groups: what a lane needs lies together. Offsets are
     * subtracted. */
    _Alignas(64) int8_t codes[4][TILE_GROUPS][TILE][64];
    float scales[TILE_GROUPS][TILE][16];
    float mins[TILE_GROUPS][TILE][16];
};

/* moe_tile_products_fn. Each thread sets up the tile registers when it begins and releases them
 * when it is done, so that the operating system has none to save for threads that rest. */
void moe_tile_products_amx(const moe_matmul_args *args, moe_unpack_tiles_fn unpack, void *scratch);

#endif
