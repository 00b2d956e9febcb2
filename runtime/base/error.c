/* SPDX-License-Identifier: MIT */
#include "runtime/base/error.h"

#include <stdarg.h>
#include <stdio.h>

int moe_fail(moe_error *err, int status, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
    return status;
}

const char *moe_status_name(int status)
{
    switch (status) {
    case MOE_OK:
        return "ok";
    case MOE_ERR_ARGUMENT:
        return "invalid argument";
    case MOE_ERR_MEMORY:
        return "out of memory";
    case MOE_ERR_IO:
        return "input/output error";
    case MOE_ERR_FORMAT:
        return "malformed file";
    case MOE_ERR_UNSUPPORTED:
        return "not supported";
    case MOE_ERR_BUDGET:
        return "memory budget too small";
    case MOE_ERR_CONTEXT_FULL:
        return "context full";
    case MOE_ERR_CANCELLED:
        return "cancelled";
    case MOE_ERR_MISMATCH:
        return "belongs to another model";
    case MOE_ERR_DEVICE:
        return "device error";
    case MOE_ERR_INTERNAL:
        return "internal error";
    default:
        return "unknown status";
    }
}

int moe_fail_null(moe_error *err, const char *function, const char *arguments)
{
    return moe_fail(err, MOE_ERR_ARGUMENT, "%s: NULL for %s, which must be given", function,
                    arguments);
}
