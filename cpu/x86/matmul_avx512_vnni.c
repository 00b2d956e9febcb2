/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with AVX-512 VNNI.
 *
 * A tile is TILE_OUT weight rows by up to TILE_ROWS activation rows, a zmm accumulator each: lane l
 * of the contract is lane l of the register. vpdpbusd multiplies unsigned codes by signed
 * activations; it starts from -offset * sum4, which makes the integer sum that of the true codes.
 *
 *   few rows    blocks are unpacked into registers and used at once, once for each tile of rows
 *   many rows   TILE_OUT rows of up to PANEL elements are unpacked into a panel in the L1 cache
 *               (codes as bytes, scales by lane, minima), which all activation rows then go over
 *
 * Either way each accumulator sees its chunks in order. The next tile's weights are asked for while
 * this one's are worked on: four short streams are too irregular for the processor's own prefetch
 * (without, decoding reads memory at half the speed). A tile that hangs over the last weight row
 * repeats that row and does not store it. */
#include "cpu/x86/matmul_x86.h"
#include "cpu/x86/quant_unpack_avx512.h"
#include "cpu/x86/reduce_avx512.h"

#include <stdbool.h>

enum {
    TILE_OUT = 4,
    TILE_ROWS = 4,
    PANEL = 1024,   /* elements */
    ROW_BLOCK = 64, /* activation rows that share an unpacked panel */
    PREFETCH_BYTES = 4096
};

/* One activation row from element k (a multiple of 256) on. */
typedef struct x_row {
    const int8_t *q;
    const float *d;
    const int32_t *sum4;
    const float *dsum16;
    const float *dsum32;
} x_row;

typedef struct x_chunk {
    __m512i q;
    __m512i start; /* -offset * sum4 */
    __m512 d;      /* by lane */
} x_chunk;

static x_row x_row_of(const moe_matmul_args *args, uint32_t r, uint32_t k)
{
    const moe_q8_rows *x = args->x_q8;
    const size_t row = args->x_index != NULL ? args->x_index[r] : r;
    const size_t at = row * x->n_in_padded + k;
    return (x_row){x->q + at, x->d + at / 32, x->sum4 + at / 4, x->dsum16 + at / 16,
                   x->dsum32 + at / 32};
}

/* Rows past the last are the last. */
static const uint8_t *weight_row(const moe_matmul_args *args, uint32_t o)
{
    const uint32_t row = o < args->n_out ? o : args->n_out - 1;
    return (const uint8_t *)args->weights + row * args->row_bytes;
}

static float *out_row(const moe_matmul_args *args, uint32_t r)
{
    return args->out + (args->out_index != NULL ? args->out_index[r] : r) * args->out_stride;
}

MOE_INLINE x_chunk load_chunk(const x_row *x, size_t c, int offset_shift)
{
    x_chunk chunk;
    chunk.q = _mm512_loadu_si512(x->q + 64 * c);
    chunk.start = _mm512_setzero_si512();
    if (offset_shift >= 0) {
        const __m512i sum4 = _mm512_loadu_si512(x->sum4 + 16 * c);
        chunk.start =
            _mm512_sub_epi32(chunk.start, _mm512_slli_epi32(sum4, (unsigned)offset_shift));
    }
    chunk.d =
        _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(x->d[2 * c]), _mm512_set1_ps(x->d[2 * c + 1]));
    return chunk;
}

MOE_INLINE __m512 add_products(__m512 acc, chunk_weights w, x_chunk x)
{
    const __m512i sums = _mm512_dpbusd_epi32(x.start, w.codes, x.q);
    return _mm512_fmadd_ps(_mm512_mul_ps(w.scale, x.d), _mm512_cvtepi32_ps(sums), acc);
}

/* The minima of a group (256 elements, its number g counted from where x starts). */
MOE_INLINE __m512 add_minima(__m512 acc, __m512 mins, const x_row *x, size_t g, uint32_t min_sub)
{
    if (min_sub == 16) {
        return _mm512_fmadd_ps(mins, _mm512_loadu_ps(x->dsum16 + 16 * g), acc);
    }
    const __m256 sum =
        _mm256_fmadd_ps(_mm512_castps512_ps256(mins), _mm256_loadu_ps(x->dsum32 + 8 * g),
                        _mm512_castps512_ps256(acc));
    return _mm512_zextps256_ps512(sum);
}

/* ---- Few rows ---- */

typedef struct direct_tile {
    const uint8_t *weights[TILE_OUT];
    x_row x[TILE_ROWS];
    __m512 acc[TILE_OUT][TILE_ROWS];
    __m512 min_acc[TILE_OUT][TILE_ROWS];
} direct_tile;

/* Chunk c of the row, the chunk_of_group-th of the groups whose `state` it is (blocks of 256). */
MOE_INLINE void direct_chunk(moe_dtype type, direct_tile *tile, int n_rows, size_t c,
                             const group_state *state, int chunk_of_group, int is_half)
{
    const quant_type t = quant_type_of(type);
    const size_t group_bytes = MOE_GROUP / t.block_elems * t.block_bytes;
    chunk_weights w[TILE_OUT];
#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++) {
        if (t.block_elems == MOE_GROUP) {
            w[i] = chunk_of_256(type, tile->weights[i] + c / 4 * group_bytes, &state[i],
                                chunk_of_group);
        } else {
            w[i] = chunk_of_32(type, tile->weights[i] + c * 2 * t.block_bytes, is_half);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
        const x_chunk x = load_chunk(&tile->x[r], c, t.offset_shift);
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            tile->acc[i][r] = add_products(tile->acc[i][r], w[i], x);
        }
    }
}

MOE_INLINE void direct_minima(moe_dtype type, direct_tile *tile, int n_rows, size_t g,
                              const group_state *state)
{
#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++) {
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            tile->min_acc[i][r] = add_minima(tile->min_acc[i][r], state[i].mins, &tile->x[r], g,
                                             quant_type_of(type).min_sub);
        }
    }
}

/* Asks for what is `prefetch` bytes behind group g of each row. */
MOE_INLINE void prefetch_group(moe_dtype type, const direct_tile *tile, size_t g, size_t prefetch)
{
    const quant_type t = quant_type_of(type);
    const size_t group_bytes = MOE_GROUP / t.block_elems * t.block_bytes;
#pragma GCC unroll 4
    for (int i = 0; i < TILE_OUT; i++) {
        const char *ahead = (const char *)tile->weights[i] + g * group_bytes + prefetch;
        for (size_t line = 0; line < group_bytes; line += 64) {
            _mm_prefetch(ahead + line, _MM_HINT_T0);
        }
    }
}

MOE_INLINE void direct_blocks_256(moe_dtype type, direct_tile *tile, int n_rows, uint32_t n,
                                  size_t prefetch)
{
    const quant_type t = quant_type_of(type);
    for (size_t g = 0; g < n / MOE_GROUP; g++) {
        group_state state[TILE_OUT];
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            const uint8_t *group = tile->weights[i] + g * t.block_bytes;
            state[i] = begin_group(type, group, 8);
        }
        prefetch_group(type, tile, g, prefetch);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            direct_chunk(type, tile, n_rows, 4 * g + (size_t)c, state, c, 0);
        }
        if (t.min_sub != 0) {
            direct_minima(type, tile, n_rows, g, state);
        }
    }
}

MOE_INLINE void direct_blocks_32(moe_dtype type, direct_tile *tile, int n_rows, uint32_t n,
                                 size_t prefetch)
{
    const quant_type t = quant_type_of(type);
    group_state state[TILE_OUT];
    for (size_t c = 0; c < n / 64; c++) {
        if (c % 4 == 0) {
            prefetch_group(type, tile, c / 4, prefetch);
        }
        direct_chunk(type, tile, n_rows, c, state, 0, 0);
    }
    if (n % 64 != 0) {
        direct_chunk(type, tile, n_rows, n / 64, state, 0, 1);
    }
    for (size_t g = 0; g < (n + 255) / 256 && t.min_sub != 0; g++) {
        const uint32_t left = n / 32 - 8 * (uint32_t)g;
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            state[i] =
                begin_group(type, tile->weights[i] + g * 8 * t.block_bytes, left < 8 ? left : 8);
        }
        direct_minima(type, tile, n_rows, g, state);
    }
}

MOE_INLINE void direct_rows(moe_dtype type, const moe_matmul_args *args, uint32_t o, uint32_t r0,
                            int n_rows)
{
    const quant_type t = quant_type_of(type);
    const uint32_t n_valid = args->n_out - o < TILE_OUT ? args->n_out - o : TILE_OUT;
    const size_t tile_bytes = TILE_OUT * args->row_bytes;
    const size_t prefetch = (PREFETCH_BYTES / (tile_bytes + 1) + 1) * tile_bytes;
    direct_tile tile;
#pragma GCC unroll 4
    for (uint32_t i = 0; i < TILE_OUT; i++) {
        tile.weights[i] = weight_row(args, o + i);
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            tile.x[r] = x_row_of(args, r0 + (uint32_t)r, 0);
            tile.acc[i][r] = _mm512_setzero_ps();
            tile.min_acc[i][r] = _mm512_setzero_ps();
        }
    }
    if (t.block_elems == MOE_GROUP) {
        direct_blocks_256(type, &tile, n_rows, args->n_in, prefetch);
    } else {
        direct_blocks_32(type, &tile, n_rows, args->n_in, prefetch);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
        __m128 sums = reduce_4(tile.acc[0][r], tile.acc[1][r], tile.acc[2][r], tile.acc[3][r]);
        if (t.min_sub != 0) {
            sums = _mm_add_ps(sums, reduce_4(tile.min_acc[0][r], tile.min_acc[1][r],
                                             tile.min_acc[2][r], tile.min_acc[3][r]));
        }
        _mm_mask_storeu_ps(out_row(args, r0 + (uint32_t)r) + o, (__mmask8)((1u << n_valid) - 1),
                           sums);
    }
}

/* ---- Many rows ---- */

typedef struct weight_panel {
    _Alignas(64) uint8_t codes[TILE_OUT][PANEL];
    float scales[TILE_OUT][PANEL / 4]; /* by lane: 16 a chunk */
    float mins[TILE_OUT][PANEL / 16];  /* 16 a group */
} weight_panel;

typedef struct row_sums {
    __m512 acc[TILE_OUT];
    __m512 min_acc[TILE_OUT];
} row_sums;

MOE_INLINE void store_chunk(weight_panel *panel, int i, size_t c, chunk_weights w)
{
    _mm512_store_si512(panel->codes[i] + 64 * c, w.codes);
    _mm512_store_ps(panel->scales[i] + 16 * c, w.scale);
}

/* n elements of weight row `weights`, from a group boundary on, asking for the bytes `prefetch`
 * further on: the next tile's. */
MOE_INLINE void unpack_row(moe_dtype type, weight_panel *panel, int i, const uint8_t *weights,
                           uint32_t n, size_t prefetch)
{
    const quant_type t = quant_type_of(type);
    const size_t group_bytes = MOE_GROUP / t.block_elems * t.block_bytes;
    for (size_t line = 0; line < (size_t)n / t.block_elems * t.block_bytes; line += 64) {
        _mm_prefetch((const char *)weights + prefetch + line, _MM_HINT_T0);
    }
    for (size_t g = 0; g < (n + 255) / 256 && (t.block_elems == MOE_GROUP || t.min_sub != 0); g++) {
        const uint8_t *group = weights + g * group_bytes;
        const uint32_t left = n / 32 - 8 * (uint32_t)g;
        const group_state state = begin_group(type, group, left < 8 ? left : 8);
        _mm512_store_ps(panel->mins[i] + 16 * g, state.mins);
        if (t.block_elems == 32) {
            continue;
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            store_chunk(panel, i, 4 * g + (size_t)c, chunk_of_256(type, group, &state, c));
        }
    }
    if (t.block_elems == MOE_GROUP) {
        return;
    }
    for (size_t c = 0; c < n / 64; c++) {
        store_chunk(panel, i, c, chunk_of_32(type, weights + c * 2 * t.block_bytes, 0));
    }
    if (n % 64 != 0) {
        const size_t c = n / 64;
        store_chunk(panel, i, c, chunk_of_32(type, weights + c * 2 * t.block_bytes, 1));
    }
}

MOE_INLINE void panel_tile(const weight_panel *panel, const x_row *x, int n_rows, uint32_t n,
                           int offset_shift, uint32_t min_sub, row_sums *sums)
{
    __m512 acc[TILE_ROWS][TILE_OUT];
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            acc[r][i] = sums[r].acc[i];
        }
    }
    for (uint32_t c = 0; c < (n + 63) / 64; c++) {
        chunk_weights w[TILE_OUT];
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            w[i].codes = _mm512_load_si512(panel->codes[i] + 64 * c);
            w[i].scale = _mm512_load_ps(panel->scales[i] + 16 * c);
        }
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            const x_chunk chunk = load_chunk(&x[r], c, offset_shift);
#pragma GCC unroll 4
            for (int i = 0; i < TILE_OUT; i++) {
                acc[r][i] = add_products(acc[r][i], w[i], chunk);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < TILE_OUT; i++) {
            sums[r].acc[i] = acc[r][i];
        }
    }
    for (uint32_t g = 0; g < (n + 255) / 256 && min_sub != 0; g++) {
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
            for (int i = 0; i < TILE_OUT; i++) {
                sums[r].min_acc[i] = add_minima(
                    sums[r].min_acc[i], _mm512_load_ps(panel->mins[i] + 16 * g), &x[r], g, min_sub);
            }
        }
    }
}

/* Up to ROW_BLOCK activation rows over one panel, whose first element is the weight rows' k-th. */
MOE_INLINE void panel_rows(const moe_matmul_args *args, const weight_panel *panel, uint32_t r0,
                           uint32_t n_rows, uint32_t k, uint32_t n, int offset_shift,
                           uint32_t min_sub, row_sums *sums)
{
    for (uint32_t r = 0; r < n_rows; r += TILE_ROWS) {
        x_row x[TILE_ROWS];
        const uint32_t n_tile = n_rows - r < TILE_ROWS ? n_rows - r : TILE_ROWS;
        for (uint32_t i = 0; i < n_tile; i++) {
            x[i] = x_row_of(args, r0 + r + i, k);
        }
        switch (n_tile) {
        case 1:
            panel_tile(panel, x, 1, n, offset_shift, min_sub, sums + r);
            break;
        case 2:
            panel_tile(panel, x, 2, n, offset_shift, min_sub, sums + r);
            break;
        case 3:
            panel_tile(panel, x, 3, n, offset_shift, min_sub, sums + r);
            break;
        default:
            panel_tile(panel, x, 4, n, offset_shift, min_sub, sums + r);
        }
    }
}

/* The tiles know nothing of a type but its offset and minima, so types share them. */
static __attribute__((noinline)) void panel_rows_any(const moe_matmul_args *args,
                                                     const weight_panel *panel, uint32_t r0,
                                                     uint32_t n_rows, uint32_t k, uint32_t n,
                                                     row_sums *sums)
{
    const quant_type t = quant_type_of(args->type);
    if (t.min_sub == 16) {
        panel_rows(args, panel, r0, n_rows, k, n, -1, 16, sums);
    } else if (t.min_sub == 32) {
        panel_rows(args, panel, r0, n_rows, k, n, -1, 32, sums);
    } else {
        panel_rows(args, panel, r0, n_rows, k, n, t.offset_shift, 0, sums);
    }
}

static void store_sums(const moe_matmul_args *args, uint32_t o, uint32_t n_valid, uint32_t r0,
                       uint32_t n_rows, const row_sums *sums)
{
    const quant_type t = quant_type_of(args->type);
    for (uint32_t r = 0; r < n_rows; r++) {
        const __m512 *acc = sums[r].acc;
        const __m512 *min_acc = sums[r].min_acc;
        __m128 out = reduce_4(acc[0], acc[1], acc[2], acc[3]);
        if (t.min_sub != 0) {
            out = _mm_add_ps(out, reduce_4(min_acc[0], min_acc[1], min_acc[2], min_acc[3]));
        }
        _mm_mask_storeu_ps(out_row(args, r0 + r) + o, (__mmask8)((1u << n_valid) - 1), out);
    }
}

MOE_INLINE void panel_tiles(moe_dtype type, const moe_matmul_args *args, uint32_t o, uint32_t r0)
{
    const quant_type t = quant_type_of(type);
    const uint32_t n_valid = args->n_out - o < TILE_OUT ? args->n_out - o : TILE_OUT;
    const uint32_t n_rows = args->n_rows - r0 < ROW_BLOCK ? args->n_rows - r0 : ROW_BLOCK;
    weight_panel panel;
    row_sums sums[ROW_BLOCK];
    memset(sums, 0, n_rows * sizeof sums[0]);
    for (uint32_t k = 0; k < args->n_in; k += PANEL) {
        const uint32_t n = args->n_in - k < PANEL ? args->n_in - k : PANEL;
        for (uint32_t i = 0; i < TILE_OUT; i++) {
            unpack_row(type, &panel, (int)i,
                       weight_row(args, o + i) + (size_t)k / t.block_elems * t.block_bytes, n,
                       TILE_OUT * args->row_bytes);
        }
        panel_rows_any(args, &panel, r0, n_rows, k, n, sums);
    }
    store_sums(args, o, n_valid, r0, n_rows, sums);
}

MOE_INLINE void direct_any(moe_dtype type, const moe_matmul_args *args, uint32_t o, uint32_t r,
                           uint32_t n_rows)
{
    switch (n_rows) {
    case 1:
        direct_rows(type, args, o, r, 1);
        break;
    case 2:
        direct_rows(type, args, o, r, 2);
        break;
    case 3:
        direct_rows(type, args, o, r, 3);
        break;
    default:
        direct_rows(type, args, o, r, 4);
    }
}

/* Up to how many rows unpacking blocks again for every tile of rows costs less than a panel. */
MOE_INLINE uint32_t max_direct_rows(moe_dtype type)
{
    return quant_type_of(type).block_elems == 32 ? 2 * TILE_ROWS : TILE_ROWS;
}

MOE_INLINE void matmul(moe_dtype type, const moe_matmul_args *args)
{
    const bool direct = args->n_rows <= max_direct_rows(type);
    for (uint32_t o = 0; o < args->n_out; o += TILE_OUT) {
        for (uint32_t r = 0; r < args->n_rows && direct; r += TILE_ROWS) {
            direct_any(type, args, o, r, args->n_rows - r);
        }
        for (uint32_t r = 0; r < args->n_rows && !direct; r += ROW_BLOCK) {
            panel_tiles(type, args, o, r);
        }
    }
}

/* A function a type, in which the type is a constant. (One function with all their loops inlined
 * takes compilers minutes and gigabytes.) */
#define MATMUL(name, type)                                                                         \
    static void matmul_##name(const moe_matmul_args *args)                                         \
    {                                                                                              \
        matmul(type, args);                                                                        \
    }
MATMUL(q4_0, MOE_DTYPE_Q4_0)
MATMUL(q4_1, MOE_DTYPE_Q4_1)
MATMUL(q5_0, MOE_DTYPE_Q5_0)
MATMUL(q5_1, MOE_DTYPE_Q5_1)
MATMUL(q8_0, MOE_DTYPE_Q8_0)
MATMUL(q2_k, MOE_DTYPE_Q2_K)
MATMUL(q3_k, MOE_DTYPE_Q3_K)
MATMUL(q4_k, MOE_DTYPE_Q4_K)
MATMUL(q5_k, MOE_DTYPE_Q5_K)
MATMUL(q6_k, MOE_DTYPE_Q6_K)
MATMUL(iq4_nl, MOE_DTYPE_IQ4_NL)
MATMUL(iq4_xs, MOE_DTYPE_IQ4_XS)
MATMUL(mxfp4, MOE_DTYPE_MXFP4)
#undef MATMUL

void moe_matmul_init_avx512_vnni(moe_matmul_kernels *kernels)
{
    kernels->matmul[MOE_DTYPE_Q4_0] = matmul_q4_0;
    kernels->matmul[MOE_DTYPE_Q4_1] = matmul_q4_1;
    kernels->matmul[MOE_DTYPE_Q5_0] = matmul_q5_0;
    kernels->matmul[MOE_DTYPE_Q5_1] = matmul_q5_1;
    kernels->matmul[MOE_DTYPE_Q8_0] = matmul_q8_0;
    kernels->matmul[MOE_DTYPE_Q2_K] = matmul_q2_k;
    kernels->matmul[MOE_DTYPE_Q3_K] = matmul_q3_k;
    kernels->matmul[MOE_DTYPE_Q4_K] = matmul_q4_k;
    kernels->matmul[MOE_DTYPE_Q5_K] = matmul_q5_k;
    kernels->matmul[MOE_DTYPE_Q6_K] = matmul_q6_k;
    kernels->matmul[MOE_DTYPE_IQ4_NL] = matmul_iq4_nl;
    kernels->matmul[MOE_DTYPE_IQ4_XS] = matmul_iq4_xs;
    kernels->matmul[MOE_DTYPE_MXFP4] = matmul_mxfp4;
}
