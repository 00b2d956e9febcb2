/* SPDX-License-Identifier: MIT */
#include "matmul_peaks.h"

#include "cpu/kernels/cpu_features.h"

#include <time.h>

#ifdef __x86_64__
#include "cpu/x86/tile_instructions.h"

enum { RUNS = 9, STEPS = 1 << 18 };

#define VECTORS                                                                                    \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

/* Each step has independent instructions enough to hide their latency. */
static void multiply_avx2(void)
{
    for (int i = 0; i < STEPS; i++) {
        __asm__ volatile("vpmaddubsw %%ymm15, %%ymm14, %%ymm0\n vpmaddwd %%ymm13, %%ymm0, %%ymm0\n"
                         "vpaddd %%ymm0, %%ymm6, %%ymm6\n"
                         "vpmaddubsw %%ymm15, %%ymm14, %%ymm1\n vpmaddwd %%ymm13, %%ymm1, %%ymm1\n"
                         "vpaddd %%ymm1, %%ymm7, %%ymm7\n"
                         "vpmaddubsw %%ymm15, %%ymm14, %%ymm2\n vpmaddwd %%ymm13, %%ymm2, %%ymm2\n"
                         "vpaddd %%ymm2, %%ymm8, %%ymm8\n"
                         "vpmaddubsw %%ymm15, %%ymm14, %%ymm3\n vpmaddwd %%ymm13, %%ymm3, %%ymm3\n"
                         "vpaddd %%ymm3, %%ymm9, %%ymm9\n" ::
                             : VECTORS);
    }
    __asm__ volatile("vzeroupper" ::: VECTORS);
}

#define DOT_VNNI(vector, sum) "%{vex%} vpdpbusd %%" vector "15, %%" vector "14, %%" vector #sum "\n"
#define DOT_512(sum)          "vpdpbusd %%zmm15, %%zmm14, %%zmm" #sum "\n"

static void multiply_avx_vnni(void)
{
    for (int i = 0; i < STEPS; i++) {
        __asm__ volatile(DOT_VNNI("ymm", 0) DOT_VNNI("ymm", 1) DOT_VNNI("ymm", 2) DOT_VNNI("ymm", 3)
                             DOT_VNNI("ymm", 4) DOT_VNNI("ymm", 5) DOT_VNNI("ymm", 6)
                                 DOT_VNNI("ymm", 7) DOT_VNNI("ymm", 8) DOT_VNNI("ymm", 9)
                                     DOT_VNNI("ymm", 10) DOT_VNNI("ymm", 11)::
                                         : VECTORS);
    }
    __asm__ volatile("vzeroupper" ::: VECTORS);
}

static void multiply_avx512_vnni(void)
{
    for (int i = 0; i < STEPS; i++) {
        __asm__ volatile(DOT_512(0) DOT_512(1) DOT_512(2) DOT_512(3) DOT_512(4) DOT_512(5)
                             DOT_512(6) DOT_512(7) DOT_512(8) DOT_512(9) DOT_512(10) DOT_512(11)::
                                 : VECTORS);
    }
    __asm__ volatile("vzeroupper" ::: VECTORS);
}

/* 16 rows of 64 bytes in all tiles; six sums, one of two pairs of factors each. */
static void multiply_amx(void)
{
    tile_config config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.rows[tile] = 16;
        config.row_bytes[tile] = 64;
    }
    TILE_CONFIGURE(&config);
    for (int i = 0; i < STEPS / 16; i++) {
        TILE_DOT_INT8(0, 6, 7);
        TILE_DOT_INT8(1, 6, 7);
        TILE_DOT_INT8(2, 6, 7);
        TILE_DOT_INT8(3, 6, 7);
        TILE_DOT_INT8(4, 6, 7);
        TILE_DOT_INT8(5, 6, 7);
    }
    TILE_RELEASE();
}

typedef struct peak_loop {
    unsigned feature;
    void (*run)(void);
    double n; /* multiply-adds of a run */
} peak_loop;

/* The last that a level has. AVX-512 without VNNI has none. */
static const peak_loop loops[] = {
    {MOE_CPU_AVX2, multiply_avx2, 4.0 * 32 * STEPS},
    {MOE_CPU_AVX_VNNI, multiply_avx_vnni, 12.0 * 32 * STEPS},
    {MOE_CPU_AVX512_VNNI, multiply_avx512_vnni, 12.0 * 64 * STEPS},
    {MOE_CPU_AMX_INT8, multiply_amx, 6.0 * 16 * 16 * 64 * (STEPS / 16)},
};

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double matmul_peak(const isa_level *level)
{
    double best = 0;
    if ((level->features & (MOE_CPU_AVX512 | MOE_CPU_AVX512_VNNI)) == MOE_CPU_AVX512) {
        return 0;
    }
    for (size_t l = sizeof loops / sizeof loops[0]; l-- > 0;) {
        if ((level->features & loops[l].feature) == 0) {
            continue;
        }
        for (int i = 0; i < RUNS; i++) {
            double begin = cpu_seconds();
            loops[l].run();
            double speed = 1e-9 * loops[l].n / (cpu_seconds() - begin);
            best = speed > best ? speed : best;
        }
        return best;
    }
    return 0;
}
#else
double matmul_peak(const isa_level *level)
{
    (void)level;
    return 0;
}
#endif
