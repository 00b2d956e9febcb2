/* SPDX-License-Identifier: MIT */
/* An operation on pairs of elements, on the sixteen lanes of lanes16_*.h, which is included first.
 * Partial chunks are handled as in vector_lanes.h. */
#ifndef MOE_X86_PAIRS_LANES_H
#define MOE_X86_PAIRS_LANES_H

#include <stdint.h>

#include "cpu/x86/always_inline.h"

/* y = op(a, b) element by element; op gets the parameters p. Callers pass a constant op, which is
 * inlined. */
MOE_INLINE void pairs_lanes(const float *a, const float *b, float *y, uint32_t n,
                            l16 (*op)(l16 a, l16 b, const l16 *p), const l16 *p)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(y + i, op(l16_load(a + i), l16_load(b + i), p));
    if (rest > 0) {
        l16 part = op(l16_load_part(a + whole, rest), l16_load_part(b + whole, rest), p);
        l16_store_part(y + whole, part, rest);
    }
}

#endif
