/* SPDX-License-Identifier: MIT */
/* The block layouts of GGUF's quantised types, as they lie in the file. All fields are bytes or
 * 16-bit words, so a block may start at any even address (MXFP4: any address). */
#ifndef MOE_CPU_BLOCK_FORMATS_H
#define MOE_CPU_BLOCK_FORMATS_H

#include <stdint.h>
#include <string.h>

/* Elements of a K-quant block; kernels handle other types in runs of the same length. */
#define MOE_GROUP 256

/* 32 elements. In a nibble array the low half of byte j holds element j, and the high half element
 * j + 16. Bit j of the 32 bits of qh is the fifth bit of element j. */
typedef struct moe_block_q4_0 {
    uint16_t d;
    uint8_t qs[16];
} moe_block_q4_0; /* also IQ4_NL */

typedef struct moe_block_q4_1 {
    uint16_t d;
    uint16_t m;
    uint8_t qs[16];
} moe_block_q4_1;

typedef struct moe_block_q5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
} moe_block_q5_0;

typedef struct moe_block_q5_1 {
    uint16_t d;
    uint16_t m;
    uint8_t qh[4];
    uint8_t qs[16];
} moe_block_q5_1;

typedef struct moe_block_q8_0 {
    uint16_t d;
    int8_t qs[32];
} moe_block_q8_0;

typedef struct moe_block_mxfp4 {
    uint8_t e; /* scale 2^(e - 127), codes in halves */
    uint8_t qs[16];
} moe_block_mxfp4;

/* 256 elements. */
typedef struct moe_block_q2_k {
    uint8_t scales[16]; /* each for 16 elements: scale in the low nibble, minimum in the high one */
    uint8_t qs[64];     /* each 32 bytes: 128 elements, 32 per bit pair, lowest pair first */
    uint16_t d;
    uint16_t dmin;
} moe_block_q2_k;

typedef struct moe_block_q3_k {
    uint8_t hmask[32]; /* bit j of byte l: third bit of element 32j + l; clear means minus 4 */
    uint8_t qs[64];    /* as Q2_K */
    uint8_t scales[12];
    uint16_t d;
} moe_block_q3_k;

typedef struct moe_block_q4_k {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12]; /* 8 scales and 8 minima of 6 bits */
    uint8_t qs[128];    /* each 32 bytes: 32 elements in low nibbles, the next 32 in high ones */
} moe_block_q4_k;

typedef struct moe_block_q5_k {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12]; /* as Q4_K */
    uint8_t qh[32];     /* bit j of byte l: fifth bit of element 32j + l */
    uint8_t qs[128];
} moe_block_q5_k;

typedef struct moe_block_q6_k {
    uint8_t ql[128];   /* each 64 bytes: elements 0..63 of 128 in low nibbles, 64..127 in high */
    uint8_t qh[64];    /* each 32 bytes: upper bits of 128 elements, laid out as Q2_K's */
    int8_t scales[16]; /* each for 16 elements */
    uint16_t d;
} moe_block_q6_k;

typedef struct moe_block_iq4_xs {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128]; /* each 16 bytes: 32 elements as in the 32-element types */
} moe_block_iq4_xs;

/* IQ2 and IQ3 take magnitudes from the points of codebooks (codebooks.h): a point has the
 * magnitudes of eight or four elements. Each element has a sign bit, set if it is negative. Some
 * types store only seven of eight sign bits; the eighth makes the number of set bits even. */
typedef struct moe_block_iq2_xxs {
    uint16_t d;
    struct {
        uint8_t qs[4];    /* points of 256 */
        uint8_t signs[4]; /* 4 times 7 sign bits, then 4 bits of scale */
    } part[8];            /* each for 32 elements */
} moe_block_iq2_xxs;

typedef struct moe_block_iq2_xs {
    uint16_t d;
    uint16_t qs[32];   /* from the lowest bit: 9 bits of a point of 512, then 7 sign bits */
    uint8_t scales[8]; /* a nibble for 16 elements, low ones first */
} moe_block_iq2_xs;

typedef struct moe_block_iq2_s {
    uint16_t d;
    uint8_t qs[32]; /* the lower 8 bits of points of 1024 */
    uint8_t signs[32];
    uint8_t qh[8]; /* upper bits, one pair for each point, lowest pair first */
    uint8_t scales[8];
} moe_block_iq2_s;

typedef struct moe_block_iq3_xxs {
    uint16_t d;
    uint8_t qs[64];      /* points of 256, of four elements */
    uint8_t signs[8][4]; /* as IQ2_XXS */
} moe_block_iq3_xxs;

typedef struct moe_block_iq3_s {
    uint16_t d;
    uint8_t qs[64]; /* the lower 8 bits of points of 512, of four elements */
    uint8_t qh[8];  /* the ninth bits */
    uint8_t signs[32];
    uint8_t scales[4]; /* a nibble for 32 elements, low ones first */
} moe_block_iq3_s;

/* IQ1 adds an eighth to the codebook's -1, 0 and 1, or subtracts it. */
typedef struct moe_block_iq1_s {
    uint16_t d;
    uint8_t qs[32]; /* the lower 8 bits of points of 2048 */
    uint16_t
        qh[8]; /* each for 32 elements: 4 times 3 upper bits, 3 of scale, 1 set for minus 1/8 */
} moe_block_iq1_s;

typedef struct moe_block_iq1_m {
    uint8_t qs[32];
    uint8_t qh[16];     /* a nibble for each point: 3 upper bits, 1 set for minus an eighth */
    uint16_t scales[4]; /* 4 times 3 bits, of 16 elements each, then a nibble of d, lowest first */
} moe_block_iq1_m;

typedef struct moe_block_tq1_0 {
    uint8_t qs[48]; /* five base-3 digits in each byte, see block_unpack_ternary.c */
    uint8_t qh[4];  /* four base-3 digits in each byte */
    uint16_t d;
} moe_block_tq1_0;

typedef struct moe_block_tq2_0 {
    uint8_t qs[64]; /* as Q2_K; the value is the code minus 1 */
    uint16_t d;
} moe_block_tq2_0;

/* 64 elements. */
typedef struct moe_block_nvfp4 {
    uint8_t d[4];   /* each for 16 elements: E4M3 without its sign bit, see moe_ue4m3_half() */
    uint8_t qs[32]; /* each 8 bytes: 8 elements in low nibbles, the next 8 in high ones */
} moe_block_nvfp4;

/* 256 elements. A code is looked up in a small codebook. Each run has a bit ("shifts", run 0 in bit
 * 0); if it is set, a constant is added to the run's codes. Runs have 16 elements in IQn_K, and 32
 * in the other types. Scales of IQn_KS and IQ4_KSS are whole numbers: the row begins with a number
 * by which all of them are multiplied. */
typedef struct moe_block_iq2_k {
    uint16_t d;
    uint16_t shifts;
    uint8_t scales[8]; /* a nibble for each run, low ones first; the scale is the nibble minus 8 */
    uint8_t qs[64];    /* as Q2_K */
} moe_block_iq2_k;

typedef struct moe_block_iq3_k {
    uint16_t d;
    uint16_t shifts;
    uint16_t signs;    /* of scales, set if negative */
    uint8_t scales[8]; /* a nibble s for each run: 2s + 1 */
    uint8_t qs[64];
    uint8_t qh[32]; /* bit j of byte l: third bit of element 32j + l */
} moe_block_iq3_k;

typedef struct moe_block_iq4_k {
    uint16_t d;
    uint16_t shifts;
    uint8_t scales_h[4]; /* two upper bits for each run, lowest first; the scale is all minus 32 */
    uint8_t scales_l[8]; /* a nibble for each run */
    uint8_t qs[128];     /* as IQ4_XS */
} moe_block_iq4_k;

typedef struct moe_block_iq5_k {
    uint16_t d;
    uint16_t shifts;
    uint8_t scales_h[4];
    uint8_t scales_l[8];
    uint8_t qs[128]; /* as Q5_K */
    uint8_t qh[32];
} moe_block_iq5_k;

typedef struct moe_block_iq6_k {
    uint16_t d;
    uint16_t shifts;
    int8_t scales[16];
    uint8_t qs[128]; /* as Q5_K */
    uint8_t qh[64];  /* as Q6_K */
} moe_block_iq6_k;

typedef struct moe_block_iq2_ks {
    uint8_t shifts;
    uint8_t scales_h;  /* a fifth bit for each run */
    uint8_t scales[4]; /* a nibble for each run, low ones first; the scale is all minus 16 */
    uint8_t qs[64];
} moe_block_iq2_ks;

typedef struct moe_block_iq3_ks {
    uint8_t scales_h;
    uint8_t shifts;
    uint8_t scales[4]; /* run j in the low nibble of byte j, run j + 4 in the high one; less 16 */
    uint8_t qs[64];
    uint8_t qh[32];
} moe_block_iq3_ks;

typedef struct moe_block_iq4_ks {
    uint8_t scales[8]; /* the scale is the byte without bit 0, minus 127; bit 0 is the shift */
    uint8_t qs[128];
} moe_block_iq4_ks;

typedef struct moe_block_iq5_ks {
    uint8_t scales[8]; /* as IQ4_KS */
    uint8_t qs[128];
    uint8_t qh[32];
} moe_block_iq5_ks;

/* Bit 0 of a run's word k is bit k of the run's scale byte, which is as in IQ4_KS. The other bits
 * of the word are four codes, where each bit is stored exclusive-ored with the next higher bit. */
typedef struct moe_block_iq4_kss {
    uint16_t qs[8][8]; /* of 32 elements: 16 bytes as in the 32-element types */
} moe_block_iq4_kss;

/* Codebooks of 16 entries. Those of MXFP4 and NVFP4 have the format's values doubled; their scales
 * are halved in return. */
#define MOE_IQ4_CODES   -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define MOE_IQ2_CODES   -31, -13, 1, 17
#define MOE_IQ3_CODES   -63, -40, -23, -10, 1, 13, 28, 47
#define MOE_MXFP4_CODES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

/* Codebooks of five and of six bits. */
#define MOE_IQ5_CODES                                                                              \
    -126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6, -1, 5, 11,   \
        17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121
#define MOE_IQ6_CODES                                                                              \
    -127, -121, -115, -109, -104, -98, -93, -88, -84, -79, -74, -70, -66, -62, -58, -54, -51, -47, \
        -44, -40, -37, -34, -31, -28, -25, -22, -19, -16, -13, -11, -8, -5, -2, 0, 3, 6, 9, 12,    \
        14, 17, 20, 23, 27, 30, 33, 36, 40, 44, 47, 51, 55, 59, 63, 68, 72, 77, 82, 87, 92, 98,    \
        103, 109, 115, 121
/* The constants that a run's bit adds to its codes. */
enum { MOE_IQ2_SHIFT = 5, MOE_IQ4_SHIFT = 4, MOE_IQ5_SHIFT = 2, MOE_IQ6_SHIFT = 1 };

static inline float moe_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The conversion is exact, also for infinities and NaNs. */
static inline float moe_half_to_float(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t magnitude = half & 0x7fff;
    if (magnitude < 0x0400) /* zero or subnormal: magnitude * 2^-24 is exact */
        return moe_float_of_bits(sign | 0x3f800000) * ((float)magnitude * 0x1p-24f);
    if (magnitude >= 0x7c00)
        return moe_float_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    return moe_float_of_bits(sign | ((magnitude << 13) + (112u << 23)));
}

static inline float moe_bfloat_to_float(uint16_t bits)
{
    return moe_float_of_bits((uint32_t)bits << 16);
}

/* 2^(e - 128): an E8M0 scale with the half of MXFP4's codes folded in; subnormal for e < 2. */
static inline uint32_t moe_e8m0_half_bits(uint8_t e)
{
    return e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
}

/* An NVFP4 scale (halved, because the codes are doubled) is 128 times this half-precision number.
 * The sign bit is ignored, and E4M3's NaN gives 0. */
static inline uint16_t moe_ue4m3_half(uint8_t e4m3)
{
    const unsigned bits = e4m3 & 0x7f;
    return e4m3 == 0x7f ? 0 : (uint16_t)(bits << 7);
}

#endif
