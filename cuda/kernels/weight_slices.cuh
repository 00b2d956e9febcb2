/* SPDX-License-Identifier: MIT */
/* Block formats, unpacked for the matrix units.
 *
 * Slice w of a group of 256 elements is its elements 32w .. 32w + 31: a run (elements that share a
 * scale) of 32 or two of 16. The four threads of a weight row share it in the layout of fragments
 * (matrix_units.cuh): thread t has elements 4t .. 4t + 3 (`low`) and 16 + 4t .. (`high`), one
 * signed byte each, 2^zeros times its value, as in weight_formats.cuh. No code is unpacked twice.
 * Threads share only scales, and these only for formats that pack scales.
 *
 * Codes are read in words, counted from byte `origin` of the group: all arrays of a slice begin a
 * multiple of four bytes from there, so the same shift aligns all words of a row. */
#ifndef MOE_CUDA_WEIGHT_SLICES_CUH
#define MOE_CUDA_WEIGHT_SLICES_CUH

#include "cuda/kernels/weight_formats.cuh"

/* Words in shared memory. */
typedef struct slice_words {
    const uint32_t *words;
    uint32_t shift; /* bits, modulo 32 */
} slice_words;

template <bool ALIGNED>
__device__ static inline uint32_t slice_word(const slice_words &at, uint32_t i)
{
    if (ALIGNED)
        return at.words[i];
    return __funnelshift_r(at.words[i], at.words[i + 1], at.shift);
}

template <int TYPE> struct weight_slice;

/* slice_runs: runs of a slice; the origin of slice w is first + w * step. */
#define MOE_SLICE(type, slice_runs, zero_bits, first, step)                                        \
    template <> struct weight_slice<type> {                                                        \
        typedef weight_format<type> format;                                                        \
        static constexpr uint32_t runs = slice_runs;                                               \
        static constexpr uint32_t zeros = zero_bits;                                               \
        static constexpr bool has_mins = format::has_mins;                                         \
        static constexpr uint32_t group_bytes = 256 / format::elems * format::bytes;               \
        /* In blocks of whole words, these words are aligned. */                                   \
        static constexpr bool aligned = format::bytes % 4 == 0;                                    \
        __device__ static inline uint32_t word(const slice_words &at, uint32_t i)                  \
        {                                                                                          \
            return slice_word<aligned>(at, i);                                                     \
        }                                                                                          \
        __device__ static inline uint32_t origin(uint32_t w)                                       \
        {                                                                                          \
            return first + step * w;                                                               \
        }                                                                                          \
        __device__ static inline void codes(const slice_words &at, uint32_t w, uint32_t t,         \
                                            uint32_t *low, uint32_t *high);                        \
        __device__ static inline void scales(const uint8_t *group, uint32_t w, float *scale,       \
                                             float *min);                                          \
    };

#define MOE_SLICE_CODES(type)                                                                      \
    __device__ inline void weight_slice<type>::codes(const slice_words &at, uint32_t w,            \
                                                     uint32_t t, uint32_t *low, uint32_t *high)
#define MOE_SLICE_SCALES(type)                                                                     \
    __device__ inline void weight_slice<type>::scales(const uint8_t *group, uint32_t w,            \
                                                      float *scale, float *min)

/* ---- Blocks of 32: a slice is a block ---- */

MOE_SLICE(MOE_DTYPE_Q4_0, 1, 4, 2, 18)
MOE_SLICE(MOE_DTYPE_Q4_1, 1, 0, 4, 20)
MOE_SLICE(MOE_DTYPE_Q5_0, 1, 3, 2, 22)
MOE_SLICE(MOE_DTYPE_Q5_1, 1, 0, 4, 24)
MOE_SLICE(MOE_DTYPE_Q8_0, 1, 0, 2, 34)
MOE_SLICE(MOE_DTYPE_IQ4_NL, 1, 0, 2, 18)
MOE_SLICE(MOE_DTYPE_MXFP4, 1, 0, 1, 17)

MOE_SLICE_CODES(MOE_DTYPE_Q4_0)
{
    (void)w;
    uint32_t nibbles = word(at, t) ^ 0x88888888u;
    *low = nibbles << 4 & 0xf0f0f0f0u;
    *high = nibbles & 0xf0f0f0f0u;
}

MOE_SLICE_CODES(MOE_DTYPE_Q4_1)
{
    (void)w;
    uint32_t nibbles = word(at, t);
    *low = nibbles & 0x0f0f0f0fu;
    *high = nibbles >> 4 & 0x0f0f0f0fu;
}

MOE_SLICE_CODES(MOE_DTYPE_Q5_0)
{
    (void)w;
    uint32_t fifth = word(at, 0) >> 4 * t, nibbles = word(at, 1 + t);
    *low = joined(0x78787878u, nibbles << 3, fifth_bits(fifth, 0, 128));
    *high = joined(0x78787878u, nibbles >> 1, fifth_bits(fifth, 4, 128));
    *low = (*low & 0xf8f8f8f8u) ^ 0x80808080u;
    *high = (*high & 0xf8f8f8f8u) ^ 0x80808080u;
}

MOE_SLICE_CODES(MOE_DTYPE_Q5_1)
{
    (void)w;
    uint32_t fifth = word(at, 0) >> 4 * t, nibbles = word(at, 1 + t);
    *low = joined(0x0f0f0f0fu, nibbles, fifth_bits(fifth, 0, 16)) & 0x1f1f1f1fu;
    *high = joined(0x0f0f0f0fu, nibbles >> 4, fifth_bits(fifth, 4, 16)) & 0x1f1f1f1fu;
}

MOE_SLICE_CODES(MOE_DTYPE_Q8_0)
{
    (void)w;
    *low = word(at, t);
    *high = word(at, t + 4);
}

template <int A, int B, int C, int D, int E, int F, int G, int H, int I, int J, int K, int L, int M,
          int N, int O, int P>
__device__ static inline void look_up_word(uint32_t nibbles, uint32_t *low, uint32_t *high)
{
    const uint32_t book[4] = {codes_of(A, B, C, D), codes_of(E, F, G, H), codes_of(I, J, K, L),
                              codes_of(M, N, O, P)};
    look_up(nibbles, book, low, high);
}

MOE_SLICE_CODES(MOE_DTYPE_IQ4_NL)
{
    (void)w;
    look_up_word<MOE_IQ4_CODES>(word(at, t), low, high);
}

MOE_SLICE_CODES(MOE_DTYPE_MXFP4)
{
    (void)w;
    look_up_word<MOE_MXFP4_CODES>(word(at, t), low, high);
}

#define MOE_HALF_SCALE(type)                                                                       \
    MOE_SLICE_SCALES(type)                                                                         \
    {                                                                                              \
        *scale = half_at(group + w * format::bytes);                                               \
        *min = has_mins ? half_at(group + w * format::bytes + 2) : 0.0f;                           \
    }
MOE_HALF_SCALE(MOE_DTYPE_Q4_0)
MOE_HALF_SCALE(MOE_DTYPE_Q4_1)
MOE_HALF_SCALE(MOE_DTYPE_Q5_0)
MOE_HALF_SCALE(MOE_DTYPE_Q5_1)
MOE_HALF_SCALE(MOE_DTYPE_Q8_0)
MOE_HALF_SCALE(MOE_DTYPE_IQ4_NL)
#undef MOE_HALF_SCALE

MOE_SLICE_SCALES(MOE_DTYPE_MXFP4)
{
    uint32_t e = group[w * format::bytes];
    *scale = moe_device_float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    *min = 0.0f;
}

/* ---- Blocks of 256: a slice is an eighth of one ---- */

MOE_SLICE(MOE_DTYPE_Q2_K, 2, 0, 0, 0)
MOE_SLICE(MOE_DTYPE_Q3_K, 2, 5, 0, 0)
MOE_SLICE(MOE_DTYPE_Q4_K, 1, 0, 0, 0)
MOE_SLICE(MOE_DTYPE_Q5_K, 1, 0, 0, 0)
MOE_SLICE(MOE_DTYPE_Q6_K, 2, 2, 0, 0)
MOE_SLICE(MOE_DTYPE_IQ4_XS, 1, 0, 8, 16)

MOE_SLICE_CODES(MOE_DTYPE_Q2_K)
{
    uint32_t first = 4 + w / 4 * 8 + t;
    *low = word(at, first) >> w % 4 * 2 & 0x03030303u;
    *high = word(at, first + 4) >> w % 4 * 2 & 0x03030303u;
}

MOE_SLICE_SCALES(MOE_DTYPE_Q2_K)
{
    float d = half_at(group + 80), dmin = half_at(group + 82);
    uint32_t packed = half_bits_at(group + 2 * w);
    for (int i = 0; i < 2; i++) {
        scale[i] = d * byte_of(packed & 0x0f0f, i);
        min[i] = -(dmin * byte_of(packed >> 4 & 0x0f0f, i));
    }
}

MOE_SLICE_CODES(MOE_DTYPE_Q3_K)
{
    uint32_t first = 8 + w / 4 * 8 + t;
    int pair = (int)(w % 4 * 2) - 5, bit = (int)w - 7;
    *low = joined(0x60606060u, turned(word(at, first), pair), turned(word(at, t), bit));
    *high = joined(0x60606060u, turned(word(at, first + 4), pair), turned(word(at, t + 4), bit));
    *low = (*low & 0xe0e0e0e0u) ^ 0x80808080u;
    *high = (*high & 0xe0e0e0e0u) ^ 0x80808080u;
}

MOE_SLICE_SCALES(MOE_DTYPE_Q3_K)
{
    float d = half_at(group + 108);
    uint32_t low = half_bits_at(group + 96 + w % 4 * 2) >> w / 4 * 4 & 0x0f0f;
    uint32_t high = half_bits_at(group + 104 + w % 2 * 2) >> w / 2 * 2 & 0x0303;
    uint32_t packed = low | high << 4;
    for (int i = 0; i < 2; i++) {
        scale[i] = d * (float)((int)(packed >> 8 * i & 255) - 32);
        min[i] = 0.0f;
    }
}

MOE_SLICE_CODES(MOE_DTYPE_Q4_K)
{
    uint32_t first = 4 + w / 2 * 8 + t;
    *low = word(at, first) >> w % 2 * 4 & 0x0f0f0f0fu;
    *high = word(at, first + 4) >> w % 2 * 4 & 0x0f0f0f0fu;
}

/* One scale and minimum of a block's eight, which Q4_K and Q5_K pack in the same way. */
__device__ static inline void slice_scale_k(const uint8_t *group, uint32_t w, float *scale,
                                            float *min)
{
    const uint8_t *packed = group + 4 + w % 4;
    uint32_t first = packed[0], second = packed[4], third = packed[8];
    uint32_t code = w < 4 ? first & 63 : (third & 15) | (first & 0xc0) >> 2;
    uint32_t low = w < 4 ? second & 63 : third >> 4 | (second & 0xc0) >> 2;
    *scale = half_at(group) * (float)(int)code;
    *min = -(half_at(group + 2) * (float)(int)low);
}

MOE_SLICE_SCALES(MOE_DTYPE_Q4_K)
{
    slice_scale_k(group, w, scale, min);
}

MOE_SLICE_CODES(MOE_DTYPE_Q5_K)
{
    uint32_t first = 12 + w / 2 * 8 + t;
    int nibble = (int)(w % 2 * 4), bit = (int)w - 4;
    *low = joined(0x0f0f0f0fu, word(at, first) >> nibble, turned(word(at, 4 + t), bit));
    *high = joined(0x0f0f0f0fu, word(at, first + 4) >> nibble, turned(word(at, 8 + t), bit));
    *low &= 0x1f1f1f1fu;
    *high &= 0x1f1f1f1fu;
}

MOE_SLICE_SCALES(MOE_DTYPE_Q5_K)
{
    slice_scale_k(group, w, scale, min);
}

MOE_SLICE_CODES(MOE_DTYPE_Q6_K)
{
    uint32_t first = w / 4 * 16 + w % 2 * 8 + t, upper = 32 + w / 4 * 8 + t;
    int nibble = (int)(w % 4 / 2 * 4) - 2, pair = (int)(w % 4 * 2) - 6;
    *low = joined(0x3c3c3c3cu, turned(word(at, first), nibble), turned(word(at, upper), pair));
    *high =
        joined(0x3c3c3c3cu, turned(word(at, first + 4), nibble), turned(word(at, upper + 4), pair));
    *low = (*low & 0xfcfcfcfcu) ^ 0x80808080u;
    *high = (*high & 0xfcfcfcfcu) ^ 0x80808080u;
}

MOE_SLICE_SCALES(MOE_DTYPE_Q6_K)
{
    float d = half_at(group + 208);
    for (int i = 0; i < 2; i++) {
        scale[i] = d * (float)(int)(int8_t)group[192 + 2 * w + i];
        min[i] = 0.0f;
    }
}

MOE_SLICE_CODES(MOE_DTYPE_IQ4_XS)
{
    (void)w;
    look_up_word<MOE_IQ4_CODES>(word(at, t), low, high);
}

MOE_SLICE_SCALES(MOE_DTYPE_IQ4_XS)
{
    uint32_t low = group[4 + w / 2] >> w % 2 * 4 & 15;
    uint32_t high = half_bits_at(group + 2) >> 2 * w & 3;
    *scale = half_at(group) * (float)((int)(low | high << 4) - 32);
    *min = 0.0f;
}

#endif
