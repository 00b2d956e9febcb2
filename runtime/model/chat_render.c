/* SPDX-License-Identifier: MIT */
/* Renders a conversation by its template: sets the variables that templates use, renders the text,
 * and tokenizes it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/chat_marks.h"
#include "runtime/model/chat_template.h"
#include "runtime/model/tokenizer_state.h"
#include "runtime/template/template.h"

/* Text of these role names counts as the template's own. */
static const char *const roles[] = {"system", "user",    "assistant",   "tool",     "developer",
                                    "model",  "ipython", "observation", "function", NULL};

#define MAX_VARIABLES 20

typedef struct variable_list {
    moe_template_variable items[MAX_VARIABLES];
    size_t n;
} variable_list;

static void add_json(variable_list *list, const char *name, const char *json)
{
    list->items[list->n++] =
        (moe_template_variable){.name = name, .text = json, .size = strlen(json)};
}

static void add_bool(variable_list *list, const char *name, bool value)
{
    add_json(list, name, value ? "true" : "false");
}

/* Sets a variable to a token's text. A token that the vocabulary lacks leaves the variable
 * undefined, as in transformers; for the library's own templates it is an empty text. */
static void add_token(variable_list *list, const char *name, const moe_tokenizer *tokenizer,
                      int32_t id, bool always)
{
    if (id != MOE_NO_TOKEN || always) {
        moe_string_view piece = {"", 0};
        if (id != MOE_NO_TOKEN) {
            piece = moe_vocab_piece(&tokenizer->vocab, id);
        }
        list->items[list->n++] = (moe_template_variable){
            .name = name, .text = piece.data, .size = piece.size, .is_markup = true};
    }
}

static void fill_variables(variable_list *list, const moe_tokenizer *tokenizer,
                           const moe_chat_input *input)
{
    const bool known = input->chat_template.is_built_in;
    add_json(list, "messages", input->messages);
    add_json(list, "tools", input->tools != NULL ? input->tools : "null");
    add_json(list, "documents", "null");
    add_bool(list, "add_generation_prompt", input->add_generation_prompt);
    add_token(list, "bos_token", tokenizer, tokenizer->bos, known);
    add_token(list, "eos_token", tokenizer, tokenizer->eos, known);
    add_token(list, "unk_token", tokenizer, tokenizer->unknown, false);
    add_token(list, "pad_token", tokenizer, tokenizer->padding, false);
    if (known) {
        add_bool(list, "add_bos", tokenizer->add_bos && tokenizer->bos != MOE_NO_TOKEN);
    }
    /* Templates use different names for this switch. */
    if (input->thinking != 0) {
        add_bool(list, "enable_thinking", input->thinking > 0);
        add_bool(list, "thinking", input->thinking > 0);
        if (input->thinking < 0) {
            add_json(list, "thinking_budget", "0");
        }
    }
}

static int render_text(const moe_tokenizer *tokenizer, const moe_chat_input *input,
                       moe_template_output *out, moe_error *err)
{
    variable_list variables = {.n = 0};
    fill_variables(&variables, tokenizer, input);
    const moe_template_input asked = {
        .source = input->chat_template.source.data,
        .size = input->chat_template.source.size,
        .variables = variables.items,
        .n_variables = variables.n,
        .more_variables = input->kwargs,
        .markup_roles = roles,
        .now = input->now,
        .adapt_messages = true,
        .continue_final_message = input->continue_final_message,
        .allowance = input->allowance,
    };
    return moe_template_render(&asked, out, err);
}

static void give_back(const moe_chat_input *input, moe_template_output *text)
{
    moe_allowance_give(input->allowance, moe_template_output_bytes(text));
    moe_template_output_free(text);
}

/* Fails if the switch for thinking has no effect: the model would think, or not think, against the
 * caller's wish. */
static int check_switch(const moe_tokenizer *tokenizer, const moe_chat_input *input, moe_error *err)
{
    moe_chat_input on = *input;
    moe_template_output texts[2];
    on.thinking = 1;
    on.add_generation_prompt = true;
    on.continue_final_message = false;
    moe_chat_input off = on;
    off.thinking = -1;
    if (input->thinking == 0 || render_text(tokenizer, &on, &texts[0], NULL) != MOE_OK) {
        return MOE_OK;
    }
    if (render_text(tokenizer, &off, &texts[1], NULL) != MOE_OK) {
        give_back(input, &texts[0]);
        return MOE_OK;
    }
    bool same =
        texts[0].size == texts[1].size && memcmp(texts[0].text, texts[1].text, texts[0].size) == 0;
    give_back(input, &texts[0]);
    give_back(input, &texts[1]);
    return same ? moe_fail(err, MOE_ERR_UNSUPPORTED,
                           "options.thinking: the chat template has no switch that turns it %s; "
                           "leave it as "
                           "it is, or set what the template has (such as reasoning_effort) by "
                           "options.template_arguments",
                           input->thinking > 0 ? "on" : "off")
                : MOE_OK;
}

static int encode(const moe_tokenizer *tokenizer, const moe_chat_input *input,
                  const moe_template_output *text, moe_chat_output *out, moe_error *err)
{
    moe_text_span *spans =
        moe_allowance_grow(input->allowance, NULL, 0, text->n_spans + 1, sizeof *spans);
    if (spans == NULL) {
        return moe_allowance_fail(input->allowance, err, "a conversation");
    }
    const char *at = text->text;
    for (size_t i = 0; i < text->n_spans; i++) {
        spans[i] = (moe_text_span){
            .text = at, .size = text->spans[i].size, .is_markup = text->spans[i].is_markup};
        at += spans[i].size;
    }
    int status =
        moe_tokenizer_encode_spans(tokenizer, spans, text->n_spans, input->chat_template.source,
                                   &out->tokens, &out->n_tokens, input->allowance, err);
    free(spans);
    moe_allowance_give(input->allowance, (text->n_spans + 1) * sizeof *spans);
    return status;
}

static bool is_token(const moe_tokenizer *tokenizer, const char *text)
{
    return moe_tokenizer_find(tokenizer, text, strlen(text)) != MOE_NO_TOKEN;
}

/* Finds the marks that the template uses, else those for which the vocabulary has tokens. */
static moe_chat_marks find_marks(const moe_tokenizer *tokenizer, moe_string_view source)
{
    size_t n;
    moe_chat_marks found;
    const moe_chat_marks *known = moe_chat_known_marks(&n);
    if (moe_chat_marks_in(source, &found) ||
        (moe_chat_marks_with_suffix(moe_tokenizer_special(tokenizer, MOE_CHAT_SUFFIXED_MARK),
                                    &found) &&
         is_token(tokenizer, found.open))) {
        return found;
    }
    for (size_t i = 0; i < n; i++) {
        if (!known[i].has_channels && is_token(tokenizer, known[i].open) &&
            is_token(tokenizer, known[i].close)) {
            return known[i];
        }
    }
    return (moe_chat_marks){.has_channels = false};
}

int moe_chat_render_input(const moe_tokenizer *tokenizer, const moe_chat_input *input,
                          moe_chat_output *out, moe_error *err)
{
    moe_template_output text;
    *out = (moe_chat_output){0};
    if (input->add_generation_prompt && input->continue_final_message) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "the last message is either continued or followed by a new one "
                        "(add_generation_prompt and continue_final_message are both set)");
    }
    int status = render_text(tokenizer, input, &text, err);
    if (status == MOE_OK) {
        status = check_switch(tokenizer, input, err);
    }
    if (status == MOE_OK) {
        status = encode(tokenizer, input, &text, out, err);
    }
    if (status == MOE_OK) {
        out->marks = find_marks(tokenizer, input->chat_template.source);
        out->in_reasoning =
            moe_chat_is_reasoning(&out->marks, text.text, text.size, input->continue_final_message);
        out->text = text.text;
        out->size = text.size;
        out->spans = text.spans;
        out->n_spans = text.n_spans;
        text = (moe_template_output){0};
    }
    moe_template_output_free(&text);
    return status;
}

void moe_chat_output_free(moe_chat_output *out)
{
    free(out->tokens);
    free(out->text);
    free(out->spans);
    *out = (moe_chat_output){0};
}
