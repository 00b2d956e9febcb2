/* SPDX-License-Identifier: MIT */
/* Schemas that several keywords are made of, as one: allOf, if, dependentRequired, $ref beside
 * others, nullable, and values that are listed. */
#ifndef MOE_GRAMMAR_SCHEMA_MERGE_H
#define MOE_GRAMMAR_SCHEMA_MERGE_H

#include "runtime/grammar/schema_text.h"

/* What is valid by the schema, without those keywords; anyOf may be left. NULL: nothing is, or
 * w->status. The writer's. */
struct json_object *moe_schema_plain(moe_schema_writer *w, struct json_object *schema);
/* What is valid by both plain schemas; NULL as above. */
struct json_object *moe_schema_both(moe_schema_writer *w, struct json_object *a,
                                    struct json_object *b);
struct json_object *moe_schema_without(moe_schema_writer *w, struct json_object *plain,
                                       const char *keyword);
/* Whether both schemas require a property for which no value is valid by both. */
bool moe_schema_key_differs(moe_schema_writer *w, struct json_object *a, struct json_object *b);
/* Whether other keywords than anyOf and annotations say what is valid. */
bool moe_schema_has_others(struct json_object *plain);
/* Follows a reference such as "#/a/b". NULL, with an error in w, if nothing is there. */
struct json_object *moe_schema_find(moe_schema_writer *w, const char *ref);

#endif
