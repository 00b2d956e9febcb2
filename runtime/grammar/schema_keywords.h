/* SPDX-License-Identifier: MIT */
/* The keywords of JSON schemas that are supported, or mean nothing for a text's form. */
#ifndef MOE_GRAMMAR_SCHEMA_KEYWORDS_H
#define MOE_GRAMMAR_SCHEMA_KEYWORDS_H

#include "runtime/grammar/schema_text.h"

/* Fails with MOE_ERR_UNSUPPORTED, naming the keyword, if the schema has another one. */
void moe_schema_check_keywords(moe_schema_writer *w, struct json_object *schema);

#endif
