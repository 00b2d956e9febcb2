/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with FEAT_DotProd: sdot adds four products of bytes to each 32-bit
 * lane, so that no sum can overflow. A group of 256 elements is taken apart once for up to
 * TILE_ROWS activation rows. Types without an unpacker with vectors take that of reference C: then
 * the products alone are fast, which decides for many rows and not for one. */
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

/* unpack: NULL takes the format's. */
MOE_ARM_INLINE void multiply_tile(const moe_matmul_args *args, const moe_block_format *format,
                                  unpack_neon_fn *unpack, uint32_t run, bool has_mins, uint32_t o,
                                  uint32_t first, uint32_t n_rows)
{
    const uint8_t *weights = weight_row(args, o);
    lane_sums acc[TILE_ROWS] = {0};
    for (uint32_t k = 0; k < args->n_in; k += MOE_GROUP) {
        const uint32_t n = args->n_in - k < MOE_GROUP ? args->n_in - k : MOE_GROUP;
        const uint8_t *blocks = weights + moe_dtype_row_bytes(args->type, k);
        moe_unpacked w;
        if (unpack != NULL) {
            unpack(blocks, n, &w);
        } else {
            format->unpack(blocks, n, &w);
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

MOE_ARM_INLINE void multiply(const moe_matmul_args *args, const moe_block_format *format,
                             unpack_neon_fn *unpack, uint32_t run, bool has_mins)
{
    for (uint32_t o = 0; o < args->n_out; o++) {
        for (uint32_t r = 0; r < args->n_rows; r += TILE_ROWS) {
            const uint32_t left = args->n_rows - r;
            multiply_tile(args, format, unpack, run, has_mins, o, r,
                          left < TILE_ROWS ? left : TILE_ROWS);
        }
    }
}

#define DEFINE(dtype, name, run, has_mins, unused)                                                 \
    static void matmul_##name(const moe_matmul_args *args)                                         \
    {                                                                                              \
        multiply(args, NULL, unpack_##name##_neon, run, has_mins);                                 \
    }
MOE_ARM_UNPACKED_TYPES(DEFINE, )

/* Of any type. */
static void matmul_any(const moe_matmul_args *args)
{
    const moe_block_format *format = moe_block_format_of(args->type);
    if (format->run == 16 && format->has_mins) {
        multiply(args, format, NULL, 16, true);
    } else if (format->run == 16) {
        multiply(args, format, NULL, 16, false);
    } else if (format->has_mins) {
        multiply(args, format, NULL, 32, true);
    } else {
        multiply(args, format, NULL, 32, false);
    }
}

#define SET(dtype, name, run, has_mins, kernels) (kernels)->matmul[dtype] = matmul_##name;

void moe_matmul_init_dotprod(moe_matmul_kernels *kernels)
{
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        if (moe_dtype_info_of(type) != NULL && moe_block_format_of((moe_dtype)type) != NULL) {
            kernels->matmul[type] = matmul_any;
        }
    }
    MOE_ARM_UNPACKED_TYPES(SET, kernels)
}
