/* SPDX-License-Identifier: MIT */
/* Quantises activations to 8 bits with AVX2, a block of 32 at a time, by the contract of
 * quant_rows.h. A row has a few thousand elements but takes part in millions of products, so wider
 * vectors gain nothing here.
 */
#include "cpu/x86/matmul_x86.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

static inline float greatest_magnitude(const __m256 x[4])
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 a = _mm256_max_ps(_mm256_andnot_ps(sign, x[0]), _mm256_andnot_ps(sign, x[1]));
    const __m256 b = _mm256_max_ps(_mm256_andnot_ps(sign, x[2]), _mm256_andnot_ps(sign, x[3]));
    const __m256 ab = _mm256_max_ps(a, b);
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(ab), _mm256_extractf128_ps(ab, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline __m256i rounded(__m256 x, __m256 inverse)
{
    return _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
}

static void quantize_block(const float *x, const moe_q8_row *row, size_t b)
{
    const __m256 v[4] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16),
                         _mm256_loadu_ps(x + 24)};
    const float amax = greatest_magnitude(v);
    float scalar = amax > 0 ? 127 / amax : 0;
    scalar = isinf(scalar) ? 0 : scalar;
    const float d = amax / 127;
    const __m256 inverse = _mm256_set1_ps(scalar);
    const __m256i low = _mm256_packs_epi32(rounded(v[0], inverse), rounded(v[1], inverse));
    const __m256i high = _mm256_packs_epi32(rounded(v[2], inverse), rounded(v[3], inverse));
    /* The packs work within 128-bit halves and leave the groups of four out of order. */
    const __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high),
                                                      _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(row->q + MOE_Q8_BLOCK * b), codes);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m256i eights = _mm256_hadd_epi32(fours, fours);
    const __m256i sixteens = _mm256_hadd_epi32(eights, eights);
    const int32_t first = _mm256_cvtsi256_si32(sixteens);
    const int32_t second = _mm_cvtsi128_si32(_mm256_extracti128_si256(sixteens, 1));
    row->d[b] = d;
    row->sum16[2 * b] = first;
    row->sum16[2 * b + 1] = second;
    row->sum32[b] = first + second;
    row->dsum16[2 * b] = d * (float)first;
    row->dsum16[2 * b + 1] = d * (float)second;
    row->dsum32[b] = d * (float)(first + second);
}

static void quantize_rows(const float *x, size_t x_stride, uint32_t n_rows, uint32_t n_in,
                          moe_q8_rows *out, uint32_t first_row)
{
    (void)n_in;
    for (size_t r = 0; r < n_rows; r++) {
        const moe_q8_row row = moe_q8_row_clear_padding(out, first_row + r);
        const float *source = x + r * x_stride;
        for (size_t b = 0; b < out->n_in / MOE_Q8_BLOCK; b++) {
            quantize_block(source + MOE_Q8_BLOCK * b, &row, b);
        }
    }
}

void moe_quantize_init_avx2(moe_matmul_kernels *kernels)
{
    kernels->quantize_rows = quantize_rows;
}
