/* SPDX-License-Identifier: MIT */
/* The products of panels (quant_panel_avx512.h). These functions depend on a type only by its run
 * length and by whether it has minima or an offset (each type has one of the two). So types share
 * the functions, and each is compiled once. */
#include "cpu/x86/quant_panel_avx512.h"

#include <stdbool.h>

enum { TILE_ROWS = 4 };

typedef struct tile_shape {
    int n_panels;
    int n_rows;
    uint32_t run;
    int has_mins; /* false: the type has an offset */
} tile_shape;

/* The activation rows of a tile, with the elements that the panel has. */
typedef struct x_tile {
    const int8_t *q[TILE_ROWS];
    _Alignas(64) float d[TILE_ROWS][PANEL / 32];
    int32_t start[TILE_ROWS][PANEL / 16]; /* for each run: -offset * the sum of q */
    float dsum[TILE_ROWS][PANEL / 16];    /* for each run */
} x_tile;

/* Loads the tile. Includes a row's padding, up to a whole group. */
MOE_INLINE void load_tile(tile_shape shape, const moe_matmul_args *args, uint32_t r, uint32_t k,
                          uint32_t n, x_tile *tile)
{
    const int offset_shift = quant_type_of(args->type).offset_shift;
    const __m128i shift = _mm_cvtsi32_si128(offset_shift < 0 ? 0 : offset_shift);
    for (int i = 0; i < shape.n_rows; i++) {
        const x_row x = x_row_of(args, r + (uint32_t)i, k, shape.run);
        tile->q[i] = x.q;
        for (uint32_t j = 0; j * 32 < n; j += 8) {
            _mm256_store_ps(&tile->d[i][j], _mm256_loadu_ps(x.d + j));
        }
        for (uint32_t j = 0; j * shape.run < n; j += 8) {
            const __m256i sums = _mm256_loadu_si256((const __m256i *)(x.sum + j));
            const __m256i starts =
                _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_sll_epi32(sums, shift));
            _mm256_store_si256((__m256i *)&tile->start[i][j], starts);
            _mm256_store_ps(&tile->dsum[i][j], _mm256_loadu_ps(x.dsum + j));
        }
    }
}

MOE_INLINE __m512i broadcast_4(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, 4);
    return _mm512_set1_epi32(four);
}

/* Computes the integer sums of run j of the panels. */
MOE_INLINE void sum_run(tile_shape shape, const weight_panel *const *panels, const x_tile *x,
                        size_t j, __m512i sums[MAX_PANELS][TILE_ROWS])
{
    const size_t steps = shape.run / 4;
#pragma GCC unroll 4
    for (int r = 0; r < shape.n_rows; r++) {
#pragma GCC unroll 2
        for (int p = 0; p < shape.n_panels; p++) {
            sums[p][r] =
                shape.has_mins ? _mm512_setzero_si512() : _mm512_set1_epi32(x->start[r][j]);
        }
    }
#pragma GCC unroll 8
    for (size_t s = 0; s < steps; s++) {
        __m512i codes[MAX_PANELS];
#pragma GCC unroll 2
        for (int p = 0; p < shape.n_panels; p++) {
            codes[p] = _mm512_load_si512(panels[p]->codes[j * steps + s]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < shape.n_rows; r++) {
            const __m512i q = broadcast_4(x->q[r] + (j * steps + s) * 4);
#pragma GCC unroll 2
            for (int p = 0; p < shape.n_panels; p++) {
                sums[p][r] = _mm512_dpbusd_epi32(sums[p][r], codes[p], q);
            }
        }
    }
}

MOE_INLINE void add_run(tile_shape shape, const weight_panel *const *panels, const x_tile *x,
                        size_t j, __m512 acc[MAX_PANELS][TILE_ROWS])
{
    __m512i sums[MAX_PANELS][TILE_ROWS];
    sum_run(shape, panels, x, j, sums);
#pragma GCC unroll 2
    for (int p = 0; p < shape.n_panels; p++) {
        const __m512 scales = _mm512_load_ps(panels[p]->scales[j]);
        const __m512 mins = _mm512_load_ps(panels[p]->mins[j]);
#pragma GCC unroll 4
        for (int r = 0; r < shape.n_rows; r++) {
            const __m512 d = _mm512_set1_ps(x->d[r][j * shape.run / 32]);
            acc[p][r] = _mm512_fmadd_ps(_mm512_mul_ps(scales, d), _mm512_cvtepi32_ps(sums[p][r]),
                                        acc[p][r]);
            if (shape.has_mins) {
                acc[p][r] = _mm512_fmadd_ps(mins, _mm512_set1_ps(x->dsum[r][j]), acc[p][r]);
            }
        }
    }
}

/* Prefetches the next panels' weights, because unpacking would otherwise wait for memory. It
 * prefetches a few lines at a time, because many requests at once delay each other. */
typedef struct fetcher {
    const char *row;
    uint32_t line; /* of the row's n_lines */
    uint32_t n_lines;
    uint32_t n_rows; /* rows left */
    uint32_t at_a_time;
} fetcher;

MOE_INLINE fetcher begin_fetching(const row_block *block, uint32_t times)
{
    const uint32_t lines = block->next_bytes / 64 + 1;
    return (fetcher){block->next, 0, lines, block->n_next,
                     (lines * block->n_next + times - 1) / times};
}

MOE_INLINE void fetch(fetcher *f, size_t row_bytes)
{
    for (uint32_t n = f->at_a_time; n > 0 && f->n_rows > 0;) {
        const uint32_t left = f->n_lines - f->line;
        const uint32_t now = n < left ? n : left;
        for (uint32_t i = 0; i < now; i++) {
            _mm_prefetch(f->row + 64 * (size_t)(f->line + i), _MM_HINT_T1);
        }
        f->line += now;
        n -= now;
        if (f->line == f->n_lines) {
            f->line = 0;
            f->row += row_bytes;
            f->n_rows--;
        }
    }
}

/* Multiplies the tile x of activation rows; its sums begin at row `row` of the block. */
MOE_INLINE void panel_tile(tile_shape shape, const moe_matmul_args *args,
                           const weight_panel *const *panels, const x_tile *x,
                           const row_block *block, fetcher *next, panel_sums *sums, size_t row)
{
    const size_t lanes = MOE_GROUP / shape.run;
    const bool is_first = block->k == 0;
    for (size_t lane = 0; lane < lanes; lane++) {
        fetch(next, args->row_bytes);
        __m512 acc[MAX_PANELS][TILE_ROWS];
#pragma GCC unroll 2
        for (int p = 0; p < shape.n_panels; p++) {
#pragma GCC unroll 4
            for (int r = 0; r < shape.n_rows; r++) {
                acc[p][r] =
                    is_first ? _mm512_setzero_ps() : sums->acc[p][(row + (size_t)r) * lanes + lane];
            }
        }
        for (size_t j = lane; j * shape.run < block->n; j += lanes) {
            add_run(shape, panels, x, j, acc);
        }
#pragma GCC unroll 2
        for (int p = 0; p < shape.n_panels; p++) {
#pragma GCC unroll 4
            for (int r = 0; r < shape.n_rows; r++) {
                sums->acc[p][(row + (size_t)r) * lanes + lane] = acc[p][r];
            }
        }
    }
}

MOE_INLINE void panel_rows(tile_shape shape, const moe_matmul_args *args,
                           const weight_panel *const *panels, const row_block *block,
                           panel_sums *sums)
{
    const uint32_t n_tiles = (block->n_rows + TILE_ROWS - 1) / TILE_ROWS;
    fetcher next = begin_fetching(block, n_tiles * (MOE_GROUP / shape.run));
    for (uint32_t r = 0; r < block->n_rows; r += TILE_ROWS) {
        x_tile x;
        const uint32_t left = block->n_rows - r;
        shape.n_rows = (int)(left < TILE_ROWS ? left : TILE_ROWS);
        load_tile(shape, args, block->r0 + r, block->k, block->n, &x);
        switch (shape.n_rows) {
        case 1:
            shape.n_rows = 1;
            panel_tile(shape, args, panels, &x, block, &next, sums, r);
            break;
        case 2:
            shape.n_rows = 2;
            panel_tile(shape, args, panels, &x, block, &next, sums, r);
            break;
        case 3:
            shape.n_rows = 3;
            panel_tile(shape, args, panels, &x, block, &next, sums, r);
            break;
        default:
            shape.n_rows = 4;
            panel_tile(shape, args, panels, &x, block, &next, sums, r);
        }
    }
}

/* One function for each shape of tiles, which all types of that shape share. */
typedef void panel_rows_fn(const moe_matmul_args *args, const weight_panel *const *panels,
                           const row_block *block, panel_sums *sums);

#define PANEL_ROWS(name, n_panels, run, has_mins)                                                  \
    static __attribute__((noinline)) void name(const moe_matmul_args *args,                        \
                                               const weight_panel *const *panels,                  \
                                               const row_block *block, panel_sums *sums)           \
    {                                                                                              \
        panel_rows((tile_shape){n_panels, 0, run, has_mins}, args, panels, block, sums);           \
    }
PANEL_ROWS(one_run_32, 1, 32, 0)
PANEL_ROWS(two_run_32, 2, 32, 0)
PANEL_ROWS(one_run_32_mins, 1, 32, 1)
PANEL_ROWS(two_run_32_mins, 2, 32, 1)
PANEL_ROWS(one_run_16, 1, 16, 0)
PANEL_ROWS(two_run_16, 2, 16, 0)
PANEL_ROWS(one_run_16_mins, 1, 16, 1)
PANEL_ROWS(two_run_16_mins, 2, 16, 1)
#undef PANEL_ROWS

void moe_panel_rows_avx512(const moe_matmul_args *args, const weight_panel *const *panels,
                           int n_panels, const row_block *block, panel_sums *sums)
{
    static panel_rows_fn *const functions[2][2][2] = {
        {{one_run_32, two_run_32}, {one_run_32_mins, two_run_32_mins}},
        {{one_run_16, two_run_16}, {one_run_16_mins, two_run_16_mins}}};
    const quant_type t = quant_type_of(args->type);
    functions[t.run == 16][t.has_mins][n_panels - 1](args, panels, block, sums);
}
