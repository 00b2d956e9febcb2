/* SPDX-License-Identifier: MIT */
/* Conversations: turns messages into tokens through the model's chat template, and separates what
 * the model writes into its reasoning and its answer.
 *
 * Templates are programs in the Jinja language, which the library interprets as the transformers
 * library does. They come with model files and are not trusted: steps, memory and nesting are
 * bounded. Text of a user or a tool never becomes a control token.
 *
 * Errors, ownership and sizes of structs are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *  free:    moe_chat_options_init_sized, moe_chat_options_init
 *  reading: moe_chat_render, moe_chat_prompt_tokens, moe_chat_prompt_text, moe_chat_prompt_marks,
 *           moe_chat_reply_create
 *  in turn: moe_session_follow
 *  own:     moe_chat_reply_push, moe_chat_reply_cut_off, moe_chat_reply_finish,
 *           moe_chat_reply_keep_markup,
 *           moe_chat_reply_close
 *  last:    moe_chat_prompt_close */
#ifndef MOE_CHAT_H
#define MOE_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>
#include <moe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_chat_options {
    size_t struct_size; /* set by moe_chat_options_init() */
    /* JSON in the form of OpenAI's interface: an array of messages with "role" and "content" (a
     * string, or parts of text), and optionally "tool_calls", "tool_call_id", "name" and
     * "reasoning_content". Required */
    const char *messages;
    const char *tools; /* JSON: [{"type": "function", "function": {...}}, ...]; NULL: none */
    /* Names the template: one of the file's (tokenizer.chat_template.NAME; "default" is
     * tokenizer.chat_template itself), else one that the library knows ("chatml", "llama3", ...).
     * NULL: the file's; if it has several, "tool_use" when there are tools */
    const char *template_name;
    const char *template_text; /* the template's text, in place of a name; NULL: none */
    /* Further variables of the template, a JSON object such as {"reasoning_effort": "low"}; NULL:
     * none. They cannot replace variables that the library sets itself. */
    const char *template_arguments;
    /* Sets the template's enable_thinking, thinking and thinking_budget. auto: the template's own
     * default. MOE_ERR_UNSUPPORTED if the template has no such switch */
    moe_switch thinking;
    bool add_generation_prompt;  /* opens the assistant's turn. Default true */
    bool continue_final_message; /* the model is to continue the last message. Default false */
    uint8_t reserved[2];         /* must be 0 */
    int64_t now; /* seconds since 1970, for templates that write the date; 0: the current time */
} moe_chat_options;

MOE_API void moe_chat_options_init_sized(moe_chat_options *options, size_t struct_size);
static inline void moe_chat_options_init(moe_chat_options *options)
{
    moe_chat_options_init_sized(options, sizeof *options);
}

/* A rendered conversation. */
typedef struct moe_chat_prompt moe_chat_prompt;

/* Renders a conversation. The tokens are exactly those of the template's text: only the template
 * adds a BOS. MOE_ERR_ARGUMENT if a text is not valid JSON or the template refuses the messages,
 * with the template's own words; MOE_ERR_UNSUPPORTED if the model has no template, or one that is
 * wrong, needs something that the library does not have, or exceeds a limit. */
MOE_API int moe_chat_render(moe_chat_prompt **out, const moe_engine *engine,
                            const moe_chat_options *options, moe_error *err);
MOE_API void moe_chat_prompt_close(moe_chat_prompt **prompt);
/* Returns the prompt's tokens, valid as long as the prompt. */
MOE_API const int32_t *moe_chat_prompt_tokens(const moe_chat_prompt *prompt, size_t *n);
/* The text that the template wrote, terminated. */
MOE_API const char *moe_chat_prompt_text(const moe_chat_prompt *prompt, size_t *size);
/* The marks around reasoning: *open and *close (each may be NULL), "" if there are none; valid as
 * long as the prompt. True if the prompt ends within reasoning, which the model continues. */
MOE_API bool moe_chat_prompt_marks(const moe_chat_prompt *prompt, const char **open,
                                   const char **close);

/* Makes `tokens` the timeline of the session. The common beginning of the two stays evaluated; the
 * rest of the timeline is cut off, and the rest of the tokens is fed. The last token is always fed,
 * so that the next step samples. *n_kept (may be NULL): tokens that stay. To continue a
 * conversation, render all of it and call this: only new tokens are evaluated, or, if the template
 * changes earlier text, everything from the change on. On error (see moe_session_feed()) the
 * timeline may be cut. */
MOE_API int moe_session_follow(moe_session *session, const int32_t *tokens, size_t n,
                               size_t *n_kept, moe_error *err);

/* Separates reasoning and answer in what a model writes after a prompt. The marks of reasoning
 * (such as "<think>" and "</think>", or the channels of gpt-oss) are those that the template names,
 * or else those that the vocabulary has. */
typedef struct moe_chat_reply moe_chat_reply;
MOE_API int moe_chat_reply_create(moe_chat_reply **out, const moe_engine *engine,
                                  const moe_chat_prompt *prompt, moe_error *err);
MOE_API void moe_chat_reply_close(moe_chat_reply **reply);
/* For programs that read tool calls from the content: also returns control tokens as text, except
 * the marks of reasoning and tokens that end a text. A message of gpt-oss to a tool comes as
 * "<|start|>", its header, "<|message|>", its text, "<|call|>". Call it before the first token. */
MOE_API void moe_chat_reply_keep_markup(moe_chat_reply *reply);
/* Returns the text that this token completed, of the reasoning and of the answer after it, without
 * marks and the white space around reasoning. Terminated, "" if there is none, valid until the next
 * call. To get the text unchanged use moe_text_push(). */
MOE_API void moe_chat_reply_push(moe_chat_reply *reply, int32_t token, const char **reasoning,
                                 const char **content);
/* Says that the text was cut off here: if its last character is incomplete, moe_chat_reply_finish()
 * then leaves it out instead of returning U+FFFD. */
MOE_API void moe_chat_reply_cut_off(moe_chat_reply *reply);
/* Returns the text that was held back because it might have been the beginning of a mark. */
MOE_API void moe_chat_reply_finish(moe_chat_reply *reply, const char **reasoning,
                                   const char **content);

#ifdef __cplusplus
}
#endif

#endif
