/* SPDX-License-Identifier: MIT */
/* The instructions of the processor's matrix unit (AMX) that the kernels use. Tests define the
 * macros differently before they include the kernels, so that these run on any processor. */
#ifndef MOE_X86_TILE_INSTRUCTIONS_H
#define MOE_X86_TILE_INSTRUCTIONS_H

#include <stddef.h>
#include <stdint.h>

/* The memory operand of LDTILECFG: rows and bytes per row of each tile register. */
typedef struct tile_config {
    _Alignas(64) uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "LDTILECFG reads 64 bytes");

#ifndef TILE_CONFIGURE
/* tile: the number of a tile register, a constant. These are assembly, because the compiler's own
 * forms (gcc 12) do not tell it that the instructions read and write memory. */
#define TILE_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(config)))
#define TILE_RELEASE()         __asm__ volatile("tilerelease")
#define TILE_ZERO(tile)        __asm__ volatile("tilezero %%tmm%c0" ::"i"(tile))
#define TILE_LOAD(tile, from, stride)                                                              \
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(tile), "r"(from), "r"((size_t)(stride)) \
                     : "memory")
#define TILE_STORE(tile, to, stride)                                                               \
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(tile), "r"(to), "r"((size_t)(stride))  \
                     : "memory")
#define TILE_DOT_INT8(sums, a, b)                                                                  \
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(a), "i"(b))
#endif

#endif
