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

/* Type numbers that the engine cannot compute with, and what to do instead. Gaps are retired
 * numbers; those from 133 on are ik_llama.cpp's. */
#define PLAIN "use a file quantised to another type, for example Q4_K"
#define TRELLIS                                                                                    \
    "the trellis types of ik_llama.cpp do not run: use a file of its IQ2_K to IQ6_K types, or "    \
    "Q4_K"
#define REPACKED                                                                                   \
    "ik_llama.cpp repacked its rows for one processor: use the file as it was before repacking "   \
    "(the type without the ending), or any of Q4_K"
#define TERNARY "a ternary type of ik_llama.cpp: use a file of TQ1_0 or TQ2_0"
#define RETIRED "llama.cpp retired this type: use a file of Q4_0"

static const struct {
    uint32_t type;
    const char *name;
    const char *advice;
} other_types[] = {
    {9, "Q8_1", PLAIN},
    {15, "Q8_K", PLAIN},
    {24, "I8", PLAIN},
    {25, "I16", PLAIN},
    {26, "I32", PLAIN},
    {27, "I64", PLAIN},
    {28, "F64", PLAIN},
    {31, "Q4_0_4_4", RETIRED},
    {32, "Q4_0_4_8", RETIRED},
    {33, "Q4_0_8_8", RETIRED},
    {36, "I2_S", TERNARY},
    {41, "Q1_0", PLAIN},
    {42, "Q2_0", PLAIN},
    {133, "Q6_0", PLAIN},
    {134, "IQ1_BN", TERNARY},
    {135, "IQ2_BN", TERNARY},
    {153, "IQ2_KT", TRELLIS},
    {154, "IQ3_KT", TRELLIS},
    {155, "IQ4_KT", TRELLIS},
    {157, "IQ2_KL", "use a file of IQ2_K, IQ3_KS or IQ3_K, or any of Q4_K"},
    {158, "IQ1_KT", TRELLIS},
    {202, "Q4_0_R8", REPACKED},
    {206, "Q5_0_R4", REPACKED},
    {208, "Q8_0_R8", REPACKED},
    {210, "Q2_K_R4", REPACKED},
    {211, "Q3_K_R4", REPACKED},
    {212, "Q4_K_R4", REPACKED},
    {213, "Q5_K_R4", REPACKED},
    {214, "Q6_K_R4", REPACKED},
    {216, "IQ2_XXS_R4", REPACKED},
    {217, "IQ2_XS_R4", REPACKED},
    {218, "IQ3_XXS_R4", REPACKED},
    {219, "IQ1_S_R4", REPACKED},
    {220, "IQ4_NL_R4", REPACKED},
    {221, "IQ3_S_R4", REPACKED},
    {222, "IQ2_S_R4", REPACKED},
    {223, "IQ4_XS_R8", REPACKED},
    {229, "IQ1_M_R4", REPACKED},
    {230, "BF16_R16", REPACKED},
    {233, "Q6_0_R4", REPACKED},
    {335, "IQ2_BN_R4", REPACKED},
    {337, "IQ2_K_R4", REPACKED},
    {338, "IQ3_K_R4", REPACKED},
    {339, "IQ4_K_R4", REPACKED},
    {340, "IQ5_K_R4", REPACKED},
    {344, "IQ4_KS_R4", REPACKED},
    {352, "IQ5_KS_R4", REPACKED},
    {353, "MXFP4_R8", REPACKED},
    {397, "Q8_K_R16", REPACKED},
    {398, "Q8_KV_R8", REPACKED},
    {399, "Q8_K_R8", REPACKED},
};

#define N_OTHER_TYPES (sizeof other_types / sizeof other_types[0])

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
    for (size_t i = 0; i < N_OTHER_TYPES; i++) {
        if (other_types[i].type == type) {
            return other_types[i].name;
        }
    }
    return "unknown";
}

const char *moe_dtype_advice(uint32_t type)
{
    for (size_t i = 0; i < N_OTHER_TYPES; i++) {
        if (other_types[i].type == type) {
            return other_types[i].advice;
        }
    }
    return PLAIN;
}
