/* SPDX-License-Identifier: MIT */
/* Formats metadata values as one line of text. Strings from a file may contain unprintable
 * characters. */
#ifndef MOE_ENGINE_METADATA_TEXT_H
#define MOE_ENGINE_METADATA_TEXT_H

#include <stddef.h>

#include "runtime/model/gguf.h"

/* "u32", "string[4096]". */
void moe_metadata_type_text(const moe_gguf_kv *kv, char *out, size_t size);

/* Writes the value: strings with control characters as escapes ("\n", "\x1b"), arrays in brackets.
 * A text that does not fit ends in "...". */
void moe_metadata_value_text(const moe_gguf_kv *kv, char *out, size_t size);

/* Returns an allocated, terminated copy of the text with control characters as escapes; NULL if
 * memory is short. */
char *moe_metadata_copy_text(moe_string_view text);

#endif
