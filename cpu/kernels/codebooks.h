/* SPDX-License-Identifier: MIT */
/* The codebooks of GGUF's IQ types, in two forms: packed points (codebook_points.h), and bytes for
 * lookups. */
#ifndef MOE_CPU_CODEBOOKS_H
#define MOE_CPU_CODEBOOKS_H

#include "cpu/kernels/codebook_points.h"

#include <stdint.h>

/* The magnitudes to which the bits of a point's coordinate refer. IQ1 has eight times the value,
 * plus eight. */
#define MOE_IQ3_XXS_LEVELS 4, 12, 20, 28, 36, 44, 52, 62

/* The same magnitudes as expressions, for constants. */
#define MOE_IQ2_LEVEL(i)     ((i) == 0 ? 8u : (i) == 1 ? 25u : 43u)
#define MOE_IQ3_XXS_LEVEL(i) ((i) == 7 ? 62u : 4u + 8u * (i))
#define MOE_IQ3_S_LEVEL(i)   (1u + 2u * (i))
#define MOE_IQ1_LEVEL(i)     (8u * (i))

/* A point of eight or of four as bytes, the first coordinate lowest. */
#define MOE_POINT_PAIR(p, at, mask, level)                                                         \
    (level((p) >> (at) & (mask)) | level((p) >> ((at) + 8) & (mask)) << 8)
#define MOE_POINT_OF_8(p, level)                                                                   \
    ((uint64_t)(MOE_POINT_PAIR(p, 0, 3u, level) | MOE_POINT_PAIR(p, 2, 3u, level) << 16) |         \
     (uint64_t)(MOE_POINT_PAIR(p, 4, 3u, level) | MOE_POINT_PAIR(p, 6, 3u, level) << 16) << 32)
#define MOE_POINT_OF_4(p, level)                                                                   \
    (MOE_POINT_PAIR(p, 0, 7u, level) | MOE_POINT_PAIR(p, 3, 7u, level) << 16)

/* 16 entries of a table: item(p) for each point p of a row. */
#define MOE_ROW_OF_ITEMS(item, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)                     \
    item(0x##a##u), item(0x##b##u), item(0x##c##u), item(0x##d##u), item(0x##e##u),                \
        item(0x##f##u), item(0x##g##u), item(0x##h##u), item(0x##i##u), item(0x##j##u),            \
        item(0x##k##u), item(0x##l##u), item(0x##m##u), item(0x##n##u), item(0x##o##u),            \
        item(0x##p##u),

/* A row of points as bytes, for tables of every device (the GPU's are in weight_points.cuh). */
#define MOE_ITEM_IQ2(p)      MOE_POINT_OF_8(p, MOE_IQ2_LEVEL)
#define MOE_ITEM_IQ1(p)      MOE_POINT_OF_8(p, MOE_IQ1_LEVEL)
#define MOE_ITEM_IQ3_XXS(p)  MOE_POINT_OF_4(p, MOE_IQ3_XXS_LEVEL)
#define MOE_ITEM_IQ3_S(p)    MOE_POINT_OF_4(p, MOE_IQ3_S_LEVEL)
#define MOE_ROW_IQ2(...)     MOE_ROW_OF_ITEMS(MOE_ITEM_IQ2, __VA_ARGS__)
#define MOE_ROW_IQ1(...)     MOE_ROW_OF_ITEMS(MOE_ITEM_IQ1, __VA_ARGS__)
#define MOE_ROW_IQ3_XXS(...) MOE_ROW_OF_ITEMS(MOE_ITEM_IQ3_XXS, __VA_ARGS__)
#define MOE_ROW_IQ3_S(...)   MOE_ROW_OF_ITEMS(MOE_ITEM_IQ3_S, __VA_ARGS__)

/* Points as bytes: each has eight magnitudes for IQ2 and IQ1, and four for IQ3. */
extern const uint64_t moe_iq2_xxs_bytes[256];
extern const uint64_t moe_iq2_xs_bytes[512];
extern const uint64_t moe_iq2_s_bytes[1024];
extern const uint64_t moe_iq1_bytes[2048];
extern const uint32_t moe_iq3_xxs_bytes[256];
extern const uint32_t moe_iq3_s_bytes[512];

/* The packed points of codebooks that vector kernels look up in registers. */
extern const uint16_t moe_iq2_xxs_points[256];
extern const uint16_t moe_iq2_xs_points[512];
extern const uint16_t moe_iq3_xxs_points[256];
extern const uint16_t moe_iq3_s_points[512];

/* The functions below are compiled for GPUs, too (cuda/kernels/weight_points.cuh). */
#ifdef __CUDACC__
#define MOE_ANYWHERE __host__ __device__
#else
#define MOE_ANYWHERE
#endif

/* Each of the four bytes has seven bits. Sets its eighth bit so that the number of set bits is
 * even. */
MOE_ANYWHERE static inline uint32_t moe_with_parity(uint32_t seven)
{
    uint32_t parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & 0x01010101u) << 7;
}

/* Expands four groups of seven sign bits, from the lowest on, into four bytes. The eighth bit makes
 * the number of set bits in its byte even. Bits above the 28 are ignored. */
MOE_ANYWHERE static inline uint32_t moe_even_signs(uint32_t bits)
{
    return moe_with_parity((bits & 0x7fu) | (bits << 1 & 0x7f00u) | (bits << 2 & 0x7f0000u) |
                           (bits << 3 & 0x7f000000u));
}

#endif
