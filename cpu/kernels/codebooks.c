/* SPDX-License-Identifier: MIT */
#include "cpu/kernels/codebooks.h"

/* The points begin at a multiple of 64 bytes, because vector kernels load whole cache lines. */
#define ITSELF(p)       (uint16_t)(p)
#define ROW_ITSELF(...) MOE_ROW_OF_ITEMS(ITSELF, __VA_ARGS__)

const uint64_t moe_iq2_xxs_bytes[256] = {MOE_IQ2_XXS_POINTS(MOE_ROW_IQ2)};
const uint64_t moe_iq2_xs_bytes[512] = {MOE_IQ2_XS_POINTS(MOE_ROW_IQ2)};
const uint64_t moe_iq2_s_bytes[1024] = {MOE_IQ2_S_POINTS(MOE_ROW_IQ2)};
const uint64_t moe_iq1_bytes[2048] = {MOE_IQ1_S_POINTS(MOE_ROW_IQ1)};
const uint32_t moe_iq3_xxs_bytes[256] = {MOE_IQ3_XXS_POINTS(MOE_ROW_IQ3_XXS)};
const uint32_t moe_iq3_s_bytes[512] = {MOE_IQ3_S_POINTS(MOE_ROW_IQ3_S)};

_Alignas(64) const uint16_t moe_iq2_xxs_points[256] = {MOE_IQ2_XXS_POINTS(ROW_ITSELF)};
_Alignas(64) const uint16_t moe_iq2_xs_points[512] = {MOE_IQ2_XS_POINTS(ROW_ITSELF)};
_Alignas(64) const uint16_t moe_iq3_xxs_points[256] = {MOE_IQ3_XXS_POINTS(ROW_ITSELF)};
_Alignas(64) const uint16_t moe_iq3_s_points[512] = {MOE_IQ3_S_POINTS(ROW_ITSELF)};
