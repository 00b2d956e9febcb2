/* SPDX-License-Identifier: MIT */
/* Whether a plain schema (schema_merge.h) allows a single value. */
#ifndef MOE_GRAMMAR_SCHEMA_VALUE_H
#define MOE_GRAMMAR_SCHEMA_VALUE_H

#include "runtime/grammar/schema_text.h"

/* Whether a plain schema allows a value. May return false for an array or an object that the schema
 * does allow, if this follows neither from the schema's own keywords nor from those of its
 * members. */
bool moe_schema_allows(moe_schema_writer *w, struct json_object *plain, struct json_object *value);
/* Whether the schema's keyword `type` allows this type. */
bool moe_schema_has_type(struct json_object *plain, const char *type);
/* Whether the value is a number of JSON. */
bool moe_schema_is_number(struct json_object *value);

#endif
