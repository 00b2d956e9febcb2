/* SPDX-License-Identifier: MIT */
#include "cpu/x86/lanes16_avx512.h"
#include "cpu/x86/attend_lanes.h"

#include "cpu/x86/attend_columns_avx512.h"
#include "cpu/x86/vector_x86.h"

void moe_attend_page_avx512(const moe_attend_args *args)
{
    if (takes_columns(args))
        attend_page_columns(args);
    else
        attend_page_lanes(args);
}
