/* SPDX-License-Identifier: MIT */
/* Shared by the tests and the benchmark of weight products: random valid blocks, memory that ends
 * at an inaccessible page, and the instruction-set levels of this processor. */
#ifndef MOE_TESTS_MATMUL_CASES_H
#define MOE_TESTS_MATMUL_CASES_H

#include "cpu/kernels/matmul.h"

#include <stddef.h>
#include <stdint.h>

typedef struct guarded {
    uint8_t *map;
    size_t map_bytes;
    uint8_t *data; /* data[bytes] is the first byte of a PROT_NONE page */
} guarded;

/* Ends the test when memory is short. */
guarded guarded_new(size_t bytes);
void guarded_free(guarded *memory);

uint32_t random_bits(uint64_t *state);
float random_normal(uint64_t *state); /* roughly: a sum of four uniform numbers */

/* Random rows of n_in elements; scales are finite and of ordinary size, with a few zeros. */
void random_rows(moe_dtype type, void *out, size_t n_rows, size_t n_in, uint64_t *state);

typedef struct isa_level {
    const char *name;
    unsigned features;
} isa_level;

/* The levels this processor has, reference first; at most MAX_ISA_LEVELS. */
enum { MAX_ISA_LEVELS = 6 };
size_t isa_levels(isa_level levels[MAX_ISA_LEVELS]);

/* A moe_q8_rows with its scratch. */
moe_q8_rows q8_rows_new(uint32_t n_rows, uint32_t n_in, void **scratch);

/* The benchmark of `--bench [type]`; returns the exit status. */
int matmul_bench(const char *type_name);

#endif
