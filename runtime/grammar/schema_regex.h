/* SPDX-License-Identifier: MIT */
/* Converts regular expressions of JSON schemas (ECMA-262) to grammars. Supports characters,
 * classes, \d \w \s, groups, alternatives, repetitions, and ^ and $ at the two ends of an
 * alternative. */
#ifndef MOE_GRAMMAR_SCHEMA_REGEX_H
#define MOE_GRAMMAR_SCHEMA_REGEX_H

#include "runtime/grammar/schema_text.h"

/* Appends a grammar of the text between the quotes of a JSON string that matches the expression.
 * False: the expression uses something that is not supported (see above); then nothing is
 * appended. */
bool moe_schema_add_regex(moe_schema_writer *w, moe_schema_piece *out, const char *regex);
/* Whether the expression matches somewhere in the text. Also true if the expression uses something
 * that is not supported. */
bool moe_schema_regex_matches(moe_schema_writer *w, const char *regex, const char *text);
/* Returns a regular expression for a `format` of JSON Schema, such as "date". NULL: there is none
 * for it. */
const char *moe_schema_format(const char *format);

#endif
