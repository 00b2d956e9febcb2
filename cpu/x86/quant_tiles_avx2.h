/* SPDX-License-Identifier: MIT */
/* Products of quantised weights on 256-bit registers, for AVX2 and for AVX-VNNI, which differ in
 * one step: `dot`, sums of four products of codes and activations, added to `start`.
 *
 * Lanes 0..7 of the contract take the even runs of 32 elements and lanes 8..15 the odd ones, so an
 * output has two registers of accumulators.
 *
 *   few rows    blocks are unpacked into registers and used at once, row by row
 *   many rows   TILE_OUT weight rows of up to PANEL elements are unpacked into a panel in the L1
 *               cache, which all activation rows then go over, first for lanes 0..7, then for
 *               8..15: half the accumulators, so that twice the tile fits 16 registers
 *
 * A tile that hangs over the last weight row repeats that row and does not store it. */
#ifndef MOE_X86_QUANT_TILES_AVX2_H
#define MOE_X86_QUANT_TILES_AVX2_H

#include "cpu/x86/matmul_x86.h"
#include "cpu/x86/quant_unpack_avx2.h"
#include "cpu/x86/reduce_avx2.h"

#include <stdbool.h>

enum {
    TILE_OUT = 4,
    TILE_ROWS = 2,
    MAX_DIRECT_ROWS = 2, /* as many rows need no panel */
    PANEL = 1024,        /* elements */
    ROW_BLOCK = 32,      /* activation rows that share an unpacked panel */
    PREFETCH_BYTES = 4096
};

/* How codes are multiplied; inlined with constants. */
typedef struct dot_kind {
    int has_vnni; /* any unsigned code will do */
    __m256i (*dot)(__m256i start, __m256i codes, __m256i q);
    __m256i (*dot_signed)(__m256i start, __m256i codes, __m256i q); /* without VNNI */
} dot_kind;

/* One activation row from element k (a multiple of 256) on. */
typedef struct x_row {
    const int8_t *q;
    const float *d;
    const int32_t *sum4;
    const float *dsum16;
    const float *dsum32;
} x_row;

typedef struct x_half {
    __m256i q;
    __m256i start; /* -offset * sum4 */
    __m256 d;
} x_half;

static x_row x_row_of(const moe_matmul_args *args, uint32_t r, uint32_t k)
{
    const moe_q8_rows *x = args->x_q8;
    const size_t row = args->x_index != NULL ? args->x_index[r] : r;
    const size_t at = row * x->n_in_padded + k;
    return (x_row){x->q + at, x->d + at / 32, x->sum4 + at / 4, x->dsum16 + at / 16,
                   x->dsum32 + at / 32};
}

static float *out_row(const moe_matmul_args *args, uint32_t r)
{
    return args->out + (args->out_index != NULL ? args->out_index[r] : r) * args->out_stride;
}

MOE_INLINE int codes_are_signed(dot_kind kind, int offset_shift)
{
    return !kind.has_vnni && offset_shift == 7;
}

/* The e-th run of 32 elements. */
MOE_INLINE x_half load_half(dot_kind kind, const x_row *x, size_t e, int offset_shift)
{
    x_half half;
    half.q = _mm256_loadu_si256((const __m256i *)(x->q + 32 * e));
    half.start = _mm256_setzero_si256();
    if (offset_shift >= 0 && !codes_are_signed(kind, offset_shift)) {
        const __m256i sum4 = _mm256_loadu_si256((const __m256i *)(x->sum4 + 8 * e));
        half.start = _mm256_sub_epi32(half.start, _mm256_slli_epi32(sum4, offset_shift));
    }
    half.d = _mm256_broadcast_ss(&x->d[e]);
    return half;
}

MOE_INLINE __m256 add_products(dot_kind kind, int offset_shift, __m256 acc, half_weights w,
                               x_half x)
{
    const __m256i sums = codes_are_signed(kind, offset_shift)
                             ? kind.dot_signed(x.start, w.codes, x.q)
                             : kind.dot(x.start, w.codes, x.q);
    return _mm256_fmadd_ps(_mm256_mul_ps(w.scale, x.d), _mm256_cvtepi32_ps(sums), acc);
}

/* The minima of group g, counted from where x starts. */
MOE_INLINE void add_minima(lanes_avx2 *acc, const float *mins, const x_row *x, size_t g,
                           uint32_t min_sub)
{
    const float *dsum = min_sub == 16 ? x->dsum16 + 16 * g : x->dsum32 + 8 * g;
    acc->half[0] = _mm256_fmadd_ps(_mm256_loadu_ps(mins), _mm256_loadu_ps(dsum), acc->half[0]);
    if (min_sub == 16) {
        acc->half[1] =
            _mm256_fmadd_ps(_mm256_loadu_ps(mins + 8), _mm256_loadu_ps(dsum + 8), acc->half[1]);
    }
}

static void store_outputs(const moe_matmul_args *args, uint32_t o, uint32_t r,
                          const lanes_avx2 *acc, const lanes_avx2 *min_acc)
{
    const uint32_t n_valid = args->n_out - o < TILE_OUT ? args->n_out - o : TILE_OUT;
    __m128 sums = reduce_4(acc);
    if (quant_type_of(args->type).min_sub != 0) {
        sums = _mm_add_ps(sums, reduce_4(min_acc));
    }
    store_first(out_row(args, r) + o, sums, n_valid);
}

static const uint8_t *weight_row(const moe_matmul_args *args, uint32_t o)
{
    const uint32_t row = o < args->n_out ? o : args->n_out - 1;
    return (const uint8_t *)args->weights + row * args->row_bytes;
}

/* ---- Few rows ---- */

/* Run e of 32 elements of the row, which is run e_of_group of the groups of `state`. */
MOE_INLINE void direct_half(moe_dtype type, dot_kind kind, const uint8_t *const *weights,
                            const x_row *x, size_t e, const group_state *state, int e_of_group,
                            int lanes, lanes_avx2 *acc)
{
    const quant_type t = quant_type_of(type);
    const x_half half = load_half(kind, x, e, t.offset_shift);
#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++) {
        const uint8_t *blocks = weights[i] + e / (t.block_elems / 32) * t.block_bytes;
        const half_weights w = unpack_half(type, blocks, &state[i], e_of_group,
                                           codes_are_signed(kind, t.offset_shift));
        acc[i].half[lanes] = add_products(kind, t.offset_shift, acc[i].half[lanes], w, half);
    }
}

/* Asks for what is `prefetch` bytes behind group g of each row. */
MOE_INLINE void prefetch_group(moe_dtype type, const uint8_t *const *weights, size_t g,
                               size_t prefetch)
{
    const quant_type t = quant_type_of(type);
    const size_t group_bytes = MOE_GROUP / t.block_elems * t.block_bytes;
#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++) {
        const char *ahead = (const char *)weights[i] + g * group_bytes + prefetch;
        for (size_t line = 0; line < group_bytes; line += 64) {
            _mm_prefetch(ahead + line, _MM_HINT_T0);
        }
    }
}

MOE_INLINE void direct_blocks_256(moe_dtype type, dot_kind kind, const uint8_t *const *weights,
                                  const x_row *x, uint32_t n, size_t prefetch, lanes_avx2 *acc,
                                  lanes_avx2 *min_acc)
{
    const quant_type t = quant_type_of(type);
    for (size_t g = 0; g < n / MOE_GROUP; g++) {
        group_state state[TILE_OUT];
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            const uint8_t *group = weights[i] + g * t.block_bytes;
            begin_group(type, group, 8, &state[i]);
            if (t.min_sub != 0) {
                add_minima(&min_acc[i], state[i].mins, x, g, t.min_sub);
            }
        }
        prefetch_group(type, weights, g, prefetch);
#pragma GCC unroll 8
        for (int e = 0; e < 8; e++) {
            direct_half(type, kind, weights, x, 8 * g + (size_t)e, state, e, e % 2, acc);
        }
    }
}

MOE_INLINE void direct_blocks_32(moe_dtype type, dot_kind kind, const uint8_t *const *weights,
                                 const x_row *x, uint32_t n, size_t prefetch, lanes_avx2 *acc,
                                 lanes_avx2 *min_acc)
{
    const quant_type t = quant_type_of(type);
    group_state state[TILE_OUT];
    for (size_t c = 0; c < n / 64; c++) {
        if (c % 4 == 0) {
            prefetch_group(type, weights, c / 4, prefetch);
        }
        direct_half(type, kind, weights, x, 2 * c, state, 0, 0, acc);
        direct_half(type, kind, weights, x, 2 * c + 1, state, 0, 1, acc);
    }
    if (n % 64 != 0) {
        direct_half(type, kind, weights, x, n / 32 - 1, state, 0, 0, acc);
    }
    for (size_t g = 0; g < (n + 255) / 256 && t.min_sub != 0; g++) {
        const uint32_t left = n / 32 - 8 * (uint32_t)g;
        for (int i = 0; i < TILE_OUT; i++) {
            begin_group(type, weights[i] + g * 8 * t.block_bytes, left < 8 ? left : 8, &state[i]);
            add_minima(&min_acc[i], state[i].mins, x, g, t.min_sub);
        }
    }
}

MOE_INLINE void direct_row(moe_dtype type, dot_kind kind, const moe_matmul_args *args, uint32_t o,
                           uint32_t r)
{
    const size_t tile_bytes = TILE_OUT * args->row_bytes;
    const size_t prefetch = (PREFETCH_BYTES / (tile_bytes + 1) + 1) * tile_bytes;
    const x_row x = x_row_of(args, r, 0);
    const uint8_t *weights[TILE_OUT];
    lanes_avx2 acc[TILE_OUT], min_acc[TILE_OUT];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < TILE_OUT; i++) {
        weights[i] = weight_row(args, o + i);
        acc[i].half[0] = acc[i].half[1] = _mm256_setzero_ps();
        min_acc[i] = acc[i];
    }
    if (quant_type_of(type).block_elems == MOE_GROUP) {
        direct_blocks_256(type, kind, weights, &x, args->n_in, prefetch, acc, min_acc);
    } else {
        direct_blocks_32(type, kind, weights, &x, args->n_in, prefetch, acc, min_acc);
    }
    store_outputs(args, o, r, acc, min_acc);
}

/* ---- Many rows ---- */

typedef struct weight_panel {
    _Alignas(64) uint8_t codes[TILE_OUT][PANEL];
    float scales[TILE_OUT][PANEL / 4]; /* by lane: 8 a run of 32 elements */
    float mins[TILE_OUT][PANEL / 16];  /* 16 a group */
} weight_panel;

typedef struct row_sums {
    lanes_avx2 acc[TILE_OUT];
    lanes_avx2 min_acc[TILE_OUT];
} row_sums;

MOE_INLINE void store_half(weight_panel *panel, int i, size_t e, half_weights w)
{
    _mm256_store_si256((__m256i *)(panel->codes[i] + 32 * e), w.codes);
    _mm256_store_ps(panel->scales[i] + 8 * e, w.scale);
}

/* n elements of a weight row, from a group boundary on, asking for the bytes `prefetch` further on:
 * the next tile's. */
MOE_INLINE void unpack_row(moe_dtype type, dot_kind kind, weight_panel *panel, int i,
                           const uint8_t *weights, uint32_t n, size_t prefetch)
{
    const quant_type t = quant_type_of(type);
    const size_t group_bytes = MOE_GROUP / t.block_elems * t.block_bytes;
    for (size_t line = 0; line < (size_t)n / t.block_elems * t.block_bytes; line += 64) {
        _mm_prefetch((const char *)weights + prefetch + line, _MM_HINT_T0);
    }
    const int is_signed = codes_are_signed(kind, t.offset_shift);
    group_state state;
    for (uint32_t k = 0; k < n && (t.block_elems == MOE_GROUP || t.min_sub != 0); k += MOE_GROUP) {
        const uint8_t *group = weights + k / MOE_GROUP * group_bytes;
        begin_group(type, group, n - k < MOE_GROUP ? (n - k) / 32 : 8, &state);
        if (t.min_sub != 0) {
            memcpy(panel->mins[i] + k / 16, state.mins, t.min_sub == 16 ? 64 : 32);
        }
        if (t.block_elems == 32) {
            continue;
        }
#pragma GCC unroll 8
        for (int e = 0; e < 8; e++) {
            store_half(panel, i, k / 32 + (size_t)e,
                       unpack_half(type, group, &state, e, is_signed));
        }
    }
    for (size_t e = 0; t.block_elems == 32 && e < n / 32; e++) {
        store_half(panel, i, e,
                   unpack_half(type, weights + e * t.block_bytes, &state, 0, is_signed));
    }
}

/* Lanes 0..7 (half 0) or 8..15 (half 1). */
MOE_INLINE void panel_tile(dot_kind kind, int half, const weight_panel *panel, const x_row *x,
                           int n_rows, uint32_t n, int offset_shift, row_sums *sums)
{
    __m256 acc[TILE_ROWS][TILE_OUT];
#pragma GCC unroll 2
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            acc[r][i] = sums[r].acc[i].half[half];
        }
    }
    for (size_t e = (size_t)half; 32 * e < n; e += 2) {
        x_half halves[TILE_ROWS];
#pragma GCC unroll 2
        for (int r = 0; r < n_rows; r++) {
            halves[r] = load_half(kind, &x[r], e, offset_shift);
        }
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            half_weights w;
            w.codes = _mm256_load_si256((const __m256i *)(panel->codes[i] + 32 * e));
            w.scale = _mm256_load_ps(panel->scales[i] + 8 * e);
#pragma GCC unroll 2
            for (int r = 0; r < n_rows; r++) {
                acc[r][i] = add_products(kind, offset_shift, acc[r][i], w, halves[r]);
            }
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            sums[r].acc[i].half[half] = acc[r][i];
        }
    }
}

/* Up to ROW_BLOCK activation rows over one panel, whose first element is the weight rows' k-th. */
MOE_INLINE void panel_rows(dot_kind kind, const moe_matmul_args *args, const weight_panel *panel,
                           uint32_t r0, uint32_t n_rows, uint32_t k, uint32_t n, int offset_shift,
                           row_sums *sums)
{
    const uint32_t min_sub = quant_type_of(args->type).min_sub;
    for (uint32_t r = 0; r < n_rows; r += TILE_ROWS) {
        x_row x[TILE_ROWS];
        const uint32_t n_tile = n_rows - r < TILE_ROWS ? n_rows - r : TILE_ROWS;
        for (uint32_t i = 0; i < n_tile; i++) {
            x[i] = x_row_of(args, r0 + r + i, k);
        }
        if (n_tile == 1) {
            panel_tile(kind, 0, panel, x, 1, n, offset_shift, sums + r);
            panel_tile(kind, 1, panel, x, 1, n, offset_shift, sums + r);
        } else {
            panel_tile(kind, 0, panel, x, 2, n, offset_shift, sums + r);
            panel_tile(kind, 1, panel, x, 2, n, offset_shift, sums + r);
        }
        if (min_sub == 0) {
            continue;
        }
        for (uint32_t i = 0; i < n_tile * TILE_OUT; i++) {
            for (uint32_t g = 0; g < (n + 255) / 256; g++) {
                add_minima(&sums[r + i / TILE_OUT].min_acc[i % TILE_OUT],
                           panel->mins[i % TILE_OUT] + 16 * g, &x[i / TILE_OUT], g, min_sub);
            }
        }
    }
}

MOE_INLINE void panel_tiles(moe_dtype type, dot_kind kind, const moe_matmul_args *args, uint32_t o,
                            uint32_t r0)
{
    const quant_type t = quant_type_of(type);
    const uint32_t n_rows = args->n_rows - r0 < ROW_BLOCK ? args->n_rows - r0 : ROW_BLOCK;
    weight_panel panel;
    row_sums sums[ROW_BLOCK];
    memset(sums, 0, n_rows * sizeof sums[0]);
    for (uint32_t k = 0; k < args->n_in; k += PANEL) {
        const uint32_t n = args->n_in - k < PANEL ? args->n_in - k : PANEL;
        for (uint32_t i = 0; i < TILE_OUT; i++) {
            unpack_row(type, kind, &panel, (int)i,
                       weight_row(args, o + i) + (size_t)k / t.block_elems * t.block_bytes, n,
                       TILE_OUT * args->row_bytes);
        }
        panel_rows(kind, args, &panel, r0, n_rows, k, n, t.offset_shift, sums);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        store_outputs(args, o, r0 + r, sums[r].acc, sums[r].min_acc);
    }
}

MOE_INLINE void matmul(moe_dtype type, dot_kind kind, const moe_matmul_args *args)
{
    const bool direct = args->n_rows <= MAX_DIRECT_ROWS;
    for (uint32_t o = 0; o < args->n_out; o += TILE_OUT) {
        for (uint32_t r = 0; r < args->n_rows && direct; r++) {
            direct_row(type, kind, args, o, r);
        }
        for (uint32_t r = 0; r < args->n_rows && !direct; r += ROW_BLOCK) {
            panel_tiles(type, kind, args, o, r);
        }
    }
}

/* What defines a function a type, in which the type is a constant, and puts them into the table.
 * (One function with all their loops inlined takes compilers minutes and gigabytes.) */
#define QUANT_MATMUL(name, type, kind)                                                             \
    static void matmul_##name(const moe_matmul_args *args)                                         \
    {                                                                                              \
        matmul(type, kind, args);                                                                  \
    }
#define QUANT_MATMULS(kind)                                                                        \
    QUANT_MATMUL(q4_0, MOE_DTYPE_Q4_0, kind)                                                       \
    QUANT_MATMUL(q4_1, MOE_DTYPE_Q4_1, kind)                                                       \
    QUANT_MATMUL(q5_0, MOE_DTYPE_Q5_0, kind)                                                       \
    QUANT_MATMUL(q5_1, MOE_DTYPE_Q5_1, kind)                                                       \
    QUANT_MATMUL(q8_0, MOE_DTYPE_Q8_0, kind)                                                       \
    QUANT_MATMUL(q2_k, MOE_DTYPE_Q2_K, kind)                                                       \
    QUANT_MATMUL(q3_k, MOE_DTYPE_Q3_K, kind)                                                       \
    QUANT_MATMUL(q4_k, MOE_DTYPE_Q4_K, kind)                                                       \
    QUANT_MATMUL(q5_k, MOE_DTYPE_Q5_K, kind)                                                       \
    QUANT_MATMUL(q6_k, MOE_DTYPE_Q6_K, kind)                                                       \
    QUANT_MATMUL(iq4_nl, MOE_DTYPE_IQ4_NL, kind)                                                   \
    QUANT_MATMUL(iq4_xs, MOE_DTYPE_IQ4_XS, kind)                                                   \
    QUANT_MATMUL(mxfp4, MOE_DTYPE_MXFP4, kind)                                                     \
    static void set_quant_matmuls(moe_matmul_kernels *kernels)                                     \
    {                                                                                              \
        kernels->matmul[MOE_DTYPE_Q4_0] = matmul_q4_0;                                             \
        kernels->matmul[MOE_DTYPE_Q4_1] = matmul_q4_1;                                             \
        kernels->matmul[MOE_DTYPE_Q5_0] = matmul_q5_0;                                             \
        kernels->matmul[MOE_DTYPE_Q5_1] = matmul_q5_1;                                             \
        kernels->matmul[MOE_DTYPE_Q8_0] = matmul_q8_0;                                             \
        kernels->matmul[MOE_DTYPE_Q2_K] = matmul_q2_k;                                             \
        kernels->matmul[MOE_DTYPE_Q3_K] = matmul_q3_k;                                             \
        kernels->matmul[MOE_DTYPE_Q4_K] = matmul_q4_k;                                             \
        kernels->matmul[MOE_DTYPE_Q5_K] = matmul_q5_k;                                             \
        kernels->matmul[MOE_DTYPE_Q6_K] = matmul_q6_k;                                             \
        kernels->matmul[MOE_DTYPE_IQ4_NL] = matmul_iq4_nl;                                         \
        kernels->matmul[MOE_DTYPE_IQ4_XS] = matmul_iq4_xs;                                         \
        kernels->matmul[MOE_DTYPE_MXFP4] = matmul_mxfp4;                                           \
    }

#endif
