/* SPDX-License-Identifier: MIT */
/* The block formats, taken apart by the thread that multiplies.
 *
 * Rows are cut into chunks of 64 elements, and a chunk among four threads: thread t has elements
 * 16t .. 16t + 15, which are four lanes of the contract. 16 is the length at which everything in a
 * block is uniform: a run has one scale, at most one minimum, and its codes are one nibble (and
 * one bit or pair of bits) of 16 neighbouring bytes. Four chunks are a group of 256 elements.
 *
 * unpack() gives the run of thread t in chunk c of the group whose bytes begin at `group`: codes as
 * four words of four signed bytes, offsets subtracted. */
#ifndef MOE_CUDA_WEIGHT_FORMATS_CUH
#define MOE_CUDA_WEIGHT_FORMATS_CUH

#include "cpu/kernels/block_formats.h"
#include "cuda/kernels/device_common.h"
#include "runtime/base/dtype.h"

typedef struct weight_run {
    uint32_t code[4];
    float scale;
    float min; /* with the sign it is added */
} weight_run;

/* n words from any address; reads no aligned word that has none of their bytes. */
template <int N> __device__ static inline void words_at(const uint8_t *bytes, uint32_t *out)
{
    uint32_t shift = (uint32_t)(uintptr_t)bytes & 3;
    const uint32_t *words = (const uint32_t *)(bytes - shift);
    uint32_t low = words[0];
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t high = words[i + 1 < N || shift != 0 ? i + 1 : i];
        out[i] = __funnelshift_r(low, high, 8 * shift);
        low = high;
    }
}

/* At an even address. */
__device__ static inline uint32_t half_bits_at(const uint8_t *bytes)
{
    return *(const uint16_t *)bytes;
}

__device__ static inline float half_at(const uint8_t *bytes)
{
    return moe_device_half_to_float((uint16_t)half_bits_at(bytes));
}

/* Four bytes 0..127, less an offset up to 128: no byte borrows of the next. */
__device__ static inline uint32_t less_in_bytes(uint32_t codes, uint32_t offset)
{
    return ((codes | 0x80808080u) - offset * 0x01010101u) ^ 0x80808080u;
}

__device__ static inline void nibbles_at(const uint8_t *bytes, uint32_t shift, uint32_t *code)
{
    words_at<4>(bytes, code);
#pragma unroll
    for (int i = 0; i < 4; i++)
        code[i] = code[i] >> shift & 0x0f0f0f0fu;
}

/* Bit i of `bits` to bit 4 of byte i, for four bits. */
__device__ static inline uint32_t fifth_bits(uint32_t bits)
{
    return ((bits & 15) * 0x00204081u & 0x01010101u) << 4;
}

__device__ static inline uint32_t codes_of(int a, int b, int c, int d)
{
    return (a & 255u) | (b & 255u) << 8 | (c & 255u) << 16 | (d & 255u) << 24;
}

/* Four nibbles, one a byte, by a book of 16 signed bytes: eight of them by the lower three bits
 * out of either half, then the half by the upper bit. */
__device__ static inline uint32_t look_up(uint32_t nibbles, uint32_t book0, uint32_t book1,
                                          uint32_t book2, uint32_t book3)
{
    uint32_t low = nibbles & 0x07070707u;
    uint32_t pairs = low | low >> 4;
    uint32_t select = __byte_perm(pairs, 0, 0x4420);
    uint32_t first = __byte_perm(book0, book1, select);
    uint32_t second = __byte_perm(book2, book3, select);
    uint32_t upper = (nibbles >> 3 & 0x01010101u) * 255u;
    return (first & ~upper) | (second & upper);
}

template <int A, int B, int C, int D, int E, int F, int G, int H, int I, int J, int K, int L, int M,
          int N, int O, int P>
__device__ static inline void look_up_run(uint32_t *code)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        code[i] = look_up(code[i], codes_of(A, B, C, D), codes_of(E, F, G, H), codes_of(I, J, K, L),
                          codes_of(M, N, O, P));
}

/* The four lanes' codes out of pairs of bits: elements 64c + 16t .. of a group, as Q2_K has them.
 */
__device__ static inline void bit_pairs_at(const uint8_t *qs, uint32_t c, uint32_t t,
                                           uint32_t *code)
{
    words_at<4>(qs + c / 2 * 32 + t % 2 * 16, code);
    uint32_t shift = 2 * (c % 2 * 2 + t / 2);
#pragma unroll
    for (int i = 0; i < 4; i++)
        code[i] = code[i] >> shift & 0x03030303u;
}

/* Bit `bit` of 16 bytes, to bit `to` of the codes. */
__device__ static inline void add_high_bits(const uint8_t *bytes, uint32_t bit, uint32_t to,
                                            uint32_t *code)
{
    uint32_t high[4];
    words_at<4>(bytes, high);
#pragma unroll
    for (int i = 0; i < 4; i++)
        code[i] |= (high[i] >> bit & 0x01010101u) << to;
}

template <int TYPE> struct weight_format;

/* Blocks of 32: run t of chunk c is a half of block 2c + t / 2. */
#define MOE_FORMAT_32(type, block_type, sub)                                                       \
    template <> struct weight_format<type> {                                                       \
        static constexpr uint32_t elems = 32, bytes = sizeof(block_type), min_sub = sub;           \
        __device__ static inline void unpack(const uint8_t *group, uint32_t c, uint32_t t,         \
                                             weight_run *run);                                     \
    };                                                                                             \
    __device__ inline void weight_format<type>::unpack(const uint8_t *group, uint32_t c,           \
                                                       uint32_t t, weight_run *run)

#define MOE_FORMAT_256(type, block_type, sub)                                                      \
    template <> struct weight_format<type> {                                                       \
        static constexpr uint32_t elems = 256, bytes = sizeof(block_type), min_sub = sub;          \
        __device__ static inline void unpack(const uint8_t *group, uint32_t c, uint32_t t,         \
                                             weight_run *run);                                     \
    };                                                                                             \
    __device__ inline void weight_format<type>::unpack(const uint8_t *group, uint32_t c,           \
                                                       uint32_t t, weight_run *run)

MOE_FORMAT_32(MOE_DTYPE_Q4_0, moe_block_q4_0, 0)
{
    const uint8_t *block = group + (2 * c + t / 2) * bytes;
    run->scale = half_at(block);
    nibbles_at(block + 2, t % 2 * 4, run->code);
    for (int i = 0; i < 4; i++)
        run->code[i] = less_in_bytes(run->code[i], 8);
}

MOE_FORMAT_32(MOE_DTYPE_Q4_1, moe_block_q4_1, 32)
{
    const uint8_t *block = group + (2 * c + t / 2) * bytes;
    run->scale = half_at(block);
    run->min = half_at(block + 2);
    nibbles_at(block + 4, t % 2 * 4, run->code);
}

MOE_FORMAT_32(MOE_DTYPE_Q5_0, moe_block_q5_0, 0)
{
    const uint8_t *block = group + (2 * c + t / 2) * bytes;
    run->scale = half_at(block);
    uint32_t bits = half_bits_at(block + 2 + t % 2 * 2);
    nibbles_at(block + 6, t % 2 * 4, run->code);
    for (int i = 0; i < 4; i++)
        run->code[i] = less_in_bytes(run->code[i] | fifth_bits(bits >> 4 * i), 16);
}

MOE_FORMAT_32(MOE_DTYPE_Q5_1, moe_block_q5_1, 32)
{
    const uint8_t *block = group + (2 * c + t / 2) * bytes;
    run->scale = half_at(block);
    run->min = half_at(block + 2);
    uint32_t bits = half_bits_at(block + 4 + t % 2 * 2);
    nibbles_at(block + 8, t % 2 * 4, run->code);
    for (int i = 0; i < 4; i++)
        run->code[i] |= fifth_bits(bits >> 4 * i);
}

MOE_FORMAT_32(MOE_DTYPE_Q8_0, moe_block_q8_0, 0)
{
    const uint8_t *block = group + (2 * c + t / 2) * bytes;
    run->scale = half_at(block);
    words_at<4>(block + 2 + t % 2 * 16, run->code);
}

MOE_FORMAT_32(MOE_DTYPE_IQ4_NL, moe_block_q4_0, 0)
{
    const uint8_t *block = group + (2 * c + t / 2) * bytes;
    run->scale = half_at(block);
    nibbles_at(block + 2, t % 2 * 4, run->code);
    look_up_run<MOE_IQ4_CODES>(run->code);
}

MOE_FORMAT_32(MOE_DTYPE_MXFP4, moe_block_mxfp4, 0)
{
    const uint8_t *block = group + (2 * c + t / 2) * bytes;
    uint32_t e = block[0];
    run->scale = moe_device_float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    nibbles_at(block + 1, t % 2 * 4, run->code);
    look_up_run<MOE_MXFP4_CODES>(run->code);
}

MOE_FORMAT_256(MOE_DTYPE_Q2_K, moe_block_q2_k, 16)
{
    uint32_t packed = group[4 * c + t];
    run->scale = half_at(group + 80) * (float)(int)(packed & 15);
    run->min = -(half_at(group + 82) * (float)(int)(packed >> 4));
    bit_pairs_at(group + 16, c, t, run->code);
}

MOE_FORMAT_256(MOE_DTYPE_Q3_K, moe_block_q3_k, 0)
{
    uint32_t low = group[96 + (4 * c + t) % 8] >> 4 * (c / 2) & 15;
    uint32_t high = group[104 + t] >> 2 * c & 3;
    run->scale = half_at(group + 108) * (float)((int)(low | high << 4) - 32);
    bit_pairs_at(group + 32, c, t, run->code);
    add_high_bits(group + t % 2 * 16, 2 * c + t / 2, 2, run->code);
    for (int i = 0; i < 4; i++)
        run->code[i] = less_in_bytes(run->code[i], 4);
}

/* Scale and minimum of the run's 32 elements, which Q4_K and Q5_K pack alike. */
__device__ static inline void scales_k(const uint8_t *group, uint32_t c, uint32_t t,
                                       weight_run *run)
{
    const uint8_t *packed = group + 4;
    uint32_t j = 2 * c + t / 2;
    uint32_t scale, min;
    if (c < 2) {
        scale = packed[j] & 63;
        min = packed[j + 4] & 63;
    } else {
        scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
        min = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    }
    run->scale = half_at(group) * (float)(int)scale;
    run->min = -(half_at(group + 2) * (float)(int)min);
}

MOE_FORMAT_256(MOE_DTYPE_Q4_K, moe_block_q4_k, 32)
{
    scales_k(group, c, t, run);
    nibbles_at(group + 16 + 32 * c + t % 2 * 16, t / 2 * 4, run->code);
}

MOE_FORMAT_256(MOE_DTYPE_Q5_K, moe_block_q5_k, 32)
{
    scales_k(group, c, t, run);
    nibbles_at(group + 48 + 32 * c + t % 2 * 16, t / 2 * 4, run->code);
    add_high_bits(group + 16 + t % 2 * 16, 2 * c + t / 2, 4, run->code);
}

MOE_FORMAT_256(MOE_DTYPE_Q6_K, moe_block_q6_k, 0)
{
    uint32_t pairs[4];
    run->scale = half_at(group + 208) * (float)(int)(int8_t)group[192 + 4 * c + t];
    nibbles_at(group + 64 * (c / 2) + 16 * t, c % 2 * 4, run->code);
    bit_pairs_at(group + 128, c, t, pairs);
    for (int i = 0; i < 4; i++)
        run->code[i] = less_in_bytes(run->code[i] | pairs[i] << 4, 32);
}

MOE_FORMAT_256(MOE_DTYPE_IQ4_XS, moe_block_iq4_xs, 0)
{
    uint32_t b = 2 * c + t / 2;
    uint32_t low = group[4 + c] >> 4 * (t / 2) & 15;
    uint32_t high = half_bits_at(group + 2) >> 2 * b & 3;
    run->scale = half_at(group) * (float)((int)(low | high << 4) - 32);
    nibbles_at(group + 8 + 16 * b, t % 2 * 4, run->code);
    look_up_run<MOE_IQ4_CODES>(run->code);
}

#undef MOE_FORMAT_32
#undef MOE_FORMAT_256

/* Four neighbouring elements of a float row, from any even address. */
template <> struct weight_format<MOE_DTYPE_F32> {
    static constexpr uint32_t elem_bytes = 4;
    __device__ static inline void load4(const uint8_t *bytes, float *out)
    {
        uint32_t words[4];
        words_at<4>(bytes, words);
        for (int i = 0; i < 4; i++)
            out[i] = moe_device_float_of(words[i]);
    }
    __device__ static inline float load1(const uint8_t *bytes)
    {
        return moe_device_float_of(half_bits_at(bytes) | half_bits_at(bytes + 2) << 16);
    }
};

template <> struct weight_format<MOE_DTYPE_F16> {
    static constexpr uint32_t elem_bytes = 2;
    __device__ static inline void load4(const uint8_t *bytes, float *out)
    {
        uint32_t words[2];
        words_at<2>(bytes, words);
        for (int i = 0; i < 4; i++)
            out[i] = moe_device_half_to_float((uint16_t)(words[i / 2] >> i % 2 * 16));
    }
    __device__ static inline float load1(const uint8_t *bytes)
    {
        return half_at(bytes);
    }
};

template <> struct weight_format<MOE_DTYPE_BF16> {
    static constexpr uint32_t elem_bytes = 2;
    __device__ static inline void load4(const uint8_t *bytes, float *out)
    {
        uint32_t words[2];
        words_at<2>(bytes, words);
        for (int i = 0; i < 4; i++)
            out[i] =
                moe_device_float_of(i % 2 != 0 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    }
    __device__ static inline float load1(const uint8_t *bytes)
    {
        return moe_device_float_of(half_bits_at(bytes) << 16);
    }
};

#endif
