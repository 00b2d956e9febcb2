/* SPDX-License-Identifier: MIT */
/* Unpackers (block_unpack.h) of the types with codebooks of points, the ternary types, NVFP4, and
 * the types in which one bit of each run (the 16 or 32 elements that share a scale) shifts the
 * run's codes. */
#ifndef MOE_CPU_BLOCK_UNPACK_IQ_H
#define MOE_CPU_BLOCK_UNPACK_IQ_H

#include "cpu/kernels/block_unpack.h"

void moe_unpack_iq2_xxs(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq2_xs(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq2_s(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq3_xxs(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq3_s(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq1_s(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq1_m(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_tq1_0(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_tq2_0(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_nvfp4(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq2_k(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq3_k(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq4_k(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq5_k(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq6_k(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq2_ks(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq3_ks(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq4_ks(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq4_kss(const void *blocks, uint32_t n, moe_unpacked *out);
void moe_unpack_iq5_ks(const void *blocks, uint32_t n, moe_unpacked *out);

#endif
