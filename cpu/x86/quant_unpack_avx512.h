/* SPDX-License-Identifier: MIT */
/* Blocks taken apart with AVX-512: a chunk of 64 elements becomes 64 unsigned codes and the scale
 * of each of the 16 lanes, which is what the products of matmul_avx512_vnni.c eat.
 *
 * Blocks of 256 have packed scales: begin_group() unpacks them once into at most 16 floats, and
 * each of the four chunks spreads its own over the lanes. Blocks of 32 read theirs chunk by chunk.
 */
#ifndef MOE_X86_QUANT_UNPACK_AVX512_H
#define MOE_X86_QUANT_UNPACK_AVX512_H

#include "cpu/kernels/block_formats.h"
#include "cpu/x86/quant_types.h"

#include <immintrin.h>

typedef struct group_state {
    __m512 scales; /* blocks of 256: by sub-block, 8 or 16 */
    __m512 mins;   /* by sub-block, 8 (the lower half) or 16 */
} group_state;

typedef struct chunk_weights {
    __m512i codes; /* unsigned, the type's offset above their value */
    __m512 scale;  /* by lane */
} chunk_weights;

MOE_INLINE __m512i halves_epi8(char low, char high)
{
    return _mm512_inserti64x4(_mm512_set1_epi8(low), _mm256_set1_epi8(high), 1);
}

/* ---- Parts that several types share ---- */

MOE_INLINE __m512 half_scales(uint16_t d0, uint16_t d1)
{
    const __m256i low = _mm256_set1_epi16((short)d0);
    const __m256i high = _mm256_set1_epi16((short)d1);
    return _mm512_cvtph_ps(_mm256_blend_epi32(low, high, 0xf0));
}

MOE_INLINE __m512 broadcast_half(const uint16_t *half)
{
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)*half));
}

/* Two arrays of 16 bytes as 64 nibbles: low ones of the first, high ones of the first, then the
 * second's. */
MOE_INLINE __m512i nibbles_of_pair(const uint8_t *qs0, const uint8_t *qs1)
{
    const __m512i first = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)qs0));
    const __m512i second = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)qs1));
    const __m512i bytes = _mm512_mask_blend_epi64(0xf0, first, second);
    const __m512i shifts = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
    return _mm512_and_si512(_mm512_srlv_epi64(bytes, shifts), _mm512_set1_epi8(15));
}

/* 32 bytes as fields of one chunk: shifted right by `low` for the first 32 elements, by `high` for
 * the others, and masked. */
MOE_INLINE __m512i fields_of_32(const uint8_t *bytes, int low, int high, char mask)
{
    const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)bytes));
    const __m512i shifts = _mm512_inserti64x4(_mm512_set1_epi64(low), _mm256_set1_epi64x(high), 1);
    return _mm512_and_si512(_mm512_srlv_epi64(both, shifts), _mm512_set1_epi8(mask));
}

/* Adds `value` where bit 2c (first half) or 2c + 1 (second half) of the 32 bytes is set. */
MOE_INLINE __m512i add_plane(__m512i codes, const uint8_t *planes, int c, char value)
{
    const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)planes));
    const __mmask64 set =
        _mm512_test_epi8_mask(both, halves_epi8((char)(1 << 2 * c), (char)(2 << 2 * c)));
    return _mm512_mask_add_epi8(codes, set, codes, _mm512_set1_epi8(value));
}

MOE_INLINE __m512i add_fifth_bits(__m512i codes, const uint8_t *qh0, const uint8_t *qh1)
{
    uint32_t low, high;
    memcpy(&low, qh0, 4);
    memcpy(&high, qh1, 4);
    const __mmask64 set = (uint64_t)high << 32 | low;
    return _mm512_mask_add_epi8(codes, set, codes, _mm512_set1_epi8(16));
}

MOE_INLINE __m512 spread_8(__m512 scales, int c)
{
    const __m512i low = _mm512_set1_epi32(2 * c);
    return _mm512_permutexvar_ps(_mm512_mask_set1_epi32(low, 0xff00, 2 * c + 1), scales);
}

MOE_INLINE __m512 spread_16(__m512 scales, int c)
{
    const __m512i index = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(_mm512_add_epi32(index, _mm512_set1_epi32(4 * c)), scales);
}

MOE_INLINE __m512i iq4_table(void)
{
    const __m128i codes = _mm_setr_epi8(MOE_IQ4_CODES);
    return _mm512_broadcast_i32x4(_mm_xor_si128(codes, _mm_set1_epi8((char)0x80)));
}

MOE_INLINE __m512i mxfp4_table(void)
{
    const __m128i codes = _mm_setr_epi8(MOE_MXFP4_CODES);
    return _mm512_broadcast_i32x4(_mm_add_epi8(codes, _mm_set1_epi8(MXFP4_OFFSET)));
}

/* ---- What a group needs once ---- */

MOE_INLINE short min_of(const uint8_t *blocks, size_t stride, uint32_t b)
{
    return (short)((const moe_block_q4_1 *)(blocks + b * stride))->m;
}

/* Minima of up to 8 blocks that begin with (d, m) and are `stride` bytes apart; 0 for the others.
 */
MOE_INLINE __m512 load_mins(const uint8_t *blocks, size_t stride, uint32_t n_blocks)
{
    short mins[8] = {0};
    if (n_blocks == 8) {
        return _mm512_castps256_ps512(_mm256_cvtph_ps(_mm_setr_epi16(
            min_of(blocks, stride, 0), min_of(blocks, stride, 1), min_of(blocks, stride, 2),
            min_of(blocks, stride, 3), min_of(blocks, stride, 4), min_of(blocks, stride, 5),
            min_of(blocks, stride, 6), min_of(blocks, stride, 7))));
    }
    for (uint32_t b = 0; b < n_blocks; b++) {
        mins[b] = min_of(blocks, stride, b);
    }
    return _mm512_castps256_ps512(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)mins)));
}

/* Q4_K and Q5_K begin with d, dmin and the 12 bytes of scales: 16 bytes. Scales come out in lanes
 * 0..7, minima in 8..15; the arithmetic is that of block_unpack.c. */
MOE_INLINE group_state begin_scales_k(const uint8_t *block)
{
    const __m128i head = _mm_loadu_si128((const __m128i *)block);
    const __m128i low = _mm_shuffle_epi8(
        head, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m128i high = _mm_shuffle_epi8(
        head, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    const __m128i six =
        _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)),
                      _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    const __m128i top = _mm_and_si128(_mm_srli_epi32(high, 2), _mm_set1_epi8(0x30));
    const __m512i integers = _mm512_cvtepu8_epi32(_mm_or_si128(six, top));
    const __m512 halves = _mm512_castps128_ps512(_mm_cvtph_ps(head));
    const __m512 steps = _mm512_permutexvar_ps(
        _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0), halves);
    group_state state;
    state.scales = _mm512_mul_ps(steps, _mm512_cvtepi32_ps(integers));
    const __m256 mins = _mm512_extractf32x8_ps(state.scales, 1);
    state.mins = _mm512_castps256_ps512(_mm256_xor_ps(mins, _mm256_set1_ps(-0.0f)));
    return state;
}

MOE_INLINE group_state begin_q2_k(const moe_block_q2_k *block)
{
    const __m128i packed = _mm_loadu_si128((const __m128i *)block->scales);
    const __m128i mask = _mm_set1_epi8(15);
    const __m512i scales = _mm512_cvtepu8_epi32(_mm_and_si128(packed, mask));
    const __m512i mins = _mm512_cvtepu8_epi32(_mm_and_si128(_mm_srli_epi16(packed, 4), mask));
    group_state state;
    state.scales = _mm512_mul_ps(broadcast_half(&block->d), _mm512_cvtepi32_ps(scales));
    state.mins =
        _mm512_xor_ps(_mm512_mul_ps(broadcast_half(&block->dmin), _mm512_cvtepi32_ps(mins)),
                      _mm512_set1_ps(-0.0f));
    return state;
}

MOE_INLINE group_state begin_q3_k(const moe_block_q3_k *block)
{
    /* The last 16 bytes of the block: two of codes, the 12 of scales, d. */
    const __m128i tail = _mm_loadu_si128((const __m128i *)(block + 1) - 1);
    const __m128i low =
        _mm_shuffle_epi8(tail, _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9));
    const __m128i high = _mm_shuffle_epi8(
        tail, _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13));
    const __m128i four =
        _mm_and_si128(_mm_srlv_epi64(low, _mm_set_epi64x(4, 0)), _mm_set1_epi8(15));
    const __m128i top =
        _mm_and_si128(_mm_rolv_epi32(high, _mm_setr_epi32(4, 2, 0, 30)), _mm_set1_epi8(0x30));
    const __m128i scales = _mm_sub_epi8(_mm_or_si128(four, top), _mm_set1_epi8(32));
    group_state state;
    state.scales =
        _mm512_mul_ps(broadcast_half(&block->d), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)));
    state.mins = _mm512_setzero_ps();
    return state;
}

MOE_INLINE group_state begin_q6_k(const moe_block_q6_k *block)
{
    const __m128i scales = _mm_loadu_si128((const __m128i *)block->scales);
    group_state state;
    state.scales =
        _mm512_mul_ps(broadcast_half(&block->d), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)));
    state.mins = _mm512_setzero_ps();
    return state;
}

MOE_INLINE group_state begin_iq4_xs(const moe_block_iq4_xs *block)
{
    uint32_t scales_l;
    memcpy(&scales_l, block->scales_l, 4);
    const __m256i low =
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)scales_l),
                                           _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
                         _mm256_set1_epi32(15));
    const __m256i high =
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(block->scales_h << 4),
                                           _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                         _mm256_set1_epi32(0x30));
    const __m256i scales = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
    const __m256 d = _mm256_cvtph_ps(_mm_set1_epi16((short)block->d));
    group_state state;
    state.scales = _mm512_castps256_ps512(_mm256_mul_ps(d, _mm256_cvtepi32_ps(scales)));
    state.mins = _mm512_setzero_ps();
    return state;
}

/* group: the first block; n_blocks: how many a run of blocks of 32 has left, at most 8. */
MOE_INLINE group_state begin_group(moe_dtype type, const uint8_t *group, uint32_t n_blocks)
{
    group_state state = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    switch (type) {
    case MOE_DTYPE_Q4_1:
        state.mins = load_mins(group, sizeof(moe_block_q4_1), n_blocks);
        return state;
    case MOE_DTYPE_Q5_1:
        state.mins = load_mins(group, sizeof(moe_block_q5_1), n_blocks);
        return state;
    case MOE_DTYPE_Q2_K:
        return begin_q2_k((const moe_block_q2_k *)group);
    case MOE_DTYPE_Q3_K:
        return begin_q3_k((const moe_block_q3_k *)group);
    case MOE_DTYPE_Q4_K:
    case MOE_DTYPE_Q5_K:
        return begin_scales_k(group);
    case MOE_DTYPE_Q6_K:
        return begin_q6_k((const moe_block_q6_k *)group);
    case MOE_DTYPE_IQ4_XS:
        return begin_iq4_xs((const moe_block_iq4_xs *)group);
    default:
        return state;
    }
}

/* ---- Chunks ---- */

MOE_INLINE chunk_weights chunk_q8_0(const moe_block_q8_0 *b0, const moe_block_q8_0 *b1)
{
    const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)b0->qs));
    const __m512i codes = _mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i *)b1->qs), 1);
    return (chunk_weights){_mm512_xor_si512(codes, _mm512_set1_epi8((char)0x80)),
                           half_scales(b0->d, b1->d)};
}

MOE_INLINE chunk_weights chunk_mxfp4(const moe_block_mxfp4 *b0, const moe_block_mxfp4 *b1)
{
    const __m512i low = _mm512_set1_epi32((int)e8m0_half_bits[b0->e]);
    const __m512i high = _mm512_set1_epi32((int)e8m0_half_bits[b1->e]);
    const __m512i bits = _mm512_mask_blend_epi32(0xff00, low, high);
    return (chunk_weights){_mm512_shuffle_epi8(mxfp4_table(), nibbles_of_pair(b0->qs, b1->qs)),
                           _mm512_castsi512_ps(bits)};
}

MOE_INLINE __m512i codes_q6_k(const moe_block_q6_k *block, int c)
{
    const __m512i nibbles = _mm512_loadu_si512(block->ql + 64 * (c / 2));
    const __m512i low = _mm512_and_si512(c % 2 != 0 ? _mm512_srli_epi16(nibbles, 4) : nibbles,
                                         _mm512_set1_epi8(15));
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)(block->qh + 32 * (c / 2)));
    const __m512i rotations = _mm512_inserti64x4(_mm512_set1_epi64(c % 2 != 0 ? 0 : 4),
                                                 _mm256_set1_epi64x(c % 2 != 0 ? 62 : 2), 1);
    const __m512i high = _mm512_rolv_epi64(_mm512_broadcast_i64x4(pairs), rotations);
    /* low | (high & 0x30) */
    return _mm512_ternarylogic_epi64(low, high, _mm512_set1_epi8(0x30), 0xf8);
}

/* Chunk c of a block of 256. */
MOE_INLINE chunk_weights chunk_of_256(moe_dtype type, const uint8_t *group,
                                      const group_state *state, int c)
{
    const moe_block_q2_k *q2 = (const moe_block_q2_k *)group;
    const moe_block_q3_k *q3 = (const moe_block_q3_k *)group;
    const moe_block_q4_k *q4 = (const moe_block_q4_k *)group;
    const moe_block_q5_k *q5 = (const moe_block_q5_k *)group;
    const moe_block_iq4_xs *iq4 = (const moe_block_iq4_xs *)group;
    const int pair = 4 * (c % 2); /* bits before this chunk's in a byte of bit pairs */
    __m512i codes;
    switch (type) {
    case MOE_DTYPE_Q2_K:
        codes = fields_of_32(q2->qs + 32 * (c / 2), pair, pair + 2, 3);
        return (chunk_weights){codes, spread_16(state->scales, c)};
    case MOE_DTYPE_Q3_K:
        codes = fields_of_32(q3->qs + 32 * (c / 2), pair, pair + 2, 3);
        return (chunk_weights){add_plane(codes, q3->hmask, c, 4), spread_16(state->scales, c)};
    case MOE_DTYPE_Q4_K:
        codes = fields_of_32(q4->qs + 32 * c, 0, 4, 15);
        return (chunk_weights){codes, spread_8(state->scales, c)};
    case MOE_DTYPE_Q5_K:
        codes = fields_of_32(q5->qs + 32 * c, 0, 4, 15);
        return (chunk_weights){add_plane(codes, q5->qh, c, 16), spread_8(state->scales, c)};
    case MOE_DTYPE_Q6_K:
        codes = codes_q6_k((const moe_block_q6_k *)group, c);
        return (chunk_weights){codes, spread_16(state->scales, c)};
    default: /* IQ4_XS */
        codes = nibbles_of_pair(iq4->qs + 32 * c, iq4->qs + 32 * c + 16);
        return (chunk_weights){_mm512_shuffle_epi8(iq4_table(), codes), spread_8(state->scales, c)};
    }
}

/* Two blocks of 32. A half chunk, at the end of a row, repeats its block in the upper lanes: the
 * activations' padding is 0 there, q and scale, so that those lanes add +0. */
MOE_INLINE chunk_weights chunk_of_32(moe_dtype type, const uint8_t *block0, int is_half)
{
    const uint8_t *block1 = is_half ? block0 : block0 + quant_type_of(type).block_bytes;
    const moe_block_q4_0 *a0 = (const moe_block_q4_0 *)block0;
    const moe_block_q4_0 *a1 = (const moe_block_q4_0 *)block1;
    const moe_block_q4_1 *b0 = (const moe_block_q4_1 *)block0;
    const moe_block_q4_1 *b1 = (const moe_block_q4_1 *)block1;
    const moe_block_q5_0 *c0 = (const moe_block_q5_0 *)block0;
    const moe_block_q5_0 *c1 = (const moe_block_q5_0 *)block1;
    const moe_block_q5_1 *d0 = (const moe_block_q5_1 *)block0;
    const moe_block_q5_1 *d1 = (const moe_block_q5_1 *)block1;
    __m512i codes;
    switch (type) {
    case MOE_DTYPE_Q4_0:
        return (chunk_weights){nibbles_of_pair(a0->qs, a1->qs), half_scales(a0->d, a1->d)};
    case MOE_DTYPE_IQ4_NL:
        codes = _mm512_shuffle_epi8(iq4_table(), nibbles_of_pair(a0->qs, a1->qs));
        return (chunk_weights){codes, half_scales(a0->d, a1->d)};
    case MOE_DTYPE_Q4_1:
        return (chunk_weights){nibbles_of_pair(b0->qs, b1->qs), half_scales(b0->d, b1->d)};
    case MOE_DTYPE_Q5_0:
        codes = add_fifth_bits(nibbles_of_pair(c0->qs, c1->qs), c0->qh, c1->qh);
        return (chunk_weights){codes, half_scales(c0->d, c1->d)};
    case MOE_DTYPE_Q5_1:
        codes = add_fifth_bits(nibbles_of_pair(d0->qs, d1->qs), d0->qh, d1->qh);
        return (chunk_weights){codes, half_scales(d0->d, d1->d)};
    case MOE_DTYPE_MXFP4:
        return chunk_mxfp4((const moe_block_mxfp4 *)block0, (const moe_block_mxfp4 *)block1);
    default:
        return chunk_q8_0((const moe_block_q8_0 *)block0, (const moe_block_q8_0 *)block1);
    }
}

#endif
