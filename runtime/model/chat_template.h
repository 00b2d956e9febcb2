/* SPDX-License-Identifier: MIT */
/* Conversations through a chat template: chooses the template, and turns its text into tokens.
 *
 * Only text that the template wrote is searched for control tokens. Text from messages, tools or
 * arguments is encoded as plain text and can never become one. */
#ifndef MOE_MODEL_CHAT_TEMPLATE_H
#define MOE_MODEL_CHAT_TEMPLATE_H

#include "runtime/model/tokenizer.h"
#include "runtime/template/template.h"

typedef struct moe_chat_template {
    moe_string_view source; /* from the library, the file's metadata or the caller */
    bool is_built_in;
} moe_chat_template;

/* Finds the template called `name`: one of the file's (tokenizer.chat_template.NAME; "default" is
 * tokenizer.chat_template), else one of the library's. name NULL: the file's own, or its "tool_use"
 * if there are tools and the file has such a template. MOE_ERR_UNSUPPORTED, with the names that
 * exist, if there is none. */
int moe_chat_template_find(moe_chat_template *out, const moe_gguf *gguf, const char *name,
                           bool with_tools, moe_error *err);

/* The marks that separate reasoning from the answer. */
typedef struct moe_chat_marks {
    char open[48], close[48]; /* texts that the model writes; "": reasoning is not separated */
    bool has_channels;        /* gpt-oss: the header of each message names a channel */
    /* What the model writes before its answer, behind it, and at the end of its message; nobody is
     * shown these. "": nothing. */
    char answer_open[32], answer_close[32], message_close[32];
} moe_chat_marks;

typedef struct moe_chat_input {
    moe_chat_template chat_template;
    const char *messages; /* JSON */
    const char *tools;    /* JSON, or NULL */
    const char *kwargs;   /* a JSON object, or NULL */
    int thinking;         /* 0: as the template has it; > 0: on; < 0: off */
    bool add_generation_prompt;
    bool continue_final_message;
    int64_t now;              /* seconds since 1970 */
    moe_allowance *allowance; /* NULL: no limit */
} moe_chat_input;

typedef struct moe_chat_output {
    int32_t *tokens; /* malloc'ed, the caller's */
    size_t n_tokens;
    char *text; /* as rendered; malloc'ed, the caller's */
    size_t size;
    moe_template_span *spans; /* the text's spans, by origin */
    size_t n_spans;
    moe_chat_marks marks;
    bool in_reasoning; /* the text ends inside reasoning, which the model continues */
} moe_chat_output;

int moe_chat_render_input(const moe_tokenizer *tokenizer, const moe_chat_input *input,
                          moe_chat_output *out, moe_error *err);
void moe_chat_output_free(moe_chat_output *out);

#endif
