/* SPDX-License-Identifier: MIT */
/* Unpacks the types of weight_points.cuh for the matrix units, like weight_slices.cuh. A slice of
 * 32 elements is four points of eight elements, or eight points of four. With points of eight,
 * thread t has half t % 2 of points t / 2 and 2 + t / 2; with points of four, it has points t and 4
 * + t. */
#ifndef MOE_CUDA_WEIGHT_POINT_SLICES_CUH
#define MOE_CUDA_WEIGHT_POINT_SLICES_CUH

#include "cuda/kernels/weight_points.cuh"
#include "cuda/kernels/weight_slices.cuh"

MOE_SLICE(MOE_DTYPE_IQ2_XXS, 1, 0, 2, 8)
MOE_SLICE(MOE_DTYPE_IQ2_XS, 2, 0, 2, 8)
MOE_SLICE(MOE_DTYPE_IQ2_S, 2, 0, 2, 0)
MOE_SLICE(MOE_DTYPE_IQ3_XXS, 1, 0, 2, 0)
MOE_SLICE(MOE_DTYPE_IQ3_S, 1, 0, 2, 0)
MOE_SLICE(MOE_DTYPE_IQ1_S, 1, 0, 2, 0)
MOE_SLICE(MOE_DTYPE_IQ1_M, 2, 0, 0, 0)
MOE_SLICE(MOE_DTYPE_TQ1_0, 1, 0, 0, 0)
MOE_SLICE(MOE_DTYPE_TQ2_0, 1, 0, 0, 0)
MOE_SLICE(MOE_DTYPE_NVFP4, 2, 0, 0, 0)

/* ---- Codes ---- */

MOE_SLICE_CODES(MOE_DTYPE_IQ2_XXS)
{
    (void)w;
    uint32_t i = t / 2, points = word(at, 0), signs = moe_even_signs(word(at, 1)) >> t % 2 * 4;
    *low = signed_word(half_point(book_iq2_xxs, byte_at(points, i), t % 2), signs >> 8 * i);
    *high =
        signed_word(half_point(book_iq2_xxs, byte_at(points, 2 + i), t % 2), signs >> (16 + 8 * i));
}

/* Half of a point of IQ2_XS: `point` has the point's number and, above it, seven signs. */
__device__ static inline uint32_t half_iq2_xs(uint32_t point, uint32_t half)
{
    return signed_word(half_point(book_iq2_xs, point & 511, half),
                       moe_even_signs(point >> 9) >> 4 * half);
}

MOE_SLICE_CODES(MOE_DTYPE_IQ2_XS)
{
    (void)w;
    *low = half_iq2_xs(word(at, 0) >> t / 2 * 16 & 0xffff, t % 2);
    *high = half_iq2_xs(word(at, 1) >> t / 2 * 16 & 0xffff, t % 2);
}

MOE_SLICE_CODES(MOE_DTYPE_IQ2_S)
{
    uint32_t i = t / 2, points = word(at, w), signs = word(at, 8 + w) >> t % 2 * 4;
    uint32_t upper = byte_at(word(at, 16 + w / 4), w % 4);
    uint32_t first = byte_at(points, i) | (upper >> 2 * i & 3) << 8;
    uint32_t second = byte_at(points, 2 + i) | (upper >> (4 + 2 * i) & 3) << 8;
    *low = signed_word(half_point(book_iq2_s, first, t % 2), signs >> 8 * i);
    *high = signed_word(half_point(book_iq2_s, second, t % 2), signs >> (16 + 8 * i));
}

MOE_SLICE_CODES(MOE_DTYPE_IQ3_XXS)
{
    uint32_t signs = moe_even_signs(word(at, 16 + w)) >> 4 * t;
    *low = signed_word(book_iq3_xxs[byte_at(word(at, 2 * w), t)], signs);
    *high = signed_word(book_iq3_xxs[byte_at(word(at, 2 * w + 1), t)], signs >> 16);
}

MOE_SLICE_CODES(MOE_DTYPE_IQ3_S)
{
    uint32_t signs = word(at, 18 + w) >> 4 * t;
    uint32_t upper = byte_at(word(at, 16 + w / 4), w % 4) >> t;
    uint32_t first = byte_at(word(at, 2 * w), t) | (upper & 1) << 8;
    uint32_t second = byte_at(word(at, 2 * w + 1), t) | (upper >> 4 & 1) << 8;
    *low = signed_word(book_iq3_s[first], signs);
    *high = signed_word(book_iq3_s[second], signs >> 16);
}

MOE_SLICE_CODES(MOE_DTYPE_IQ1_S)
{
    uint32_t i = t / 2, points = word(at, w);
    uint32_t upper = word(at, 8 + w / 2) >> w % 2 * 16 & 0xffff;
    uint32_t first = byte_at(points, i) | (upper >> 3 * i & 7) << 8;
    uint32_t second = byte_at(points, 2 + i) | (upper >> (6 + 3 * i) & 7) << 8;
    *low = eighths(half_point(book_iq1, first, t % 2), upper >> 15);
    *high = eighths(half_point(book_iq1, second, t % 2), upper >> 15);
}

MOE_SLICE_CODES(MOE_DTYPE_IQ1_M)
{
    uint32_t i = t / 2, points = word(at, w);
    uint32_t upper = word(at, 8 + w / 2) >> (w % 2 * 16 + 4 * i);
    uint32_t first = byte_at(points, i) | (upper & 7) << 8;
    uint32_t second = byte_at(points, 2 + i) | (upper >> 8 & 7) << 8;
    *low = eighths(half_point(book_iq1, first, t % 2), upper >> 3 & 1);
    *high = eighths(half_point(book_iq1, second, t % 2), upper >> 11 & 1);
}

MOE_SLICE_CODES(MOE_DTYPE_TQ1_0)
{
    uint32_t first = place_tq1_0(8 * w + t), second = place_tq1_0(8 * w + 4 + t);
    *low = ternary_codes(base_3_digits(word(at, first & 15), first >> 4));
    *high = ternary_codes(base_3_digits(word(at, second & 15), second >> 4));
}

MOE_SLICE_CODES(MOE_DTYPE_TQ2_0)
{
    uint32_t first = w / 4 * 8 + t;
    *low = ternary_codes(word(at, first) >> w % 4 * 2 & 0x03030303u);
    *high = ternary_codes(word(at, first + 4) >> w % 4 * 2 & 0x03030303u);
}

/* Word t of a run of 16: the low nibbles of two words, then their high ones. */
__device__ static inline uint32_t word_nvfp4(uint32_t nibbles, uint32_t t)
{
    uint32_t low, high;
    look_up_word<MOE_MXFP4_CODES>(nibbles, &low, &high);
    return t < 2 ? low : high;
}

MOE_SLICE_CODES(MOE_DTYPE_NVFP4)
{
    uint32_t first = w / 2 * 9 + 1 + w % 2 * 4 + t % 2;
    *low = word_nvfp4(word(at, first), t);
    *high = word_nvfp4(word(at, first + 2), t);
}

/* ---- Scales ---- */

MOE_SLICE_SCALES(MOE_DTYPE_IQ2_XXS)
{
    *scale = odd_scale(half_at(group) * 0.125f, group[2 + 8 * w + 7] >> 4);
    *min = 0.0f;
}

/* The scales of two runs, from the two nibbles of a byte. */
__device__ static inline void two_odd_scales(float d, uint32_t byte, float *scale, float *min)
{
    for (uint32_t i = 0; i < 2; i++) {
        scale[i] = odd_scale(d, byte >> 4 * i & 15);
        min[i] = 0.0f;
    }
}

MOE_SLICE_SCALES(MOE_DTYPE_IQ2_XS)
{
    two_odd_scales(half_at(group) * 0.125f, group[66 + w], scale, min);
}

MOE_SLICE_SCALES(MOE_DTYPE_IQ2_S)
{
    two_odd_scales(half_at(group) * 0.125f, group[74 + w], scale, min);
}

MOE_SLICE_SCALES(MOE_DTYPE_IQ3_XXS)
{
    *scale = odd_scale(half_at(group) * 0.25f, group[66 + 4 * w + 3] >> 4);
    *min = 0.0f;
}

MOE_SLICE_SCALES(MOE_DTYPE_IQ3_S)
{
    *scale = odd_scale(half_at(group), group[106 + w / 2] >> w % 2 * 4 & 15);
    *min = 0.0f;
}

MOE_SLICE_SCALES(MOE_DTYPE_IQ1_S)
{
    *scale = odd_scale(half_at(group) * 0.125f, half_bits_at(group + 34 + 2 * w) >> 12 & 7);
    *min = 0.0f;
}

MOE_SLICE_SCALES(MOE_DTYPE_IQ1_M)
{
    uint32_t packed = half_bits_at(group + 48 + w / 2 * 2) >> w % 2 * 6;
    for (uint32_t i = 0; i < 2; i++) {
        scale[i] = odd_scale(scale_iq1_m(group), packed >> 3 * i & 7);
        min[i] = 0.0f;
    }
}

MOE_SLICE_SCALES(MOE_DTYPE_TQ1_0)
{
    (void)w;
    *scale = half_at(group + 52);
    *min = 0.0f;
}

MOE_SLICE_SCALES(MOE_DTYPE_TQ2_0)
{
    (void)w;
    *scale = half_at(group + 64);
    *min = 0.0f;
}

MOE_SLICE_SCALES(MOE_DTYPE_NVFP4)
{
    for (uint32_t i = 0; i < 2; i++) {
        scale[i] = scale_nvfp4(group[w / 2 * 36 + w % 2 * 2 + i]);
        min[i] = 0.0f;
    }
}

#undef MOE_SLICE
#undef MOE_SLICE_CODES
#undef MOE_SLICE_SCALES

#endif
