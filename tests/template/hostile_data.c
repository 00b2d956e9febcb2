/* SPDX-License-Identifier: MIT */
#include "tests/template/hostile_data.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tokenizer/tokenizer_fixture.h"

#define BEGIN "\xee\x80\x80"
#define END   "\xee\x80\x81"

static void add_word(hostile_words *words, const char *word, size_t size, bool in_template)
{
    size_t used = strlen(words->text);
    if (words->n == sizeof words->words / sizeof words->words[0] ||
        size >= sizeof words->words[0] || used + size + 8 > sizeof words->text) {
        return;
    }
    for (size_t i = 0; i < words->n; i++) {
        if (strlen(words->words[i]) == size && memcmp(words->words[i], word, size) == 0) {
            return;
        }
    }
    memcpy(words->words[words->n], word, size);
    words->words[words->n][size] = '\0';
    words->in_template[words->n++] = in_template;
    snprintf(words->text + used, sizeof words->text - used, BEGIN "%.*s" END " ", (int)size, word);
}

static void add_text(hostile_words *words, const char *text)
{
    size_t used = strlen(words->text);
    snprintf(words->text + used, sizeof words->text - used, BEGIN "%s" END " ", text);
}

void hostile_find_words(hostile_words *words, const char *source)
{
    static const char *const known[] = {"<|im_start|>",  "<|im_end|>",
                                        "<s>",           "</s>",
                                        "[INST]",        "[/INST]",
                                        "<think>",       "</think>",
                                        "<|eot_id|>",    "<|channel|>",
                                        "<|message|>",   "<|end|>",
                                        "<|user|>",      "<|assistant|>",
                                        "<tool_call>",   "</tool_call>",
                                        "<|endoftext|>", "<|start_header_id|>",
                                        "<｜User｜>",    "<｜end▁of▁sentence｜>",
                                        "<end_of_turn>", "<unk>"};
    *words = (hostile_words){.n = 0};
    for (const char *at = source; *at != '\0'; at++) {
        if (*at == '<' || *at == '[') {
            size_t size = 1 + strcspn(at + 1, "<>[] \n\t'\"");
            bool closed = at[size] == (*at == '<' ? '>' : ']');
            if (closed && size >= 2 && size <= 40) {
                add_word(words, at, size + 1, true);
            }
        }
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        add_word(words, known[i], strlen(known[i]), strstr(source, known[i]) != NULL);
    }
    add_text(words, "{{ messages }}");
    add_text(words, "{% raw %}");
}

/* How a part is changed: names of a dict are kept, but where people choose them. */
typedef enum place { PLACE_PROTOCOL, PLACE_NAMES } place;

static json_object *made_hostile(json_object *value, place where, const hostile_words *words);

static json_object *hostile_dict(json_object *dict, place where, const hostile_words *words)
{
    json_object *out = json_object_new_object();
    size_t n = 0;
    json_object_object_foreach(dict, key, part)
    {
        char name[sizeof words->text + 32];
        bool kept =
            where == PLACE_PROTOCOL && (strcmp(key, "role") == 0 || strcmp(key, "type") == 0);
        place inner = strcmp(key, "arguments") == 0 || strcmp(key, "properties") == 0
                          ? PLACE_NAMES
                          : PLACE_PROTOCOL;
        snprintf(name, sizeof name, "%s", key);
        if (where == PLACE_NAMES) {
            snprintf(name, sizeof name, "%s%zu", words->text, n++);
        }
        json_object *arguments = inner == PLACE_NAMES && json_object_is_type(part, json_type_string)
                                     ? json_tokener_parse(json_object_get_string(part))
                                     : NULL;
        if (arguments != NULL) {
            json_object *changed = made_hostile(arguments, inner, words);
            json_object_object_add(out, name,
                                   json_object_new_string(json_object_to_json_string(changed)));
            json_object_put(changed);
            json_object_put(arguments);
        } else {
            json_object_object_add(out, name,
                                   kept ? json_object_get(part) : made_hostile(part, inner, words));
        }
    }
    return out;
}

static json_object *made_hostile(json_object *value, place where, const hostile_words *words)
{
    if (json_object_is_type(value, json_type_string)) {
        return json_object_new_string(words->text);
    }
    if (json_object_is_type(value, json_type_object)) {
        return hostile_dict(value, where, words);
    }
    if (!json_object_is_type(value, json_type_array)) {
        return json_object_get(value);
    }
    json_object *out = json_object_new_array();
    for (size_t i = 0; i < json_object_array_length(value); i++) {
        json_object_array_add(
            out, made_hostile(json_object_array_get_idx(value, i), PLACE_PROTOCOL, words));
    }
    return out;
}

json_object *hostile_variables(json_object *variables, const hostile_words *words)
{
    return made_hostile(variables, PLACE_PROTOCOL, words);
}

moe_tokenizer *hostile_vocabulary(const hostile_words *words)
{
    static char spellings[256][4];
    const char *texts[256 + 256];
    int32_t types[256 + 256];
    for (int i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        spellings[i][fixture_byte_level(&byte, 1, spellings[i])] = '\0';
        texts[i] = spellings[i];
        types[i] = 1;
    }
    for (size_t i = 0; i < words->n; i++) {
        texts[256 + i] = words->words[i];
        types[256 + i] = words->in_template[i] && i % 2 == 1 ? 4 : 3;
    }
    fixture_gguf gguf;
    fixture_begin(&gguf);
    fixture_string(&gguf, "tokenizer.ggml.model", "gpt2");
    fixture_string(&gguf, "tokenizer.ggml.pre", "gpt-2");
    fixture_strings(&gguf, "tokenizer.ggml.tokens", texts, NULL, 256 + words->n);
    fixture_numbers(&gguf, "tokenizer.ggml.token_type", MOE_GGUF_I32, types, 256 + words->n);
    fixture_strings(&gguf, "tokenizer.ggml.merges", NULL, NULL, 0);
    fixture_u32(&gguf, "tokenizer.ggml.bos_token_id", 256);
    fixture_u32(&gguf, "tokenizer.ggml.eos_token_id", 257);
    moe_gguf *parsed = fixture_parse(&gguf);
    moe_tokenizer *tokenizer = NULL;
    moe_error err;
    if (moe_tokenizer_create(&tokenizer, parsed, &err) != MOE_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    moe_gguf_close(&parsed);
    fixture_free(&gguf);
    return tokenizer;
}

/* Whether the template wrote all bytes of [from, to). */
static bool is_markup(const moe_chat_output *out, size_t from, size_t to)
{
    size_t at = 0;
    for (size_t i = 0; i < out->n_spans; i++) {
        size_t end = at + out->spans[i].size;
        if (from < end && to > at && !out->spans[i].is_markup) {
            return false;
        }
        at = end;
    }
    return true;
}

static hostile_counts count(const moe_tokenizer *tokenizer, const moe_chat_output *out)
{
    hostile_counts counts = {.rendered = true};
    size_t at = 0;
    for (size_t i = 0; i < out->n_tokens; i++) {
        moe_string_view piece = moe_tokenizer_piece(tokenizer, out->tokens[i], true);
        if (at + piece.size > out->size || memcmp(out->text + at, piece.data, piece.size) != 0) {
            fprintf(stderr, "token %zu is not what the text has there\n", i);
            abort();
        }
        if (out->tokens[i] >= 256) {
            counts.n_tokens++;
            counts.n_from_data += !is_markup(out, at, at + piece.size);
        }
        at += piece.size;
    }
    for (at = 0; at + 3 <= out->size; at++) {
        if (memcmp(out->text + at, BEGIN, 3) == 0 || memcmp(out->text + at, END, 3) == 0) {
            counts.n_data++;
            counts.n_marked += is_markup(out, at, at + 3);
        }
    }
    counts.n_data /= 2;
    return counts;
}

hostile_counts hostile_count(const moe_tokenizer *tokenizer, const char *source,
                             json_object *variables, moe_error *err)
{
    static const char *const own[] = {"messages", "tools", "documents", "add_generation_prompt"};
    moe_chat_input input = {.chat_template = {.source = {source, strlen(source)}},
                            .now = 1753358400};
    json_object *more = json_object_new_object();
    json_object_object_foreach(variables, name, value)
    {
        bool is_own = false;
        for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
            is_own = is_own || strcmp(name, own[i]) == 0;
        }
        if (!is_own) {
            json_object_object_add(more, name, json_object_get(value));
        }
    }
    json_object *tools = json_object_object_get(variables, "tools");
    input.messages = json_object_to_json_string(json_object_object_get(variables, "messages"));
    input.tools = tools != NULL ? json_object_to_json_string(tools) : NULL;
    input.kwargs = json_object_to_json_string(more);
    input.add_generation_prompt =
        json_object_get_boolean(json_object_object_get(variables, "add_generation_prompt"));
    moe_chat_output out;
    hostile_counts counts = {.rendered = false};
    if (moe_chat_render_input(tokenizer, &input, &out, err) == MOE_OK) {
        counts = count(tokenizer, &out);
        moe_chat_output_free(&out);
    }
    json_object_put(more);
    return counts;
}
