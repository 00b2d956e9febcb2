/* SPDX-License-Identifier: MIT */
/* The marks around a model's reasoning. */
#ifndef MOE_MODEL_CHAT_MARKS_H
#define MOE_MODEL_CHAT_MARKS_H

#include "runtime/model/chat_template.h"

const moe_chat_marks *moe_chat_known_marks(size_t *n);
/* Whether the template writes or searches for a pair: the first one. */
bool moe_chat_marks_in(moe_string_view source, moe_chat_marks *out);
/* What a mark with a suffix begins with, "</think:" (Hunyuan: </think:opensource>), and the pair
 * of a text that begins so. False: no such text. */
#define MOE_CHAT_SUFFIXED_MARK "</think:"
bool moe_chat_marks_with_suffix(moe_string_view text, moe_chat_marks *out);

/* Whether the rendered text opens reasoning at its end or, if its last message is continued,
 * anywhere. */
bool moe_chat_is_reasoning(const moe_chat_marks *marks, const char *text, size_t size,
                           bool continued);

/* Whether a piece opens or closes reasoning, or a part of a tool's turn, in one of the known
 * spellings, with a suffix or without. */
bool moe_chat_is_mark(moe_string_view piece);

#endif
