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
#include "cpu/x86/quant_turned_avx512.h"

/* Whether turning codes in registers is the fastest way: faster than transposing them in the cache,
 * and than folding the sums of each row. */
MOE_INLINE int takes_turned(moe_dtype type, const moe_matmul_args *args)
{
    const uint32_t most = quant_type_of(type).run == 32 ? MAX_TURNED_ROWS : 10;
    return args->n_rows > MAX_DIRECT_ROWS && args->n_rows <= most && args->n_in > 0;
}

/* Multiplies numbers of rows that the turned tiles do not take. */
MOE_INLINE void matmul(moe_dtype type, const moe_matmul_args *args)
{
    if (args->n_rows <= MAX_DIRECT_ROWS || args->n_in == 0) {
        for (uint32_t o = 0; o < args->n_out; o += DIRECT_OUT) {
            direct_tiles(type, args, o);
        }
        return;
    }
    for (uint32_t o = 0; o < args->n_out; o += MAX_PANELS * PANEL_OUT) {
        panel_tiles(type, args, o);
    }
}

/* The turned tiles are a function of their own: in one function with the panels, compilers made the
 * panels 5 % slower. */
#define MOE_TURNED_MATMUL(name, TYPE)                                                              \
    static __attribute__((noinline)) void turned_##name(const moe_matmul_args *args)               \
    {                                                                                              \
        for (uint32_t o = 0; o < args->n_out; o += TURNED_OUT) {                                   \
            turned_tile(MOE_DTYPE_##TYPE, args, o);                                                \
        }                                                                                          \
    }                                                                                              \
    MOE_INLINE void multiply_##name(moe_dtype type, const moe_matmul_args *args)                   \
    {                                                                                              \
        if (takes_turned(type, args)) {                                                            \
            turned_##name(args);                                                                   \
        } else {                                                                                   \
            matmul(type, args);                                                                    \
        }                                                                                          \
    }

/* A type's products, and its function that unpacks weights for matrix units. */
#define MOE_UNPACK_TILES(name, TYPE)                                                               \
    static void unpack_tiles_##name(const moe_matmul_args *args, uint32_t o, uint32_t k,           \
                                    uint32_t n, moe_weight_tiles *tiles)                           \
    {                                                                                              \
        unpack_tiles(MOE_DTYPE_##TYPE, args, o, k, n, tiles);                                      \
    }
#define MOE_MATMUL_AND_TILES(name, TYPE, with)                                                     \
    MOE_TURNED_MATMUL(name, TYPE)                                                                  \
    MOE_QUANT_MATMUL(name, TYPE, multiply_##name)                                                  \
    MOE_UNPACK_TILES(name, TYPE)
#define MOE_ROW_SCALED_AND_TILES(name, TYPE, with)                                                 \
    MOE_TURNED_MATMUL(name, TYPE)                                                                  \
    MOE_ROW_SCALED_MATMUL(name, TYPE, multiply_##name)                                             \
    MOE_UNPACK_TILES(name, TYPE)
#define MOE_SET_MATMUL_AND_TILES(name, TYPE, kernels)                                              \
    MOE_SET_QUANT_MATMUL(name, TYPE, kernels)                                                      \
    (kernels)->unpack_tiles[MOE_DTYPE_##TYPE] = unpack_tiles_##name;

#endif
