/* SPDX-License-Identifier: MIT */
/* Asks for the matrix unit, and enters its products in the table. */
#include "cpu/x86/matmul_amx.h"

#include "cpu/x86/matmul_x86.h"
#include "cpu/x86/quant_types.h"
#include "cpu/x86/tile_products.h"

#include <sys/syscall.h>
#include <unistd.h>

enum {
    REQUEST_STATE = 0x1023, /* arch_prctl(ARCH_REQ_XCOMP_PERM) */
    TILE_STATE = 18
};

bool moe_amx_granted(void)
{
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_STATE) == 0;
}

/* Measured on Sapphire Rapids (cpu/x86/README.md). The unit does not make float operations faster.
 * Types with minima or short runs need more of these for each product of the unit. */
static uint8_t min_fill_of(quant_type t)
{
    if (t.run == 16) {
        return 85;
    }
    return t.has_mins ? 80 : 65;
}

void moe_matmul_init_amx(moe_matmul_kernels *kernels)
{
    kernels->tile_products = moe_tile_products_amx;
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        if (kernels->unpack_tiles[type] != NULL) {
            kernels->min_tile_fill[type] = min_fill_of(quant_type_of((moe_dtype)type));
        }
    }
}
