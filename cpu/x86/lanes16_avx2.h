/* SPDX-License-Identifier: MIT */
/* The sixteen lanes of the arithmetic contract as two AVX2 registers. The functions are those of
 * lanes16_avx512.h, where they have comments. */
#ifndef MOE_X86_LANES16_AVX2_H
#define MOE_X86_LANES16_AVX2_H

#include "cpu/kernels/exp_constants.h"

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct l16 {
    __m256 lo, hi; /* lanes 0..7, 8..15 */
} l16;

#define L16_TILE 4 /* they take eight of the sixteen registers */

static inline l16 l16_of(__m256 lo, __m256 hi)
{
    return (l16){lo, hi};
}

static inline l16 l16_zero(void)
{
    return l16_of(_mm256_setzero_ps(), _mm256_setzero_ps());
}

static inline l16 l16_set(float value)
{
    return l16_of(_mm256_set1_ps(value), _mm256_set1_ps(value));
}

static inline l16 l16_load(const float *x)
{
    return l16_of(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8));
}

static inline void l16_store(float *x, l16 v)
{
    _mm256_storeu_ps(x, v.lo);
    _mm256_storeu_ps(x + 8, v.hi);
}

/* The mask of eight lanes, of which the first has number `first`: all ones in lanes below n. */
static inline __m256i l16_half_mask(uint32_t n, int32_t first)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n - first), lane);
}

static inline l16 l16_load_part(const float *x, uint32_t n)
{
    __m256 lo = _mm256_maskload_ps(x, l16_half_mask(n, 0));
    return l16_of(lo, n > 8 ? _mm256_maskload_ps(x + 8, l16_half_mask(n, 8)) : _mm256_setzero_ps());
}

static inline void l16_store_part(float *x, l16 v, uint32_t n)
{
    _mm256_maskstore_ps(x, l16_half_mask(n, 0), v.lo);
    if (n > 8)
        _mm256_maskstore_ps(x + 8, l16_half_mask(n, 8), v.hi);
}

static inline l16 l16_part_of(l16 v, l16 old, uint32_t n)
{
    __m256 low = _mm256_castsi256_ps(l16_half_mask(n, 0));
    __m256 high = _mm256_castsi256_ps(l16_half_mask(n, 8));
    return l16_of(_mm256_blendv_ps(old.lo, v.lo, low), _mm256_blendv_ps(old.hi, v.hi, high));
}

static inline l16 l16_add(l16 a, l16 b)
{
    return l16_of(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}

static inline l16 l16_sub(l16 a, l16 b)
{
    return l16_of(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}

static inline l16 l16_mul(l16 a, l16 b)
{
    return l16_of(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}

static inline l16 l16_div(l16 a, l16 b)
{
    return l16_of(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}

static inline l16 l16_fma(l16 a, l16 b, l16 c)
{
    return l16_of(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

static inline l16 l16_fms(l16 a, l16 b, l16 c)
{
    return l16_of(_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi));
}

static inline l16 l16_max(l16 x, l16 m)
{
    return l16_of(_mm256_max_ps(x.lo, m.lo), _mm256_max_ps(x.hi, m.hi));
}

static inline l16 l16_min(l16 x, l16 m)
{
    return l16_of(_mm256_min_ps(x.lo, m.lo), _mm256_min_ps(x.hi, m.hi));
}

/* `then` where a < b, else `otherwise`. */
static inline l16 l16_pick_below(l16 a, l16 b, l16 then, l16 otherwise)
{
    return l16_of(_mm256_blendv_ps(otherwise.lo, then.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                  _mm256_blendv_ps(otherwise.hi, then.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)));
}

static inline l16 l16_negate(l16 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return l16_of(_mm256_xor_ps(x.lo, sign), _mm256_xor_ps(x.hi, sign));
}

static inline l16 l16_abs(l16 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return l16_of(_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi));
}

static inline uint32_t l16_equal(l16 a, l16 b)
{
    int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ));
    int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ));
    return (uint32_t)(lo | hi << 8);
}

static inline __m256 l16_exp_half(__m256 x)
{
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(MOE_EXP_LOG2E)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(MOE_EXP_LN2_HI), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(MOE_EXP_LN2_LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(MOE_EXP_C6), r, _mm256_set1_ps(MOE_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MOE_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MOE_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MOE_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
    __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(MOE_EXP_LOW), _CMP_LT_OQ);
    __m256 high = _mm256_cmp_ps(x, _mm256_set1_ps(MOE_EXP_HIGH), _CMP_GT_OQ);
    p = _mm256_andnot_ps(low, p);
    return _mm256_blendv_ps(p, _mm256_set1_ps(INFINITY), high);
}

static inline l16 l16_exp(l16 x)
{
    return l16_of(l16_exp_half(x.lo), l16_exp_half(x.hi));
}

static inline float l16_reduce(l16 v)
{
    __m256 eight = _mm256_add_ps(v.lo, v.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float l16_reduce_max(l16 v)
{
    __m256 eight = _mm256_max_ps(v.lo, v.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline void l16_reduce_tile(const l16 acc[L16_TILE], float scale, float out[L16_TILE])
{
    __m256 eights[4], fours[2];
    for (int i = 0; i < 4; i++)
        eights[i] = _mm256_add_ps(acc[i].lo, acc[i].hi);
    for (int i = 0; i < 2; i++)
        fours[i] = _mm256_add_ps(_mm256_permute2f128_ps(eights[2 * i], eights[2 * i + 1], 0x20),
                                 _mm256_permute2f128_ps(eights[2 * i], eights[2 * i + 1], 0x31));
    __m256 twos = _mm256_add_ps(_mm256_shuffle_ps(fours[0], fours[1], 0x44),
                                _mm256_shuffle_ps(fours[0], fours[1], 0xee));
    __m256 ones =
        _mm256_add_ps(_mm256_shuffle_ps(twos, twos, 0x88), _mm256_shuffle_ps(twos, twos, 0xdd));
    /* The lower half has the sums of acc[0] and acc[2], the upper half those of acc[1] and acc[3].
     */
    __m128 sums = _mm_unpacklo_ps(_mm256_castps256_ps128(ones), _mm256_extractf128_ps(ones, 1));
    _mm_storeu_ps(out, _mm_mul_ps(_mm_set1_ps(scale), sums));
}

static inline __m256 l16_rotate_half(__m256 x, const float *c, const float *s)
{
    __m128 cos = _mm_loadu_ps(c);
    __m128 sin = _mm_loadu_ps(s);
    __m256 cos_sin = _mm256_set_m128(_mm_unpackhi_ps(cos, sin), _mm_unpacklo_ps(cos, sin));
    __m256 sin_cos = _mm256_set_m128(_mm_unpackhi_ps(sin, cos), _mm_unpacklo_ps(sin, cos));
    __m256 second = _mm256_mul_ps(_mm256_movehdup_ps(x), sin_cos);
    return _mm256_fmaddsub_ps(_mm256_moveldup_ps(x), cos_sin, second);
}

static inline l16 l16_rotate_pairs(l16 x, const float *c, const float *s)
{
    return l16_of(l16_rotate_half(x.lo, c, s), l16_rotate_half(x.hi, c + 4, s + 4));
}

static inline l16 l16_load_half(const void *x)
{
    const uint8_t *bytes = x;
    return l16_of(_mm256_cvtph_ps(_mm_loadu_si128((const void *)bytes)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const void *)(bytes + 16))));
}

/* Loads the first n half-precision floats; the other lanes are 0. */
static inline l16 l16_load_half_part(const void *x, uint32_t n)
{
    uint16_t halves[16] = {0};
    memcpy(halves, x, n * sizeof halves[0]);
    return l16_load_half(halves);
}

static inline void l16_store_half(void *x, l16 v)
{
    uint8_t *bytes = x;
    _mm_storeu_si128((void *)bytes, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(bytes + 16), _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}

static inline l16 l16_set_half(const void *x)
{
    uint16_t half;
    memcpy(&half, x, sizeof(half));
    __m256 all = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
    return l16_of(all, all);
}

static inline l16 l16_load_int8(const void *x)
{
    const uint8_t *codes = x;
    __m256i lo = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)codes));
    __m256i hi = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(codes + 8)));
    return l16_of(_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi));
}

/* Eight elements from `first` on, one in each lane of 32 bits: the highest byte of a lane is the
 * element's byte of the block. */
static inline __m256 l16_q4_eight(__m256i nibbles, int32_t first)
{
    const __m256i spread =
        _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, /* */
                         -1, -1, -1, 4, -1, -1, -1, 5, -1, -1, -1, 6, -1, -1, -1, 7);
    __m256i at = _mm256_add_epi8(spread, _mm256_set1_epi32(first << 24));
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(nibbles, at));
}

/* A code in the upper half of a byte, with its highest bit inverted, is the code's value times 16.
 * If this byte is the highest of a lane, the lane is the value times 2^28. */
#define L16_Q4_UNIT 0x1p-28f

static inline void l16_load_q4_block(const void *codes, const float *d, l16 out[2])
{
    const __m256i upper = _mm256_set1_epi8((int8_t)0xf0), top = _mm256_set1_epi8((int8_t)0x80);
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(codes));
    __m256i high = _mm256_xor_si256(_mm256_and_si256(both, upper), top);
    __m256i low = _mm256_and_si256(_mm256_slli_epi16(both, 4), upper);
    low = _mm256_xor_si256(low, top);
    __m256 unit = _mm256_broadcast_ss(d);
    out[0] = l16_of(_mm256_mul_ps(unit, l16_q4_eight(low, 0)),
                    _mm256_mul_ps(unit, l16_q4_eight(low, 8)));
    out[1] = l16_of(_mm256_mul_ps(unit, l16_q4_eight(high, 0)),
                    _mm256_mul_ps(unit, l16_q4_eight(high, 8)));
}

static inline l16 l16_load_q4(const void *x, uint32_t half)
{
    __m128i codes = _mm_srli_epi16(_mm_loadu_si128(x), (int)(half * 4));
    codes = _mm_sub_epi8(_mm_and_si128(codes, _mm_set1_epi8(15)), _mm_set1_epi8(8));
    __m256i lo = _mm256_cvtepi8_epi32(codes);
    __m256i hi = _mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8));
    return l16_of(_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi));
}

static inline l16 l16_load_f8(const void *x)
{
    const __m256i most = _mm256_set1_epi16(0x7f);
    const __m256 scale = _mm256_set1_ps(256.0f);
    __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(x));
    __m256i abs = _mm256_and_si256(codes, most);
    __m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(most, codes), 8);
    __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(abs, most), _mm256_set1_epi16(0x7c00));
    __m256i half = _mm256_or_si256(_mm256_or_si256(sign, _mm256_slli_epi16(abs, 7)), nan);
    return l16_of(_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), scale),
                  _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), scale));
}

static inline l16 l16_f8_half_block(const void *x)
{
    __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(x)), 7);
    __m256i half = _mm256_and_si256(shifted, _mm256_set1_epi16((int16_t)0xbfff));
    return l16_of(_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
                  _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)));
}

static inline void l16_load_f8_block(const void *x, l16 out[2])
{
    out[0] = l16_f8_half_block(x);
    out[1] = l16_f8_half_block((const uint8_t *)x + 16);
}

typedef __m256i l16_bytes;

#define L16_BYTES 32

static inline l16_bytes l16_bytes_zero(void)
{
    return _mm256_setzero_si256();
}

static inline l16_bytes l16_bytes_top(l16_bytes top, const void *x)
{
    __m256i codes = _mm256_or_si256(_mm256_loadu_si256(x), _mm256_set1_epi8((int8_t)0x80));
    return _mm256_max_epu8(top, codes);
}

static inline bool l16_bytes_any_full(l16_bytes top)
{
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(top, _mm256_set1_epi8(-1))) != 0;
}

static inline void l16_store_int8(void *x, l16 v)
{
    const __m256i least = _mm256_set1_epi32(-127);
    __m256i lo = _mm256_max_epi32(_mm256_cvtps_epi32(v.lo), least);
    __m256i hi = _mm256_max_epi32(_mm256_cvtps_epi32(v.hi), least);
    /* Packing works within 128-bit halves, so the quarters come out in the order 0, 2, 1, 3. */
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
    _mm_storeu_si128(
        x, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

static inline uint32_t l16_max_abs_bits(const float *x)
{
    const __m256i abs = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++)
        top = _mm256_max_epi32(
            top, _mm256_and_si256(_mm256_loadu_si256((const void *)(x + 8 * i)), abs));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

#endif
