/* SPDX-License-Identifier: MIT */
/* The marks around a model's reasoning. */
#ifndef MOE_MODEL_CHAT_MARKS_H
#define MOE_MODEL_CHAT_MARKS_H

#include "runtime/model/chat_template.h"

const moe_chat_marks *moe_chat_known_marks(size_t *n);
/* Finds the first pair of known marks that the template writes or searches for. False: none. */
bool moe_chat_marks_in(moe_string_view source, moe_chat_marks *out);
/* Some models write marks with a suffix: Hunyuan writes </think:opensource>. Such a mark begins
 * with MOE_CHAT_SUFFIXED_MARK; the function returns the pair of marks that a text of this kind
 * uses. False: the text has no such mark. */
#define MOE_CHAT_SUFFIXED_MARK "</think:"
bool moe_chat_marks_with_suffix(moe_string_view text, moe_chat_marks *out);

/* Whether reasoning is open at the end of the rendered text or, if the last message is to be
 * continued, was opened anywhere in it. */
bool moe_chat_is_reasoning(const moe_chat_marks *marks, const char *text, size_t size,
                           bool continued);

/* Whether a piece opens or closes reasoning or a part of a tool's turn, in any of the known
 * spellings, with a suffix or without. */
bool moe_chat_is_mark(moe_string_view piece);

#endif
