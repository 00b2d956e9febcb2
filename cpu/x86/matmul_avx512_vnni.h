/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with AVX-512 VNNI, for few and for many activation rows. vpdpbusd
 * multiplies unsigned codes by signed activations. The excess that a type's offset adds to the
 * integer sums is subtracted before they become floats. */
#ifndef MOE_X86_MATMUL_AVX512_VNNI_H
#define MOE_X86_MATMUL_AVX512_VNNI_H

#include "cpu/x86/matmul_x86.h"
#include "cpu/x86/quant_direct_avx512.h"
#include "cpu/x86/quant_panel_avx512.h"
#include "cpu/x86/quant_tiles_avx512.h"

/* Up to this many rows, folding sums for each row costs less than transposing the weights once. For
 * large types a panel's weights arrive from memory later than a tile's. */
MOE_INLINE uint32_t max_direct_rows(moe_dtype type)
{
    return type == MOE_DTYPE_Q8_0 ? 8 : 4;
}

MOE_INLINE void matmul(moe_dtype type, const moe_matmul_args *args)
{
    if (args->n_rows <= max_direct_rows(type) || args->n_in == 0) {
        for (uint32_t o = 0; o < args->n_out; o += DIRECT_OUT) {
            direct_tiles(type, args, o);
        }
        return;
    }
    for (uint32_t o = 0; o < args->n_out; o += MAX_PANELS * PANEL_OUT) {
        panel_tiles(type, args, o);
    }
}

/* A type's products, and its function that unpacks weights for matrix units. */
#define MOE_UNPACK_TILES(name, TYPE)                                                               \
    static void unpack_tiles_##name(const moe_matmul_args *args, uint32_t o, uint32_t k,           \
                                    uint32_t n, moe_weight_tiles *tiles)                           \
    {                                                                                              \
        unpack_tiles(MOE_DTYPE_##TYPE, args, o, k, n, tiles);                                      \
    }
#define MOE_MATMUL_AND_TILES(name, TYPE, multiply)                                                 \
    MOE_QUANT_MATMUL(name, TYPE, multiply)                                                         \
    MOE_UNPACK_TILES(name, TYPE)
#define MOE_ROW_SCALED_AND_TILES(name, TYPE, multiply)                                             \
    MOE_ROW_SCALED_MATMUL(name, TYPE, multiply)                                                    \
    MOE_UNPACK_TILES(name, TYPE)
#define MOE_SET_MATMUL_AND_TILES(name, TYPE, kernels)                                              \
    MOE_SET_QUANT_MATMUL(name, TYPE, kernels)                                                      \
    (kernels)->unpack_tiles[MOE_DTYPE_##TYPE] = unpack_tiles_##name;

#endif
