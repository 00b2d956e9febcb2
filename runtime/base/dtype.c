/* SPDX-License-Identifier: MIT */
#include "runtime/base/dtype.h"

static const moe_dtype_info dtype_table[MOE_DTYPE_LIMIT] = {
    [MOE_DTYPE_F32] = {"F32", 1, 4, true, 0, false},
    [MOE_DTYPE_F16] = {"F16", 1, 2, true, 0, false},
    [MOE_DTYPE_BF16] = {"BF16", 1, 2, true, 0, false},
    [MOE_DTYPE_Q4_0] = {"Q4_0", 32, 18, false, 0, false},
    [MOE_DTYPE_Q4_1] = {"Q4_1", 32, 20, false, 0, false},
    [MOE_DTYPE_Q5_0] = {"Q5_0", 32, 22, false, 0, false},
    [MOE_DTYPE_Q5_1] = {"Q5_1", 32, 24, false, 0, false},
    [MOE_DTYPE_Q8_0] = {"Q8_0", 32, 34, false, 0, false},
    [MOE_DTYPE_Q2_K] = {"Q2_K", 256, 84, false, 0, false},
    [MOE_DTYPE_Q3_K] = {"Q3_K", 256, 110, false, 0, false},
    [MOE_DTYPE_Q4_K] = {"Q4_K", 256, 144, false, 0, false},
    [MOE_DTYPE_Q5_K] = {"Q5_K", 256, 176, false, 0, false},
    [MOE_DTYPE_Q6_K] = {"Q6_K", 256, 210, false, 0, false},
    [MOE_DTYPE_IQ4_NL] = {"IQ4_NL", 32, 18, false, 0, false},
    [MOE_DTYPE_IQ4_XS] = {"IQ4_XS", 256, 136, false, 0, false},
    [MOE_DTYPE_IQ2_XXS] = {"IQ2_XXS", 256, 66, false, 0, false},
    [MOE_DTYPE_IQ2_XS] = {"IQ2_XS", 256, 74, false, 0, false},
    [MOE_DTYPE_IQ2_S] = {"IQ2_S", 256, 82, false, 0, false},
    [MOE_DTYPE_IQ3_XXS] = {"IQ3_XXS", 256, 98, false, 0, false},
    [MOE_DTYPE_IQ3_S] = {"IQ3_S", 256, 110, false, 0, false},
    [MOE_DTYPE_IQ1_S] = {"IQ1_S", 256, 50, false, 0, false},
    [MOE_DTYPE_IQ1_M] = {"IQ1_M", 256, 56, false, 0, false},
    [MOE_DTYPE_TQ1_0] = {"TQ1_0", 256, 54, false, 0, false},
    [MOE_DTYPE_TQ2_0] = {"TQ2_0", 256, 66, false, 0, false},
    [MOE_DTYPE_MXFP4] = {"MXFP4", 32, 17, false, 0, false},
    [MOE_DTYPE_NVFP4] = {"NVFP4", 64, 36, false, 0, false},
    [MOE_DTYPE_IQ2_K] = {"IQ2_K", 256, 76, false, 0, true},
    [MOE_DTYPE_IQ3_K] = {"IQ3_K", 256, 110, false, 0, true},
    [MOE_DTYPE_IQ4_K] = {"IQ4_K", 256, 144, false, 0, true},
    [MOE_DTYPE_IQ5_K] = {"IQ5_K", 256, 176, false, 0, true},
    [MOE_DTYPE_IQ6_K] = {"IQ6_K", 256, 212, false, 0, true},
    [MOE_DTYPE_IQ2_KS] = {"IQ2_KS", 256, 70, false, 2, true},
    [MOE_DTYPE_IQ3_KS] = {"IQ3_KS", 256, 102, false, 2, true},
    [MOE_DTYPE_IQ4_KS] = {"IQ4_KS", 256, 136, false, 4, true},
    [MOE_DTYPE_IQ4_KSS] = {"IQ4_KSS", 256, 128, false, 4, true},
    [MOE_DTYPE_IQ5_KS] = {"IQ5_KS", 256, 168, false, 4, true},
};

/* Names of the type numbers that the engine cannot compute with; gaps are retired numbers, and the
 * numbers from 133 on are ik_llama.cpp's. */
static const char *const other_names[] = {
    [9] = "Q8_1",     [15] = "Q8_K",    [24] = "I8",      [25] = "I16",     [26] = "I32",
    [27] = "I64",     [28] = "F64",     [41] = "Q1_0",    [42] = "Q2_0",    [133] = "Q6_0",
    [134] = "IQ1_BN", [135] = "IQ2_BN", [153] = "IQ2_KT", [154] = "IQ3_KT", [155] = "IQ4_KT",
    [157] = "IQ2_KL", [158] = "IQ1_KT",
};

const moe_dtype_info *moe_dtype_info_of(uint32_t type)
{
    if (type >= MOE_DTYPE_LIMIT || dtype_table[type].name == NULL) {
        return NULL;
    }
    return &dtype_table[type];
}

const char *moe_dtype_name(uint32_t type)
{
    const moe_dtype_info *info = moe_dtype_info_of(type);
    if (info != NULL) {
        return info->name;
    }
    if (type < sizeof other_names / sizeof other_names[0] && other_names[type] != NULL) {
        return other_names[type];
    }
    return "unknown";
}
