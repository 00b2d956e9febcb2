/* SPDX-License-Identifier: MIT */
#ifndef MOE_BASE_ERROR_H
#define MOE_BASE_ERROR_H

#include <moe/status.h>

/* Writes the message (truncated to fit) into err, when err is not NULL, and returns status, so that
 * a failing function can end with `return moe_fail(err, MOE_ERR_FORMAT, "...")`. */
__attribute__((format(printf, 3, 4))) int moe_fail(moe_error *err, int status, const char *format,
                                                   ...);

/* MOE_ERR_ARGUMENT for required arguments that are NULL: "moe_step: NULL for engine or sessions".
 */
int moe_fail_null(moe_error *err, const char *function, const char *arguments);

/* Makes the call; leaves the function with the call's status if that is not MOE_OK. For functions
 * that have nothing to release at that point. */
#define MOE_TRY(call)                                                                              \
    do {                                                                                           \
        int moe_try_status_ = (call);                                                              \
        if (moe_try_status_ != MOE_OK) {                                                           \
            return moe_try_status_;                                                                \
        }                                                                                          \
    } while (0)

#endif
