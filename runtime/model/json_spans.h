/* SPDX-License-Identifier: MIT */
/* Finds values in a JSON text without building a tree: a tokenizer.json has megabytes, of which a
 * few lines are wanted. Each function takes time in proportion to the value's size, and none reads
 * beyond it, however wrong the text is. */
#ifndef MOE_MODEL_JSON_SPANS_H
#define MOE_MODEL_JSON_SPANS_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/model/gguf.h"

/* Finds the member of this name; false if object is not an object, or lacks it. Does not find names
 * with escapes. */
bool moe_json_member(moe_string_view object, const char *name, moe_string_view *value);

/* Returns the array's element at or after *at (0 at first) and moves *at behind it; false after the
 * last. */
bool moe_json_element(moe_string_view array, size_t *at, moe_string_view *value);

/* Whether the value is this word or number: "true", "null". */
bool moe_json_is(moe_string_view value, const char *word);
/* Whether the value is a string of this text, without escapes. */
bool moe_json_is_text(moe_string_view value, const char *text);

/* Writes the text of a string, in UTF-8, with a 0 behind it; false if value is not a string, out is
 * too small, or an escape is wrong. */
bool moe_json_text(moe_string_view value, char *out, size_t capacity);

#endif
