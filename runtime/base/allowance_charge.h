/* SPDX-License-Identifier: MIT */
/* Charges the memory and steps for reading a hostile text before they are used (moe/allowance.h).
 * All functions accept NULL: then there are no bounds. */
#ifndef MOE_BASE_ALLOWANCE_CHARGE_H
#define MOE_BASE_ALLOWANCE_CHARGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/allowance.h>

/* Charges bytes. False: the allowance has too few left, and the call must end. */
bool moe_allowance_take(moe_allowance *allowance, uint64_t bytes);
void moe_allowance_give(moe_allowance *allowance, uint64_t bytes);
/* As moe_realloc_array(), for an array that has had `before` elements; NULL also if the allowance
 * has too few bytes. The caller gives count * size back when it frees the array. */
void *moe_allowance_grow(moe_allowance *allowance, void *array, size_t before, size_t count,
                         size_t size);
/* False: too many steps, or the caller stops the call. The call must end. */
bool moe_allowance_step(moe_allowance *allowance, uint64_t n);

static inline uint64_t moe_allowance_now(const moe_allowance *allowance)
{
    return allowance == NULL ? 0 : allowance->bytes_now;
}

/* The error of a call that ended because its allowance is used up, or else because memory is short.
 * `what` names the purpose. */
int moe_allowance_fail(const moe_allowance *allowance, moe_error *err, const char *what);

#endif
