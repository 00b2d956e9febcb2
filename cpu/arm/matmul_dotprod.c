/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with FEAT_DotProd: sdot adds four products of bytes to each 32-bit
 * lane, so that no sum can overflow. A group of 256 elements is unpacked once for up to TILE_ROWS
 * activation rows. Types without a vector unpacker use the unpacker of reference C. Then only the
 * products are fast, which is enough for many rows but not for one. */
#include "cpu/arm/matmul_arm.h"
#include "cpu/arm/quant_neon.h"

enum { TILE_ROWS = 16 };

MOE_ARM_INLINE int32x4_t dot_run(const int8_t *code, const int8_t *q, uint32_t run)
{
    int32x4_t sum = vdotq_s32(vdupq_n_s32(0), vld1q_s8(code), vld1q_s8(q));
    return run == 16 ? sum : vdotq_s32(sum, vld1q_s8(code + 16), vld1q_s8(q + 16));
}

/* The sums of four runs, a run in each lane. */
MOE_ARM_INLINE int32x4_t dot_runs(const int8_t *code, const int8_t *q, uint32_t run)
{
    const int32x4_t first = vpaddq_s32(dot_run(code, q, run), dot_run(code + run, q + run, run));
    const int32x4_t last = vpaddq_s32(dot_run(code + 2 * run, q + 2 * run, run),
                                      dot_run(code + 3 * run, q + 3 * run, run));
    return vpaddq_s32(first, last);
}

MOE_ARM_INLINE void add_group(lane_sums *acc, const moe_unpacked *w, const x_row *x, uint32_t run,
                              bool has_mins, uint32_t n)
{
    const uint32_t n_runs = n / run;
#pragma GCC unroll 4
    for (uint32_t i = 0; i < MOE_GROUP / run / 4; i++) {
        if (4 * i + 4 <= n_runs) {
            const int32x4_t sums = dot_runs(w->code + 4 * i * run, x->q + 4 * i * run, run);
            acc->part[i] = add_runs(acc->part[i], sums, w, x, run, has_mins, 4 * i);
        }
    }
    if (n_runs % 4 != 0) {
        add_last_runs(acc, w, x, run, has_mins, n_runs / 4 * 4, n_runs);
    }
}

/* One of unpack and unpack_neon is NULL. */
MOE_ARM_INLINE void multiply_tile(const moe_matmul_args *args, moe_unpack_fn unpack,
                                  unpack_neon_fn *unpack_neon, uint32_t run, bool has_mins,
                                  uint32_t o, uint32_t first, uint32_t n_rows)
{
    const uint8_t *weights = weight_row(args, o);
    lane_sums acc[TILE_ROWS] = {0};
    for (uint32_t k = 0; k < args->n_in; k += MOE_GROUP) {
        const uint32_t n = args->n_in - k < MOE_GROUP ? args->n_in - k : MOE_GROUP;
        const uint8_t *blocks = weights + moe_dtype_row_bytes(args->type, k);
        moe_unpacked w;
        if (unpack_neon != NULL) {
            unpack_neon(blocks, n, &w);
        } else {
            unpack(blocks, n, &w);
        }
        for (uint32_t r = 0; r < n_rows; r++) {
            const x_row x = x_row_of(args, first + r, k, run);
            add_group(&acc[r], &w, &x, run, has_mins, n);
        }
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        *out_at(args, first + r, o) =
            moe_row_scale(args->type, weights) * reduce_lanes(acc[r], run);
    }
}

MOE_ARM_INLINE void multiply(const moe_matmul_args *args, moe_unpack_fn unpack,
                             unpack_neon_fn *unpack_neon, uint32_t run, bool has_mins)
{
    for (uint32_t o = 0; o < args->n_out; o++) {
        for (uint32_t r = 0; r < args->n_rows; r += TILE_ROWS) {
            const uint32_t left = args->n_rows - r;
            multiply_tile(args, unpack, unpack_neon, run, has_mins, o, r,
                          left < TILE_ROWS ? left : TILE_ROWS);
        }
    }
}

#include "cpu/arm/matmul_types.h"

void moe_matmul_init_dotprod(moe_matmul_kernels *kernels)
{
    set_types(kernels);
}
