/* SPDX-License-Identifier: MIT */
/* The tensor types of GGUF that the engine computes with, by their number in the file. */
#ifndef MOE_BASE_DTYPE_H
#define MOE_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum moe_dtype {
    MOE_DTYPE_F32 = 0,
    MOE_DTYPE_F16 = 1,
    MOE_DTYPE_Q4_0 = 2,
    MOE_DTYPE_Q4_1 = 3,
    MOE_DTYPE_Q5_0 = 6,
    MOE_DTYPE_Q5_1 = 7,
    MOE_DTYPE_Q8_0 = 8,
    MOE_DTYPE_Q2_K = 10,
    MOE_DTYPE_Q3_K = 11,
    MOE_DTYPE_Q4_K = 12,
    MOE_DTYPE_Q5_K = 13,
    MOE_DTYPE_Q6_K = 14,
    MOE_DTYPE_IQ2_XXS = 16,
    MOE_DTYPE_IQ2_XS = 17,
    MOE_DTYPE_IQ3_XXS = 18,
    MOE_DTYPE_IQ1_S = 19,
    MOE_DTYPE_IQ4_NL = 20,
    MOE_DTYPE_IQ3_S = 21,
    MOE_DTYPE_IQ2_S = 22,
    MOE_DTYPE_IQ4_XS = 23,
    MOE_DTYPE_IQ1_M = 29,
    MOE_DTYPE_BF16 = 30,
    MOE_DTYPE_TQ1_0 = 34,
    MOE_DTYPE_TQ2_0 = 35,
    MOE_DTYPE_MXFP4 = 39,
    MOE_DTYPE_NVFP4 = 40,
    MOE_DTYPE_IQ2_K = 137,
    MOE_DTYPE_IQ3_K = 138,
    MOE_DTYPE_IQ4_K = 139,
    MOE_DTYPE_IQ5_K = 140,
    MOE_DTYPE_IQ6_K = 141,
    MOE_DTYPE_IQ4_KS = 144,
    MOE_DTYPE_IQ2_KS = 145,
    MOE_DTYPE_IQ4_KSS = 146,
    MOE_DTYPE_IQ5_KS = 152,
    MOE_DTYPE_IQ3_KS = 156,
    MOE_DTYPE_LIMIT = 157 /* one past the largest number known */
} moe_dtype;

typedef struct moe_dtype_info {
    const char *name;     /* its usual name: "Q4_K" */
    uint32_t block_elems; /* elements a block holds; row lengths are multiples of it */
    uint32_t block_bytes; /* bytes a block takes in the file and in memory */
    bool is_float;        /* F32, F16, BF16: multiplied as floats, not as int8 blocks */
    uint8_t head_bytes;   /* a row's scale, before its blocks: 0, 2 (F16) or 4 (F32) */
    bool cpu_only;        /* only devices with MOE_DEVICE_EVERY_TYPE compute with it */
} moe_dtype_info;

/* Tables of whole numbers: in files, and no type of weights (moe_dtype_info_of() is NULL). */
#define MOE_TYPE_I32 26u

/* Returns the facts of a type number; NULL: the engine does not know the type. */
const moe_dtype_info *moe_dtype_info_of(uint32_t type);

/* The usual name of any GGUF type number, also of types that the engine does not support
 * ("IQ2_KT"), or "unknown". For messages. */
const char *moe_dtype_name(uint32_t type);
/* Returns advice for messages: what to use instead of a type that the engine does not support. */
const char *moe_dtype_advice(uint32_t type);

/* Bytes of a row of n_elems elements; n_elems must be a multiple of the block. */
static inline uint64_t moe_dtype_row_bytes(moe_dtype type, uint64_t n_elems)
{
    const moe_dtype_info *info = moe_dtype_info_of(type);
    return info->head_bytes + n_elems / info->block_elems * info->block_bytes;
}

#endif
