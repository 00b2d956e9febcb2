/* SPDX-License-Identifier: MIT */
/* Unpacks the blocks of 16 weight rows for the matrix unit, with AVX-512. */
#ifndef MOE_X86_QUANT_TILES_AVX512_H
#define MOE_X86_QUANT_TILES_AVX512_H

#include "cpu/x86/quant_unpack_avx512.h"
#include "cpu/x86/tile_products.h"

/* moe_unpack_tiles_fn of a type: n elements, from element k on, of 16 weight rows from row o on. */
MOE_INLINE void unpack_tiles(moe_dtype type, const moe_matmul_args *args, uint32_t o, uint32_t k,
                             uint32_t n, moe_weight_tiles *tiles)
{
    const quant_type t = quant_type_of(type);
    const __m512i offset = _mm512_set1_epi8((char)(t.offset_shift < 0 ? 0 : 1 << t.offset_shift));
#pragma GCC unroll 1
    for (uint32_t i = 0; i < TILE; i++) {
        const uint8_t *blocks = weight_row(args, o + i) + k / MOE_GROUP * group_bytes_of(type);
#pragma GCC unroll 1
        for (uint32_t g = 0; g * MOE_GROUP < n; g++) {
            group_copy copy;
            const uint8_t *group =
                whole_group(type, blocks + g * group_bytes_of(type), n - g * MOE_GROUP, &copy);
            const group_state state = begin_group(type, group);
            _mm512_store_ps(tiles->scales[g][i], state.scales);
            if (t.has_mins) {
                _mm512_store_ps(tiles->mins[g][i], state.mins);
            }
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) {
                const __m512i codes = codes_of_chunk(type, group, &state.points, c);
                _mm512_store_si512(tiles->codes[c][g][i],
                                   t.offset_shift < 0 ? codes : _mm512_sub_epi8(codes, offset));
            }
        }
    }
}

#endif
