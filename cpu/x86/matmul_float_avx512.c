/* SPDX-License-Identifier: MIT */
/* Products of F32, F16 and BF16 weights with AVX-512: tiles of weight rows by up to TILE_ROWS
 * activation rows. Each pair of a weight row and an activation row has one zmm accumulator, whose
 * lane l is lane l of the contract.
 *
 * For few activation rows the weights are read in place, DIRECT_OUT weight rows at a time: memory
 * is the limit, and four streams keep memory busier than eight. For many rows TILE_OUT weight rows
 * are widened, PANEL elements at a time, into an aligned panel in the L1 cache, which is then
 * multiplied with all activation rows. A tile that extends beyond the last weight row repeats that
 * row and does not store the repeated outputs. */
#include "cpu/kernels/block_formats.h"
#include "cpu/x86/matmul_x86.h"
#include "cpu/x86/quant_types.h"
#include "cpu/x86/reduce_avx512.h"

#include <immintrin.h>

enum {
    DIRECT_OUT = 4,
    TILE_OUT = 8,
    TILE_ROWS = 3,
    PANEL = 512,
    ROW_BLOCK = 48,
    PREFETCH_BYTES = 4096
};

typedef struct row_sums {
    __m512 acc[TILE_OUT];
} row_sums;

static const float *x_row(const moe_matmul_args *args, uint32_t r)
{
    return args->x + (args->x_index != NULL ? args->x_index[r] : r) * args->x_stride;
}

static size_t weight_bytes(moe_dtype type)
{
    return type == MOE_DTYPE_F32 ? 4 : 2;
}

/* Loads 16 elements as floats; elements outside the mask are 0. */
MOE_INLINE __m512 load_weights(moe_dtype type, const uint8_t *row, size_t i, __mmask16 mask)
{
    if (type == MOE_DTYPE_F32) {
        return _mm512_maskz_loadu_ps(mask, row + 4 * i);
    }
    const __m256i halves = _mm256_maskz_loadu_epi16(mask, row + 2 * i);
    if (type == MOE_DTYPE_F16) {
        return _mm512_cvtph_ps(halves);
    }
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* Adds n elements of each pair of rows. prefetch: how many bytes ahead to prefetch; 0 for weights
 * in cache. */
MOE_INLINE void tile(moe_dtype type, const uint8_t *const *w, const float *const *x, int n_out,
                     int n_rows, size_t n, size_t prefetch, row_sums *sums)
{
    __m512 acc[TILE_ROWS][TILE_OUT];
#pragma GCC unroll 3
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < n_out; i++) {
            acc[r][i] = sums[r].acc[i];
        }
    }
    for (size_t k = 0; k < n / 16 * 16; k += 16) {
        __m512 xs[TILE_ROWS];
#pragma GCC unroll 3
        for (int r = 0; r < n_rows; r++) {
            xs[r] = _mm512_loadu_ps(x[r] + k);
        }
#pragma GCC unroll 8
        for (int i = 0; i < n_out; i++) {
            const __m512 weights = load_weights(type, w[i], k, 0xffff);
            if (prefetch != 0) {
                _mm_prefetch((const char *)w[i] + weight_bytes(type) * k + prefetch, _MM_HINT_T0);
            }
#pragma GCC unroll 3
            for (int r = 0; r < n_rows; r++) {
                acc[r][i] = _mm512_fmadd_ps(weights, xs[r], acc[r][i]);
            }
        }
    }
    const size_t whole = n / 16 * 16;
    const __mmask16 tail = (__mmask16)((1u << n % 16) - 1);
#pragma GCC unroll 3
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < n_out; i++) {
            sums[r].acc[i] = acc[r][i];
        }
        for (int i = 0; i < n_out && tail != 0; i++) {
            sums[r].acc[i] = _mm512_mask3_fmadd_ps(load_weights(type, w[i], whole, tail),
                                                   _mm512_maskz_loadu_ps(tail, x[r] + whole),
                                                   sums[r].acc[i], tail);
        }
    }
}

MOE_INLINE void tile_rows(moe_dtype type, const uint8_t *const *w, const float *const *x, int n_out,
                          uint32_t n_rows, size_t n, size_t prefetch, row_sums *sums)
{
    switch (n_rows) {
    case 1:
        tile(type, w, x, n_out, 1, n, prefetch, sums);
        break;
    case 2:
        tile(type, w, x, n_out, 2, n, prefetch, sums);
        break;
    default:
        tile(type, w, x, n_out, 3, n, prefetch, sums);
    }
}

/* Stores four outputs of a row, or fewer at its end. */
static void store_outputs(const moe_matmul_args *args, uint32_t o, uint32_t r, const __m512 *acc)
{
    if (o >= args->n_out) {
        return;
    }
    const uint32_t n_valid = args->n_out - o < 4 ? args->n_out - o : 4;
    const size_t row = args->out_index != NULL ? args->out_index[r] : r;
    store_first(args->out + row * args->out_stride + o, reduce_4x16(acc[0], acc[1], acc[2], acc[3]),
                n_valid);
}

static const uint8_t *weight_row(const moe_matmul_args *args, uint32_t o)
{
    const uint32_t row = o < args->n_out ? o : args->n_out - 1;
    return (const uint8_t *)args->weights + row * args->row_bytes;
}

MOE_INLINE void direct_rows(moe_dtype type, const moe_matmul_args *args, uint32_t o)
{
    const uint8_t *w[DIRECT_OUT];
    const float *x[TILE_ROWS];
    row_sums sums[TILE_ROWS];
    const size_t tile_bytes = DIRECT_OUT * args->row_bytes;
    memset(sums, 0, sizeof sums);
    for (uint32_t i = 0; i < DIRECT_OUT; i++) {
        w[i] = weight_row(args, o + i);
    }
    for (uint32_t r = 0; r < args->n_rows; r++) {
        x[r] = x_row(args, r);
    }
    tile_rows(type, w, x, DIRECT_OUT, args->n_rows, args->n_in,
              (PREFETCH_BYTES / (tile_bytes + 1) + 1) * tile_bytes, sums);
    for (uint32_t r = 0; r < args->n_rows; r++) {
        store_outputs(args, o, r, sums[r].acc);
    }
}

/* Widens n elements. Also prefetches the bytes that lie `prefetch` bytes behind them, which the
 * next tile needs. */
MOE_INLINE void widen(moe_dtype type, const uint8_t *row, size_t first, uint32_t n, float *out,
                      size_t prefetch)
{
    for (uint32_t k = 0; k < n; k += 16) {
        _mm_prefetch((const char *)row + weight_bytes(type) * (first + k) + prefetch, _MM_HINT_T0);
        const __mmask16 mask = n - k >= 16 ? 0xffff : (__mmask16)((1u << (n - k)) - 1);
        _mm512_store_ps(out + k, load_weights(type, row, first + k, mask));
    }
}

static __attribute__((noinline)) void panel_rows(const moe_matmul_args *args,
                                                 const uint8_t *const *panel_rows, uint32_t r0,
                                                 uint32_t n_rows, size_t k, size_t n,
                                                 row_sums *sums)
{
    for (uint32_t r = 0; r < n_rows; r += TILE_ROWS) {
        const float *x[TILE_ROWS];
        const uint32_t n_tile = n_rows - r < TILE_ROWS ? n_rows - r : TILE_ROWS;
        for (uint32_t i = 0; i < n_tile; i++) {
            x[i] = x_row(args, r0 + r + i) + k;
        }
        tile_rows(MOE_DTYPE_F32, panel_rows, x, TILE_OUT, n_tile, n, 0, sums + r);
    }
}

MOE_INLINE void panel_tiles(moe_dtype type, const moe_matmul_args *args, uint32_t o, uint32_t r0)
{
    _Alignas(64) float panel[TILE_OUT][PANEL];
    const uint8_t *rows[TILE_OUT];
    row_sums sums[ROW_BLOCK];
    const uint32_t n_rows = args->n_rows - r0 < ROW_BLOCK ? args->n_rows - r0 : ROW_BLOCK;
    memset(sums, 0, n_rows * sizeof sums[0]);
    for (uint32_t k = 0; k < args->n_in; k += PANEL) {
        const uint32_t n = args->n_in - k < PANEL ? args->n_in - k : PANEL;
        for (uint32_t i = 0; i < TILE_OUT; i++) {
            widen(type, weight_row(args, o + i), k, n, panel[i], TILE_OUT * args->row_bytes);
            rows[i] = (const uint8_t *)panel[i];
        }
        panel_rows(args, rows, r0, n_rows, k, n, sums);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        store_outputs(args, o, r0 + r, sums[r].acc);
        store_outputs(args, o + 4, r0 + r, sums[r].acc + 4);
    }
}

MOE_INLINE void matmul(moe_dtype type, const moe_matmul_args *args)
{
    if (args->n_rows <= TILE_ROWS) {
        for (uint32_t o = 0; o < args->n_out; o += DIRECT_OUT) {
            direct_rows(type, args, o);
        }
        return;
    }
    for (uint32_t o = 0; o < args->n_out; o += TILE_OUT) {
        for (uint32_t r = 0; r < args->n_rows; r += ROW_BLOCK) {
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

void moe_matmul_init_float_avx512(moe_matmul_kernels *kernels)
{
    kernels->matmul[MOE_DTYPE_F32] = matmul_f32;
    kernels->matmul[MOE_DTYPE_F16] = matmul_f16;
    kernels->matmul[MOE_DTYPE_BF16] = matmul_bf16;
}
