/* SPDX-License-Identifier: MIT */
#include "matmul_cases.h"

#include "cpu/kernels/cpu_features.h"
#include "runtime/base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *checked(void *memory)
{
    if (memory == NULL || memory == MAP_FAILED) {
        perror("memory for the test");
        exit(1);
    }
    return memory;
}

guarded guarded_new(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t body = (bytes + page - 1) / page * page;
    guarded memory = {.map_bytes = body + page};
    memory.map = checked(
        mmap(NULL, memory.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    checked(mprotect(memory.map + body, page, PROT_NONE) == 0 ? memory.map : NULL);
    memory.data = memory.map + body - bytes;
    return memory;
}

void guarded_free(guarded *memory)
{
    munmap(memory->map, memory->map_bytes);
    memory->map = NULL;
}

uint32_t random_bits(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state ^ *state >> 29;
    x *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(x >> 32);
}

float random_normal(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (float)(random_bits(state) >> 8) * 0x1p-24f - 0.5f;
    }
    return sum * 1.7f;
}

/* Offsets of the f16 scales inside a block, -1 for none. */
static const int half_offsets[MOE_DTYPE_LIMIT][2] = {
    [MOE_DTYPE_Q4_0] = {0, -1},    [MOE_DTYPE_Q4_1] = {0, 2},      [MOE_DTYPE_Q5_0] = {0, -1},
    [MOE_DTYPE_Q5_1] = {0, 2},     [MOE_DTYPE_Q8_0] = {0, -1},     [MOE_DTYPE_Q2_K] = {80, 82},
    [MOE_DTYPE_Q3_K] = {108, -1},  [MOE_DTYPE_Q4_K] = {0, 2},      [MOE_DTYPE_Q5_K] = {0, 2},
    [MOE_DTYPE_Q6_K] = {208, -1},  [MOE_DTYPE_IQ4_NL] = {0, -1},   [MOE_DTYPE_IQ4_XS] = {0, -1},
    [MOE_DTYPE_IQ2_XXS] = {0, -1}, [MOE_DTYPE_IQ2_XS] = {0, -1},   [MOE_DTYPE_IQ2_S] = {0, -1},
    [MOE_DTYPE_IQ3_XXS] = {0, -1}, [MOE_DTYPE_IQ3_S] = {0, -1},    [MOE_DTYPE_IQ1_S] = {0, -1},
    [MOE_DTYPE_IQ1_M] = {-1, -1},  [MOE_DTYPE_TQ1_0] = {52, -1},   [MOE_DTYPE_TQ2_0] = {64, -1},
    [MOE_DTYPE_MXFP4] = {-1, -1},  [MOE_DTYPE_NVFP4] = {-1, -1},   [MOE_DTYPE_IQ2_K] = {0, -1},
    [MOE_DTYPE_IQ3_K] = {0, -1},   [MOE_DTYPE_IQ4_K] = {0, -1},    [MOE_DTYPE_IQ5_K] = {0, -1},
    [MOE_DTYPE_IQ6_K] = {0, -1},   [MOE_DTYPE_IQ2_KS] = {-1, -1},  [MOE_DTYPE_IQ3_KS] = {-1, -1},
    [MOE_DTYPE_IQ4_KS] = {-1, -1}, [MOE_DTYPE_IQ4_KSS] = {-1, -1}, [MOE_DTYPE_IQ5_KS] = {-1, -1},
};

/* Of either sign, 2^-12 .. 2^-2; one in 32 is zero or subnormal. */
static uint16_t random_half(uint64_t *state)
{
    const uint32_t bits = random_bits(state);
    const uint16_t sign = (uint16_t)(bits & 0x8000);
    if (bits >> 27 == 0) {
        return (uint16_t)(sign | (bits & 3));
    }
    return (uint16_t)(sign | ((bits >> 16) % (10 << 10) + (3 << 10)));
}

static void random_floats(moe_dtype type, uint8_t *out, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) {
        const float value = random_normal(state) * 0.05f;
        uint32_t bits;
        memcpy(&bits, &value, 4);
        const uint16_t half = type == MOE_DTYPE_F16 ? random_half(state) : (uint16_t)(bits >> 16);
        if (type == MOE_DTYPE_F32) {
            memcpy(out + 4 * i, &value, 4);
        } else {
            memcpy(out + 2 * i, &half, 2);
        }
    }
}

/* IQ1_M has its scale's nibbles in the upper ones of four bytes. */
static void scatter_half(uint8_t *block, uint16_t half)
{
    for (int i = 0; i < 4; i++) {
        uint8_t *byte = block + 49 + 2 * i;
        *byte = (uint8_t)((*byte & 15) | (half >> 4 * i & 15) << 4);
    }
}

/* Blocks without what a row may begin with. */
static void random_blocks(moe_dtype type, void *out, size_t n, uint64_t *state)
{
    const moe_dtype_info *info = moe_dtype_info_of(type);
    uint8_t *bytes = out;
    if (info->is_float) {
        random_floats(type, out, n, state);
        return;
    }
    const size_t total = n / info->block_elems * info->block_bytes;
    for (size_t i = 0; i < total; i++) {
        bytes[i] = (uint8_t)random_bits(state);
    }
    for (size_t b = 0; b < total; b += info->block_bytes) {
        for (int i = 0; i < 2 && half_offsets[type][i] >= 0; i++) {
            const uint16_t half = random_half(state);
            memcpy(bytes + b + half_offsets[type][i], &half, 2);
        }
        if (type == MOE_DTYPE_IQ1_M) {
            scatter_half(bytes + b, random_half(state));
        }
        if (type == MOE_DTYPE_MXFP4) {
            bytes[b] = (uint8_t)(random_bits(state) % 64 == 0 ? bytes[b] % 3 : 110 + bytes[b] % 16);
        }
    }
}

void random_rows(moe_dtype type, void *out, size_t n_rows, size_t n_in, uint64_t *state)
{
    const size_t head_bytes = moe_dtype_info_of(type)->head_bytes;
    if (head_bytes == 0) {
        random_blocks(type, out, n_rows * n_in, state);
        return;
    }
    const size_t row_bytes = moe_dtype_row_bytes(type, n_in);
    for (size_t r = 0; r < n_rows; r++) {
        uint8_t *row = (uint8_t *)out + r * row_bytes;
        const uint16_t half = random_half(state);
        const float scale = r % 16 == 15 ? 0x1p-140f : random_normal(state) * 0x1p-8f;
        memcpy(row, head_bytes == sizeof half ? (const void *)&half : &scale, head_bytes);
        random_blocks(type, row + head_bytes, n_in, state);
    }
}

size_t isa_levels(isa_level levels[MAX_ISA_LEVELS])
{
    static const isa_level all[] = {
        {"reference", 0},
        {"avx2", MOE_CPU_AVX2},
        {"avx-vnni", MOE_CPU_AVX2 | MOE_CPU_AVX_VNNI},
        {"avx512", MOE_CPU_AVX2 | MOE_CPU_AVX512},
        {"avx512-vnni", MOE_CPU_AVX2 | MOE_CPU_AVX512 | MOE_CPU_AVX512_VNNI | MOE_CPU_AVX512_VBMI},
        {"amx", MOE_CPU_AVX2 | MOE_CPU_AVX512 | MOE_CPU_AVX512_VNNI | MOE_CPU_AVX512_VBMI |
                    MOE_CPU_AMX_INT8},
        {"neon", MOE_CPU_NEON},
        {"dotprod", MOE_CPU_NEON | MOE_CPU_NEON_DOTPROD},
        {"i8mm", MOE_CPU_NEON | MOE_CPU_NEON_DOTPROD | MOE_CPU_NEON_I8MM},
    };
    const unsigned have = moe_cpu_features();
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if ((all[i].features & have) == all[i].features) {
            levels[n++] = all[i];
        }
    }
    return n;
}

moe_q8_rows q8_rows_new(uint32_t n_rows, uint32_t n_in, void **scratch)
{
    moe_q8_rows rows;
    const size_t bytes = moe_q8_rows_bytes(n_rows, n_in);
    *scratch = checked(moe_calloc_aligned(bytes, 1));
    memset(*scratch, 0x5a, bytes); /* nobody may count on cleared scratch */
    moe_q8_rows_bind(&rows, *scratch, n_rows, n_in);
    return rows;
}
