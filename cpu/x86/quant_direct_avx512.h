/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with few activation rows, AVX-512 VNNI.
 *
 *  two weight rows a, b     codes (4 chunks of 64 each)
 *  a group of 256 each  ->  x one activation row: 8 registers of 16 sums of four products
 *                       ->  folded by a tree into the sums of runs: 8 of a and 8 of b, or 16 of a
 *                           and 16 of b
 *                       ->  lanes of the contract: one multiplication, one fmaf
 *
 * Unpacked codes stay in registers for all activation rows of the tile. A tile that extends beyond
 * the last weight row repeats that row and does not store it. A run is the 16 or 32 elements that
 * share a scale. */
#ifndef MOE_X86_QUANT_DIRECT_AVX512_H
#define MOE_X86_QUANT_DIRECT_AVX512_H

#include "cpu/x86/quant_unpack_avx512.h"
#include "cpu/x86/reduce_avx512.h"

enum { DIRECT_OUT = 4, MAX_DIRECT_ROWS = 4, PREFETCH_BYTES = 4096 };

/* A group of each of two weight rows. */
typedef struct pair_group {
    __m512i codes[2][4];
    __m512 scales[2]; /* by weight row; with runs of 32, [0] has the scales of both rows */
    __m512 mins[2];
} pair_group;

typedef struct direct_tile {
    const uint8_t *weights[DIRECT_OUT];
    x_row x[MAX_DIRECT_ROWS];
    __m512 acc[DIRECT_OUT / 2][2][MAX_DIRECT_ROWS]; /* runs of 32: [.][0] has both rows of a pair */
} direct_tile;

MOE_INLINE __m512 both_halves(__m512 low, __m512 high)
{
    return _mm512_shuffle_f32x4(low, high, 0x44);
}

MOE_INLINE pair_group unpack_pair(moe_dtype type, const uint8_t *const *weights, size_t g,
                                  uint32_t n)
{
    const quant_type t = quant_type_of(type);
    pair_group pair;
    group_copy copies[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const uint8_t *group = whole_group(type, weights[i] + g * group_bytes_of(type),
                                           n - (uint32_t)g * MOE_GROUP, &copies[i]);
        const group_state state = begin_group(type, group);
        pair.scales[i] = state.scales;
        pair.mins[i] = state.mins;
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            pair.codes[i][c] = codes_of_chunk(type, group, &state.points, c);
        }
    }
    if (t.run == 32) {
        pair.scales[0] = both_halves(pair.scales[0], pair.scales[1]);
        pair.mins[0] = both_halves(pair.mins[0], pair.mins[1]);
    }
    return pair;
}

/* Adds lanes i and i + 2 of each 128-bit quarter. The lanes of the result are: a, b, a, b. */
MOE_INLINE __m512i fold_2(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

/* Lane c of quarter q gets the sum over quarter q of chunk c, that is, over the 16 elements from
 * 64c + 16q on. */
MOE_INLINE __m512i sums_of_16(const __m512i *codes, const __m512i *q)
{
    __m512i sums[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        sums[c] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[c], q[c]);
    }
    const __m512i low = fold_2(sums[0], sums[1]);
    const __m512i high = fold_2(sums[2], sums[3]);
    return _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
}

/* Turns the sums of 16 elements of rows a and b into sums of runs of 32: eight runs of a, then
 * eight runs of b. */
MOE_INLINE __m512i sums_of_32(__m512i a, __m512i b)
{
    const __m512i sums =
        _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    return _mm512_permutexvar_epi32(order, sums);
}

MOE_INLINE __m512i in_order_16(__m512i sums)
{
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums);
}

typedef struct x_group {
    __m512i q[4];
    __m512 d;
    __m512 dsum;
    __m512i offset; /* by how much the sums are too great because codes are unsigned */
} x_group;

MOE_INLINE x_group load_group(quant_type t, const x_row *x, size_t g)
{
    x_group group;
#pragma GCC unroll 4
    for (size_t c = 0; c < 4; c++) {
        group.q[c] = _mm512_loadu_si512(x->q + 256 * g + 64 * c);
    }
    const __m256 d = _mm256_loadu_ps(x->d + 8 * g);
    __m512i sum;
    if (t.run == 32) {
        group.d = _mm512_broadcast_f32x8(d);
        group.dsum = _mm512_broadcast_f32x8(_mm256_loadu_ps(x->dsum + 8 * g));
        sum = _mm512_broadcast_i32x8(_mm256_loadu_si256((const __m256i *)(x->sum + 8 * g)));
    } else {
        group.d =
            _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                                  _mm512_castps256_ps512(d));
        group.dsum = _mm512_loadu_ps(x->dsum + 16 * g);
        sum = _mm512_loadu_si512(x->sum + 16 * g);
    }
    group.offset = _mm512_slli_epi32(sum, t.offset_shift < 0 ? 0 : (unsigned)t.offset_shift);
    return group;
}

MOE_INLINE __m512 add_runs(quant_type t, __m512 acc, __m512i sums, __m512 scales, __m512 mins,
                           const x_group *x)
{
    if (t.offset_shift >= 0) {
        sums = _mm512_sub_epi32(sums, x->offset);
    }
    acc = _mm512_fmadd_ps(_mm512_mul_ps(scales, x->d), _mm512_cvtepi32_ps(sums), acc);
    return t.has_mins ? _mm512_fmadd_ps(mins, x->dsum, acc) : acc;
}

/* Multiplies group g of two weight rows with every activation row of the tile. */
MOE_INLINE void add_pair(moe_dtype type, direct_tile *tile, int p, int n_rows, size_t g, uint32_t n)
{
    const quant_type t = quant_type_of(type);
    const pair_group pair = unpack_pair(type, &tile->weights[2 * p], g, n);
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
        const x_group x = load_group(t, &tile->x[r], g);
        const __m512i a = sums_of_16(pair.codes[0], x.q);
        const __m512i b = sums_of_16(pair.codes[1], x.q);
        __m512 *acc0 = &tile->acc[p][0][r];
        __m512 *acc1 = &tile->acc[p][1][r];
        if (t.run == 32) {
            *acc0 = add_runs(t, *acc0, sums_of_32(a, b), pair.scales[0], pair.mins[0], &x);
        } else {
            *acc0 = add_runs(t, *acc0, in_order_16(a), pair.scales[0], pair.mins[0], &x);
            *acc1 = add_runs(t, *acc1, in_order_16(b), pair.scales[1], pair.mins[1], &x);
        }
    }
}

/* Multiplies one pair of weight rows after the other. Prefetches the bytes of a pair in the order
 * of their addresses, `prefetch` bytes ahead, because the processor's own prefetcher follows that
 * order. In the order of use, back and forth between rows, Zen 4 reads memory at half the speed. */
MOE_INLINE void add_groups(moe_dtype type, direct_tile *tile, int n_rows, uint32_t n,
                           size_t prefetch)
{
    const size_t bytes = group_bytes_of(type);
#pragma GCC unroll 2
    for (int p = 0; p < DIRECT_OUT / 2; p++) {
        for (size_t g = 0; g * MOE_GROUP < n; g++) {
#pragma GCC unroll 2
            for (size_t i = 0; i < 2; i++) {
                prefetch_group(type, tile->weights[2 * p] + (2 * g + i) * bytes, prefetch);
            }
            add_pair(type, tile, p, n_rows, g, n);
        }
    }
}

MOE_INLINE void direct_rows(moe_dtype type, const moe_matmul_args *args, uint32_t o, uint32_t r0,
                            int n_rows)
{
    const quant_type t = quant_type_of(type);
    const uint32_t n_valid = args->n_out - o < DIRECT_OUT ? args->n_out - o : DIRECT_OUT;
    const size_t pair_bytes = 2 * args->row_bytes;
    const size_t prefetch = (PREFETCH_BYTES / (pair_bytes + 1) + 1) * pair_bytes;
    direct_tile tile;
#pragma GCC unroll 4
    for (uint32_t i = 0; i < DIRECT_OUT; i++) {
        tile.weights[i] = weight_row(args, o + i);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
        tile.x[r] = x_row_of(args, r0 + (uint32_t)r, 0, t.run);
#pragma GCC unroll 2
        for (int p = 0; p < 2; p++) {
            tile.acc[p][0][r] = tile.acc[p][1][r] = _mm512_setzero_ps();
        }
    }
    add_groups(type, &tile, n_rows, args->n_in, prefetch);
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
        const __m128 sums = t.run == 32 ? reduce_4x8(tile.acc[0][0][r], tile.acc[1][0][r])
                                        : reduce_4x16(tile.acc[0][0][r], tile.acc[0][1][r],
                                                      tile.acc[1][0][r], tile.acc[1][1][r]);
        store_first(out_row(args, r0 + (uint32_t)r) + o, sums, n_valid);
    }
}

MOE_INLINE void direct_tiles(moe_dtype type, const moe_matmul_args *args, uint32_t o)
{
    for (uint32_t r = 0; r < args->n_rows; r += MAX_DIRECT_ROWS) {
        switch (args->n_rows - r) {
        case 1:
            direct_rows(type, args, o, r, 1);
            break;
        case 2:
            direct_rows(type, args, o, r, 2);
            break;
        case 3:
            direct_rows(type, args, o, r, 3);
            break;
        default:
            direct_rows(type, args, o, r, 4);
        }
    }
}

#endif
