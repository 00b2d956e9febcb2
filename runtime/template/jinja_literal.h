/* SPDX-License-Identifier: MIT */
#ifndef MOE_TEMPLATE_JINJA_LITERAL_H
#define MOE_TEMPLATE_JINJA_LITERAL_H

#include "runtime/template/jinja_value.h"

/* Reads the literal at byte `at` of the source; sets *end to the byte behind it. */
jinja_value jinja_read_string_literal(jinja_context *c, jinja_text source, size_t at, size_t *end);
jinja_value jinja_read_number_literal(jinja_context *c, jinja_text source, size_t at, bool plain,
                                      size_t *end);

#endif
