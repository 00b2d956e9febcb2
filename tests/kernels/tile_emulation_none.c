/* SPDX-License-Identifier: MIT */
/* For processors without the instructions that unpack weights for matrix units: tests do not call
 * it. */
#include "cpu/kernels/matmul.h"

moe_tile_products_fn moe_tile_products_emulated;

void moe_tile_products_emulated(const moe_matmul_args *args, moe_unpack_tiles_fn *unpack,
                                void *scratch)
{
    (void)args;
    (void)unpack;
    (void)scratch;
}
