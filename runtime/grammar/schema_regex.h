/* SPDX-License-Identifier: MIT */
/* Regular expressions of JSON schemas (ECMA-262) as grammars: characters, classes, \d \w \s,
 * groups, alternatives, repetitions, ^ at the beginning and $ at the end of an alternative. */
#ifndef MOE_GRAMMAR_SCHEMA_REGEX_H
#define MOE_GRAMMAR_SCHEMA_REGEX_H

#include "runtime/grammar/schema_text.h"

/* Appends the inside of a JSON string that matches the expression. False: the expression has
 * something that is not in the list above; nothing was appended. */
bool moe_schema_add_regex(moe_schema_writer *w, moe_schema_piece *out, const char *regex);
/* Whether the text has a match; true if the expression has something else. */
bool moe_schema_regex_matches(moe_schema_writer *w, const char *regex, const char *text);
/* Returns the regular expression of a format; NULL: the format has none. */
const char *moe_schema_format(const char *format);

#endif
