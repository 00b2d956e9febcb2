/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with AVX2. vpmaddubsw multiplies unsigned by signed bytes and adds
 * two products in 16 bits: codes up to 63 cannot saturate it. Signed codes give it their magnitude
 * and the activations their sign: 2 * 128 * 127 still fits. */
#include "cpu/x86/quant_tiles_avx2.h"

MOE_INLINE __m256i dot_unsigned(__m256i start, __m256i codes, __m256i q)
{
    const __m256i pairs = _mm256_maddubs_epi16(codes, q);
    return _mm256_add_epi32(start, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

MOE_INLINE __m256i dot_signed(__m256i start, __m256i codes, __m256i q)
{
    return dot_unsigned(start, _mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes));
}

QUANT_MATMULS(((dot_kind){0, dot_unsigned, dot_signed}))

void moe_matmul_init_avx2(moe_matmul_kernels *kernels)
{
    set_quant_matmuls(kernels);
}
