/* SPDX-License-Identifier: MIT */
/* Merges schemas into one plain schema. A plain schema has none of the keywords that combine
 * several schemas or refer to others: allOf, if, dependentRequired, $ref beside other keywords,
 * nullable, and a list of types. */
#ifndef MOE_GRAMMAR_SCHEMA_MERGE_H
#define MOE_GRAMMAR_SCHEMA_MERGE_H

#include "runtime/grammar/schema_text.h"

/* Returns a plain schema that allows the same values; it may still have anyOf. Returns NULL if no
 * value is valid, or on an error, which w->status then holds. The writer owns the result. */
struct json_object *moe_schema_plain(moe_schema_writer *w, struct json_object *schema);
/* Returns a plain schema for the values that both plain schemas allow; NULL as in
 * moe_schema_plain(). */
struct json_object *moe_schema_both(moe_schema_writer *w, struct json_object *a,
                                    struct json_object *b);
struct json_object *moe_schema_without(moe_schema_writer *w, struct json_object *plain,
                                       const char *keyword);
/* Whether both schemas require the same property but allow no common value for it. */
bool moe_schema_key_differs(moe_schema_writer *w, struct json_object *a, struct json_object *b);
/* Whether the schema has keywords other than anyOf and annotations. */
bool moe_schema_has_others(struct json_object *plain);
/* Returns the schema that a reference such as "#/a/b" points to. If there is none, returns NULL and
 * sets an error in w. */
struct json_object *moe_schema_find(moe_schema_writer *w, const char *ref);

#endif
