/* SPDX-License-Identifier: MIT */
/* A chat template as data. Markup may hold MOE_MARK_BOS and MOE_MARK_EOS. */
#ifndef MOE_MODEL_CHAT_TEMPLATE_ROW_H
#define MOE_MODEL_CHAT_TEMPLATE_ROW_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/model/chat_template.h"

typedef struct moe_chat_markup {
    const char *open, *close;
    bool trim; /* white space around the text is removed */
} moe_chat_markup;

struct moe_chat_template {
    const char *name;
    /* The metadata's template is this one if it contains all signs, and not `unless`. */
    const char *signs[3];
    const char *twice; /* a sign that must occur more than once */
    const char *unless;

    const char *start;          /* written first; NULL: BOS if the vocabulary adds one */
    const char *default_system; /* system text if the first turn is not the system's */
    moe_chat_markup system, user, assistant;
    const char *user_after_system; /* in place of user.open, if system and user share a frame */
    const char *answer;            /* opens the assistant's turn, which the model continues */

    /* Reasoning ("<think> … </think>") in earlier answers is left out. */
    bool drops_reasoning;
    /* An answer after the last question keeps its reasoning, and gets an empty one if it has none.
     */
    bool last_reasoning;
};

extern const moe_chat_template moe_chat_templates[];
extern const size_t moe_chat_n_templates;

#endif
