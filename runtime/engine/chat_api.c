/* SPDX-License-Identifier: MIT */
/* The conversation functions of the public interface: a thin layer over the chat files of
 * runtime/model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/grammar/reasoned_grammar.h"
#include "runtime/model/chat_reply.h"

void moe_chat_options_init_sized(moe_chat_options *options, size_t struct_size)
{
    moe_chat_options defaults = {.struct_size = sizeof defaults, .add_generation_prompt = true};
    moe_struct_init(&moe_kind_chat_options, options, struct_size, &defaults);
}

struct moe_chat_prompt {
    moe_chat_output output;
};

static int choose_template(moe_chat_template *out, const moe_engine *engine,
                           const moe_chat_options *o, moe_error *err)
{
    if (o->template_text == NULL) {
        return moe_chat_template_find(out, engine->gguf, o->template_name, o->tools != NULL, err);
    }
    if (o->template_name != NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "template_name and template_text are both given; give one");
    }
    *out = (moe_chat_template){.source = {o->template_text, strlen(o->template_text)}};
    return MOE_OK;
}

/* If the error comes from the model's own template, adds the model's name to it. */
static int name_model(const moe_engine *engine, const moe_chat_options *o, int status,
                      moe_error *err)
{
    static const char start[] = "chat template";
    bool own = o->template_text == NULL && o->template_name == NULL;
    if (status != MOE_ERR_UNSUPPORTED || err == NULL || !own ||
        strncmp(err->message, start, strlen(start)) != 0) {
        return status;
    }
    moe_error inner = *err;
    return moe_fail(err, status, "%.200s: %.240s; options.template_name names another",
                    engine->model_path, inner.message);
}

int moe_chat_render(moe_chat_prompt **out, const moe_engine *engine,
                    const moe_chat_options *options, moe_error *err)
{
    return moe_chat_render_within(out, engine, options, NULL, err);
}

int moe_chat_render_within(moe_chat_prompt **out, const moe_engine *engine,
                           const moe_chat_options *options, moe_allowance *allowance,
                           moe_error *err)
{
    moe_chat_options o;
    moe_chat_input input;
    if (out != NULL) {
        *out = NULL;
    }
    if (out == NULL || engine == NULL) {
        return moe_fail_null(err, "moe_chat_render", "out or engine");
    }
    moe_chat_options_init(&o);
    int status = moe_struct_take(&moe_kind_chat_options, &o, options, err);
    if (status == MOE_OK && o.messages == NULL) {
        status = moe_fail_null(err, "moe_chat_render", "options->messages");
    }
    if (status == MOE_OK) {
        status = moe_engine_need_tokenizer(engine, err);
    }
    if (status == MOE_OK) {
        status = choose_template(&input.chat_template, engine, &o, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    moe_chat_prompt *prompt = moe_calloc(1, sizeof *prompt);
    if (prompt == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a conversation");
    }
    input.messages = o.messages;
    input.tools = o.tools;
    input.kwargs = o.template_arguments;
    input.thinking = o.thinking == MOE_SWITCH_ON ? 1 : o.thinking == MOE_SWITCH_OFF ? -1 : 0;
    input.add_generation_prompt = o.add_generation_prompt;
    input.continue_final_message = o.continue_final_message;
    input.now = o.now != 0 ? o.now : (int64_t)time(NULL);
    input.allowance = allowance;
    status = moe_chat_render_input(engine->tokenizer, &input, &prompt->output, err);
    if (status != MOE_OK) {
        moe_chat_prompt_close(&prompt);
        return name_model(engine, &o, status, err);
    }
    *out = prompt;
    return MOE_OK;
}

void moe_chat_prompt_close(moe_chat_prompt **prompt)
{
    if (prompt != NULL && *prompt != NULL) {
        moe_chat_output_free(&(*prompt)->output);
        free(*prompt);
        *prompt = NULL;
    }
}

const int32_t *moe_chat_prompt_tokens(const moe_chat_prompt *prompt, size_t *n)
{
    if (n != NULL) {
        *n = prompt != NULL ? prompt->output.n_tokens : 0;
    }
    return prompt != NULL ? prompt->output.tokens : NULL;
}

const char *moe_chat_prompt_text(const moe_chat_prompt *prompt, size_t *size)
{
    if (size != NULL) {
        *size = prompt != NULL ? prompt->output.size : 0;
    }
    return prompt != NULL ? prompt->output.text : "";
}

/* ---- Grammars ---- */

static moe_grammar_mark mark_of(const moe_engine *engine, const char *text)
{
    int32_t token = moe_tokenizer_find(engine->tokenizer, text, strlen(text));
    bool is_control = token >= 0 && moe_tokenizer_is_control(engine->tokenizer, token);
    return (moe_grammar_mark){text, is_control ? token : -1};
}

/* Appends a mark as grammars have it: its tags that are control tokens by their numbers. */
static void add_mark(const moe_engine *engine, const char *mark, char *out, size_t size)
{
    while (*mark != '\0') {
        const char *end = *mark == '<' ? strchr(mark, '>') : strchr(mark, '<');
        const size_t n = end == NULL ? strlen(mark) : (size_t)(end - mark) + (*mark == '<');
        const int32_t token = moe_tokenizer_find(engine->tokenizer, mark, n);
        const size_t used = strlen(out);
        if (token >= 0 && moe_tokenizer_is_control(engine->tokenizer, token)) {
            snprintf(out + used, size - used, " <[%d]>", (int)token);
        } else {
            snprintf(out + used, size - used, " \"%.*s\"", (int)n, mark);
        }
        mark += n;
    }
}

/* The answer stands between marks of its own, behind the reasoning that the prompt may have begun.
 * Reasoning holds no control token; where its end is spelt as text, it holds no "<". */
static int put_between(moe_grammar **out, const moe_engine *engine, const moe_chat_output *chat,
                       const moe_grammar *answer, moe_allowance *allowance, moe_error *err)
{
    const moe_chat_marks *marks = &chat->marks;
    char close[96] = "", opening[96] = "", closing[96] = "", ending[96] = "";
    char before[256] = "", behind[256];
    add_mark(engine, marks->close, close, sizeof close);
    add_mark(engine, marks->answer_open, opening, sizeof opening);
    add_mark(engine, marks->answer_close, closing, sizeof closing);
    add_mark(engine, marks->message_close, ending, sizeof ending);
    if (chat->in_reasoning) {
        const bool is_control = strncmp(close, " <[", 3) == 0;
        snprintf(before, sizeof before, "%s%s%s", is_control ? ".*" : "[^<]*", close, opening);
    }
    snprintf(behind, sizeof behind, "(%s )? (%s )?", closing, ending);
    return moe_grammar_between(out, answer, before, behind, allowance, err);
}

int moe_chat_grammar_create(moe_grammar **out, const moe_engine *engine,
                            const moe_chat_prompt *prompt, moe_grammar *answer, moe_error *err)
{
    return moe_chat_grammar_create_within(out, engine, prompt, answer, NULL, err);
}

int moe_chat_grammar_create_within(moe_grammar **out, const moe_engine *engine,
                                   const moe_chat_prompt *prompt, moe_grammar *answer,
                                   moe_allowance *allowance, moe_error *err)
{
    if (out != NULL) {
        *out = NULL;
    }
    if (out == NULL || engine == NULL || prompt == NULL || answer == NULL) {
        return moe_fail_null(err, "moe_chat_grammar_create", "out, engine, prompt or answer");
    }
    const moe_chat_marks *marks = &prompt->output.marks;
    if (engine->tokenizer == NULL || marks->has_channels || marks->open[0] == '\0') {
        *out = moe_grammar_hold(answer);
        return MOE_OK;
    }
    if (marks->answer_open[0] != '\0') {
        return put_between(out, engine, &prompt->output, answer, allowance, err);
    }
    return moe_grammar_after_reasoning(out, answer, mark_of(engine, marks->open),
                                       mark_of(engine, marks->close), prompt->output.in_reasoning,
                                       allowance, err);
}

/* ---- Marks ---- */

bool moe_chat_prompt_marks(const moe_chat_prompt *prompt, const char **open, const char **close)
{
    if (open != NULL) {
        *open = prompt != NULL ? prompt->output.marks.open : "";
    }
    if (close != NULL) {
        *close = prompt != NULL ? prompt->output.marks.close : "";
    }
    return prompt != NULL && prompt->output.in_reasoning;
}

/* ---- Replies ---- */

struct moe_chat_reply {
    const moe_engine *engine; /* held */
    moe_reply_reader reader;
};

int moe_chat_reply_create(moe_chat_reply **out, const moe_engine *engine,
                          const moe_chat_prompt *prompt, moe_error *err)
{
    if (out != NULL) {
        *out = NULL;
    }
    if (out == NULL || engine == NULL || prompt == NULL) {
        return moe_fail_null(err, "moe_chat_reply_create", "out, engine or prompt");
    }
    if (engine->tokenizer == NULL) {
        return moe_engine_need_tokenizer(engine, err);
    }
    moe_chat_reply *reply = moe_calloc(1, sizeof *reply);
    if (reply == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a reply");
    }
    int status = moe_reply_open(&reply->reader, engine->tokenizer, &prompt->output.marks,
                                prompt->output.in_reasoning, err);
    if (status != MOE_OK) {
        free(reply);
        return status;
    }
    reply->engine = engine;
    moe_engine_hold(engine);
    *out = reply;
    return MOE_OK;
}

void moe_chat_reply_close(moe_chat_reply **reply)
{
    if (reply != NULL && *reply != NULL) {
        const moe_engine *engine = (*reply)->engine;
        moe_reply_close(&(*reply)->reader);
        free(*reply);
        *reply = NULL;
        moe_engine_release(engine);
    }
}

void moe_chat_reply_keep_markup(moe_chat_reply *reply)
{
    if (reply != NULL) {
        reply->reader.keeps_markup = true;
    }
}

static void give(const moe_chat_reply *reply, const char **reasoning, const char **content)
{
    if (reasoning != NULL) {
        *reasoning = reply != NULL ? reply->reader.out[MOE_REPLY_REASONING].data : "";
    }
    if (content != NULL) {
        *content = reply != NULL ? reply->reader.out[MOE_REPLY_CONTENT].data : "";
    }
}

void moe_chat_reply_push(moe_chat_reply *reply, int32_t token, const char **reasoning,
                         const char **content)
{
    if (reply != NULL) {
        moe_reply_push(&reply->reader, token);
    }
    give(reply, reasoning, content);
}

void moe_chat_reply_cut_off(moe_chat_reply *reply)
{
    if (reply != NULL) {
        moe_reply_cut_off(&reply->reader);
    }
}

void moe_chat_reply_finish(moe_chat_reply *reply, const char **reasoning, const char **content)
{
    if (reply != NULL) {
        moe_reply_finish(&reply->reader);
    }
    give(reply, reasoning, content);
}
