/* SPDX-License-Identifier: MIT */
/* Products of several activation rows with FEAT_I8MM: smmla multiplies two rows of 8 weight codes
 * with two rows of 8 activations, four sums at once. Weights are unpacked PAIRS pairs of rows at a
 * time, so that a pair of activation rows is interleaved once for all of these. sdot computes what
 * is left over: a single activation row, or the last row of an odd number of weight rows. A group
 * is 256 elements of a row; a run is the 16 or 32 of them that share a scale (matmul.h). */
#include "cpu/arm/matmul_arm.h"
#include "cpu/arm/quant_neon.h"

#include <stdlib.h>
#include <string.h>

enum { PAIRS = 4, OUTS = 2 * PAIRS };

/* 256 codes of two rows, interleaved: 8 of the first row, 8 of the second, and so on. */
typedef struct pair_codes {
    int8x16_t eight[MOE_GROUP / 8];
} pair_codes;

typedef struct weight_pair {
    moe_unpacked w[2];
    pair_codes codes;
} weight_pair;

MOE_ARM_INLINE void interleave(pair_codes *pair, const int8_t *first, const int8_t *second)
{
    for (int i = 0; i < MOE_GROUP / 16; i++) {
        const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(first + 16 * i));
        const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(second + 16 * i));
        pair->eight[2 * i] = vreinterpretq_s8_s64(vtrn1q_s64(a, b));
        pair->eight[2 * i + 1] = vreinterpretq_s8_s64(vtrn2q_s64(a, b));
    }
}

/* Multiplies four runs, from run `first` of the group on, of two weight rows with the same runs of
 * two activation rows. sums[i] is for weight row i / 2 and activation row i % 2; each lane has one
 * run. */
MOE_ARM_INLINE void pair_runs(const pair_codes *w, const pair_codes *x, uint32_t run,
                              uint32_t first, int32x4_t sums[4])
{
    int32x4_t s[4]; /* s[j], for run j: w0 x0, w0 x1, w1 x0, w1 x1 */
    for (uint32_t j = 0; j < 4; j++) {
        s[j] = vdupq_n_s32(0);
        for (uint32_t i = 0; i < run / 8; i++) {
            const uint32_t at = (first + j) * run / 8 + i;
            s[j] = vmmlaq_s32(s[j], w->eight[at], x->eight[at]);
        }
    }
    const int32x4_t a = vzip1q_s32(s[0], s[2]), b = vzip2q_s32(s[0], s[2]);
    const int32x4_t c = vzip1q_s32(s[1], s[3]), d = vzip2q_s32(s[1], s[3]);
    sums[0] = vzip1q_s32(a, c);
    sums[1] = vzip2q_s32(a, c);
    sums[2] = vzip1q_s32(b, d);
    sums[3] = vzip2q_s32(b, d);
}

/* Adds a group of a pair of weight rows. acc[i]: the sums of weight row i / 2 with activation row
 * i % 2. */
MOE_ARM_INLINE void add_pair(lane_sums acc[4], const weight_pair *w, const pair_codes *codes,
                             const x_row x[2], uint32_t run, bool has_mins, uint32_t n)
{
    const uint32_t n_runs = n / run;
    for (uint32_t i = 0; i < n_runs / 4; i++) {
        int32x4_t sums[4];
        pair_runs(&w->codes, codes, run, 4 * i, sums);
        for (int p = 0; p < 4; p++) {
            acc[p].part[i] =
                add_runs(acc[p].part[i], sums[p], &w->w[p / 2], &x[p % 2], run, has_mins, 4 * i);
        }
    }
    for (int p = 0; p < 4 && n_runs % 4 != 0; p++) {
        add_last_runs(&acc[p], &w->w[p / 2], &x[p % 2], run, has_mins, n_runs / 4 * 4, n_runs);
    }
}

/* Unpacks a group of n_pairs pairs of weight rows. */
MOE_ARM_INLINE void unpack_pairs(const moe_matmul_args *args, moe_unpack_fn unpack,
                                 unpack_neon_fn *unpack_neon, uint32_t o, uint32_t k, uint32_t n,
                                 weight_pair *pairs, uint32_t n_pairs)
{
    for (uint32_t i = 0; i < 2 * n_pairs; i++) {
        const uint8_t *blocks = weight_row(args, o + i) + moe_dtype_row_bytes(args->type, k);
        moe_unpacked *w = &pairs[i / 2].w[i % 2];
        if (unpack_neon != NULL) {
            unpack_neon(blocks, n, w);
        } else {
            unpack(blocks, n, w);
        }
        memset(w->code + n, 0, MOE_GROUP - n);
    }
    for (uint32_t i = 0; i < n_pairs; i++) {
        interleave(&pairs[i].codes, pairs[i].w[0].code, pairs[i].w[1].code);
    }
}

enum { TILE_ROWS = 8 };

/* Multiplies n_pairs pairs of weight rows from o on with n_rows (even) activation rows from `first`
 * on. */
MOE_ARM_INLINE void multiply_pairs(const moe_matmul_args *args, moe_unpack_fn unpack,
                                   unpack_neon_fn *unpack_neon, uint32_t run, bool has_mins,
                                   uint32_t o, uint32_t n_pairs, uint32_t first, uint32_t n_rows)
{
    lane_sums acc[TILE_ROWS / 2][PAIRS][4] = {0};
    weight_pair pairs[PAIRS];
    for (uint32_t k = 0; k < args->n_in; k += MOE_GROUP) {
        const uint32_t n = args->n_in - k < MOE_GROUP ? args->n_in - k : MOE_GROUP;
        unpack_pairs(args, unpack, unpack_neon, o, k, n, pairs, n_pairs);
        for (uint32_t r = 0; r < n_rows; r += 2) {
            const x_row x[2] = {x_row_of(args, first + r, k, run),
                                x_row_of(args, first + r + 1, k, run)};
            pair_codes codes;
            interleave(&codes, x[0].q, x[1].q);
            for (uint32_t i = 0; i < n_pairs; i++) {
                add_pair(acc[r / 2][i], &pairs[i], &codes, x, run, has_mins, n);
            }
        }
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t i = 0; i < 2 * n_pairs; i++) {
            const lane_sums sums = acc[r / 2][i / 2][2 * (i % 2) + r % 2];
            *out_at(args, first + r, o + i) =
                moe_row_scale(args->type, weight_row(args, o + i)) * reduce_lanes(sums, run);
        }
    }
}

/* Computes what smmla leaves over: the last activation row or the last output. */
static void multiply_rest(const moe_matmul_args *args, moe_matmul_fn by_dot, uint32_t first_row,
                          uint32_t first_out, uint32_t n_out)
{
    moe_matmul_args rest = *args;
    moe_q8_rows x = *args->x_q8;
    rest.weights = weight_row(args, first_out);
    rest.n_out = n_out;
    rest.n_rows = args->n_rows - first_row;
    rest.out = args->out + first_out;
    if (args->x_index != NULL) {
        rest.x_index = args->x_index + first_row;
    } else {
        x.q += (size_t)first_row * x.n_in_padded;
        x.d += (size_t)first_row * (x.n_in_padded / 32);
        x.sum16 += (size_t)first_row * (x.n_in_padded / 16);
        x.sum32 += (size_t)first_row * (x.n_in_padded / 32);
        x.dsum16 += (size_t)first_row * (x.n_in_padded / 16);
        x.dsum32 += (size_t)first_row * (x.n_in_padded / 32);
        rest.x_q8 = &x;
    }
    if (args->out_index != NULL) {
        rest.out_index = args->out_index + first_row;
    } else {
        rest.out += (size_t)first_row * args->out_stride;
    }
    by_dot(&rest);
}

MOE_ARM_INLINE void multiply(const moe_matmul_args *args, moe_unpack_fn unpack,
                             unpack_neon_fn *unpack_neon, uint32_t run, bool has_mins)
{
    moe_matmul_kernels by_dot;
    const uint32_t n_rows = args->n_rows / 2 * 2;
    const uint32_t n_out = args->n_out / 2 * 2;
    for (uint32_t o = 0; o < n_out; o += OUTS) {
        const uint32_t n_pairs = n_out - o < OUTS ? (n_out - o) / 2 : PAIRS;
        for (uint32_t r = 0; r < n_rows; r += TILE_ROWS) {
            multiply_pairs(args, unpack, unpack_neon, run, has_mins, o, n_pairs, r,
                           n_rows - r < TILE_ROWS ? n_rows - r : TILE_ROWS);
        }
    }
    if (n_rows == args->n_rows && n_out == args->n_out) {
        return;
    }
    memset(&by_dot, 0, sizeof by_dot);
    moe_matmul_init_dotprod(&by_dot);
    if (n_out < args->n_out) {
        multiply_rest(args, by_dot.matmul[args->type], 0, n_out, 1);
    }
    if (n_rows < args->n_rows && n_out > 0) {
        multiply_rest(args, by_dot.matmul[args->type], n_rows, 0, n_out);
    }
}

#include "cpu/arm/matmul_types.h"

void moe_matmul_init_i8mm(moe_matmul_kernels *kernels)
{
    set_types(kernels);
}
