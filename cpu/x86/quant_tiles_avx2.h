/* SPDX-License-Identifier: MIT */
/* Products of quantised weights on 256-bit registers, for AVX2 and for AVX-VNNI. Few activation
 * rows use quant_direct_avx2.h, which folds the sums of each row. More rows use
 * quant_turned_avx2.h, which transposes codes in registers, so that little folding is left. Many
 * rows use quant_panel_avx2.h, which transposes weights in the cache, so that nothing is folded.
 *
 * In all three ways the sum of a run (the 16 or 32 elements that share a scale) is an exact integer
 * and every lane adds its runs in order, so the bits are equal. Tiles that extend beyond the last
 * weight row repeat that row and do not store the repeated outputs. If the row ends within a group,
 * a copy of the group is multiplied whose further blocks change nothing. */
#ifndef MOE_X86_QUANT_TILES_AVX2_H
#define MOE_X86_QUANT_TILES_AVX2_H

#include "cpu/x86/quant_direct_avx2.h"
#include "cpu/x86/quant_panel_avx2.h"
#include "cpu/x86/quant_turned_avx2.h"

MOE_INLINE void direct_tile(moe_dtype type, vnni_dot dot, const moe_matmul_args *args, uint32_t o)
{
    if (args->n_rows == 1) {
        direct_rows(type, dot, args, o, 1);
    } else if (args->n_rows == 2) {
        direct_rows(type, dot, args, o, 2);
    } else if (args->n_rows == 3) {
        direct_rows(type, dot, args, o, 3);
    } else if (args->n_rows == 4 && dot == NULL) {
        direct_rows(type, dot, args, o, 4);
    }
}

/* Four rows do not fit the registers together, but with AVX2 alone turned tiles are slower still.
 */
MOE_INLINE bool is_direct(vnni_dot dot, const moe_matmul_args *args)
{
    return args->n_rows < MAX_DIRECT_ROWS || (args->n_rows == MAX_DIRECT_ROWS && dot == NULL);
}

MOE_INLINE void matmul(moe_dtype type, vnni_dot dot, const moe_matmul_args *args)
{
    if (is_direct(dot, args)) {
        for (uint32_t o = 0; o < args->n_out; o += DIRECT_OUT) {
            direct_tile(type, dot, args, o);
        }
        return;
    }
    if (args->n_rows <= MAX_TURNED_ROWS) {
        for (uint32_t o = 0; o < args->n_out; o += TURNED_OUT) {
            turned_tile(type, dot, args, o);
        }
        return;
    }
    for (uint32_t o = 0; o < args->n_out; o += TILE_OUT) {
        for (uint32_t r = 0; r < args->n_rows; r += ROW_BLOCK) {
            panel_tiles(type, dot, args, o, r);
        }
    }
}

#endif
