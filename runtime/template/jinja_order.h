/* SPDX-License-Identifier: MIT */
/* Shared by filters that sort, choose and map. */
#ifndef MOE_TEMPLATE_JINJA_ORDER_H
#define MOE_TEMPLATE_JINJA_ORDER_H

#include "runtime/template/jinja_value.h"

/* The value at a path ("function.name"; an integer is an index), or the value itself without one.
 */
jinja_value jinja_path(jinja_context *c, jinja_value value, jinja_value path);
/* Like jinja_path(); strings become lower case unless case counts. */
jinja_value jinja_order_key(jinja_context *c, jinja_value value, jinja_value path,
                            bool case_sensitive);
/* Returns a sorted list; equal items keep their order. */
jinja_value jinja_sorted(jinja_context *c, const jinja_list *list, jinja_value path,
                         bool case_sensitive, bool reverse);

#endif
