/* SPDX-License-Identifier: MIT */
/* The sixteen lanes of the arithmetic contract as one AVX-512 register. lanes16_avx2.h offers the
 * same functions on two AVX2 registers; the kernels in *_lanes.h are written once on top of either.
 */
#ifndef MOE_X86_LANES16_AVX512_H
#define MOE_X86_LANES16_AVX512_H

#include "cpu/kernels/exp_constants.h"

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef __m512 l16;

#define L16_TILE 16 /* accumulators that a kernel keeps in registers */

static inline l16 l16_zero(void)
{
    return _mm512_setzero_ps();
}

static inline l16 l16_set(float value)
{
    return _mm512_set1_ps(value);
}

static inline l16 l16_load(const float *x)
{
    return _mm512_loadu_ps(x);
}

static inline void l16_store(float *x, l16 v)
{
    _mm512_storeu_ps(x, v);
}

static inline __mmask16 l16_mask(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}

/* Loads the first n < 16 lanes, with zeros above. Reads nothing behind them. */
static inline l16 l16_load_part(const float *x, uint32_t n)
{
    return _mm512_maskz_loadu_ps(l16_mask(n), x);
}

static inline void l16_store_part(float *x, l16 v, uint32_t n)
{
    _mm512_mask_storeu_ps(x, l16_mask(n), v);
}

/* The first n lanes of v, and the other lanes of old. */
static inline l16 l16_part_of(l16 v, l16 old, uint32_t n)
{
    return _mm512_mask_mov_ps(old, l16_mask(n), v);
}

static inline l16 l16_add(l16 a, l16 b)
{
    return _mm512_add_ps(a, b);
}

static inline l16 l16_sub(l16 a, l16 b)
{
    return _mm512_sub_ps(a, b);
}

static inline l16 l16_mul(l16 a, l16 b)
{
    return _mm512_mul_ps(a, b);
}

static inline l16 l16_div(l16 a, l16 b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c, and a * b - c. */
static inline l16 l16_fma(l16 a, l16 b, l16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline l16 l16_fms(l16 a, l16 b, l16 c)
{
    return _mm512_fmsub_ps(a, b, c);
}

/* x > m ? x : m, and x < m ? x : m. The result is m if either is NaN. */
static inline l16 l16_max(l16 x, l16 m)
{
    return _mm512_max_ps(x, m);
}

static inline l16 l16_min(l16 x, l16 m)
{
    return _mm512_min_ps(x, m);
}

/* `then` where a < b, else `otherwise`. */
static inline l16 l16_pick_below(l16 a, l16 b, l16 then, l16 otherwise)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, then);
}

static inline l16 l16_negate(l16 x)
{
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}

static inline l16 l16_abs(l16 x)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}

/* Bit l is set where lane l of a equals that of b. */
static inline uint32_t l16_equal(l16 a, l16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

/* moe_exp() in every lane. */
static inline l16 l16_exp(l16 x)
{
    l16 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(MOE_EXP_LOG2E)),
                                 _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    l16 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(MOE_EXP_LN2_HI), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(MOE_EXP_LN2_LO), r);
    l16 p = _mm512_fmadd_ps(_mm512_set1_ps(MOE_EXP_C6), r, _mm512_set1_ps(MOE_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MOE_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MOE_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MOE_EXP_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_scalef_ps(p, n);
    __mmask16 low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(MOE_EXP_LOW), _CMP_LT_OQ);
    __mmask16 high = _mm512_cmp_ps_mask(x, _mm512_set1_ps(MOE_EXP_HIGH), _CMP_GT_OQ);
    p = _mm512_mask_mov_ps(p, low, _mm512_setzero_ps());
    return _mm512_mask_mov_ps(p, high, _mm512_set1_ps(INFINITY));
}

/* The sum of all lanes, by the tree h = 8, 4, 2, 1. */
static inline float l16_reduce(l16 v)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float l16_reduce_max(l16 v)
{
    return _mm512_reduce_max_ps(v); /* v holds no NaN */
}

/* out[i] = scale * reduce(acc[i]), for all sixteen at once. After the first step of the tree a
 * register has the halves of two sums side by side, then the quarters of four, and so on. */
static inline void l16_reduce_tile(const l16 acc[L16_TILE], float scale, float out[L16_TILE])
{
    l16 eights[8], fours[4], twos[2];
    for (int i = 0; i < 8; i++)
        eights[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, acc[2 * i], acc[2 * i + 1]),
                                  _mm512_shuffle_f32x4(acc[2 * i], acc[2 * i + 1], 0x4e));
    for (int i = 0; i < 4; i++)
        fours[i] = _mm512_add_ps(_mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0x88),
                                 _mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0xdd));
    for (int i = 0; i < 2; i++)
        twos[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, fours[2 * i], fours[2 * i + 1]),
                                _mm512_shuffle_ps(fours[2 * i], fours[2 * i + 1], 0x4e));
    l16 ones = _mm512_add_ps(_mm512_shuffle_ps(twos[0], twos[1], 0x88),
                             _mm512_shuffle_ps(twos[0], twos[1], 0xdd));
    /* Lane 4 a + b holds the sum of acc[4 b + a]. */
    const __m512i transpose =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    ones = _mm512_permutexvar_ps(transpose, ones);
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_set1_ps(scale), ones));
}

/* Rotates eight pairs (x0, x1) by c[8], s[8]. */
static inline l16 l16_rotate_pairs(l16 x, const float *c, const float *s)
{
    const __m512i mix = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    l16 cos = _mm512_castps256_ps512(_mm256_loadu_ps(c));
    l16 sin = _mm512_castps256_ps512(_mm256_loadu_ps(s));
    l16 cos_sin = _mm512_permutex2var_ps(cos, mix, sin);
    l16 sin_cos = _mm512_permutex2var_ps(sin, mix, cos);
    l16 second = _mm512_mul_ps(_mm512_movehdup_ps(x), sin_cos);
    return _mm512_fmaddsub_ps(_mm512_moveldup_ps(x), cos_sin, second);
}

static inline l16 l16_load_half(const void *x)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(x));
}

/* Loads the first n half-precision floats; the other lanes are 0. */
static inline l16 l16_load_half_part(const void *x, uint32_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(l16_mask(n), x));
}

static inline void l16_store_half(void *x, l16 v)
{
    _mm256_storeu_si256(x, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Puts one half-precision float into every lane. */
static inline l16 l16_set_half(const void *x)
{
    uint16_t half;
    memcpy(&half, x, sizeof(half));
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

static inline l16 l16_load_int8(const void *x)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x)));
}

/* Loads a block of Q4_0: looks its codes up in a table of the sixteen products with d. */
static inline void l16_load_q4_block(const void *codes, const float *d, l16 out[2])
{
    const l16 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    l16 products = _mm512_mul_ps(_mm512_set1_ps(*d), numbers);
    __m512i low = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes)); /* a lookup takes four bits */
    out[0] = _mm512_permutexvar_ps(low, products);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(low, 4), products);
}

/* The caller of l16_load_q4_block() must multiply a block's scale by this power of two. */
#define L16_Q4_UNIT 1.0f

/* Loads half `half` (0 or 1) of a block of Q4_0: its low or its high codes, minus 8. */
static inline l16 l16_load_q4(const void *x, uint32_t half)
{
    __m128i codes = _mm_srli_epi16(_mm_loadu_si128(x), (int)(half * 4));
    codes = _mm_sub_epi8(_mm_and_si128(codes, _mm_set1_epi8(15)), _mm_set1_epi8(8));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
}

/* Loads sixteen E4M3 values. It first makes half-precision floats of them, whose exponent has
 * another bias. */
static inline l16 l16_load_f8(const void *x)
{
    const __m256i most = _mm256_set1_epi16(0x7f);
    __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(x));
    __m256i abs = _mm256_and_si256(codes, most);
    __m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(most, codes), 8);
    __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(abs, most), _mm256_set1_epi16(0x7c00));
    __m256i half = _mm256_or_si256(_mm256_or_si256(sign, _mm256_slli_epi16(abs, 7)), nan);
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}

/* Loads thirty-two finite E4M3 values, divided by 256: with the other bias, the half-precision
 * floats already have this value. */
static inline void l16_load_f8_block(const void *x, l16 out[2])
{
    __m512i codes = _mm512_cvtepi8_epi16(_mm256_loadu_si256(x)); /* the sign in bits 15 to 7 */
    __m512i halves = _mm512_slli_epi16(codes, 7);
    halves = _mm512_and_si512(halves, _mm512_set1_epi16((int16_t)0xbfff));
    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
}

/* Bytes of codes: each byte is the greatest so far, with the highest bit set. */
typedef __m512i l16_bytes;

#define L16_BYTES 64

static inline l16_bytes l16_bytes_zero(void)
{
    return _mm512_setzero_si512();
}

static inline l16_bytes l16_bytes_top(l16_bytes top, const void *x)
{
    __m512i codes = _mm512_or_si512(_mm512_loadu_si512(x), _mm512_set1_epi8((int8_t)0x80));
    return _mm512_max_epu8(top, codes);
}

static inline bool l16_bytes_any_full(l16_bytes top)
{
    return _mm512_cmpeq_epi8_mask(top, _mm512_set1_epi8(-1)) != 0;
}

/* Stores the nearest integers, clamped to [-127, 127], as bytes. */
static inline void l16_store_int8(void *x, l16 v)
{
    __m512i q = _mm512_max_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(-127));
    _mm_storeu_si128(x, _mm512_cvtsepi32_epi8(q));
}

/* The greatest |x| of 32 elements, compared and returned as the bits of |x|. */
static inline uint32_t l16_max_abs_bits(const float *x)
{
    const __m512i abs = _mm512_set1_epi32(0x7fffffff);
    __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), abs);
    __m512i b = _mm512_and_si512(_mm512_loadu_si512(x + 16), abs);
    return (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
}

#endif
