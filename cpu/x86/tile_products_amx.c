/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with many activation rows on the matrix unit (AMX).
 *
 * One instruction multiplies a tile of 16 weight rows with a tile of 16 activation rows over a run
 * of elements. That gives 256 exact integer sums. The contract demands a multiplication and an fmaf
 * for each sum; these take longer than the tile's product. AVX-512 computes them, a weight row at a
 * time, for 16 activation rows in the lanes of a register.
 *
 *    for each block of activation rows            packed: by run, then as the unit wants them
 *       for each 16 weight rows, panel (k)        unpacked to codes of 8 bits, in rows
 *          for each lane of the contract
 *             for each tile of 16 activation rows, each of the lane's runs:
 *                tile product -> store -> 16 x (convert, scale, fmaf), two runs behind the unit
 *
 * The float sums of a lane are 16 registers and stay there for a whole panel. Between panels they
 * are kept in memory, where the lanes are added up in the end. */
#include "cpu/x86/quant_lanes_avx512.h"
#include "cpu/x86/quant_rows_x86.h"
#include "cpu/x86/tile_instructions.h"
#include "cpu/x86/tile_products.h"
#include "cpu/x86/transpose_avx512.h"

#include <stdbool.h>
#include <string.h>

/* Tests compile this file under another name, with an emulation of the instructions. */
#ifndef MOE_TILE_PRODUCTS
#define MOE_TILE_PRODUCTS moe_tile_products_amx
#endif
moe_tile_products_fn MOE_TILE_PRODUCTS;

enum {
    SUMS = 0, /* tile registers */
    WEIGHTS = 1,
    ROWS = 2,
    AHEAD = 2,   /* runs by which the unit is ahead of the float operations */
    BUFFERS = 4, /* for the unit's sums */
    MAX_TILES = 16,
    MAX_LANES = 16
};

typedef struct tile_shape {
    uint32_t run;
    bool has_mins;
} tile_shape;

/* 16 activation rows. A word has the codes of four neighbouring elements of a row. The same word of
 * all 16 rows lies side by side. */
typedef struct x_tile {
    const int8_t *codes; /* [panel][lane][group][run / 4][16][4] */
    const float *d;      /* [n_in / 32][16] */
    const float *dsum;   /* [n_in / run][16] */
} x_tile;

typedef struct tile_scratch {
    moe_weight_tiles weights;
    __m512 sums[MAX_TILES][MAX_LANES][TILE]; /* of all panels so far; [weight row] */
    _Alignas(64) uint8_t rows[MOE_TILE_ROWS_BYTES];
} tile_scratch;
_Static_assert(sizeof(tile_scratch) <= MOE_TILE_SCRATCH_BYTES, "the scratch holds it");

static size_t padded(uint32_t n_in)
{
    return ((size_t)n_in + MOE_GROUP - 1) / MOE_GROUP * MOE_GROUP;
}

static size_t x_tile_bytes(tile_shape shape, uint32_t n_in)
{
    const size_t n = padded(n_in);
    return n * TILE + n / 32 * 64 + (shape.has_mins ? n / shape.run * 64 : 0);
}

static x_tile x_tile_at(tile_shape shape, const tile_scratch *scratch, uint32_t tile, uint32_t n_in)
{
    const size_t n = padded(n_in);
    const uint8_t *bytes = scratch->rows + tile * x_tile_bytes(shape, n_in);
    return (x_tile){(const int8_t *)bytes, (const float *)(bytes + n * TILE),
                    (const float *)(bytes + n * TILE + n / 32 * 64)};
}

/* ---- Packing activation rows ---- */

/* Writes n words of each of 16 rows to [word][row]. */
static void pack_words(const void *const *rows, size_t n, const void *to)
{
    uint8_t *columns = (uint8_t *)(uintptr_t)to;
    for (size_t w = 0; w < n; w += 16) {
        __m512i words[TILE];
        const uint32_t left = n - w < 16 ? 8 : 16; /* n is a multiple of 8 */
        for (int i = 0; i < TILE; i++) {
            words[i] = _mm512_maskz_loadu_epi32((__mmask16)((1u << left) - 1),
                                                (const int32_t *)rows[i] + w);
        }
        store_columns(columns + w * 64, words, (int)left);
    }
}

static uint32_t groups_of(uint32_t n)
{
    return (n + MOE_GROUP - 1) / MOE_GROUP;
}

/* Packs the codes of a panel of n elements from q on. */
static void pack_codes(tile_shape shape, const void *const *q, uint32_t n, int8_t *to)
{
    const uint32_t groups = groups_of(n);
    for (uint32_t k = 0; k < groups * MOE_GROUP; k += 64) {
        __m512i words[TILE], columns[16];
        for (int i = 0; i < TILE; i++) {
            words[i] = _mm512_loadu_si512((const int8_t *)q[i] + k);
        }
        store_columns(columns, words, 16);
        for (uint32_t part = 0; part < 64; part += shape.run) {
            const uint32_t lane = (k + part) % MOE_GROUP / shape.run;
            memcpy(to + (size_t)(lane * groups + k / MOE_GROUP) * shape.run * TILE,
                   &columns[part / 4], (size_t)shape.run * TILE);
        }
    }
}

/* Packs the rows from r on; places beyond the last row repeat that row. */
static void pack_rows(tile_shape shape, const moe_matmul_args *args, uint32_t r, x_tile tile)
{
    const size_t n = padded(args->n_in);
    const void *q[TILE], *d[TILE], *dsum[TILE];
    for (uint32_t i = 0; i < TILE; i++) {
        const x_row x =
            x_row_of(args, r + i < args->n_rows ? r + i : args->n_rows - 1, 0, shape.run);
        q[i] = x.q;
        d[i] = x.d;
        dsum[i] = x.dsum;
    }
    for (uint32_t k = 0; k < args->n_in; k += TILE_PANEL) {
        const void *from[TILE];
        for (int i = 0; i < TILE; i++) {
            from[i] = (const int8_t *)q[i] + k;
        }
        const uint32_t left = args->n_in - k;
        pack_codes(shape, from, left < TILE_PANEL ? left : TILE_PANEL,
                   (int8_t *)(uintptr_t)tile.codes + (size_t)k * TILE);
    }
    pack_words(d, n / 32, tile.d);
    if (shape.has_mins) {
        pack_words(dsum, n / shape.run, tile.dsum);
    }
}

/* ---- Products ---- */

typedef struct tile_sums {
    _Alignas(64) int32_t of[TILE][16]; /* [weight row][activation row] */
} tile_sums;

/* A panel's product with all tiles of a block of rows. */
typedef struct panel_product {
    const moe_weight_tiles *weights;
    x_tile x;       /* the first tile, from the panel's first element on */
    size_t x_bytes; /* from tile to tile */
    uint32_t n_tiles;
    uint32_t n; /* elements of each row */
    bool is_first;
    const char *next; /* weights to prefetch: next_bytes of each of n_next rows */
    size_t row_bytes, next_bytes;
    uint32_t n_next;
} panel_product;

MOE_INLINE const void *of_tile(const panel_product *p, const void *first, uint32_t tile)
{
    return (const uint8_t *)first + tile * p->x_bytes;
}

/* How many of the panel's groups have a run of the lane. */
MOE_INLINE uint32_t runs_of_lane(tile_shape shape, const panel_product *p, uint32_t lane)
{
    const uint32_t k = lane * shape.run;
    return k >= MOE_GROUP || k >= p->n ? 0 : groups_of(p->n - k);
}

/* Where the unit reads the run that it multiplies next. The order is: lane by lane, in a lane tile
 * by tile of activation rows, in a tile the lane's runs. So a lane's weights stay in the
 * first-level cache for all tiles. */
typedef struct run_place {
    const int8_t *weights, *rows;
    uint32_t lane, tile;
    uint32_t n_left; /* runs left of this tile; 0: no run of any tile is left */
} run_place;

MOE_INLINE run_place place_of(tile_shape shape, const panel_product *p, uint32_t lane,
                              uint32_t tile)
{
    const uint32_t k = lane * shape.run;
    const int8_t *rows = of_tile(p, p->x.codes, tile);
    return (run_place){.weights = &p->weights->codes[k / 64 % 4][0][0][k % 64],
                       .rows = rows + (size_t)(k * TILE) * groups_of(p->n),
                       .lane = lane,
                       .tile = tile,
                       .n_left = runs_of_lane(shape, p, lane)};
}

/* Multiplies a run and goes to the next. */
MOE_INLINE void multiply_run(tile_shape shape, const panel_product *p, run_place *at,
                             tile_sums *sums)
{
    TILE_ZERO(SUMS);
    TILE_LOAD(WEIGHTS, at->weights, 64);
    TILE_LOAD(ROWS, at->rows, 64);
    TILE_DOT_INT8(SUMS, WEIGHTS, ROWS);
    TILE_STORE(SUMS, sums->of, 64);
    at->weights += sizeof p->weights->codes[0][0];
    at->rows += shape.run * TILE;
    if (--at->n_left == 0) {
        const uint32_t tile = at->tile + 1;
        *at = tile < p->n_tiles ? place_of(shape, p, at->lane, tile)
                                : place_of(shape, p, at->lane + 1, 0);
    }
}

/* Adds the lane's run of group g. d and dsum are the tile's, from the lane's first run on. */
MOE_INLINE void add_run(tile_shape shape, const panel_product *p, uint32_t lane, uint32_t g,
                        const float *d, const float *dsum, const tile_sums *sums, __m512 *acc)
{
    const __m512 xd = _mm512_load_ps(d + (size_t)g * (MOE_GROUP / 32) * TILE);
    const __m512 xdsum = shape.has_mins
                             ? _mm512_load_ps(dsum + (size_t)g * (MOE_GROUP / shape.run) * TILE)
                             : _mm512_setzero_ps();
    const float *scales = &p->weights->scales[g][0][lane];
    const float *mins = &p->weights->mins[g][0][lane];
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++) {
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums->of[i]));
        acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(scales[16 * i]), xd), sum, acc[i]);
        if (shape.has_mins) {
            acc[i] = _mm512_fmadd_ps(_mm512_set1_ps(mins[16 * i]), xdsum, acc[i]);
        }
    }
}

/* Prefetches the part `part` of `parts` of the next weights. */
MOE_INLINE void prefetch_next(const panel_product *p, uint32_t part, uint32_t parts)
{
    const uint32_t first = part * p->n_next / parts, last = (part + 1) * p->n_next / parts;
    for (uint32_t i = first; i < last; i++) {
        for (size_t b = 0; b < p->next_bytes + 63; b += 64) {
            _mm_prefetch(p->next + i * p->row_bytes + b, _MM_HINT_T1);
        }
    }
}

/* Adds the products to sums; the first panel sets the sums. */
MOE_INLINE void multiply_panel(tile_shape shape, const panel_product *p,
                               __m512 (*sums)[MAX_LANES][TILE])
{
    const uint32_t lanes = MOE_GROUP / shape.run;
    tile_sums buffers[BUFFERS];
    run_place ahead = place_of(shape, p, 0, 0);
    uint32_t issued = 0, step = 0;
    while (issued < AHEAD && ahead.n_left > 0) {
        multiply_run(shape, p, &ahead, &buffers[issued++ % BUFFERS]);
    }
    for (uint32_t lane = 0; lane < lanes; lane++) {
        const uint32_t n_runs = runs_of_lane(shape, p, lane);
        for (uint32_t tile = 0; tile < p->n_tiles; tile++) {
            prefetch_next(p, lane * p->n_tiles + tile, lanes * p->n_tiles);
            const float *d = of_tile(p, p->x.d + lane * shape.run / 32 * TILE, tile);
            const float *dsum = of_tile(p, p->x.dsum + lane * TILE, tile);
            __m512 acc[TILE];
#pragma GCC unroll 16
            for (int i = 0; i < TILE; i++) {
                acc[i] = p->is_first ? _mm512_setzero_ps() : sums[tile][lane][i];
            }
            for (uint32_t g = 0; g < n_runs; g++) {
                if (ahead.n_left > 0) {
                    multiply_run(shape, p, &ahead, &buffers[issued++ % BUFFERS]);
                }
                add_run(shape, p, lane, g, d, dsum, &buffers[step++ % BUFFERS], acc);
            }
#pragma GCC unroll 16
            for (int i = 0; i < TILE; i++) {
                sums[tile][lane][i] = acc[i];
            }
        }
    }
}

/* ---- The whole product ---- */

/* Reduces the lanes of 16 by 16 outputs, transposes and stores them. */
MOE_INLINE void store_outputs(tile_shape shape, const moe_matmul_args *args, uint32_t o, uint32_t r,
                              __m512 (*sums)[TILE])
{
    const uint32_t lanes = MOE_GROUP / shape.run;
    const uint32_t n_outs = args->n_out - o < TILE ? args->n_out - o : TILE;
    __m512i rows[TILE], outs[TILE];
    for (int i = 0; i < TILE; i++) {
        __m512 of_row[MAX_LANES];
        for (uint32_t l = 0; l < lanes; l++) {
            of_row[l] = sums[l][i];
        }
        rows[i] = _mm512_castps_si512(reduce_lanes(of_row, lanes));
    }
    store_columns(outs, rows, 16);
    for (uint32_t i = 0; i < TILE && r + i < args->n_rows; i++) {
        _mm512_mask_storeu_epi32(out_row(args, r + i) + o, (__mmask16)((1u << n_outs) - 1),
                                 outs[i]);
    }
}

static void configure(tile_shape shape)
{
    tile_config config = {.palette = 1};
    config.rows[SUMS] = TILE;
    config.row_bytes[SUMS] = 64;
    config.rows[WEIGHTS] = TILE;
    config.row_bytes[WEIGHTS] = (uint16_t)shape.run;
    config.rows[ROWS] = (uint8_t)(shape.run / 4);
    config.row_bytes[ROWS] = 64;
    TILE_CONFIGURE(&config);
}

/* Finds the weights that are needed after elements k .. k + n - 1 of the weight rows from o on: in
 * the same rows, or in the next ones. */
MOE_INLINE void find_next(const moe_matmul_args *args, uint32_t o, uint32_t k, panel_product *p)
{
    const quant_type t = quant_type_of(args->type);
    const bool is_last = k + p->n >= args->n_in;
    const uint32_t first = is_last ? o + TILE : o;
    const uint32_t from = is_last ? 0 : k + p->n;
    const uint32_t left = args->n_in - from;
    const uint32_t rows = first < args->n_out ? args->n_out - first : 0;
    p->n_next = rows < TILE ? rows : TILE;
    p->next = (const char *)weight_row(args, first) + (size_t)from / t.block_elems * t.block_bytes;
    p->next_bytes = (left < TILE_PANEL ? left : TILE_PANEL) / t.block_elems * t.block_bytes;
}

/* Multiplies all weight rows with n_tiles tiles of activation rows, from row r on. */
MOE_INLINE void multiply_rows(tile_shape shape, const moe_matmul_args *args,
                              moe_unpack_tiles_fn *unpack, uint32_t r, uint32_t n_tiles,
                              tile_scratch *scratch)
{
    panel_product p = {.weights = &scratch->weights,
                       .x_bytes = x_tile_bytes(shape, args->n_in),
                       .n_tiles = n_tiles,
                       .row_bytes = args->row_bytes};
    const x_tile x = x_tile_at(shape, scratch, 0, args->n_in);
    for (uint32_t t = 0; t < n_tiles; t++) {
        pack_rows(shape, args, r + t * TILE, x_tile_at(shape, scratch, t, args->n_in));
    }
    for (uint32_t o = 0; o < args->n_out; o += TILE) {
        for (uint32_t k = 0; k < args->n_in; k += TILE_PANEL) {
            p.n = args->n_in - k < TILE_PANEL ? args->n_in - k : TILE_PANEL;
            p.x = (x_tile){x.codes + (size_t)k * TILE, x.d + k / 32 * TILE,
                           x.dsum + k / shape.run * TILE};
            p.is_first = k == 0;
            find_next(args, o, k, &p);
            unpack(args, o, k, p.n, &scratch->weights);
            multiply_panel(shape, &p, scratch->sums);
        }
        for (uint32_t t = 0; t < n_tiles; t++) {
            store_outputs(shape, args, o, r + t * TILE, scratch->sums[t]);
        }
    }
}

MOE_INLINE void multiply_all(tile_shape shape, const moe_matmul_args *args,
                             moe_unpack_tiles_fn *unpack, tile_scratch *scratch)
{
    const size_t fit = MOE_TILE_ROWS_BYTES / x_tile_bytes(shape, args->n_in);
    const uint32_t most = fit < MAX_TILES ? (uint32_t)fit : MAX_TILES;
    configure(shape);
    for (uint32_t r = 0; r < args->n_rows; r += most * TILE) {
        const uint32_t left = (args->n_rows - r + TILE - 1) / TILE;
        multiply_rows(shape, args, unpack, r, left < most ? left : most, scratch);
    }
    TILE_RELEASE();
}

void MOE_TILE_PRODUCTS(const moe_matmul_args *args, moe_unpack_tiles_fn *unpack, void *scratch)
{
    const quant_type t = quant_type_of(args->type);
    switch (t.run + (uint32_t)t.has_mins) {
    case 32:
        multiply_all((tile_shape){32, false}, args, unpack, scratch);
        break;
    case 33:
        multiply_all((tile_shape){32, true}, args, unpack, scratch);
        break;
    case 16:
        multiply_all((tile_shape){16, false}, args, unpack, scratch);
        break;
    default:
        multiply_all((tile_shape){16, true}, args, unpack, scratch);
    }
}
