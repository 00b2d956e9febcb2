/* SPDX-License-Identifier: MIT */
/* Block formats, unpacked by the thread that multiplies.
 *
 * Rows are cut into groups of 256 elements, and a group is divided among four threads. Thread t has
 * the part 64t .. 64t + 63, which is two whole runs (elements that share a scale) of 32 or four of
 * 16, so its integer sums need no other thread. The elements of a part also share bytes: they are
 * two blocks, or both nibbles of 32 bytes.
 *
 * unpack() gives part t of the group whose bytes begin at `group`: one signed byte for each code,
 * offsets subtracted, in the order of the elements. A code stays at the bit position in its byte
 * where it is cheapest to extract: codes of half h (32 elements) are 2^zeros(h) times their value.
 * Unsigned codes whose highest bit is the sign bit get half their range subtracted by inverting the
 * sign bit. `whole` is false if a row ends after the part's first half; the other half then has
 * scale and minimum 0, and its bytes are not read. */
#ifndef MOE_CUDA_WEIGHT_FORMATS_CUH
#define MOE_CUDA_WEIGHT_FORMATS_CUH

#include "cpu/kernels/block_formats.h"
#include "cuda/kernels/device_common.h"
#include "runtime/base/dtype.h"

typedef struct weight_part {
    uint32_t code[16];
    float scale[4]; /* of each run */
    float min[4];   /* of each run, with the sign with which it is added */
} weight_part;

/* Reads n words from any address. Reads only aligned words that contain some of their bytes. */
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

/* Reads 16 bits at an even address. */
__device__ static inline uint32_t half_bits_at(const uint8_t *bytes)
{
    return *(const uint16_t *)bytes;
}

__device__ static inline float half_at(const uint8_t *bytes)
{
    return moe_device_half_to_float((uint16_t)half_bits_at(bytes));
}

/* Eight words, read 16 bytes at a time if they are aligned. In blocks whose size is a multiple of
 * 16, either all of a matrix's words are aligned so, or none. */
struct alignas(16) weight_words {
    uint32_t v[4];
};

__device__ static inline void aligned_words_at(const uint8_t *bytes, uint32_t *out)
{
    if (((uintptr_t)bytes & 15) != 0) {
        words_at<8>(bytes, out);
        return;
    }
    weight_words low = ((const weight_words *)bytes)[0];
    weight_words high = ((const weight_words *)bytes)[1];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[i] = low.v[i];
        out[i + 4] = high.v[i];
    }
}

/* Rotates a word: to the right for bits > 0, to the left for bits < 0. */
__device__ static inline uint32_t turned(uint32_t word, int bits)
{
    return __funnelshift_r(word, word, (uint32_t)bits);
}

/* Joins the bits of `mask` from one word with the other bits of another. */
__device__ static inline uint32_t joined(uint32_t mask, uint32_t word, uint32_t other)
{
    return (word & mask) | (other & ~mask);
}

__device__ static inline uint32_t codes_of(int a, int b, int c, int d)
{
    return (a & 255u) | (b & 255u) << 8 | (c & 255u) << 16 | (d & 255u) << 24;
}

/* Looks up the eight nibbles of four bytes, the low ones and the high ones, in a table of 16 signed
 * bytes. A nibble's lower three bits choose an entry in each half of the table, then its upper bit
 * chooses between the two. */
__device__ static inline void look_up(uint32_t nibbles, const uint32_t *book, uint32_t *low,
                                      uint32_t *high)
{
    uint32_t place = nibbles & 0x77777777u;
    uint32_t half = (nibbles >> 1 & 0x44444444u) | 0x32103210u;
    uint32_t first = __byte_perm(__byte_perm(book[0], book[1], place),
                                 __byte_perm(book[2], book[3], place), half);
    place >>= 16;
    half >>= 16;
    uint32_t second = __byte_perm(__byte_perm(book[0], book[1], place),
                                  __byte_perm(book[2], book[3], place), half);
    *low = __byte_perm(first, second, 0x6420);
    *high = __byte_perm(first, second, 0x7531);
}

/* Expands 16 bytes into 32 codes by a table of 16 values. */
template <int A, int B, int C, int D, int E, int F, int G, int H, int I, int J, int K, int L, int M,
          int N, int O, int P>
__device__ static inline void look_up_block(const uint8_t *bytes, uint32_t *code)
{
    const uint32_t book[4] = {codes_of(A, B, C, D), codes_of(E, F, G, H), codes_of(I, J, K, L),
                              codes_of(M, N, O, P)};
    uint32_t words[4];
    words_at<4>(bytes, words);
#pragma unroll
    for (int i = 0; i < 4; i++)
        look_up(words[i], book, &code[i], &code[i + 4]);
}

/* The nibbles of 16 bytes, low ones first. */
__device__ static inline void nibbles_at(const uint8_t *bytes, uint32_t *code)
{
    uint32_t words[4];
    words_at<4>(bytes, words);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        code[i] = words[i] & 0x0f0f0f0fu;
        code[i + 4] = words[i] >> 4 & 0x0f0f0f0fu;
    }
}

template <int TYPE> struct weight_format;

/* Unpacks two blocks of 32, the second if `whole`. */
template <typename FORMAT>
__device__ static inline void unpack_blocks(const uint8_t *group, uint32_t t, bool whole,
                                            weight_part *part)
{
    const uint8_t *block = group + 2 * t * FORMAT::bytes;
    FORMAT::unpack_block(block, part->code, &part->scale[0], &part->min[0]);
    FORMAT::unpack_block(whole ? block + FORMAT::bytes : block, part->code + 8, &part->scale[1],
                         &part->min[1]);
    part->scale[1] = whole ? part->scale[1] : 0.0f;
    part->min[1] = whole ? part->min[1] : 0.0f;
}

#define MOE_FORMAT_32(type, block_type, mins, zero_bits)                                           \
    template <> struct weight_format<type> {                                                       \
        static constexpr uint32_t elems = 32, bytes = sizeof(block_type), runs = 2;                \
        static constexpr bool has_mins = mins;                                                     \
        __host__ __device__ static constexpr uint32_t zeros(uint32_t)                              \
        {                                                                                          \
            return zero_bits;                                                                      \
        }                                                                                          \
        __device__ static inline void unpack_block(const uint8_t *block, uint32_t *code,           \
                                                   float *scale, float *min);                      \
        __device__ static inline void unpack(const uint8_t *group, uint32_t t, bool whole,         \
                                             weight_part *part)                                    \
        {                                                                                          \
            unpack_blocks<weight_format<type>>(group, t, whole, part);                             \
        }                                                                                          \
    };                                                                                             \
    __device__ inline void weight_format<type>::unpack_block(const uint8_t *block, uint32_t *code, \
                                                             float *scale, float *min)

#define MOE_FORMAT_256(type, block_type, n_runs, mins, low_zeros, high_zeros)                      \
    template <> struct weight_format<type> {                                                       \
        static constexpr uint32_t elems = 256, bytes = sizeof(block_type), runs = n_runs;          \
        static constexpr bool has_mins = mins;                                                     \
        __host__ __device__ static constexpr uint32_t zeros(uint32_t half)                         \
        {                                                                                          \
            return half == 0 ? low_zeros : high_zeros;                                             \
        }                                                                                          \
        __device__ static inline void unpack(const uint8_t *group, uint32_t t, bool whole,         \
                                             weight_part *part);                                   \
    };                                                                                             \
    __device__ inline void weight_format<type>::unpack(const uint8_t *group, uint32_t t, bool,     \
                                                       weight_part *part)

MOE_FORMAT_32(MOE_DTYPE_Q4_0, moe_block_q4_0, false, 4)
{
    uint32_t words[4];
    *scale = half_at(block);
    *min = 0.0f;
    words_at<4>(block + 2, words);
    for (int i = 0; i < 4; i++) {
        code[i] = (words[i] << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
        code[i + 4] = (words[i] & 0xf0f0f0f0u) ^ 0x80808080u;
    }
}

MOE_FORMAT_32(MOE_DTYPE_Q4_1, moe_block_q4_1, true, 0)
{
    *scale = half_at(block);
    *min = half_at(block + 2);
    nibbles_at(block + 4, code);
}

/* `bits` has the fifth bits of 32 codes. Returns those of the four codes in word i, one in each
 * byte, at the bit with value `to`. The other bits are undefined. */
__device__ static inline uint32_t fifth_bits(uint32_t bits, int i, uint32_t to)
{
    return (bits >> 4 * i & 15) * (0x00204081u * to);
}

MOE_FORMAT_32(MOE_DTYPE_Q5_0, moe_block_q5_0, false, 3)
{
    uint32_t words[4];
    *scale = half_at(block);
    *min = 0.0f;
    uint32_t bits = half_bits_at(block + 2) | half_bits_at(block + 4) << 16;
    words_at<4>(block + 6, words);
    for (int i = 0; i < 4; i++) {
        uint32_t low = joined(0x78787878u, words[i] << 3, fifth_bits(bits, i, 128));
        uint32_t high = joined(0x78787878u, words[i] >> 1, fifth_bits(bits, i + 4, 128));
        code[i] = (low & 0xf8f8f8f8u) ^ 0x80808080u;
        code[i + 4] = (high & 0xf8f8f8f8u) ^ 0x80808080u;
    }
}

MOE_FORMAT_32(MOE_DTYPE_Q5_1, moe_block_q5_1, true, 0)
{
    uint32_t words[4];
    *scale = half_at(block);
    *min = half_at(block + 2);
    uint32_t bits = half_bits_at(block + 4) | half_bits_at(block + 6) << 16;
    words_at<4>(block + 8, words);
    for (int i = 0; i < 4; i++) {
        uint32_t low = joined(0x0f0f0f0fu, words[i], fifth_bits(bits, i, 16));
        uint32_t high = joined(0x0f0f0f0fu, words[i] >> 4, fifth_bits(bits, i + 4, 16));
        code[i] = low & 0x1f1f1f1fu;
        code[i + 4] = high & 0x1f1f1f1fu;
    }
}

MOE_FORMAT_32(MOE_DTYPE_Q8_0, moe_block_q8_0, false, 0)
{
    *scale = half_at(block);
    *min = 0.0f;
    words_at<8>(block + 2, code);
}

MOE_FORMAT_32(MOE_DTYPE_IQ4_NL, moe_block_q4_0, false, 0)
{
    *scale = half_at(block);
    *min = 0.0f;
    look_up_block<MOE_IQ4_CODES>(block + 2, code);
}

MOE_FORMAT_32(MOE_DTYPE_MXFP4, moe_block_mxfp4, false, 0)
{
    uint32_t e = block[0];
    *scale = moe_device_float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    *min = 0.0f;
    look_up_block<MOE_MXFP4_CODES>(block + 1, code);
}

/* Byte i of a word, as a float. */
__device__ static inline float byte_of(uint32_t word, int i)
{
    return (float)(int)(word >> 8 * i & 255);
}

MOE_FORMAT_256(MOE_DTYPE_Q2_K, moe_block_q2_k, 4, true, 0, 2)
{
    uint32_t packed, words[8];
    float d = half_at(group + 80), dmin = half_at(group + 82);
    words_at<1>(group + 4 * t, &packed);
    for (int i = 0; i < 4; i++) {
        part->scale[i] = d * byte_of(packed & 0x0f0f0f0fu, i);
        part->min[i] = -(dmin * byte_of(packed >> 4 & 0x0f0f0f0fu, i));
    }
    words_at<8>(group + 16 + t / 2 * 32, words);
    for (int i = 0; i < 8; i++) {
        uint32_t pairs = words[i] >> t % 2 * 4;
        part->code[i] = pairs & 0x03030303u;
        part->code[i + 8] = pairs & 0x0c0c0c0cu;
    }
}

MOE_FORMAT_256(MOE_DTYPE_Q3_K, moe_block_q3_k, 4, false, 5, 5)
{
    uint32_t low, high, words[8], third[8];
    float d = half_at(group + 108);
    words_at<1>(group + 96 + t % 2 * 4, &low);
    words_at<1>(group + 104, &high);
    uint32_t packed = (low >> t / 2 * 4 & 0x0f0f0f0fu) | (high >> 2 * t & 0x03030303u) << 4;
    for (int i = 0; i < 4; i++)
        part->scale[i] = d * (float)((int)(packed >> 8 * i & 255) - 32);
    words_at<8>(group + 32 + t / 2 * 32, words);
    words_at<8>(group, third);
    int pair = t % 2 * 4, bit = 2 * t;
    for (int i = 0; i < 8; i++) {
        uint32_t first = joined(0x60606060u, turned(words[i], pair - 5), turned(third[i], bit - 7));
        uint32_t second =
            joined(0x60606060u, turned(words[i], pair - 3), turned(third[i], bit - 6));
        part->code[i] = (first & 0xe0e0e0e0u) ^ 0x80808080u;
        part->code[i + 8] = (second & 0xe0e0e0e0u) ^ 0x80808080u;
    }
}

/* Scales and minima of two neighbouring runs of a block's eight, which Q4_K and Q5_K pack in the
 * same way. */
__device__ static inline void scales_k(const uint8_t *group, uint32_t t, weight_part *part)
{
    const uint8_t *packed = group + 4 + t % 2 * 2;
    uint32_t first = half_bits_at(packed);
    uint32_t second = half_bits_at(packed + 4);
    uint32_t third = half_bits_at(packed + 8);
    uint32_t scale = t < 2 ? first & 0x3f3f : (third & 0x0f0f) | (first & 0xc0c0) >> 2;
    uint32_t min = t < 2 ? second & 0x3f3f : (third >> 4 & 0x0f0f) | (second & 0xc0c0) >> 2;
    float d = half_at(group), dmin = half_at(group + 2);
    for (int i = 0; i < 2; i++) {
        part->scale[i] = d * byte_of(scale, i);
        part->min[i] = -(dmin * byte_of(min, i));
    }
}

MOE_FORMAT_256(MOE_DTYPE_Q4_K, moe_block_q4_k, 2, true, 0, 0)
{
    uint32_t words[8];
    scales_k(group, t, part);
    aligned_words_at(group + 16 + 32 * t, words);
    for (int i = 0; i < 8; i++) {
        part->code[i] = words[i] & 0x0f0f0f0fu;
        part->code[i + 8] = words[i] >> 4 & 0x0f0f0f0fu;
    }
}

MOE_FORMAT_256(MOE_DTYPE_Q5_K, moe_block_q5_k, 2, true, 0, 0)
{
    uint32_t words[8], fifth[8];
    scales_k(group, t, part);
    aligned_words_at(group + 16, fifth);
    aligned_words_at(group + 48 + 32 * t, words);
    int bit = 2 * t;
    for (int i = 0; i < 8; i++) {
        uint32_t low = joined(0x0f0f0f0fu, words[i], turned(fifth[i], bit - 4));
        uint32_t high = joined(0x0f0f0f0fu, words[i] >> 4, turned(fifth[i], bit - 3));
        part->code[i] = low & 0x1f1f1f1fu;
        part->code[i + 8] = high & 0x1f1f1f1fu;
    }
}

MOE_FORMAT_256(MOE_DTYPE_Q6_K, moe_block_q6_k, 4, false, 2, 2)
{
    uint32_t packed, words[16], upper[8];
    float d = half_at(group + 208);
    words_at<1>(group + 192 + 4 * t, &packed);
    for (int i = 0; i < 4; i++)
        part->scale[i] = d * (float)(int)(int8_t)(packed >> 8 * i & 255);
    words_at<16>(group + t / 2 * 64, words);
    words_at<8>(group + 128 + t / 2 * 32, upper);
    int nibble = t % 2 * 4;
    for (int i = 0; i < 16; i++) {
        uint32_t pair = turned(upper[i % 8], nibble + (i < 8 ? 0 : 2) - 6);
        part->code[i] = joined(0x3c3c3c3cu, turned(words[i], nibble - 2), pair);
        part->code[i] = (part->code[i] & 0xfcfcfcfcu) ^ 0x80808080u;
    }
}

MOE_FORMAT_256(MOE_DTYPE_IQ4_XS, moe_block_iq4_xs, 2, false, 0, 0)
{
    uint32_t low = group[4 + t];
    uint32_t high = half_bits_at(group + 2) >> 4 * t;
    float d = half_at(group);
    part->scale[0] = d * (float)((int)((low & 15) | (high & 3) << 4) - 32);
    part->scale[1] = d * (float)((int)(low >> 4 | (high >> 2 & 3) << 4) - 32);
    look_up_block<MOE_IQ4_CODES>(group + 8 + 32 * t, part->code);
    look_up_block<MOE_IQ4_CODES>(group + 24 + 32 * t, part->code + 8);
}

#undef MOE_FORMAT_32 /* weight_points.cuh needs the other */

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
