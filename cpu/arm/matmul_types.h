/* SPDX-License-Identifier: MIT */
/* Defines the products for all types of weights from the including file's function multiply(args,
 * unpack, unpack_neon, run, has_mins): one for each type that has a vector unpacker, four for all
 * other types together. Include it once, behind multiply(). */

#define DEFINE(dtype, name, run, has_mins, unused)                                                 \
    static void matmul_##name(const moe_matmul_args *args)                                         \
    {                                                                                              \
        multiply(args, NULL, unpack_##name##_neon, run, has_mins);                                 \
    }
MOE_ARM_UNPACKED_TYPES(DEFINE, )
#undef DEFINE

static void matmul_any(const moe_matmul_args *args)
{
    const moe_block_format *format = moe_block_format_of(args->type);
    if (format->run == 16 && format->has_mins) {
        multiply(args, format->unpack, NULL, 16, true);
    } else if (format->run == 16) {
        multiply(args, format->unpack, NULL, 16, false);
    } else if (format->has_mins) {
        multiply(args, format->unpack, NULL, 32, true);
    } else {
        multiply(args, format->unpack, NULL, 32, false);
    }
}

static void set_types(moe_matmul_kernels *kernels)
{
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        if (moe_dtype_info_of(type) != NULL && moe_block_format_of((moe_dtype)type) != NULL) {
            kernels->matmul[type] = matmul_any;
        }
    }
#define SET(dtype, name, run, has_mins, unused) kernels->matmul[dtype] = matmul_##name;
    MOE_ARM_UNPACKED_TYPES(SET, )
#undef SET
}
