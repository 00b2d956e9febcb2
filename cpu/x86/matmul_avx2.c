/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with AVX2. vpmaddubsw multiplies unsigned by signed bytes and adds
 * two products in 16 bits: codes up to 63 cannot saturate it. Codes of all 256 values go in as
 * their magnitude and give the activations their sign: 2 * 128 * 127 still fits. */
#include "cpu/x86/quant_tiles_avx2.h"

QUANT_MATMULS(NULL)

void moe_matmul_init_avx2(moe_matmul_kernels *kernels)
{
    set_quant_matmuls(kernels);
}
