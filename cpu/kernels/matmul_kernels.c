/* SPDX-License-Identifier: MIT */
/* The kernel table of reference C. */
#include "cpu/kernels/matmul.h"

#include "cpu/kernels/arch_kernels.h"
#include "cpu/kernels/matmul_reference.h"

#include <string.h>

void moe_matmul_kernels_reference(moe_matmul_kernels *kernels)
{
    memset(kernels, 0, sizeof *kernels);
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        const moe_dtype_info *info = moe_dtype_info_of(type);
        if (info != NULL) {
            kernels->matmul[type] =
                info->is_float ? moe_matmul_float_reference : moe_matmul_quantized_reference;
            kernels->dequantize[type] = moe_dequantize_of((moe_dtype)type);
        }
    }
    kernels->quantize_rows = moe_quantize_rows_reference;
}
