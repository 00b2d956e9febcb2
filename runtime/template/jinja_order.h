/* SPDX-License-Identifier: MIT */
/* Shared by filters that sort, choose and map. */
#ifndef MOE_TEMPLATE_JINJA_ORDER_H
#define MOE_TEMPLATE_JINJA_ORDER_H

#include "runtime/template/jinja_value.h"

/* Returns the value at a path such as "function.name", in which integers are indices. Without a
 * path, returns the value itself. */
jinja_value jinja_path(jinja_context *c, jinja_value value, jinja_value path);
/* Returns the key by which the value is sorted: like jinja_path(), but strings are converted to
 * lower case unless case_sensitive. */
jinja_value jinja_order_key(jinja_context *c, jinja_value value, jinja_value path,
                            bool case_sensitive);
/* Returns a sorted list; equal items keep their order. */
jinja_value jinja_sorted(jinja_context *c, const jinja_list *list, jinja_value path,
                         bool case_sensitive, bool reverse);

#endif
