/* SPDX-License-Identifier: MIT */
/* Writes the grammar of a JSON schema's numbers: between bounds, and multiples of a factor. */
#ifndef MOE_GRAMMAR_SCHEMA_NUMBER_H
#define MOE_GRAMMAR_SCHEMA_NUMBER_H

#include "runtime/grammar/schema_text.h"

/* Appends the numbers that a plain schema allows; with `integer`, only integers. False: it allows
 * none. */
bool moe_schema_write_number(moe_schema_writer *w, struct json_object *plain, bool integer,
                             moe_schema_piece *out);

#endif
