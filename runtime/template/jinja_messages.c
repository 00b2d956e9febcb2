/* SPDX-License-Identifier: MIT */
/* Prepares messages for a template: roles that count as markup, reasoning under each name that
 * templates use, the arguments of tool calls as objects, and the mark behind a message that the
 * model is to continue. */
#include "runtime/template/jinja_messages.h"

#include <string.h>

#include "runtime/template/jinja_json.h"

static jinja_value key_of(jinja_context *c, const char *name)
{
    return jinja_string(c, jinja_text_of(name, JINJA_DATA));
}

static jinja_value *find(const jinja_dict *dict, const char *name)
{
    for (size_t i = 0; i < dict->n; i++) {
        jinja_entry *entry = &dict->entries[i];
        if (entry->key.kind == JINJA_STRING && jinja_text_is(*entry->key.text, name)) {
            return &entry->value;
        }
    }
    return NULL;
}

/* Marks a role of the protocol (markup_roles) as written by the template, because templates
 * write "<|" + role + "|>" and expect a control token. */
static void mark_role(jinja_context *c, jinja_dict *message)
{
    jinja_value *value = find(message, "role");
    if (value == NULL || value->kind != JINJA_STRING || c->input->markup_roles == NULL) {
        return;
    }
    for (const char *const *role = c->input->markup_roles; *role != NULL; role++) {
        if (jinja_text_is(*value->text, *role)) {
            *value = jinja_string(c, jinja_text_of(*role, JINJA_MARKUP));
        }
    }
}

/* Gives reasoning the names that templates use, as transformers does: gpt-oss reads "thinking",
 * all others "reasoning_content". */
static void name_reasoning(jinja_context *c, jinja_dict *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    jinja_value *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && found == NULL; i++) {
        found = find(message, names[i]);
        found = found != NULL && found->kind != JINJA_NONE ? found : NULL;
    }
    if (found == NULL) {
        return;
    }
    jinja_value reasoning = *found;
    jinja_dict before = *message;
    *message = (jinja_dict){0};
    jinja_dict_set(c, message, key_of(c, "thinking"), reasoning);
    for (size_t i = 0; i < before.n; i++) {
        jinja_dict_set(c, message, before.entries[i].key, before.entries[i].value);
    }
    jinja_dict_set(c, message, key_of(c, "reasoning_content"), reasoning);
}

/* Makes the arguments a dict; a text that is not a JSON object stays a text. */
static void parse_arguments(jinja_context *c, jinja_dict *function)
{
    jinja_value *arguments = find(function, "arguments");
    jinja_value parsed;
    if (arguments != NULL && arguments->kind == JINJA_STRING &&
        jinja_try_json_object(c, arguments->text->data, arguments->text->size, &parsed)) {
        parsed.dict->source = arguments->text;
        *arguments = parsed;
    }
}

static void parse_calls(jinja_context *c, const jinja_dict *message)
{
    const jinja_value *calls = find(message, "tool_calls");
    if (calls == NULL || calls->kind != JINJA_LIST) {
        return;
    }
    for (size_t i = 0; i < calls->list->n; i++) {
        jinja_value call = calls->list->items[i];
        if (call.kind != JINJA_DICT) {
            continue;
        }
        const jinja_value *function = find(call.dict, "function");
        parse_arguments(c, function != NULL && function->kind == JINJA_DICT ? function->dict
                                                                            : call.dict);
    }
}

static bool has_word(const moe_template_input *input, const char *word)
{
    return memmem(input->source, input->size, word, strlen(word)) != NULL;
}

static bool knows_parts(const moe_template_input *input)
{
    return has_word(input, "'text'") || has_word(input, "\"text\"") || has_word(input, ".text");
}

/* Joins parts of text into one text, for a template that only handles texts. */
static void join_parts(jinja_context *c, const jinja_dict *message)
{
    jinja_value *content = find(message, "content");
    if (content == NULL || content->kind != JINJA_LIST || knows_parts(c->input)) {
        return;
    }
    jinja_builder text = jinja_build(c);
    for (size_t i = 0; i < content->list->n; i++) {
        jinja_value part = content->list->items[i];
        const jinja_value *words = part.kind == JINJA_DICT ? find(part.dict, "text") : NULL;
        if (words == NULL || words->kind != JINJA_STRING) {
            jinja_fail(c, MOE_ERR_ARGUMENT,
                       "the template takes texts only, and a message has a part that is none");
        }
        jinja_add(&text, *words->text);
    }
    *content = jinja_string(c, jinja_built(&text));
}

/* The tag that is put behind the content of the message to be continued. If its space is missing in
 * the rendered text, the template has trimmed the content. */
static const char tag[] = "\uE000end of the message to be continued\uE001 ";
#define TAG_SIZE (sizeof tag - 2) /* without the space */

static void tag_final_message(jinja_context *c, jinja_value messages)
{
    if (messages.list->n == 0) {
        jinja_fail(c, MOE_ERR_ARGUMENT, "there is no message to continue");
    }
    jinja_value last = messages.list->items[messages.list->n - 1];
    jinja_value *content = last.kind == JINJA_DICT ? find(last.dict, "content") : NULL;
    if (content != NULL && content->kind == JINJA_LIST) {
        jinja_list *parts = content->list;
        content = NULL;
        for (size_t i = parts->n; i > 0 && content == NULL; i--) {
            jinja_value part = parts->items[i - 1];
            content = part.kind == JINJA_DICT ? find(part.dict, "text") : NULL;
        }
    }
    if (content == NULL || content->kind != JINJA_STRING) {
        jinja_fail(c, MOE_ERR_ARGUMENT, "the last message has no text to continue");
    }
    c->continued = content->text;
    *content = jinja_string(c, jinja_concat(c, *content->text, jinja_text_of(tag, JINJA_DATA)));
}

size_t jinja_find_continuation(jinja_context *c, const jinja_builder *out)
{
    jinja_text text = {.data = out->data, .size = out->size};
    jinja_text mark = {.data = tag, .size = TAG_SIZE};
    size_t at = out->size == 0 ? SIZE_MAX : jinja_find_last(c, text, mark, out->size);
    jinja_text whole = jinja_strip(c, *c->continued, NULL, true, true);
    if (at == SIZE_MAX || jinja_find(c, text, whole, 0) == SIZE_MAX) {
        jinja_fail(c, MOE_ERR_ARGUMENT,
                   "the template leaves out the last message or parts of it, so it cannot be "
                   "continued");
    }
    if (at + TAG_SIZE < out->size && out->data[at + TAG_SIZE] == ' ') {
        return at;
    }
    return jinja_strip(c, jinja_part(text, 0, at), NULL, false, true).size;
}

void jinja_prepare_messages(jinja_context *c, jinja_value messages)
{
    if (messages.kind != JINJA_LIST) {
        jinja_fail(c, MOE_ERR_ARGUMENT, "messages must be a list");
    }
    for (size_t i = 0; i < messages.list->n; i++) {
        jinja_value message = messages.list->items[i];
        if (message.kind != JINJA_DICT) {
            jinja_fail(c, MOE_ERR_ARGUMENT, "message %zu is no object with role and content", i);
        }
        mark_role(c, message.dict);
        if (c->input->adapt_messages) {
            name_reasoning(c, message.dict);
            parse_calls(c, message.dict);
            join_parts(c, message.dict);
        }
    }
    if (c->input->continue_final_message) {
        tag_final_message(c, messages);
    }
}
