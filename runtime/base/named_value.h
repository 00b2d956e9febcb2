/* SPDX-License-Identifier: MIT */
/* Options whose value is one of a few names. */
#ifndef MOE_BASE_NAMED_VALUE_H
#define MOE_BASE_NAMED_VALUE_H

#include <moe/status.h>

typedef struct moe_named_value {
    const char *name; /* NULL ends a list */
    int value;
} moe_named_value;

/* name NULL: MOE_OK, and *value stays. The error names `what` and lists the names. */
int moe_named_value_find(const moe_named_value *values, const char *what, const char *name,
                         int *value, moe_error *err);

#endif
