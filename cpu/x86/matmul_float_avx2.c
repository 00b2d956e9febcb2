/* SPDX-License-Identifier: MIT */
/* Products of F32, F16 and BF16 weights with AVX2. An output's 16 lanes are two registers: one of
 * even and one of odd runs of eight elements.
 *
 * For one or two activation rows the weights are read in place. For more rows, TILE_OUT weight rows
 * are widened, PANEL elements at a time, into a panel in the L1 cache. The panel is then multiplied
 * with all activation rows, first for lanes 0..7, then for lanes 8..15. This halves the number of
 * accumulators, so a larger tile fits 16 registers. A tile that extends beyond the last weight row
 * repeats that row and does not store the repeated outputs. */
#include "cpu/kernels/block_formats.h"
#include "cpu/x86/matmul_x86.h"
#include "cpu/x86/quant_types.h"
#include "cpu/x86/reduce_avx2.h"

#include <stdbool.h>

enum {
    TILE_OUT = 4,
    TILE_ROWS = 3,
    MAX_DIRECT_ROWS = 2,
    PANEL = 1024,
    ROW_BLOCK = 48,
    PREFETCH_BYTES = 4096
};

typedef struct row_sums {
    lanes_avx2 acc[TILE_OUT];
} row_sums;

static const float *x_row(const moe_matmul_args *args, uint32_t r)
{
    return args->x + (args->x_index != NULL ? args->x_index[r] : r) * args->x_stride;
}

MOE_INLINE size_t weight_bytes(moe_dtype type)
{
    return type == MOE_DTYPE_F32 ? 4 : 2;
}

MOE_INLINE __m256 load_weights(moe_dtype type, const uint8_t *row, size_t i)
{
    if (type == MOE_DTYPE_F32) {
        return _mm256_loadu_ps((const float *)(row + 4 * i));
    }
    const __m128i halves = _mm_loadu_si128((const __m128i *)(row + 2 * i));
    if (type == MOE_DTYPE_F16) {
        return _mm256_cvtph_ps(halves);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

static float one_weight(moe_dtype type, const uint8_t *row, size_t i)
{
    float value;
    uint16_t half;
    if (type == MOE_DTYPE_F32) {
        memcpy(&value, row + 4 * i, 4);
        return value;
    }
    memcpy(&half, row + 2 * i, 2);
    return type == MOE_DTYPE_F16 ? _cvtsh_ss(half) : moe_bfloat_to_float(half);
}

/* Adds elements first .. n - 1, fewer than 16, to their lanes. */
static void add_tail(moe_dtype type, const uint8_t *row, const float *x, size_t first, size_t n,
                     lanes_avx2 *acc)
{
    float lanes[16];
    _mm256_storeu_ps(lanes, acc->half[0]);
    _mm256_storeu_ps(lanes + 8, acc->half[1]);
    for (size_t i = first; i < n; i++) {
        lanes[i % 16] = __builtin_fmaf(one_weight(type, row, i), x[i], lanes[i % 16]);
    }
    acc->half[0] = _mm256_loadu_ps(lanes);
    acc->half[1] = _mm256_loadu_ps(lanes + 8);
}

static void store_outputs(const moe_matmul_args *args, uint32_t o, uint32_t r,
                          const lanes_avx2 *acc)
{
    const uint32_t n_valid = args->n_out - o < TILE_OUT ? args->n_out - o : TILE_OUT;
    const size_t row = args->out_index != NULL ? args->out_index[r] : r;
    store_first(args->out + row * args->out_stride + o, reduce_4(acc), n_valid);
}

static const uint8_t *weight_row(const moe_matmul_args *args, uint32_t o)
{
    const uint32_t row = o < args->n_out ? o : args->n_out - 1;
    return (const uint8_t *)args->weights + row * args->row_bytes;
}

MOE_INLINE void direct_row(moe_dtype type, const moe_matmul_args *args, uint32_t o, uint32_t r)
{
    const size_t n = args->n_in / 16 * 16;
    const size_t tile_bytes = TILE_OUT * args->row_bytes;
    const size_t prefetch = (PREFETCH_BYTES / (tile_bytes + 1) + 1) * tile_bytes;
    const float *x = x_row(args, r);
    const uint8_t *w[TILE_OUT];
    lanes_avx2 acc[TILE_OUT];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < TILE_OUT; i++) {
        w[i] = weight_row(args, o + i);
        acc[i].half[0] = acc[i].half[1] = _mm256_setzero_ps();
    }
    for (size_t k = 0; k < n; k += 16) {
        const __m256 x0 = _mm256_loadu_ps(x + k);
        const __m256 x1 = _mm256_loadu_ps(x + k + 8);
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            _mm_prefetch((const char *)w[i] + weight_bytes(type) * k + prefetch, _MM_HINT_T0);
            acc[i].half[0] = _mm256_fmadd_ps(load_weights(type, w[i], k), x0, acc[i].half[0]);
            acc[i].half[1] = _mm256_fmadd_ps(load_weights(type, w[i], k + 8), x1, acc[i].half[1]);
        }
    }
    lanes_avx2 sums[TILE_OUT];
#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++) {
        sums[i] = acc[i];
        add_tail(type, w[i], x, n, args->n_in, &sums[i]);
    }
    store_outputs(args, o, r, sums);
}

/* Adds n elements, a multiple of 16, to lanes 0..7 (half 0) or 8..15 (half 1). */
MOE_INLINE void panel_tile(int half, const float (*panel)[PANEL], const float *const *x, int n_rows,
                           size_t n, row_sums *sums)
{
    __m256 acc[TILE_ROWS][TILE_OUT];
#pragma GCC unroll 3
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            acc[r][i] = sums[r].acc[i].half[half];
        }
    }
    for (size_t k = 8 * (size_t)half; k < n; k += 16) {
        __m256 xs[TILE_ROWS];
#pragma GCC unroll 3
        for (int r = 0; r < n_rows; r++) {
            xs[r] = _mm256_loadu_ps(x[r] + k);
        }
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            const __m256 weights = _mm256_load_ps(panel[i] + k);
#pragma GCC unroll 3
            for (int r = 0; r < n_rows; r++) {
                acc[r][i] = _mm256_fmadd_ps(weights, xs[r], acc[r][i]);
            }
        }
    }
#pragma GCC unroll 3
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            sums[r].acc[i].half[half] = acc[r][i];
        }
    }
}

/* Multiplies up to ROW_BLOCK activation rows with one panel, whose first element is the weight
 * rows' k-th. */
static void panel_rows(const moe_matmul_args *args, const float (*panel)[PANEL], uint32_t r0,
                       uint32_t n_rows, size_t k, size_t n, row_sums *sums)
{
    const size_t whole = n / 16 * 16;
    for (uint32_t r = 0; r < n_rows; r += TILE_ROWS) {
        const float *x[TILE_ROWS];
        const uint32_t n_tile = n_rows - r < TILE_ROWS ? n_rows - r : TILE_ROWS;
        for (uint32_t i = 0; i < n_tile; i++) {
            x[i] = x_row(args, r0 + r + i) + k;
        }
        if (n_tile == 1) {
            panel_tile(0, panel, x, 1, whole, sums + r);
            panel_tile(1, panel, x, 1, whole, sums + r);
        } else if (n_tile == 2) {
            panel_tile(0, panel, x, 2, whole, sums + r);
            panel_tile(1, panel, x, 2, whole, sums + r);
        } else {
            panel_tile(0, panel, x, 3, whole, sums + r);
            panel_tile(1, panel, x, 3, whole, sums + r);
        }
        for (uint32_t i = 0; i < n_tile * TILE_OUT && whole < n; i++) {
            add_tail(MOE_DTYPE_F32, (const uint8_t *)panel[i % TILE_OUT], x[i / TILE_OUT], whole, n,
                     &sums[r + i / TILE_OUT].acc[i % TILE_OUT]);
        }
    }
}

/* Widens n elements. Also prefetches the bytes that lie `prefetch` bytes behind them, which the
 * next tile needs. */
MOE_INLINE void widen(moe_dtype type, const uint8_t *row, size_t first, size_t n, float *out,
                      size_t prefetch)
{
    const size_t whole = n / 8 * 8;
    for (size_t k = 0; k < whole; k += 8) {
        _mm_prefetch((const char *)row + weight_bytes(type) * (first + k) + prefetch, _MM_HINT_T0);
        _mm256_store_ps(out + k, load_weights(type, row, first + k));
    }
    for (size_t k = whole; k < n; k++) {
        out[k] = one_weight(type, row, first + k);
    }
}

MOE_INLINE void panel_tiles(moe_dtype type, const moe_matmul_args *args, uint32_t o, uint32_t r0)
{
    _Alignas(64) float panel[TILE_OUT][PANEL];
    row_sums sums[ROW_BLOCK];
    const uint32_t n_rows = args->n_rows - r0 < ROW_BLOCK ? args->n_rows - r0 : ROW_BLOCK;
    memset(sums, 0, n_rows * sizeof sums[0]);
    for (size_t k = 0; k < args->n_in; k += PANEL) {
        const size_t n = args->n_in - k < PANEL ? args->n_in - k : PANEL;
        for (uint32_t i = 0; i < TILE_OUT; i++) {
            widen(type, weight_row(args, o + i), k, n, panel[i], TILE_OUT * args->row_bytes);
        }
        panel_rows(args, panel, r0, n_rows, k, n, sums);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        store_outputs(args, o, r0 + r, sums[r].acc);
    }
}

MOE_INLINE void matmul(moe_dtype type, const moe_matmul_args *args)
{
    const bool direct = args->n_rows <= MAX_DIRECT_ROWS;
    for (uint32_t o = 0; o < args->n_out; o += TILE_OUT) {
        for (uint32_t r = 0; r < args->n_rows && direct; r++) {
            direct_row(type, args, o, r);
        }
        for (uint32_t r = 0; r < args->n_rows && !direct; r += ROW_BLOCK) {
            panel_tiles(type, args, o, r);
        }
    }
}

static void matmul_f32(const moe_matmul_args *args)
{
    matmul(MOE_DTYPE_F32, args);
}

static void matmul_f16(const moe_matmul_args *args)
{
    matmul(MOE_DTYPE_F16, args);
}

static void matmul_bf16(const moe_matmul_args *args)
{
    matmul(MOE_DTYPE_BF16, args);
}

void moe_matmul_init_float_avx2(moe_matmul_kernels *kernels)
{
    kernels->matmul[MOE_DTYPE_F32] = matmul_f32;
    kernels->matmul[MOE_DTYPE_F16] = matmul_f16;
    kernels->matmul[MOE_DTYPE_BF16] = matmul_bf16;
}
