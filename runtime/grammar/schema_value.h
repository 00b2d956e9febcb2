/* SPDX-License-Identifier: MIT */
/* Whether a plain schema (schema_merge.h) allows a single value. */
#ifndef MOE_GRAMMAR_SCHEMA_VALUE_H
#define MOE_GRAMMAR_SCHEMA_VALUE_H

#include "runtime/grammar/schema_text.h"

/* Whether a plain schema allows a value. For arrays and objects the answer may be no although the
 * schema allows them, if its own keywords and those of the members do not show it. */
bool moe_schema_allows(moe_schema_writer *w, struct json_object *plain, struct json_object *value);
/* Whether it allows values of the type, by its keyword type. */
bool moe_schema_has_type(struct json_object *plain, const char *type);
/* Whether a value is an integer or a fraction. */
bool moe_schema_is_number(struct json_object *value);

#endif
