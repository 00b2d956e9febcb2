/* SPDX-License-Identifier: MIT */
/* Parts of a JSON schema's grammar, each from a plain schema (schema_merge.h). Those that return
 * false found that no value is valid. */
#ifndef MOE_GRAMMAR_SCHEMA_PARTS_H
#define MOE_GRAMMAR_SCHEMA_PARTS_H

#include "runtime/grammar/schema_text.h"

static inline bool moe_schema_write_rule(moe_schema_writer *w, struct json_object *schema,
                                         char name[16])
{
    return w->write_rule(w, schema, name);
}
/* A number of things, below 2000; missing: there is no such keyword. */
int64_t moe_schema_count(moe_schema_writer *w, struct json_object *schema, const char *key,
                         int64_t missing);
/* {least,most}; most < 0: any. */
void moe_schema_add_repeats(moe_schema_writer *w, moe_schema_piece *out, int64_t least,
                            int64_t most);
void moe_schema_write_string(moe_schema_writer *w, struct json_object *plain,
                             moe_schema_piece *out);
bool moe_schema_write_choices(moe_schema_writer *w, struct json_object *plain,
                              moe_schema_piece *out);
/* A key in quotes that is none of the properties'. */
void moe_schema_write_other_key(moe_schema_writer *w, struct json_object *properties,
                                moe_schema_piece *out);
bool moe_schema_write_array(moe_schema_writer *w, struct json_object *plain, moe_schema_piece *out);
bool moe_schema_write_object(moe_schema_writer *w, struct json_object *plain,
                             moe_schema_piece *out);

#endif
