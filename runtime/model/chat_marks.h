/* SPDX-License-Identifier: MIT */
/* The marks around a model's reasoning. */
#ifndef MOE_MODEL_CHAT_MARKS_H
#define MOE_MODEL_CHAT_MARKS_H

#include "runtime/model/chat_template.h"

const moe_chat_marks *moe_chat_known_marks(size_t *n);
/* The first pair that the template writes or searches for, or NULL. */
const moe_chat_marks *moe_chat_marks_in(moe_string_view source);

/* Whether the rendered text opens reasoning at its end or, if its last message is continued,
 * anywhere. */
bool moe_chat_is_reasoning(const moe_chat_marks *marks, const char *text, size_t size,
                           bool continued);

/* Whether a piece opens or closes reasoning or a tool's turn, in one of the known spellings. */
bool moe_chat_is_mark(moe_string_view piece);

#endif
