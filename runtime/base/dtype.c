/* SPDX-License-Identifier: MIT */
#include "runtime/base/dtype.h"

static const moe_dtype_info dtype_table[MOE_DTYPE_LIMIT] = {
    [MOE_DTYPE_F32] = {"F32", 1, 4, true},
    [MOE_DTYPE_F16] = {"F16", 1, 2, true},
    [MOE_DTYPE_BF16] = {"BF16", 1, 2, true},
    [MOE_DTYPE_Q4_0] = {"Q4_0", 32, 18, false},
    [MOE_DTYPE_Q4_1] = {"Q4_1", 32, 20, false},
    [MOE_DTYPE_Q5_0] = {"Q5_0", 32, 22, false},
    [MOE_DTYPE_Q5_1] = {"Q5_1", 32, 24, false},
    [MOE_DTYPE_Q8_0] = {"Q8_0", 32, 34, false},
    [MOE_DTYPE_Q2_K] = {"Q2_K", 256, 84, false},
    [MOE_DTYPE_Q3_K] = {"Q3_K", 256, 110, false},
    [MOE_DTYPE_Q4_K] = {"Q4_K", 256, 144, false},
    [MOE_DTYPE_Q5_K] = {"Q5_K", 256, 176, false},
    [MOE_DTYPE_Q6_K] = {"Q6_K", 256, 210, false},
    [MOE_DTYPE_IQ4_NL] = {"IQ4_NL", 32, 18, false},
    [MOE_DTYPE_IQ4_XS] = {"IQ4_XS", 256, 136, false},
    [MOE_DTYPE_MXFP4] = {"MXFP4", 32, 17, false},
};

/* Names of the type numbers that the engine cannot compute with; gaps are retired numbers. */
static const char *const other_names[] = {
    [9] = "Q8_1",   [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS",
    [19] = "IQ1_S", [21] = "IQ3_S", [22] = "IQ2_S",   [24] = "I8",     [25] = "I16",
    [26] = "I32",   [27] = "I64",   [28] = "F64",     [29] = "IQ1_M",  [34] = "TQ1_0",
    [35] = "TQ2_0", [40] = "NVFP4",
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
