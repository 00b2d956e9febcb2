/* SPDX-License-Identifier: MIT */
/* Converts rows of every type to float32, bit-equal to the formats' definition: scale * code,
 * rounded, then the minimum is added. If a row has a scale, the blocks' scales are first multiplied
 * by it. */
#include "cpu/kernels/block_unpack.h"
#include "cpu/kernels/matmul_reference.h"

static void dequantize_blocks(moe_dtype type, const uint8_t *row, float *out, uint32_t n)
{
    const moe_block_format *format = moe_block_format_of(type);
    const float row_scale = moe_row_scale(type, row);
    for (uint32_t k = 0; k < n; k += MOE_GROUP) {
        moe_unpacked w;
        const uint32_t n_group = n - k < MOE_GROUP ? n - k : MOE_GROUP;
        format->unpack(row + moe_dtype_row_bytes(type, k), n_group, &w);
        for (uint32_t i = 0; i < n_group; i++) {
            const float product = row_scale * w.scale[i / 16] * (float)w.code[i];
            out[k + i] = format->has_mins ? product + w.min[i / format->run] : product;
        }
    }
}

/* The table's functions do not receive a type, so each type has its own function. */
#define DEQUANTIZE(name, type)                                                                     \
    static void dequantize_##name(const void *row, float *out, uint32_t n)                         \
    {                                                                                              \
        dequantize_blocks(type, row, out, n);                                                      \
    }
DEQUANTIZE(q4_0, MOE_DTYPE_Q4_0)
DEQUANTIZE(q4_1, MOE_DTYPE_Q4_1)
DEQUANTIZE(q5_0, MOE_DTYPE_Q5_0)
DEQUANTIZE(q5_1, MOE_DTYPE_Q5_1)
DEQUANTIZE(q8_0, MOE_DTYPE_Q8_0)
DEQUANTIZE(q2_k, MOE_DTYPE_Q2_K)
DEQUANTIZE(q3_k, MOE_DTYPE_Q3_K)
DEQUANTIZE(q4_k, MOE_DTYPE_Q4_K)
DEQUANTIZE(q5_k, MOE_DTYPE_Q5_K)
DEQUANTIZE(q6_k, MOE_DTYPE_Q6_K)
DEQUANTIZE(iq4_nl, MOE_DTYPE_IQ4_NL)
DEQUANTIZE(iq4_xs, MOE_DTYPE_IQ4_XS)
DEQUANTIZE(mxfp4, MOE_DTYPE_MXFP4)
DEQUANTIZE(iq2_xxs, MOE_DTYPE_IQ2_XXS)
DEQUANTIZE(iq2_xs, MOE_DTYPE_IQ2_XS)
DEQUANTIZE(iq2_s, MOE_DTYPE_IQ2_S)
DEQUANTIZE(iq3_xxs, MOE_DTYPE_IQ3_XXS)
DEQUANTIZE(iq3_s, MOE_DTYPE_IQ3_S)
DEQUANTIZE(iq1_s, MOE_DTYPE_IQ1_S)
DEQUANTIZE(iq1_m, MOE_DTYPE_IQ1_M)
DEQUANTIZE(tq1_0, MOE_DTYPE_TQ1_0)
DEQUANTIZE(tq2_0, MOE_DTYPE_TQ2_0)
DEQUANTIZE(nvfp4, MOE_DTYPE_NVFP4)
DEQUANTIZE(iq2_k, MOE_DTYPE_IQ2_K)
DEQUANTIZE(iq3_k, MOE_DTYPE_IQ3_K)
DEQUANTIZE(iq4_k, MOE_DTYPE_IQ4_K)
DEQUANTIZE(iq5_k, MOE_DTYPE_IQ5_K)
DEQUANTIZE(iq6_k, MOE_DTYPE_IQ6_K)
DEQUANTIZE(iq2_ks, MOE_DTYPE_IQ2_KS)
DEQUANTIZE(iq3_ks, MOE_DTYPE_IQ3_KS)
DEQUANTIZE(iq4_ks, MOE_DTYPE_IQ4_KS)
DEQUANTIZE(iq4_kss, MOE_DTYPE_IQ4_KSS)
DEQUANTIZE(iq5_ks, MOE_DTYPE_IQ5_KS)
#undef DEQUANTIZE

static void dequantize_f32(const void *row, float *out, uint32_t n)
{
    memcpy(out, row, n * sizeof *out);
}

static void dequantize_f16(const void *row, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const uint8_t *)row + 2 * (size_t)i, 2);
        out[i] = moe_half_to_float(half);
    }
}

static void dequantize_bf16(const void *row, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const uint8_t *)row + 2 * (size_t)i, 2);
        out[i] = moe_bfloat_to_float(half);
    }
}

moe_dequantize_fn moe_dequantize_of(moe_dtype type)
{
    static const moe_dequantize_fn table[MOE_DTYPE_LIMIT] = {
        [MOE_DTYPE_F32] = dequantize_f32,         [MOE_DTYPE_F16] = dequantize_f16,
        [MOE_DTYPE_BF16] = dequantize_bf16,       [MOE_DTYPE_Q4_0] = dequantize_q4_0,
        [MOE_DTYPE_Q4_1] = dequantize_q4_1,       [MOE_DTYPE_Q5_0] = dequantize_q5_0,
        [MOE_DTYPE_Q5_1] = dequantize_q5_1,       [MOE_DTYPE_Q8_0] = dequantize_q8_0,
        [MOE_DTYPE_Q2_K] = dequantize_q2_k,       [MOE_DTYPE_Q3_K] = dequantize_q3_k,
        [MOE_DTYPE_Q4_K] = dequantize_q4_k,       [MOE_DTYPE_Q5_K] = dequantize_q5_k,
        [MOE_DTYPE_Q6_K] = dequantize_q6_k,       [MOE_DTYPE_IQ4_NL] = dequantize_iq4_nl,
        [MOE_DTYPE_IQ4_XS] = dequantize_iq4_xs,   [MOE_DTYPE_MXFP4] = dequantize_mxfp4,
        [MOE_DTYPE_IQ2_XXS] = dequantize_iq2_xxs, [MOE_DTYPE_IQ2_XS] = dequantize_iq2_xs,
        [MOE_DTYPE_IQ2_S] = dequantize_iq2_s,     [MOE_DTYPE_IQ3_XXS] = dequantize_iq3_xxs,
        [MOE_DTYPE_IQ3_S] = dequantize_iq3_s,     [MOE_DTYPE_IQ1_S] = dequantize_iq1_s,
        [MOE_DTYPE_IQ1_M] = dequantize_iq1_m,     [MOE_DTYPE_TQ1_0] = dequantize_tq1_0,
        [MOE_DTYPE_TQ2_0] = dequantize_tq2_0,     [MOE_DTYPE_NVFP4] = dequantize_nvfp4,
        [MOE_DTYPE_IQ2_K] = dequantize_iq2_k,     [MOE_DTYPE_IQ3_K] = dequantize_iq3_k,
        [MOE_DTYPE_IQ4_K] = dequantize_iq4_k,     [MOE_DTYPE_IQ5_K] = dequantize_iq5_k,
        [MOE_DTYPE_IQ6_K] = dequantize_iq6_k,     [MOE_DTYPE_IQ2_KS] = dequantize_iq2_ks,
        [MOE_DTYPE_IQ3_KS] = dequantize_iq3_ks,   [MOE_DTYPE_IQ4_KS] = dequantize_iq4_ks,
        [MOE_DTYPE_IQ4_KSS] = dequantize_iq4_kss, [MOE_DTYPE_IQ5_KS] = dequantize_iq5_ks,
    };
    return (unsigned)type < MOE_DTYPE_LIMIT ? table[type] : NULL;
}
