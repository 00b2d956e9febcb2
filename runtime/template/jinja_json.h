/* SPDX-License-Identifier: MIT */
/* JSON into values, and values into JSON as Python's json.dumps() writes it. */
#ifndef MOE_TEMPLATE_JINJA_JSON_H
#define MOE_TEMPLATE_JINJA_JSON_H

#include "runtime/template/jinja_value.h"

/* Parses a JSON text into a value; all of its bytes count as data, not as template. `what` names
 * the text in an error message. */
jinja_value jinja_read_json(jinja_context *c, const char *what, const char *text, size_t size);

/* Reads a JSON object; false, without effect, if the text is not one. */
bool jinja_try_json_object(jinja_context *c, const char *text, size_t size, jinja_value *out);

typedef struct jinja_json_style {
    bool ascii;
    const jinja_text *indent; /* NULL: all on one line */
    jinja_text item_separator, key_separator;
    bool sort_keys;
} jinja_json_style;

void jinja_add_json(jinja_builder *b, jinja_value value, const jinja_json_style *style);

#endif
