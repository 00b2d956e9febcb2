/* SPDX-License-Identifier: MIT */
/* Compiled twice: ASSERTING_NAME is asserting_on with assertions, asserting_off without. */
#include "asserting.h"
#include "runtime/base/moe_assert.h"

/* Used by the assertion alone, as is the variable below: no build may warn of that. */
static bool is_positive(int value, int *n_evaluated)
{
    ++*n_evaluated;
    return value > 0;
}

int ASSERTING_NAME(int value, int *n_evaluated)
{
    int seen = value;
    MOE_ASSERT(is_positive(seen, n_evaluated));
    return value + 1;
}
