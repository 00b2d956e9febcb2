/* SPDX-License-Identifier: MIT */
/* Chat templates that this engine's families use, recognised in the metadata and rendered in C.
 * There is no template interpreter here. Markup becomes control tokens; a user's text is encoded as
 * plain text and can never become a control token. */
#ifndef MOE_MODEL_CHAT_TEMPLATE_H
#define MOE_MODEL_CHAT_TEMPLATE_H

#include "runtime/model/tokenizer.h"

typedef struct moe_chat_turn {
    const char *role; /* "system", "user" or "assistant" */
    const char *text; /* size bytes */
    size_t size;
} moe_chat_turn;

typedef struct moe_chat_template moe_chat_template; /* constant, in a table */

/* Recognises tokenizer.chat_template. MOE_ERR_UNSUPPORTED when there is none or it is not known;
 * the message lists the known ones. */
int moe_chat_template_find(const moe_chat_template **out, const moe_gguf *gguf, moe_error *err);
/* By name ("chatml", "llama2", "mistral", "deepseek", "deepseek2", "deepseek3", "olmoe", ...), or
 * NULL. "qwen3" opens answers with an empty "<think>" block, as its template does when thinking is
 * off; "chatml" is the same without, and lets the model think. */
const moe_chat_template *moe_chat_template_by_name(const char *name);
const char *moe_chat_template_name(const moe_chat_template *chat);

/* Renders turns[first..n) as they appear in a conversation whose turns before `first` have already
 * been rendered (first = 0: includes the start, with BOS if the model wants one). With
 * open_assistant the opening of the assistant's turn follows. *tokens is malloc'ed and the
 * caller's. */
int moe_chat_render(const moe_chat_template *chat, const moe_tokenizer *tokenizer,
                    const moe_chat_turn *turns, size_t n, size_t first, bool open_assistant,
                    int32_t **tokens, size_t *n_tokens, moe_error *err);

/* The tokens that follow the assistant's text, up to the next turn, beginning with the end token,
 * which the model may have written itself. *tokens is malloc'ed and the caller's. */
int moe_chat_render_close(const moe_chat_template *chat, const moe_tokenizer *tokenizer,
                          int32_t **tokens, size_t *n_tokens, moe_error *err);

#endif
