/* SPDX-License-Identifier: MIT */
/* The instructions of AMX that the kernels use (cpu/x86/tile_instructions.h), in C. The kernels'
 * source is compiled with this header in front of it, as moe_tile_products_emulated(): so tests
 * check it on processors without the unit, too. The definitions are those of the processor manual:
 * registers of 16 rows of 64 bytes, of which a configuration says how much counts; what a load does
 * not fill, or a product does not reach, becomes zero. What a processor would refuse (registers
 * that are not configured, shapes that do not fit) ends the test. */
#ifndef MOE_TESTS_TILE_EMULATION_H
#define MOE_TESTS_TILE_EMULATION_H

#include <stddef.h>

#define MOE_TILE_PRODUCTS moe_tile_products_emulated

void emulated_configure(const void *config); /* 64 bytes */
void emulated_release(void);
void emulated_zero(int tile);
void emulated_load(int tile, const void *from, size_t stride);
void emulated_store(int tile, void *to, size_t stride);
void emulated_dot_int8(int sums, int a, int b);

#define TILE_CONFIGURE(config)        emulated_configure(config)
#define TILE_RELEASE()                emulated_release()
#define TILE_ZERO(tile)               emulated_zero(tile)
#define TILE_LOAD(tile, from, stride) emulated_load(tile, from, stride)
#define TILE_STORE(tile, to, stride)  emulated_store(tile, to, stride)
#define TILE_DOT_INT8(sums, a, b)     emulated_dot_int8(sums, a, b)

#endif
