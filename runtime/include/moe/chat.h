/* SPDX-License-Identifier: MIT */
/* Conversations: messages to tokens through the model's chat template, and what the model writes
 * taken apart into its reasoning and its answer.
 *
 * Templates are programs in the Jinja language, which the library interprets as the transformers
 * library does. They come with model files and are not trusted: steps, memory and nesting are
 * bounded. What a user or a tool wrote never becomes a control token, whatever it says.
 *
 * Errors, ownership and sizes of structs are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *   free:    moe_chat_options_init_sized, moe_chat_options_init
 *   reading: moe_chat_render, moe_chat_prompt_tokens, moe_chat_prompt_text, moe_chat_reply_create
 *   in turn: moe_session_follow
 *   own:     moe_chat_reply_push, moe_chat_reply_finish, moe_chat_reply_close
 *   last:    moe_chat_prompt_close */
#ifndef MOE_CHAT_H
#define MOE_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/moe.h>
#include <moe/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_chat_options {
    size_t struct_size; /* set by moe_chat_options_init() */
    /* JSON, as OpenAI's interface has it: an array of messages with "role" and "content" (a string,
     * or parts of text), and where they apply "tool_calls", "tool_call_id", "name" and
     * "reasoning_content". Required */
    const char *messages;
    const char *tools; /* JSON: [{"type": "function", "function": {...}}, ...]; NULL: none */
    /* The template: one of the file's by its name (tokenizer.chat_template.NAME; "default" is
     * tokenizer.chat_template itself), else one that the library knows ("chatml", "llama3", ...).
     * NULL: the file's; of several "tool_use" where there are tools */
    const char *template_name;
    const char *template_text; /* a template itself, instead of a name; NULL: none */
    /* Further variables of the template, a JSON object such as {"reasoning_effort": "low"}; NULL:
     * none. They cannot name what the library sets itself. */
    const char *template_arguments;
    /* Sets what templates call enable_thinking, thinking and thinking_budget. auto: as the template
     * has it. MOE_ERR_UNSUPPORTED where the template has no such switch */
    moe_switch thinking;
    bool add_generation_prompt;  /* opens the assistant's turn. Default true */
    bool continue_final_message; /* the last message is to be gone on with. Default false */
    uint8_t reserved[2];         /* must be 0 */
    int64_t now; /* seconds since 1970, for templates that write the date; 0: the clock's */
} moe_chat_options;

MOE_API void moe_chat_options_init_sized(moe_chat_options *options, size_t struct_size);
static inline void moe_chat_options_init(moe_chat_options *options)
{
    moe_chat_options_init_sized(options, sizeof *options);
}

/* A conversation that was rendered. */
typedef struct moe_chat_prompt moe_chat_prompt;

/* MOE_ERR_ARGUMENT where a JSON is none or the template refuses the messages, with the template's
 * own words; MOE_ERR_UNSUPPORTED where the model has no template, or one that is wrong, needs what
 * the library does not have or goes beyond a limit. */
MOE_API int moe_chat_render(moe_chat_prompt **out, const moe_engine *engine,
                            const moe_chat_options *options, moe_error *err);
MOE_API void moe_chat_prompt_close(moe_chat_prompt **prompt);
/* Living as long as the prompt. */
MOE_API const int32_t *moe_chat_prompt_tokens(const moe_chat_prompt *prompt, size_t *n);
/* As the template wrote it, terminated. */
MOE_API const char *moe_chat_prompt_text(const moe_chat_prompt *prompt, size_t *size);

/* Makes `tokens` the timeline of the session. What it has in common with the timeline from the
 * start on stays, evaluated as it is; the rest of the timeline is cut off, the rest of the tokens
 * fed. The last token is always fed, so that the next step samples. *n_kept (may be NULL): tokens
 * that stay. A conversation is gone on with by rendering all of it and calling this: only what is
 * new is evaluated, and where a template changes what was said before, from that place on. On error
 * (see moe_session_feed()) the timeline may be cut. */
MOE_API int moe_session_follow(moe_session *session, const int32_t *tokens, size_t n,
                               size_t *n_kept, moe_error *err);

/* Takes apart what a model writes after a prompt. The marks of reasoning (such as "<think>" and
 * "</think>", or the channels of gpt-oss) are those that the template speaks of, or else those that
 * the vocabulary has. */
typedef struct moe_chat_reply moe_chat_reply;
MOE_API int moe_chat_reply_create(moe_chat_reply **out, const moe_engine *engine,
                                  const moe_chat_prompt *prompt, moe_error *err);
MOE_API void moe_chat_reply_close(moe_chat_reply **reply);
/* What this token completed: of the reasoning, and of the answer behind it. Marks and the white
 * space around reasoning are left out. Terminated, "" where there is none, valid until the next
 * call. moe_text_push() is the one to use where the text is wanted as it is. */
MOE_API void moe_chat_reply_push(moe_chat_reply *reply, int32_t token, const char **reasoning,
                                 const char **content);
/* What was held back because a mark might have begun. */
MOE_API void moe_chat_reply_finish(moe_chat_reply *reply, const char **reasoning,
                                   const char **content);

#ifdef __cplusplus
}
#endif

#endif
