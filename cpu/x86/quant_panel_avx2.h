/* SPDX-License-Identifier: MIT */
/* Products of many activation rows. Up to PANEL elements of PANEL_OUT weight rows are transposed
 * into a panel in the L1 cache, so that each lane of a register has four codes of one row. Four
 * activations are broadcast to every lane. So the sums of a run (the 16 or 32 elements that share a
 * scale) of eight outputs need no folding, and scales, minima and the reduction tree work on eight
 * outputs at once.
 *
 * A tile is TILE_PANELS panels by up to TILE_ROWS activation rows. The lanes of the contract are
 * computed one after the other, each with all of its runs. So registers hold a tile's accumulators
 * of only one lane.
 *
 * Subtracting the offset of unsigned codes costs nothing: sums start at -offset * sum(q). Signed
 * codes c (without VNNI, offset 128) are multiplied as |c|: with q where c >= 0, and with ~q = -q -
 * 1 where c < 0. To make up for this -1, the sums start at the sum of |c| over c < 0. */
#ifndef MOE_X86_QUANT_PANEL_AVX2_H
#define MOE_X86_QUANT_PANEL_AVX2_H

#include "cpu/x86/quant_rows_avx2.h"

enum {
    PANEL = 1024,            /* the most elements of a panel */
    PANEL_RUNS = PANEL / 16, /* the most runs of a panel */
    PANEL_OUT = 8,
    TILE_PANELS = 2,
    TILE_OUT = TILE_PANELS * PANEL_OUT,
    TILE_ROWS = 3,
    TILE = TILE_PANELS * TILE_ROWS, /* registers */
    ROW_BLOCK = 96,                 /* activation rows that share unpacked panels */
    MAX_LANES = 16
};

typedef struct weight_panel {
    _Alignas(64) uint8_t codes[PANEL / 4][PANEL_OUT][4];
    int32_t start[PANEL_RUNS][PANEL_OUT]; /* where sums start, for signed codes */
    float scales[PANEL_RUNS][PANEL_OUT];
    float mins[PANEL_RUNS][PANEL_OUT];
} weight_panel;

/* Activation rows of a tile. */
typedef struct x_tile {
    const int8_t *q[TILE_ROWS];
    _Alignas(32) int32_t start[TILE_ROWS][PANEL_RUNS]; /* -offset * sum */
    float d[TILE_ROWS][PANEL_RUNS];
    float dsum[TILE_ROWS][PANEL_RUNS];
} x_tile;

/* Accumulators of one activation row. */
typedef struct panel_sums {
    __m256 lane[MAX_LANES][TILE_PANELS];
} panel_sums;

MOE_INLINE __m256i two_halves(const uint8_t *low, const uint8_t *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
                                   _mm_loadu_si128((const __m128i *)high), 1);
}

/* Transposes a square of 8 by 8 words of 32 bits. The rows of `in` are in_stride bytes apart; the
 * columns are stored one after another. */
MOE_INLINE void transpose_8(const void *in, size_t in_stride, void *out)
{
    const uint8_t *rows = in;
    __m256i *columns = out;
    for (size_t half = 0; half < 2; half++, rows += 16) {
        __m256i v[4];
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            v[i] = two_halves(rows + i * in_stride, rows + (i + 4) * in_stride);
        }
        const __m256i low_01 = _mm256_unpacklo_epi32(v[0], v[1]);
        const __m256i low_23 = _mm256_unpacklo_epi32(v[2], v[3]);
        const __m256i high_01 = _mm256_unpackhi_epi32(v[0], v[1]);
        const __m256i high_23 = _mm256_unpackhi_epi32(v[2], v[3]);
        _mm256_store_si256(columns++, _mm256_unpacklo_epi64(low_01, low_23));
        _mm256_store_si256(columns++, _mm256_unpackhi_epi64(low_01, low_23));
        _mm256_store_si256(columns++, _mm256_unpacklo_epi64(high_01, high_23));
        _mm256_store_si256(columns++, _mm256_unpackhi_epi64(high_01, high_23));
    }
}

MOE_INLINE __m256i negative_bytes(__m256i bytes)
{
    return _mm256_cmpgt_epi8(_mm256_setzero_si256(), bytes);
}

/* For each weight row, the sum of the magnitudes of negative codes in a run of 4 n elements. */
MOE_INLINE __m256i negative_sums(const uint8_t codes[][PANEL_OUT][4], size_t n)
{
    __m256i words = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++) {
        const __m256i c = _mm256_load_si256((const __m256i *)codes[i]);
        const __m256i negative = _mm256_min_epi8(c, _mm256_setzero_si256());
        words = _mm256_add_epi16(words, _mm256_maddubs_epi16(_mm256_set1_epi8(1), negative));
    }
    return _mm256_madd_epi16(words, _mm256_set1_epi16(-1));
}

/* Unpacks n elements of PANEL_OUT weight rows: rows from o on, elements from k on (a multiple of
 * PANEL). Prefetches the same elements for the next tile. */
MOE_INLINE void unpack_panel(moe_dtype type, vnni_dot dot, const moe_matmul_args *args, uint32_t o,
                             uint32_t k, uint32_t n, weight_panel *panel)
{
    const quant_type t = quant_type_of(type);
    const size_t group_bytes = group_bytes_of(type);
    const uint32_t lanes = MOE_GROUP / t.run;
    _Alignas(32) uint8_t codes[8][PANEL_OUT][32];
    group_scales scales[PANEL_OUT];
    group_copy copy;
    for (uint32_t g = 0; g * MOE_GROUP < n; g++) {
        for (uint32_t i = 0; i < PANEL_OUT; i++) {
            const uint8_t *group = weight_row(args, o + i) + (k / MOE_GROUP + g) * group_bytes;
            prefetch_group(type, group, TILE_OUT * args->row_bytes);
            group = whole_group(type, group, n - g * MOE_GROUP, &copy);
            scales[i] = scales_of_group(type, group);
#pragma GCC unroll 8
            for (int e = 0; e < 8; e++) {
                _mm256_store_si256((__m256i *)codes[e][i],
                                   codes_of_group(type, group, e, codes_are_signed(type, dot)));
            }
        }
        for (uint32_t e = 0; e < 8; e++) {
            transpose_8(codes[e], 32, panel->codes[64 * g + 8 * e]);
        }
        for (uint32_t j = 0; codes_are_signed(type, dot) && j < lanes; j++) {
            const size_t first = 64 * g + t.run / 4 * j;
            _mm256_store_si256((__m256i *)panel->start[lanes * g + j],
                               negative_sums(panel->codes + first, t.run / 4));
        }
        for (uint32_t half = 0; half < lanes / 8; half++) {
            const uint32_t run = lanes * g + 8 * half;
            transpose_8(&scales[0].scales[half], sizeof scales[0], panel->scales[run]);
            if (t.has_mins) {
                transpose_8(&scales[0].mins[half], sizeof scales[0], panel->mins[run]);
            }
        }
    }
}

/* Loads the tile's scales and sums of each run, for n elements. */
MOE_INLINE void load_tile(moe_dtype type, vnni_dot dot, const x_row *x, uint32_t r, uint32_t n,
                          x_tile *tile)
{
    const quant_type t = quant_type_of(type);
    tile->q[r] = x->q;
    for (uint32_t j = 0; j < n / t.run; j += 8) {
        if (has_offset(type, dot)) {
            const __m256i sum = _mm256_loadu_si256((const __m256i *)(x->sum + j));
            const __m256i offset = _mm256_slli_epi32(sum, t.offset_shift);
            _mm256_store_si256((__m256i *)&tile->start[r][j],
                               _mm256_sub_epi32(_mm256_setzero_si256(), offset));
        }
        if (t.has_mins) {
            _mm256_store_ps(&tile->dsum[r][j], _mm256_loadu_ps(x->dsum + j));
        }
        __m256 d;
        if (t.run == 32) {
            d = _mm256_loadu_ps(x->d + j);
        } else {
            const __m256 four = _mm256_castps128_ps256(_mm_loadu_ps(x->d + j / 2));
            d = _mm256_permutevar8x32_ps(four, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
        }
        _mm256_store_ps(&tile->d[r][j], d);
    }
}

MOE_INLINE __m256i broadcast_4(const int8_t *q)
{
    int32_t word;
    memcpy(&word, q, 4);
    return _mm256_set1_epi32(word);
}

/* Returns the value unchanged, but keeps compilers from reordering sums: they would make a tree of
 * additions, which needs more registers than there are. */
MOE_INLINE __m256i in_order(__m256i value)
{
    __asm__("" : "+x"(value));
    return value;
}

/* Adds run j of the panels to sums[row * TILE_PANELS + panel]. */
MOE_INLINE void add_run_sums(moe_dtype type, vnni_dot dot, const weight_panel *panels,
                             const x_tile *x, int n_rows, size_t j, __m256i *sums)
{
    const int words = (int)quant_type_of(type).run / 4;
    const int most = products_in_16_bits(type, dot);
    const int fits = most >= 16 ? 8 : most >= 8 ? 4 : most >= 4 ? 2 : 1;
    const int step = dot != NULL ? 1 : fits < words ? fits : words;
    const size_t first = j * (size_t)words;
#pragma GCC unroll 8
    for (int m = 0; m < words; m += step) {
        __m256i pairs[TILE];
#pragma GCC unroll 8
        for (int s = 0; s < step; s++) {
            const size_t at = first + (size_t)(m + s);
            __m256i codes[TILE_PANELS], sign[TILE_PANELS];
#pragma GCC unroll 2
            for (int p = 0; p < TILE_PANELS; p++) {
                codes[p] = _mm256_load_si256((const __m256i *)panels[p].codes[at]);
                if (codes_are_signed(type, dot)) {
                    sign[p] = negative_bytes(codes[p]);
                    codes[p] = _mm256_abs_epi8(codes[p]);
                }
            }
#pragma GCC unroll 3
            for (int r = 0; r < n_rows; r++) {
                const __m256i q = broadcast_4(x->q[r] + 4 * at);
#pragma GCC unroll 2
                for (int p = 0; p < TILE_PANELS; p++) {
                    const int i = r * TILE_PANELS + p;
                    if (dot != NULL) {
                        sums[i] = dot(sums[i], codes[p], q);
                        continue;
                    }
                    const __m256i signed_q =
                        codes_are_signed(type, dot) ? _mm256_xor_si256(q, sign[p]) : q;
                    const __m256i products = _mm256_maddubs_epi16(codes[p], signed_q);
                    pairs[i] = s == 0 ? products : in_order(_mm256_add_epi16(pairs[i], products));
                }
            }
        }
        if (dot != NULL) {
            continue;
        }
#pragma GCC unroll 6
        for (int i = 0; i < n_rows * TILE_PANELS; i++) {
            sums[i] = in_order(_mm256_add_epi32(sums[i], pairs_of_words(pairs[i])));
        }
    }
}

/* Computes lane number `lane` of the contract. It has every run whose number, modulo the number of
 * lanes, is `lane`. */
MOE_INLINE void tile_lane(moe_dtype type, vnni_dot dot, const weight_panel *panels, const x_tile *x,
                          int n_rows, uint32_t n_runs, uint32_t lane, uint32_t r,
                          panel_sums *sums_of_rows)
{
    const quant_type t = quant_type_of(type);
    __m256 acc[TILE];
#pragma GCC unroll 6
    for (int i = 0; i < n_rows * TILE_PANELS; i++) {
        acc[i] = sums_of_rows[r + (uint32_t)i / TILE_PANELS].lane[lane][i % TILE_PANELS];
    }
    for (size_t j = lane; j < n_runs; j += MOE_GROUP / t.run) {
        __m256i sums[TILE];
#pragma GCC unroll 6
        for (int i = 0; i < n_rows * TILE_PANELS; i++) {
            sums[i] = _mm256_setzero_si256();
            if (has_offset(type, dot)) {
                sums[i] = _mm256_set1_epi32(x->start[i / TILE_PANELS][j]);
            } else if (codes_are_signed(type, dot)) {
                sums[i] = _mm256_load_si256((const __m256i *)panels[i % TILE_PANELS].start[j]);
            }
        }
        add_run_sums(type, dot, panels, x, n_rows, j, sums);
#pragma GCC unroll 6
        for (int i = 0; i < n_rows * TILE_PANELS; i++) {
            const weight_panel *panel = &panels[i % TILE_PANELS];
            const __m256 d = _mm256_set1_ps(x->d[i / TILE_PANELS][j]);
            acc[i] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(panel->scales[j]), d),
                                     _mm256_cvtepi32_ps(sums[i]), acc[i]);
            if (t.has_mins) {
                acc[i] = _mm256_fmadd_ps(_mm256_load_ps(panel->mins[j]),
                                         _mm256_set1_ps(x->dsum[i / TILE_PANELS][j]), acc[i]);
            }
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < n_rows * TILE_PANELS; i++) {
        sums_of_rows[r + (uint32_t)i / TILE_PANELS].lane[lane][i % TILE_PANELS] = acc[i];
    }
}

/* Computes all lanes of a tile: rows from r on of the panels' sums. */
MOE_INLINE void tile_lanes(moe_dtype type, vnni_dot dot, const weight_panel *panels,
                           const x_tile *x, int n_rows, uint32_t n, uint32_t r, panel_sums *sums)
{
    const quant_type t = quant_type_of(type);
    for (uint32_t lane = 0; lane < MOE_GROUP / t.run; lane++) {
        tile_lane(type, dot, panels, x, n_rows, n / t.run, lane, r, sums);
    }
}

/* Adds the lanes up by the contract's tree, in place. */
MOE_INLINE __m256 reduce_lanes(__m256 *lanes, uint32_t n_lanes)
{
    for (uint32_t h = n_lanes / 2; h > 0; h /= 2) {
        for (uint32_t l = 0; l < h; l++) {
            lanes[l] = _mm256_add_ps(lanes[l], lanes[l + h]);
        }
    }
    return lanes[0];
}

MOE_INLINE void store_eight(float *out, __m256 sums, uint32_t n)
{
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(out, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), index), sums);
}

/* Multiplies n elements of panels, from the weight rows' k-th on, with n_rows activation rows from
 * r0 on. */
MOE_INLINE void panel_rows(moe_dtype type, vnni_dot dot, const moe_matmul_args *args,
                           const weight_panel *panels, uint32_t r0, uint32_t n_rows, uint32_t k,
                           uint32_t n, panel_sums *sums)
{
    x_tile x;
    uint32_t n_tile;
    for (uint32_t r = 0; r < n_rows; r += n_tile) {
        const uint32_t left = n_rows - r;
        n_tile = left == TILE_ROWS + 1 ? 2 : left < TILE_ROWS ? left : TILE_ROWS; /* not 3 + 1 */
        for (uint32_t i = 0; i < n_tile; i++) {
            const x_row row = x_row_of(args, r0 + r + i, k, quant_type_of(type).run);
            load_tile(type, dot, &row, i, n, &x);
        }
        if (n_tile == 1) {
            tile_lanes(type, dot, panels, &x, 1, n, r, sums);
        } else if (n_tile == 2) {
            tile_lanes(type, dot, panels, &x, 2, n, r, sums);
        } else {
            tile_lanes(type, dot, panels, &x, TILE_ROWS, n, r, sums);
        }
    }
}

/* Computes TILE_OUT outputs from o on, of up to ROW_BLOCK activation rows from r0 on. */
MOE_INLINE void panel_tiles(moe_dtype type, vnni_dot dot, const moe_matmul_args *args, uint32_t o,
                            uint32_t r0)
{
    const uint32_t n_lanes = MOE_GROUP / quant_type_of(type).run;
    const uint32_t n_rows = args->n_rows - r0 < ROW_BLOCK ? args->n_rows - r0 : ROW_BLOCK;
    weight_panel panels[TILE_PANELS];
    panel_sums sums[ROW_BLOCK];
    for (uint32_t r = 0; r < n_rows; r++) {
        memset(sums[r].lane, 0, n_lanes * sizeof sums[r].lane[0]);
    }
    for (uint32_t k = 0; k < args->n_in; k += PANEL) {
        const uint32_t n = args->n_in - k < PANEL ? args->n_in - k : PANEL;
        for (uint32_t p = 0; p < TILE_PANELS; p++) {
            unpack_panel(type, dot, args, o + p * PANEL_OUT, k, n, &panels[p]);
        }
        panel_rows(type, dot, args, panels, r0, n_rows, k, n, sums);
    }
    for (uint32_t p = 0; p < TILE_PANELS && o + p * PANEL_OUT < args->n_out; p++) {
        const uint32_t first = o + p * PANEL_OUT;
        for (uint32_t r = 0; r < n_rows; r++) {
            __m256 lanes[MAX_LANES];
            for (uint32_t l = 0; l < n_lanes; l++) {
                lanes[l] = sums[r].lane[l][p];
            }
            store_eight(out_row(args, r0 + r) + first, reduce_lanes(lanes, n_lanes),
                        args->n_out - first);
        }
    }
}

#endif
