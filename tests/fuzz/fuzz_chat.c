/* SPDX-License-Identifier: MIT */
/* Conversations of any text through a template and a tokenizer. The first byte is the number of the
 * template, the second what the turns are; each 0 byte after that ends a turn. With the highest bit
 * of the first byte set the text before the first 0 byte is the template. Whatever is said, no
 * control token comes of it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "runtime/model/chat_reply.h"
#include "runtime/model/chat_template_table.h"
#include "tests/tokenizer/small_vocabulary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool condition)
{
    if (!condition) {
        abort();
    }
}

#define MAX_TURNS 12

static json_object *new_message(const char *role, const char *text, size_t size)
{
    json_object *message = json_object_new_object();
    json_object_object_add(message, "role", json_object_new_string(role));
    json_object_object_add(message, "content", json_object_new_string_len(text, (int)size));
    return message;
}

/* The turns as they are, and all with the text "x". */
static void read_turns(const uint8_t *data, size_t size, uint8_t roles, json_object *messages[2])
{
    static const char *const names[] = {"user", "assistant", "system", "user"};
    messages[0] = json_object_new_array();
    messages[1] = json_object_new_array();
    for (size_t n = 0; size > 0 && n < MAX_TURNS; n++) {
        const uint8_t *end = memchr(data, 0, size);
        size_t length = end != NULL ? (size_t)(end - data) : size;
        const char *role = names[roles >> n % 7 & 3];
        json_object_array_add(messages[0], new_message(role, (const char *)data, length));
        json_object_array_add(messages[1], new_message(role, "x", 1));
        length += end != NULL;
        data += length;
        size -= length;
    }
}

static moe_tokenizer *tokenizers[2];

static void destroy_tokenizers(void)
{
    moe_tokenizer_destroy(&tokenizers[0]);
    moe_tokenizer_destroy(&tokenizers[1]);
}

/* Made once: making them takes a hundred times as long as the conversation. */
static const moe_tokenizer *tokenizer_of(bool bpe)
{
    if (tokenizers[0] == NULL) {
        tokenizers[0] = small_spm(NULL);
        tokenizers[1] = small_bpe(NULL);
        atexit(destroy_tokenizers);
    }
    return tokenizers[bpe];
}

static void read_reply(const moe_tokenizer *tokenizer, const moe_chat_output *out)
{
    moe_reply_reader reader;
    check(moe_reply_open(&reader, tokenizer, &out->marks, out->in_reasoning, NULL) == MOE_OK);
    size_t given = 0;
    size_t written = 0;
    for (size_t i = 0; i < out->n_tokens; i++) {
        given += moe_tokenizer_piece(tokenizer, out->tokens[i], true).size;
        moe_reply_push(&reader, out->tokens[i]);
        written += reader.out[0].size + reader.out[1].size;
    }
    moe_reply_finish(&reader);
    written += reader.out[0].size + reader.out[1].size;
    check(written <= 3 * given + 3 && !reader.no_memory);
    moe_reply_close(&reader);
}

static size_t controls_of(const moe_tokenizer *tokenizer, const int32_t *tokens, size_t n)
{
    size_t n_control = 0;
    for (size_t i = 0; i < n; i++) {
        n_control += moe_tokenizer_is_control(tokenizer, tokens[i]);
    }
    return n_control;
}

/* Those of what the template wrote, span by span. */
static size_t controls_of_markup(const moe_tokenizer *tokenizer, const moe_chat_output *out)
{
    size_t at = 0;
    size_t n_control = 0;
    for (size_t i = 0; i < out->n_spans; i++) {
        int32_t *tokens;
        size_t n;
        if (out->spans[i].is_markup) {
            check(moe_tokenizer_encode(tokenizer, out->text + at, out->spans[i].size,
                                       MOE_ENCODE_PARSE_SPECIAL, &tokens, &n, NULL) == MOE_OK);
            n_control += controls_of(tokenizer, tokens, n);
            free(tokens);
        }
        at += out->spans[i].size;
    }
    check(at == out->size);
    return n_control;
}

/* Control tokens of the markup; SIZE_MAX: refused. */
static size_t count_control(const moe_tokenizer *tokenizer, moe_chat_input *input,
                            json_object *messages)
{
    moe_chat_output out;
    moe_error err = {""};
    input->messages = json_object_to_json_string_ext(messages, JSON_C_TO_STRING_PLAIN);
    if (moe_chat_render_input(tokenizer, input, &out, &err) != MOE_OK) {
        check(err.message[0] != '\0' && out.tokens == NULL);
        return SIZE_MAX;
    }
    size_t n_control = controls_of(tokenizer, out.tokens, out.n_tokens);
    check(n_control == controls_of_markup(tokenizer, &out));
    read_reply(tokenizer, &out);
    moe_chat_output_free(&out);
    return n_control;
}

/* A template of any text may write what it likes, as often as the text makes it. */
static void fuzz_template(const uint8_t *data, size_t size, moe_chat_input *input)
{
    const uint8_t *end = memchr(data, 0, size);
    size_t length = end != NULL ? (size_t)(end - data) : size;
    input->chat_template = (moe_chat_template){.source = {(const char *)data, length}};
}

/* These look into what answers say, so the markup depends on it. */
static bool looks_inside(const char *name)
{
    return strcmp(name, "qwen3") == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    const bool any = (data[0] & 0x80) != 0;
    const moe_known_template *known = &moe_known_templates[data[0] % moe_n_known_templates];
    moe_chat_input input = {.add_generation_prompt = (data[1] & 2) == 0};
    input.chat_template =
        (moe_chat_template){.source = {known->source, strlen(known->source)}, .is_built_in = true};
    const moe_tokenizer *tokenizer = tokenizer_of((data[1] & 1) != 0);
    json_object *messages[2];
    read_turns(data + 2, size - 2, data[1], messages);
    if (any) {
        fuzz_template(data + 2, size - 2, &input);
    }
    size_t n_control = count_control(tokenizer, &input, messages[0]);
    if (!any && !looks_inside(known->name)) {
        check(count_control(tokenizer, &input, messages[1]) == n_control);
    }
    json_object_put(messages[0]);
    json_object_put(messages[1]);
    return 0;
}
