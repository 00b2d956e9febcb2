/* SPDX-License-Identifier: MIT */
/* Merges keywords that combine several schemas into one plain schema: allOf, if,
 * dependentRequired, $ref beside other keywords, nullable, and lists of values. */
#ifndef MOE_GRAMMAR_SCHEMA_MERGE_H
#define MOE_GRAMMAR_SCHEMA_MERGE_H

#include "runtime/grammar/schema_text.h"

/* Returns a schema without these keywords that allows the same values; anyOf may remain. Returns
 * NULL if no value is valid, or on an error, which w->status holds. The writer owns the result. */
struct json_object *moe_schema_plain(moe_schema_writer *w, struct json_object *schema);
/* Returns a schema that allows what both plain schemas allow; NULL as above. */
struct json_object *moe_schema_both(moe_schema_writer *w, struct json_object *a,
                                    struct json_object *b);
struct json_object *moe_schema_without(moe_schema_writer *w, struct json_object *plain,
                                       const char *keyword);
/* Whether both schemas require a property for which they allow no common value. */
bool moe_schema_key_differs(moe_schema_writer *w, struct json_object *a, struct json_object *b);
/* Whether the schema has keywords besides anyOf and annotations. */
bool moe_schema_has_others(struct json_object *plain);
/* Follows a reference such as "#/a/b". NULL, with an error in w, if nothing is there. */
struct json_object *moe_schema_find(moe_schema_writer *w, const char *ref);

#endif
