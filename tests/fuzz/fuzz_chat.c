/* SPDX-License-Identifier: MIT */
/* Chat templates: recognition of any text, and conversations of any text. The first byte is the
 * number of the template and where rendering begins, the second what the turns are; each 0 byte
 * after that ends a turn. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/chat_template.h"
#include "tests/tokenizer/small_vocabulary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void fuzz_recognition(const uint8_t *data, size_t size)
{
    char *text = calloc(size + 1, 1);
    check(text != NULL);
    memcpy(text, data, size);
    fixture_gguf gguf;
    fixture_begin(&gguf);
    fixture_string(&gguf, "tokenizer.chat_template", text);
    moe_gguf *parsed = fixture_parse(&gguf);
    const moe_chat_template *chat;
    moe_error err;
    int status = moe_chat_template_find(&chat, parsed, &err);
    check(status == MOE_OK ? chat != NULL : status == MOE_ERR_UNSUPPORTED && chat == NULL);
    moe_gguf_close(&parsed);
    fixture_free(&gguf);
    free(text);
}

#define MAX_TURNS 12

static size_t read_turns(const uint8_t *data, size_t size, uint8_t roles, moe_chat_turn *turns)
{
    static const char *const names[] = {"user", "assistant", "system", "user"};
    size_t n = 0;
    while (size > 0 && n < MAX_TURNS) {
        const uint8_t *end = memchr(data, 0, size);
        size_t length = end != NULL ? (size_t)(end - data) : size;
        turns[n] = (moe_chat_turn){names[roles >> n % 7 & 3], (const char *)data, length};
        n++;
        length += end != NULL;
        data += length;
        size -= length;
    }
    return n;
}

/* How many control tokens of the markup there are must not depend on what is said. What is rendered
 * from turn `first` on must be the end of the whole. */
static size_t count_control(const moe_tokenizer *tokenizer, const moe_chat_template *chat,
                            const moe_chat_turn *turns, size_t n, size_t first)
{
    int32_t *whole;
    int32_t *part;
    size_t n_whole;
    size_t n_part;
    check(moe_chat_render(chat, tokenizer, turns, n, 0, true, &whole, &n_whole, NULL) == MOE_OK);
    if (first > 0) {
        check(moe_chat_render(chat, tokenizer, turns, n, first, true, &part, &n_part, NULL) ==
              MOE_OK);
        check(n_part <= n_whole &&
              memcmp(part, whole + (n_whole - n_part), n_part * sizeof *part) == 0);
        free(part);
    }
    size_t n_control = 0;
    for (size_t i = 0; i < n_whole; i++) {
        n_control += moe_tokenizer_is_control(tokenizer, whole[i]);
    }
    free(whole);
    return n_control;
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {
        "qwen3",    "qwen2",  "chatml",  "llama3",     "deepseek3", "zephyr",    "olmoe",
        "deepseek", "llama2", "mistral", "mistral-v1", "phi3",      "deepseek2", "mistral-v3"};
    if (size < 2) {
        return 0;
    }
    fuzz_recognition(data + 2, size - 2);
    const moe_chat_template *chat =
        moe_chat_template_by_name(names[data[0] % (sizeof names / sizeof names[0])]);
    check(chat != NULL);
    moe_chat_turn turns[MAX_TURNS];
    size_t n = read_turns(data + 2, size - 2, data[1], turns);
    const moe_tokenizer *tokenizer = tokenizer_of((data[1] & 1) != 0);
    size_t first = (data[0] >> 4) % (n + 1);
    size_t n_control = count_control(tokenizer, chat, turns, n, first);
    for (size_t i = 0; i < n; i++) {
        turns[i].text = "x";
        turns[i].size = 1;
    }
    check(count_control(tokenizer, chat, turns, n, first) == n_control);
    return 0;
}
