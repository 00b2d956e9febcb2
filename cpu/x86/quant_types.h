/* SPDX-License-Identifier: MIT */
/* Facts about the quantised types as compile-time constants: once quant_type_of() is inlined with a
 * constant type, a loop that is written for all types becomes a loop for this type. */
#ifndef MOE_X86_QUANT_TYPES_H
#define MOE_X86_QUANT_TYPES_H

#include "cpu/kernels/block_formats.h"
#include "cpu/x86/always_inline.h"
#include "runtime/base/dtype.h"

/* Whether `type` is one of MOE_FILE_TYPES(X, with), the list of types for which the including file
 * has products (such as MOE_QUANT_TYPES_256 of matmul_x86.h). Switches over types begin with this
 * check, so that compilers drop the code of other types before they inline it everywhere, and not
 * only at the end. Compiling takes half as long. */
#ifdef MOE_FILE_TYPES
#define MOE_ONE_OF_FILE(name, TYPE, type)                                                          \
    if (type == MOE_DTYPE_##TYPE) {                                                                \
        return MOE_DTYPE_##TYPE;                                                                   \
    }
MOE_INLINE moe_dtype type_of_file(moe_dtype type)
{
    MOE_FILE_TYPES(MOE_ONE_OF_FILE, type)
    __builtin_unreachable();
}
#else
#define type_of_file(type) (type)
#endif

/* The least code of MXFP4 and NVFP4 is -12, so any power of two above 12 makes codes unsigned. */
enum { MXFP4_OFFSET = 16 };

typedef struct quant_type {
    uint32_t block_elems;
    uint32_t block_bytes;
    int offset_shift; /* an unsigned code is its value + (1 << offset_shift); -1: just its value */
    uint32_t run;     /* elements that share a scale */
    int has_mins;     /* runs also have a minimum */
} quant_type;

MOE_INLINE quant_type quant_type_of(moe_dtype type)
{
    switch (type_of_file(type)) {
    case MOE_DTYPE_Q4_0:
        return (quant_type){32, sizeof(moe_block_q4_0), 3, 32, 0};
    case MOE_DTYPE_Q4_1:
        return (quant_type){32, sizeof(moe_block_q4_1), -1, 32, 1};
    case MOE_DTYPE_Q5_0:
        return (quant_type){32, sizeof(moe_block_q5_0), 4, 32, 0};
    case MOE_DTYPE_Q5_1:
        return (quant_type){32, sizeof(moe_block_q5_1), -1, 32, 1};
    case MOE_DTYPE_Q8_0:
        return (quant_type){32, sizeof(moe_block_q8_0), 7, 32, 0};
    case MOE_DTYPE_Q2_K:
        return (quant_type){256, sizeof(moe_block_q2_k), -1, 16, 1};
    case MOE_DTYPE_Q3_K:
        return (quant_type){256, sizeof(moe_block_q3_k), 2, 16, 0};
    case MOE_DTYPE_Q4_K:
        return (quant_type){256, sizeof(moe_block_q4_k), -1, 32, 1};
    case MOE_DTYPE_Q5_K:
        return (quant_type){256, sizeof(moe_block_q5_k), -1, 32, 1};
    case MOE_DTYPE_Q6_K:
        return (quant_type){256, sizeof(moe_block_q6_k), 5, 16, 0};
    case MOE_DTYPE_IQ4_NL:
        return (quant_type){32, sizeof(moe_block_q4_0), 7, 32, 0};
    case MOE_DTYPE_IQ4_XS:
        return (quant_type){256, sizeof(moe_block_iq4_xs), 7, 32, 0};
    case MOE_DTYPE_IQ2_XXS:
        return (quant_type){256, sizeof(moe_block_iq2_xxs), 6, 32, 0};
    case MOE_DTYPE_IQ2_XS:
        return (quant_type){256, sizeof(moe_block_iq2_xs), 6, 16, 0};
    case MOE_DTYPE_IQ2_S:
        return (quant_type){256, sizeof(moe_block_iq2_s), 6, 16, 0};
    case MOE_DTYPE_IQ3_XXS:
        return (quant_type){256, sizeof(moe_block_iq3_xxs), 6, 32, 0};
    case MOE_DTYPE_IQ3_S:
        return (quant_type){256, sizeof(moe_block_iq3_s), 4, 32, 0};
    case MOE_DTYPE_IQ1_S:
        return (quant_type){256, sizeof(moe_block_iq1_s), 4, 32, 0};
    case MOE_DTYPE_IQ1_M:
        return (quant_type){256, sizeof(moe_block_iq1_m), 4, 16, 0};
    case MOE_DTYPE_TQ1_0:
        return (quant_type){256, sizeof(moe_block_tq1_0), 0, 32, 0};
    case MOE_DTYPE_TQ2_0:
        return (quant_type){256, sizeof(moe_block_tq2_0), 0, 32, 0};
    case MOE_DTYPE_NVFP4:
        return (quant_type){64, sizeof(moe_block_nvfp4), 4, 16, 0};
    case MOE_DTYPE_IQ2_K:
        return (quant_type){256, sizeof(moe_block_iq2_k), 5, 16, 0};
    case MOE_DTYPE_IQ3_K:
        return (quant_type){256, sizeof(moe_block_iq3_k), 6, 16, 0};
    case MOE_DTYPE_IQ4_K:
        return (quant_type){256, sizeof(moe_block_iq4_k), 7, 16, 0};
    case MOE_DTYPE_IQ5_K:
        return (quant_type){256, sizeof(moe_block_iq5_k), 7, 16, 0};
    case MOE_DTYPE_IQ6_K:
        return (quant_type){256, sizeof(moe_block_iq6_k), 7, 16, 0};
    case MOE_DTYPE_IQ2_KS:
        return (quant_type){256, sizeof(moe_block_iq2_ks), 5, 32, 0};
    case MOE_DTYPE_IQ3_KS:
        return (quant_type){256, sizeof(moe_block_iq3_ks), 6, 32, 0};
    case MOE_DTYPE_IQ4_KS:
        return (quant_type){256, sizeof(moe_block_iq4_ks), 7, 32, 0};
    case MOE_DTYPE_IQ4_KSS:
        return (quant_type){256, sizeof(moe_block_iq4_kss), 7, 32, 0};
    case MOE_DTYPE_IQ5_KS:
        return (quant_type){256, sizeof(moe_block_iq5_ks), 7, 32, 0};
    default:
        return (quant_type){32, sizeof(moe_block_mxfp4), 4, 32, 0};
    }
}

#endif
