/* SPDX-License-Identifier: MIT */
/* Turns a conversation into a list of spans, alternating markup and plain text, which the tokenizer
 * encodes as one text. Each turn is cut off from the one before, so that the tokens of a
 * conversation begin with the tokens of its beginning. */
#include "runtime/model/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/chat_template_row.h"
#include "runtime/model/tokenizer_impl.h"

static bool holds(moe_string_view text, const char *part)
{
    return memmem(text.data, text.size, part, strlen(part)) != NULL;
}

static bool is_recognised(const moe_chat_template *row, moe_string_view text)
{
    for (size_t i = 0; i < sizeof row->signs / sizeof row->signs[0] && row->signs[i] != NULL; i++) {
        if (!holds(text, row->signs[i])) {
            return false;
        }
    }
    if (row->twice != NULL) {
        size_t size = strlen(row->twice);
        const char *at = memmem(text.data, text.size, row->twice, size);
        if (at == NULL || memmem(at + size, text.size - (size_t)(at + size - text.data), row->twice,
                                 size) == NULL) {
            return false;
        }
    }
    return row->unless == NULL || !holds(text, row->unless);
}

static void list_names(char *out, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < moe_chat_n_templates; i++) {
        size_t length = strlen(moe_chat_templates[i].name);
        if (n + length + 2 > size) {
            break;
        }
        if (n > 0) {
            out[n++] = ' ';
        }
        memcpy(out + n, moe_chat_templates[i].name, length);
        n += length;
    }
    out[n] = '\0';
}

int moe_chat_template_find(const moe_chat_template **out, const moe_gguf *gguf, moe_error *err)
{
    *out = NULL;
    moe_string_view text = {NULL, 0};
    int status = moe_gguf_get_string(gguf, "tokenizer.chat_template", &text, err);
    if (status != MOE_OK) {
        return status;
    }
    for (size_t i = 0; text.size > 0 && i < moe_chat_n_templates; i++) {
        if (is_recognised(&moe_chat_templates[i], text)) {
            *out = &moe_chat_templates[i];
            return MOE_OK;
        }
    }
    char names[256];
    list_names(names, sizeof names);
    return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s; known: %s",
                    text.size > 0 ? "tokenizer.chat_template is not a known template"
                                  : "the model has no tokenizer.chat_template",
                    names);
}

const moe_chat_template *moe_chat_template_by_name(const char *name)
{
    for (size_t i = 0; i < moe_chat_n_templates; i++) {
        if (strcmp(moe_chat_templates[i].name, name) == 0) {
            return &moe_chat_templates[i];
        }
    }
    return NULL;
}

const char *moe_chat_template_name(const moe_chat_template *chat)
{
    return chat->name;
}

typedef struct span_list {
    moe_text_span *spans;
    size_t n;
    bool cut; /* the next span begins a turn */
} span_list;

/* A turn takes at most this many spans; the start and the opening of an answer take fewer. */
#define SPANS_PER_TURN 6

static void add_span(span_list *list, moe_string_view text, bool is_markup)
{
    list->spans[list->n++] = (moe_text_span){
        .text = text.data, .size = text.size, .is_markup = is_markup, .cut = list->cut};
    list->cut = false;
}

static void add_markup(span_list *list, const char *markup)
{
    add_span(list, (moe_string_view){markup, strlen(markup)}, true);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static moe_string_view trimmed(moe_string_view text)
{
    while (text.size > 0 && is_space(text.data[0])) {
        text.data++;
        text.size--;
    }
    while (text.size > 0 && is_space(text.data[text.size - 1])) {
        text.size--;
    }
    return text;
}

static moe_string_view without_newlines(moe_string_view text)
{
    while (text.size > 0 && text.data[0] == '\n') {
        text.data++;
        text.size--;
    }
    while (text.size > 0 && text.data[text.size - 1] == '\n') {
        text.size--;
    }
    return text;
}

static const char think[] = "<think>";
static const char think_end[] = "</think>";

/* The text before the first "</think>", from the last "<think>" before it on. */
static moe_string_view reasoning_of(moe_string_view text)
{
    const char *end = memmem(text.data, text.size, think_end, strlen(think_end));
    if (end == NULL) {
        return (moe_string_view){"", 0};
    }
    moe_string_view before = {text.data, (size_t)(end - text.data)};
    for (;;) {
        const char *start = memmem(before.data, before.size, think, strlen(think));
        if (start == NULL) {
            return without_newlines(before);
        }
        start += strlen(think);
        before = (moe_string_view){start, (size_t)(end - start)};
    }
}

/* The text after the last "</think>". */
static moe_string_view after_reasoning(moe_string_view text)
{
    for (;;) {
        const char *end = memmem(text.data, text.size, think_end, strlen(think_end));
        if (end == NULL) {
            return text;
        }
        end += strlen(think_end);
        text = (moe_string_view){end, text.size - (size_t)(end - text.data)};
    }
}

/* Adds the last answer in Qwen3's template: with its reasoning, even if empty. */
static void add_last_answer(span_list *list, const moe_chat_template *chat, moe_string_view text)
{
    moe_string_view content = after_reasoning(text);
    while (content.size > 0 && content.data[0] == '\n') {
        content.data++;
        content.size--;
    }
    add_markup(list, chat->assistant.open);
    add_markup(list, "<think>\n");
    add_span(list, reasoning_of(text), false);
    add_markup(list, "\n</think>\n\n");
    add_span(list, content, false);
    add_markup(list, chat->assistant.close);
}

static moe_string_view history_answer(const moe_chat_template *chat, moe_string_view text)
{
    moe_string_view content = chat->drops_reasoning ? after_reasoning(text) : text;
    /* Only Qwen3's template removes the empty lines too. */
    while (chat->last_reasoning && content.data != text.data && content.size > 0 &&
           content.data[0] == '\n') {
        content.data++;
        content.size--;
    }
    return content;
}

typedef struct conversation {
    const moe_chat_turn *turns;
    size_t n;
    size_t last_question; /* n if there is none */
} conversation;

static void add_turn(span_list *list, const moe_chat_template *chat, const conversation *talk,
                     size_t index)
{
    const moe_chat_turn *turn = &talk->turns[index];
    moe_string_view text = {turn->size > 0 ? turn->text : "", turn->size};
    const moe_chat_markup *markup = &chat->user;
    const char *open = chat->user.open;
    list->cut = true;
    if (strcmp(turn->role, "system") == 0) {
        markup = &chat->system;
        open = markup->open;
    } else if (strcmp(turn->role, "assistant") == 0) {
        bool after = talk->last_question < talk->n && index > talk->last_question;
        if (chat->last_reasoning && after &&
            (index + 1 == talk->n || reasoning_of(text).size > 0)) {
            add_last_answer(list, chat, text);
            return;
        }
        text = history_answer(chat, text);
        markup = &chat->assistant;
        open = markup->open;
    } else if (chat->user_after_system != NULL && index > 0 &&
               strcmp(talk->turns[index - 1].role, "system") == 0) {
        open = chat->user_after_system;
    }
    add_markup(list, open);
    add_span(list, markup->trim ? trimmed(text) : text, false);
    add_markup(list, markup->close);
}

static int check_turns(const moe_chat_turn *turns, size_t n, moe_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *role = turns[i].role;
        if (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 &&
            strcmp(role, "assistant") != 0) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "turn %zu has the role \"%.40s\"; roles are system, user and assistant",
                            i, role);
        }
    }
    return MOE_OK;
}

/* Fills list; returns the index of the first span of turns[first]. */
static size_t add_conversation(span_list *list, const moe_chat_template *chat,
                               const moe_tokenizer *tokenizer, const conversation *talk,
                               size_t first, bool open_assistant)
{
    list->cut = true;
    /* If a turn's own markup begins with BOS, the start has already written it. */
    if (chat->start != NULL) {
        add_markup(list, chat->start);
    } else if (tokenizer->add_bos && chat->user.open[0] != MOE_MARK_BOS[0]) {
        add_markup(list, MOE_MARK_BOS);
    }
    if (chat->default_system != NULL &&
        (talk->n == 0 || strcmp(talk->turns[0].role, "system") != 0)) {
        add_markup(list, chat->system.open);
        add_markup(list, chat->default_system);
        add_markup(list, chat->system.close);
    }
    size_t first_span = 0;
    for (size_t i = 0; i < talk->n; i++) {
        if (i == first && i > 0) {
            first_span = list->n;
        }
        add_turn(list, chat, talk, i);
    }
    if (first > 0 && first == talk->n) {
        first_span = list->n;
    }
    if (open_assistant) {
        list->cut = true;
        add_markup(list, chat->answer);
    }
    return first_span;
}

int moe_chat_render(const moe_chat_template *chat, const moe_tokenizer *tokenizer,
                    const moe_chat_turn *turns, size_t n, size_t first, bool open_assistant,
                    int32_t **tokens, size_t *n_tokens, moe_error *err)
{
    *tokens = NULL;
    *n_tokens = 0;
    if (first > n) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "turn %zu of a conversation of %zu", first, n);
    }
    int status = check_turns(turns, n, err);
    if (status != MOE_OK) {
        return status;
    }
    span_list list = {.spans = moe_calloc((n + 2) * SPANS_PER_TURN, sizeof *list.spans)};
    if (list.spans == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for a conversation of %zu turns", n);
    }
    conversation talk = {.turns = turns, .n = n, .last_question = n};
    for (size_t i = 0; i < n; i++) {
        if (strcmp(turns[i].role, "user") == 0) {
            talk.last_question = i;
        }
    }
    size_t first_span = add_conversation(&list, chat, tokenizer, &talk, first, open_assistant);
    status = moe_tokenizer_encode_spans(tokenizer, list.spans, list.n, first_span, tokens, n_tokens,
                                        err);
    free(list.spans);
    return status;
}

int moe_chat_render_close(const moe_chat_template *chat, const moe_tokenizer *tokenizer,
                          int32_t **tokens, size_t *n_tokens, moe_error *err)
{
    const moe_text_span spans[] = {
        {.text = "", .cut = true},
        {.text = chat->assistant.close,
         .size = strlen(chat->assistant.close),
         .is_markup = true,
         .cut = true},
    };
    return moe_tokenizer_encode_spans(tokenizer, spans, 2, 1, tokens, n_tokens, err);
}
