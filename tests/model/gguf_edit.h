/* SPDX-License-Identifier: MIT */
/* Copies of a model file with other metadata, for tests. */
#ifndef TESTS_MODEL_GGUF_EDIT_H
#define TESTS_MODEL_GGUF_EDIT_H

#include <stddef.h>

/* Writes `out`, which is `in` with these edits:
 *   "key=u32:4", "key=f32:0.5", "key=bool:1", "key=str:text", "key=u32s:1,2,3"   a key is added;
 *   "-key"   the key is put out of the way: it no longer begins with the architecture's name.
 * 0, or -1 with a message on stderr. */
int gguf_edit(const char *in, const char *out, const char *const *edits, size_t n);

#endif
