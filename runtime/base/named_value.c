/* SPDX-License-Identifier: MIT */
#include "runtime/base/named_value.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

int moe_named_value_find(const moe_named_value *values, const char *what, const char *name,
                         int *value, moe_error *err)
{
    if (name == NULL) {
        return MOE_OK;
    }
    char list[256] = "";
    size_t size = 0;
    for (const moe_named_value *v = values; v->name != NULL; v++) {
        if (strcmp(v->name, name) == 0) {
            *value = v->value;
            return MOE_OK;
        }
        int n = snprintf(list + size, sizeof list - size, "%s%s", size > 0 ? ", " : "", v->name);
        size += n > 0 && size + (size_t)n < sizeof list ? (size_t)n : 0;
    }
    return moe_fail(err, MOE_ERR_ARGUMENT, "%s: '%s' is none of %s", what, name, list);
}
