/* SPDX-License-Identifier: MIT */
#include "cpu/kernels/row_scales.h"

#include "cpu/kernels/block_unpack.h"

enum { SCALES = 64 }; /* how many scales are read at a time */

moe_matmul_args moe_matmul_behind_heads(const moe_matmul_args *args)
{
    moe_matmul_args blocks = *args;
    blocks.weights = (const uint8_t *)args->weights + moe_dtype_info_of(args->type)->head_bytes;
    return blocks;
}

void moe_matmul_scale_outputs(const moe_matmul_args *args)
{
    const uint8_t *row = args->weights;
    for (uint32_t o = 0; o < args->n_out; o += SCALES) {
        const uint32_t n = args->n_out - o < SCALES ? args->n_out - o : SCALES;
        float scales[SCALES];
        for (uint32_t i = 0; i < n; i++) {
            scales[i] = moe_row_scale(args->type, row);
            row += args->row_bytes;
        }
        for (uint32_t r = 0; r < args->n_rows; r++) {
            const size_t at = args->out_index != NULL ? args->out_index[r] : r;
            float *out = args->out + at * args->out_stride + o;
            for (uint32_t i = 0; i < n; i++) {
                out[i] *= scales[i];
            }
        }
    }
}
