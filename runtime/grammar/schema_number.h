/* SPDX-License-Identifier: MIT */
/* Numbers of a JSON schema between bounds, and multiples. */
#ifndef MOE_GRAMMAR_SCHEMA_NUMBER_H
#define MOE_GRAMMAR_SCHEMA_NUMBER_H

#include "runtime/grammar/schema_text.h"

/* Appends the numbers of a plain schema; integer: those without a fraction. False: there are none.
 */
bool moe_schema_write_number(moe_schema_writer *w, struct json_object *plain, bool integer,
                             moe_schema_piece *out);

#endif
