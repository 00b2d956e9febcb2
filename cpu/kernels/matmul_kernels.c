/* SPDX-License-Identifier: MIT */
/* Fills the kernel table with reference C, and calls the table's kernels. */
#include "cpu/kernels/matmul.h"

#include "cpu/kernels/arch_kernels.h"
#include "cpu/kernels/matmul_reference.h"
#include "cpu/kernels/row_scales.h"

#include <stdbool.h>
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

static bool takes_tiles(const moe_matmul_kernels *kernels, const moe_matmul_args *args)
{
    const uint64_t in_tiles =
        ((uint64_t)args->n_rows + MOE_TILE_ROWS - 1) / MOE_TILE_ROWS * MOE_TILE_ROWS;
    return kernels->tile_products != NULL && kernels->unpack_tiles[args->type] != NULL &&
           100 * (uint64_t)args->n_rows >= kernels->min_tile_fill[args->type] * in_tiles &&
           args->n_in > 0 && args->n_in <= MOE_TILE_MAX_N_IN;
}

void moe_matmul_run(const moe_matmul_kernels *kernels, const moe_matmul_args *args,
                    void *tile_scratch)
{
    const moe_dtype type = args->type;
    if (tile_scratch == NULL || !takes_tiles(kernels, args)) {
        kernels->matmul[type](args);
        return;
    }
    const moe_matmul_args blocks = moe_matmul_behind_heads(args);
    kernels->tile_products(&blocks, kernels->unpack_tiles[type], tile_scratch);
    if (moe_dtype_info_of(type)->head_bytes > 0) {
        moe_matmul_scale_outputs(args);
    }
}
