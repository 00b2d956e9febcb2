/* SPDX-License-Identifier: MIT */
/* Transposes a square of 16 by 16 words. */
#ifndef MOE_X86_TRANSPOSE_AVX512_H
#define MOE_X86_TRANSPOSE_AVX512_H

#include <immintrin.h>

/* Stores the first n (8 or 16) columns of 16 rows of 16 words. It is not inlined, because it is
 * long: all types share it. */
static __attribute__((noinline)) void store_columns(void *to, const __m512i *rows, int n)
{
    __m512i fours[16]; /* [4i + j]: in quarter q, column 4q + j of rows 4i .. 4i + 3 */
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        const __m512i low0 = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        const __m512i high0 = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        const __m512i low1 = _mm512_unpacklo_epi32(rows[i + 2], rows[i + 3]);
        const __m512i high1 = _mm512_unpackhi_epi32(rows[i + 2], rows[i + 3]);
        fours[i] = _mm512_unpacklo_epi64(low0, low1);
        fours[i + 1] = _mm512_unpackhi_epi64(low0, low1);
        fours[i + 2] = _mm512_unpacklo_epi64(high0, high1);
        fours[i + 3] = _mm512_unpackhi_epi64(high0, high1);
    }
    __m512i *columns = to;
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512i even0 = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0x88);
        const __m512i odd0 = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0xdd);
        const __m512i even1 = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0x88);
        const __m512i odd1 = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0xdd);
        columns[j] = _mm512_shuffle_i32x4(even0, even1, 0x88);
        columns[4 + j] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
        if (n == 16) {
            columns[8 + j] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
            columns[12 + j] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
        }
    }
}

#endif
