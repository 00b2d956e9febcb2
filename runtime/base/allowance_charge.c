/* SPDX-License-Identifier: MIT */
#include "runtime/base/allowance_charge.h"

#include <inttypes.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define STEPS_BETWEEN_LOOKS 65536

bool moe_allowance_take(moe_allowance *a, uint64_t bytes)
{
    if (a == NULL) {
        return true;
    }
    if (a->bytes != 0 && (bytes > a->bytes || a->bytes_now > a->bytes - bytes)) {
        a->refused = MOE_ERR_BUDGET;
        return false;
    }
    a->bytes_now += bytes;
    a->bytes_peak = a->bytes_now > a->bytes_peak ? a->bytes_now : a->bytes_peak;
    return true;
}

void moe_allowance_give(moe_allowance *a, uint64_t bytes)
{
    if (a != NULL) {
        a->bytes_now -= bytes < a->bytes_now ? bytes : a->bytes_now;
    }
}

void *moe_allowance_grow(moe_allowance *a, void *array, size_t before, size_t count, size_t size)
{
    uint64_t bytes;
    if (count < before || !moe_mul_u64(count - before, size, &bytes) ||
        !moe_allowance_take(a, bytes)) {
        return NULL;
    }
    void *larger = moe_realloc_array(array, count, size);
    if (larger == NULL) {
        moe_allowance_give(a, bytes);
    }
    return larger;
}

bool moe_allowance_step(moe_allowance *a, uint64_t n)
{
    if (a == NULL) {
        return true;
    }
    uint64_t looks = a->steps_taken / STEPS_BETWEEN_LOOKS;
    a->steps_taken += n;
    if (a->refused != MOE_OK) {
        return false;
    }
    if (a->steps != 0 && a->steps_taken > a->steps) {
        a->refused = MOE_ERR_BUDGET;
    } else if (a->stopped != NULL && a->steps_taken / STEPS_BETWEEN_LOOKS > looks &&
               a->stopped(a->user)) {
        a->refused = MOE_ERR_CANCELLED;
    }
    return a->refused == MOE_OK;
}

int moe_allowance_fail(const moe_allowance *a, moe_error *err, const char *what)
{
    if (a == NULL || a->refused == MOE_OK) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for %s", what);
    }
    if (a->refused == MOE_ERR_CANCELLED) {
        return moe_fail(err, MOE_ERR_CANCELLED, "%s: stopped by the caller", what);
    }
    bool steps = a->steps != 0 && a->steps_taken > a->steps;
    return moe_fail(err, MOE_ERR_BUDGET, "%s: more than the %" PRIu64 " %s that are allowed", what,
                    steps ? a->steps : a->bytes, steps ? "steps" : "bytes of memory");
}
