/* SPDX-License-Identifier: MIT */
/* Writes the parts of a JSON schema's grammar, one function for each kind of value. The schema must
 * be plain (schema_merge.h). A function that returns false found that the schema allows no
 * value. */
#ifndef MOE_GRAMMAR_SCHEMA_PARTS_H
#define MOE_GRAMMAR_SCHEMA_PARTS_H

#include "runtime/grammar/schema_text.h"

static inline bool moe_schema_write_rule(moe_schema_writer *w, struct json_object *schema,
                                         char name[16])
{
    return w->write_rule(w, schema, name);
}
/* Reads a keyword whose value is a number of things, such as minLength. Returns `missing` if the
 * schema does not have it. It must be below 2000. */
int64_t moe_schema_count(moe_schema_writer *w, struct json_object *schema, const char *key,
                         int64_t missing);
/* Appends a repetition {least,most}. most < 0: no upper limit. */
void moe_schema_add_repeats(moe_schema_writer *w, moe_schema_piece *out, int64_t least,
                            int64_t most);
void moe_schema_write_string(moe_schema_writer *w, struct json_object *plain,
                             moe_schema_piece *out);
bool moe_schema_write_choices(moe_schema_writer *w, struct json_object *plain,
                              moe_schema_piece *out);
/* Appends a quoted key that differs from all keys of `properties`. */
void moe_schema_write_other_key(moe_schema_writer *w, struct json_object *properties,
                                moe_schema_piece *out);
bool moe_schema_write_array(moe_schema_writer *w, struct json_object *plain, moe_schema_piece *out);
bool moe_schema_write_object(moe_schema_writer *w, struct json_object *plain,
                             moe_schema_piece *out);

#endif
