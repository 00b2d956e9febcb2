/* SPDX-License-Identifier: MIT */
/* Writes the values of an enum as a tree of alternatives that share their beginnings. */
#ifndef MOE_GRAMMAR_SCHEMA_ENUM_H
#define MOE_GRAMMAR_SCHEMA_ENUM_H

#include "runtime/grammar/schema_text.h"

void moe_schema_write_enum(moe_schema_writer *w, struct json_object *values, moe_schema_piece *out);

#endif
