/* SPDX-License-Identifier: MIT */
/* Unpacks types with codebooks, whose entries (points) have the codes of four or eight weights,
 * ternary types and NVFP4, in the thread that multiplies (weight_formats.cuh). Points are loaded
 * from tables of bytes, which stay in the first-level cache. */
#ifndef MOE_CUDA_WEIGHT_POINTS_CUH
#define MOE_CUDA_WEIGHT_POINTS_CUH

#include "cpu/kernels/codebooks.h"
#include "cuda/kernels/weight_formats.cuh"

MOE_DEVICE_TABLE uint64_t book_iq2_xxs[256] = {MOE_IQ2_XXS_POINTS(MOE_ROW_IQ2)};
MOE_DEVICE_TABLE uint64_t book_iq2_xs[512] = {MOE_IQ2_XS_POINTS(MOE_ROW_IQ2)};
MOE_DEVICE_TABLE uint64_t book_iq2_s[1024] = {MOE_IQ2_S_POINTS(MOE_ROW_IQ2)};
MOE_DEVICE_TABLE uint64_t book_iq1[2048] = {MOE_IQ1_S_POINTS(MOE_ROW_IQ1)};
MOE_DEVICE_TABLE uint32_t book_iq3_xxs[256] = {MOE_IQ3_XXS_POINTS(MOE_ROW_IQ3_XXS)};
MOE_DEVICE_TABLE uint32_t book_iq3_s[512] = {MOE_IQ3_S_POINTS(MOE_ROW_IQ3_S)};

/* d times an odd number. */
__device__ static inline float odd_scale(float d, uint32_t s)
{
    return d * (float)(int)(2 * s + 1);
}

__device__ static inline uint32_t byte_at(uint32_t word, uint32_t i)
{
    return word >> 8 * i & 255;
}

/* Four magnitudes, negative where the lower four bits of signs are set. */
__device__ static inline uint32_t signed_word(uint32_t magnitudes, uint32_t signs)
{
    uint32_t ones = (signs & 15) * 0x00204081u & 0x01010101u;
    return (magnitudes ^ ones * 255u) + ones;
}

/* Half `half` (0 or 1) of a point of eight coordinates. */
__device__ static inline uint32_t half_point(const uint64_t *book, uint32_t at, uint32_t half)
{
    return (uint32_t)(book[at] >> 32 * half);
}

__device__ static inline void signed_point(const uint64_t *book, uint32_t at, uint32_t signs,
                                           uint32_t *code)
{
    code[0] = signed_word(half_point(book, at, 0), signs);
    code[1] = signed_word(half_point(book, at, 1), signs >> 4);
}

/* Values of IQ1 in eighths: bytes are eight times the values, plus eight. */
__device__ static inline uint32_t eighths(uint32_t bytes, bool minus)
{
    return (bytes + (minus ? 0x77777777u : 0x79797979u)) ^ 0x80808080u;
}

MOE_FORMAT_256(MOE_DTYPE_IQ2_XXS, moe_block_iq2_xxs, 2, false, 0, 0)
{
    uint32_t words[4];
    float d = half_at(group) * 0.125f;
    words_at<4>(group + 2 + 16 * t, words);
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t signs = moe_even_signs(words[2 * h + 1]);
        part->scale[h] = odd_scale(d, words[2 * h + 1] >> 28);
        for (uint32_t i = 0; i < 4; i++)
            signed_point(book_iq2_xxs, byte_at(words[2 * h], i), signs >> 8 * i,
                         part->code + 8 * h + 2 * i);
    }
}

MOE_FORMAT_256(MOE_DTYPE_IQ2_XS, moe_block_iq2_xs, 4, false, 0, 0)
{
    uint32_t words[4];
    float d = half_at(group) * 0.125f;
    words_at<4>(group + 2 + 16 * t, words);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t word = words[i / 2] >> 16 * (i % 2) & 0xffff;
        signed_point(book_iq2_xs, word & 511, moe_even_signs(word >> 9), part->code + 2 * i);
    }
    for (uint32_t j = 0; j < 4; j++)
        part->scale[j] = odd_scale(d, group[66 + 2 * t + j / 2] >> 4 * (j % 2) & 15);
}

MOE_FORMAT_256(MOE_DTYPE_IQ2_S, moe_block_iq2_s, 4, false, 0, 0)
{
    uint32_t qs[2], signs[2];
    float d = half_at(group) * 0.125f;
    words_at<2>(group + 2 + 8 * t, qs);
    words_at<2>(group + 34 + 8 * t, signs);
    uint32_t upper = half_bits_at(group + 66 + 2 * t);
    for (uint32_t i = 0; i < 8; i++)
        signed_point(book_iq2_s, byte_at(qs[i / 4], i % 4) | (upper >> 2 * i & 3) << 8,
                     byte_at(signs[i / 4], i % 4), part->code + 2 * i);
    for (uint32_t j = 0; j < 4; j++)
        part->scale[j] = odd_scale(d, group[74 + 2 * t + j / 2] >> 4 * (j % 2) & 15);
}

MOE_FORMAT_256(MOE_DTYPE_IQ3_XXS, moe_block_iq3_xxs, 2, false, 0, 0)
{
    uint32_t qs[4], words[2];
    float d = half_at(group) * 0.25f;
    words_at<4>(group + 2 + 16 * t, qs);
    words_at<2>(group + 66 + 8 * t, words);
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t signs = moe_even_signs(words[h]);
        part->scale[h] = odd_scale(d, words[h] >> 28);
        for (uint32_t i = 0; i < 8; i++)
            part->code[8 * h + i] =
                signed_word(book_iq3_xxs[byte_at(qs[2 * h + i / 4], i % 4)], signs >> 4 * i);
    }
}

MOE_FORMAT_256(MOE_DTYPE_IQ3_S, moe_block_iq3_s, 2, false, 0, 0)
{
    uint32_t qs[4], signs[2];
    float d = half_at(group);
    words_at<4>(group + 2 + 16 * t, qs);
    words_at<2>(group + 74 + 8 * t, signs);
    uint32_t upper = half_bits_at(group + 66 + 2 * t);
    for (uint32_t i = 0; i < 16; i++)
        part->code[i] = signed_word(book_iq3_s[byte_at(qs[i / 4], i % 4) | (upper >> i & 1) << 8],
                                    signs[i / 8] >> 4 * (i % 8));
    for (uint32_t h = 0; h < 2; h++)
        part->scale[h] = odd_scale(d, group[106 + t] >> 4 * h & 15);
}

MOE_FORMAT_256(MOE_DTYPE_IQ1_S, moe_block_iq1_s, 2, false, 0, 0)
{
    uint32_t qs[2];
    float d = half_at(group) * 0.125f;
    words_at<2>(group + 2 + 8 * t, qs);
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t upper = half_bits_at(group + 34 + 4 * t + 2 * h);
        part->scale[h] = odd_scale(d, upper >> 12 & 7);
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t at = byte_at(qs[h], i) | (upper >> 3 * i & 7) << 8;
            for (uint32_t k = 0; k < 2; k++)
                part->code[8 * h + 2 * i + k] = eighths(half_point(book_iq1, at, k), upper >> 15);
        }
    }
}

__device__ static inline float scale_iq1_m(const uint8_t *group)
{
    uint32_t half = half_bits_at(group + 48) >> 12 | (half_bits_at(group + 50) >> 12) << 4 |
                    (half_bits_at(group + 52) >> 12) << 8 | (half_bits_at(group + 54) >> 12) << 12;
    return moe_device_half_to_float((uint16_t)half) * 0.125f;
}

MOE_FORMAT_256(MOE_DTYPE_IQ1_M, moe_block_iq1_m, 4, false, 0, 0)
{
    uint32_t qs[2], upper;
    float d = scale_iq1_m(group);
    uint32_t scales = half_bits_at(group + 48 + 2 * t);
    words_at<2>(group + 8 * t, qs);
    words_at<1>(group + 32 + 4 * t, &upper);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t nibble = upper >> 4 * i & 15;
        uint32_t at = byte_at(qs[i / 4], i % 4) | (nibble & 7) << 8;
        for (uint32_t k = 0; k < 2; k++)
            part->code[2 * i + k] = eighths(half_point(book_iq1, at, k), nibble >> 3);
    }
    for (uint32_t j = 0; j < 4; j++)
        part->scale[j] = odd_scale(d, scales >> 3 * j & 7);
}

/* Turns digits 0, 1, 2 into values -1, 0, 1. */
__device__ static inline uint32_t ternary_codes(uint32_t digits)
{
    return (digits + 0x7f7f7f7fu) ^ 0x80808080u;
}

/* Digit i in base 3 of each of four bytes; see block_unpack_ternary.c. */
__device__ static inline uint32_t base_3_digits(uint32_t word, uint32_t i)
{
    uint32_t power = (uint32_t)(0x511b090301ull >> 8 * i) & 255;
    uint32_t even = (word & 0x00ff00ffu) * power & 0x00ff00ffu;
    uint32_t odd = (word >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    return (even * 3 >> 8 & 0x00ff00ffu) | (odd * 3 & 0xff00ff00u);
}

/* Word i of a group's 64 words has four neighbouring elements. Returns the number of the block's
 * word in which they are packed, plus 16 times the number of their digit in its bytes. */
__device__ static inline uint32_t place_tq1_0(uint32_t i)
{
    if (i < 40)
        return i % 8 | i / 8 << 4;
    return i < 60 ? (8 + i % 4) | (i - 40) / 4 << 4 : 12 | (i - 60) << 4;
}

__device__ static inline uint32_t word_tq1_0(const uint8_t *group, uint32_t i)
{
    uint32_t word, place = place_tq1_0(i);
    words_at<1>(group + 4 * (place & 15), &word);
    return ternary_codes(base_3_digits(word, place >> 4));
}

MOE_FORMAT_256(MOE_DTYPE_TQ1_0, moe_block_tq1_0, 2, false, 0, 0)
{
    part->scale[0] = part->scale[1] = half_at(group + 52);
    for (uint32_t i = 0; i < 16; i++)
        part->code[i] = word_tq1_0(group, 16 * t + i);
}

MOE_FORMAT_256(MOE_DTYPE_TQ2_0, moe_block_tq2_0, 2, false, 0, 0)
{
    uint32_t words[8];
    part->scale[0] = part->scale[1] = half_at(group + 64);
    words_at<8>(group + t / 2 * 32, words);
    for (uint32_t i = 0; i < 16; i++)
        part->code[i] = ternary_codes(words[i % 8] >> (t % 2 * 4 + i / 8 * 2) & 0x03030303u);
}

#undef MOE_FORMAT_256

/* moe_ue4m3_half() of block_formats.h, times 128. */
__device__ static inline float scale_nvfp4(uint32_t e4m3)
{
    uint32_t bits = e4m3 == 0x7f ? 0 : (e4m3 & 0x7f) << 7;
    return moe_device_half_to_float((uint16_t)bits) * 128.0f;
}

/* A part is a block. */
template <> struct weight_format<MOE_DTYPE_NVFP4> {
    static constexpr uint32_t elems = 64, bytes = sizeof(moe_block_nvfp4), runs = 4;
    static constexpr bool has_mins = false;
    __host__ __device__ static constexpr uint32_t zeros(uint32_t)
    {
        return 0;
    }
    __device__ static inline void unpack(const uint8_t *group, uint32_t t, bool, weight_part *part)
    {
        const uint32_t book[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
        const uint8_t *block = group + t * bytes;
        uint32_t words[8];
        words_at<8>(block + 4, words);
        for (int j = 0; j < 4; j++) {
            uint32_t *code = part->code + 4 * j;
            look_up(words[2 * j], book, &code[0], &code[2]);
            look_up(words[2 * j + 1], book, &code[1], &code[3]);
            part->scale[j] = scale_nvfp4(block[j]);
        }
    }
};

#endif
