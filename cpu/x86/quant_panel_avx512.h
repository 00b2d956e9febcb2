/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with many activation rows, AVX-512 VNNI.
 *
 * Up to PANEL elements of 16 weight rows are unpacked into a panel in the L1 cache, transposed: a
 * register has four neighbouring codes of each of the 16 rows. One instruction then multiplies four
 * broadcast activations with all of these codes, and the sum of a run (the 16 or 32 elements that
 * share a scale) needs no folding. A tile is two panels side by side by TILE_ROWS activation rows.
 * It has an integer accumulator and a float accumulator for each panel and row.
 *
 *    for each panel    (k)    for each tile of rows    for each lane of the contract
 *        for each run of the lane:  integer sums  ->  one multiplication, one fmaf
 *
 * A lane's float sums are kept in memory between panels. */
#ifndef MOE_X86_QUANT_PANEL_AVX512_H
#define MOE_X86_QUANT_PANEL_AVX512_H

#include "cpu/x86/quant_lanes_avx512.h"
#include "cpu/x86/quant_unpack_avx512.h"
#include "cpu/x86/transpose_avx512.h"

enum {
    PANEL_OUT = 16,
    MAX_PANELS = 2,    /* side by side */
    PANEL = 1024,      /* the most elements of a panel */
    ROWS_X_LANES = 512 /* lanes of all activation rows that share an unpacked panel */
};

typedef struct weight_panel {
    _Alignas(64) uint8_t codes[PANEL / 4][PANEL_OUT][4];
    float scales[PANEL / 16][PANEL_OUT]; /* by run */
    float mins[PANEL / 16][PANEL_OUT];
} weight_panel;

typedef struct panel_sums {
    __m512 acc[MAX_PANELS][ROWS_X_LANES]; /* [row][lane] */
} panel_sums;

/* ---- Unpacking ---- */

/* Unpacks group g of the panel from the rows' groups. */
MOE_INLINE void unpack_group(moe_dtype type, weight_panel *panel, size_t g,
                             const uint8_t *const *groups)
{
    const quant_type t = quant_type_of(type);
    const int lanes = (int)(MOE_GROUP / t.run);
    __m512i scales[PANEL_OUT], mins[PANEL_OUT], codes[4][PANEL_OUT];
#pragma GCC unroll 1
    for (int i = 0; i < PANEL_OUT; i++) {
        const group_state state = begin_group(type, groups[i]);
        scales[i] = _mm512_castps_si512(state.scales);
        mins[i] = _mm512_castps_si512(state.mins);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            codes[c][i] = codes_of_chunk(type, groups[i], &state.points, c);
        }
    }
    store_columns(panel->scales[g * (size_t)lanes], scales, lanes);
    if (t.has_mins) {
        store_columns(panel->mins[g * (size_t)lanes], mins, lanes);
    }
    for (size_t c = 0; c < 4; c++) {
        store_columns(panel->codes[64 * g + 16 * c], codes[c], 16);
    }
}

/* Unpacks n elements, from element k on, of 16 weight rows from row o on. */
MOE_INLINE void unpack_panel(moe_dtype type, const moe_matmul_args *args, weight_panel *panel,
                             uint32_t o, uint32_t k, uint32_t n)
{
    for (size_t g = 0; g * MOE_GROUP < n; g++) {
        const uint8_t *groups[PANEL_OUT];
        group_copy copies[PANEL_OUT];
        for (uint32_t i = 0; i < PANEL_OUT; i++) {
            const uint8_t *row = weight_row(args, o + i);
            groups[i] = whole_group(type, row + (k / MOE_GROUP + g) * group_bytes_of(type),
                                    args->n_in - k - (uint32_t)g * MOE_GROUP, &copies[i]);
        }
        unpack_group(type, panel, g, groups);
    }
}

/* ---- Products ---- */

/* A block of activation rows from row r0 on, with their elements k .. k + n - 1. */
typedef struct row_block {
    uint32_t r0, n_rows;
    uint32_t k, n;
    const char *next; /* the weights of the next panels: `bytes` of each of n_next rows */
    uint32_t next_bytes, n_next;
} row_block;

/* Adds the block's products with n_panels panels to sums; if k is 0, sets them. */
void moe_panel_rows_avx512(const moe_matmul_args *args, const weight_panel *const *panels,
                           int n_panels, const row_block *block, panel_sums *sums);

MOE_INLINE void store_sums(quant_type t, const moe_matmul_args *args, uint32_t o, int n_panels,
                           const row_block *block, const panel_sums *sums)
{
    const uint32_t lanes = MOE_GROUP / t.run;
    for (uint32_t p = 0; p < (uint32_t)n_panels; p++) {
        const uint32_t first = o + p * PANEL_OUT;
        const uint32_t n_valid = args->n_out - first < PANEL_OUT ? args->n_out - first : PANEL_OUT;
        const __mmask16 valid = (__mmask16)((1u << n_valid) - 1);
        for (uint32_t r = 0; r < block->n_rows; r++) {
            _mm512_mask_storeu_ps(out_row(args, block->r0 + r) + first, valid,
                                  reduce_lanes(&sums->acc[p][r * lanes], lanes));
        }
    }
}

/* Finds the weights that are needed after element k of the weight rows from o on: in the same rows,
 * or in the next. */
MOE_INLINE void find_next(moe_dtype type, const moe_matmul_args *args, uint32_t o, row_block *block)
{
    const quant_type t = quant_type_of(type);
    const uint32_t n_rows = MAX_PANELS * PANEL_OUT;
    const uint32_t k = block->k + PANEL;
    const bool is_last = k >= args->n_in;
    const uint32_t first = is_last ? o + n_rows : o;
    const uint32_t from = is_last ? 0 : k;
    const uint32_t n = args->n_in - from < PANEL ? args->n_in - from : PANEL;
    block->n_next = first >= args->n_out           ? 0
                    : args->n_out - first < n_rows ? args->n_out - first
                                                   : n_rows;
    block->next =
        (const char *)weight_row(args, first) + (size_t)from / t.block_elems * t.block_bytes;
    block->next_bytes = n / t.block_elems * t.block_bytes;
}

/* Multiplies all activation rows with the weight rows from o on that make one or two panels. */
MOE_INLINE void panel_tiles(moe_dtype type, const moe_matmul_args *args, uint32_t o)
{
    const int n_panels = args->n_out - o > PANEL_OUT ? 2 : 1;
    const quant_type t = quant_type_of(type);
    const uint32_t max_rows = ROWS_X_LANES / (MOE_GROUP / t.run);
    weight_panel memory[MAX_PANELS];
    const weight_panel *const panels[MAX_PANELS] = {&memory[0], &memory[1]};
    panel_sums sums;
    for (uint32_t r = 0; r < args->n_rows; r += max_rows) {
        row_block block = {.r0 = r};
        block.n_rows = args->n_rows - r < max_rows ? args->n_rows - r : max_rows;
        for (block.k = 0; block.k < args->n_in; block.k += PANEL) {
            block.n = args->n_in - block.k < PANEL ? args->n_in - block.k : PANEL;
            for (int p = 0; p < n_panels; p++) {
                unpack_panel(type, args, &memory[p], o + (uint32_t)p * PANEL_OUT, block.k, block.n);
            }
            find_next(type, args, o, &block);
            moe_panel_rows_avx512(args, panels, n_panels, &block, &sums);
        }
        store_sums(t, args, o, n_panels, &block, &sums);
    }
}

#endif
