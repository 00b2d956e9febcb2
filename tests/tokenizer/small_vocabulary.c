/* SPDX-License-Identifier: MIT */
#include "tests/tokenizer/small_vocabulary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int32_t add(vocabulary *v, const char *text, int32_t type, float score)
{
    assert_true(v->n < MAX_TOKENS);
    v->texts[v->n] = text;
    v->types[v->n] = type;
    v->scores[v->n] = score;
    return (int32_t)v->n++;
}

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, BYTE = 6 };

void bpe_vocabulary(vocabulary *v)
{
    v->n = 0;
    for (int i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        v->spellings[i][fixture_byte_level(&byte, 1, v->spellings[i])] = '\0';
        add(v, v->spellings[i], NORMAL, 0);
    }
    add(v, "<|im_start|>", CONTROL, 0);
    add(v, "<|im_end|>", CONTROL, 0);
    add(v, "<|endoftext|>", CONTROL, 0);
    add(v, "<think>", USER, 0);
    add(v, "<think>ing", USER, 0);
    add(v, "ab", NORMAL, 0);
    add(v, "abc", NORMAL, 0);
    add(v, "\xC3\xA2\xC4\xA4", NORMAL, 0); /* spells E2 82 */
}

static const char *const bpe_merges[] = {"a b", "ab c", "\xC3\xA2 \xC4\xA4"};

void spm_vocabulary(vocabulary *v)
{
    v->n = 0;
    add(v, "<unk>", UNKNOWN, 0);
    add(v, "<s>", CONTROL, 0);
    add(v, "</s>", CONTROL, 0);
    for (int i = 0; i < 256; i++) {
        snprintf(v->spellings[i], sizeof v->spellings[i], "<0x%02X>", i);
        add(v, v->spellings[i], BYTE, 0);
    }
    add(v, "\xE2\x96\x81", NORMAL, -10);
    add(v, "a", NORMAL, -11);
    add(v, "b", NORMAL, -12);
    add(v, "ab", NORMAL, -1);
    add(v,
        "\xE2\x96\x81"
        "a",
        NORMAL, -2);
    add(v, "<mark>", USER, 0);
}

static bool writes(const fault *f, const char *key)
{
    return f == NULL || f->drop == NULL || strcmp(f->drop, key) != 0;
}

void build_vocabulary(fixture_gguf *gguf, const vocabulary *v, bool spm, const fault *f)
{
    fixture_begin(gguf);
    if (writes(f, "model")) {
        fixture_string(gguf, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
    }
    if (!spm && writes(f, "pre")) {
        fixture_string(gguf, "tokenizer.ggml.pre", "gpt-2");
    }
    if (writes(f, "tokens")) {
        fixture_strings(gguf, "tokenizer.ggml.tokens", v->texts, NULL, v->n);
    }
    if (writes(f, "token_type")) {
        fixture_numbers(gguf, "tokenizer.ggml.token_type", MOE_GGUF_I32, v->types, v->n);
    }
    if (spm && writes(f, "scores")) {
        fixture_numbers(gguf, "tokenizer.ggml.scores", MOE_GGUF_F32, v->scores, v->n);
    }
    if (!spm && writes(f, "merges")) {
        fixture_strings(gguf, "tokenizer.ggml.merges", bpe_merges, NULL, 3);
    }
    if (writes(f, "bos")) {
        fixture_u32(gguf, "tokenizer.ggml.bos_token_id", spm ? S_BOS : ENDOFTEXT);
    }
    if (writes(f, "eos")) {
        fixture_u32(gguf, "tokenizer.ggml.eos_token_id", spm ? S_EOS : ENDOFTEXT);
    }
    if (f != NULL && f->write != NULL) {
        f->write(gguf, v);
    }
}

static moe_tokenizer *create(const vocabulary *v, bool spm, const fault *f)
{
    fixture_gguf gguf;
    moe_tokenizer *tokenizer;
    moe_error err;
    build_vocabulary(&gguf, v, spm, f);
    moe_gguf *parsed = fixture_parse(&gguf);
    if (moe_tokenizer_create(&tokenizer, parsed, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    moe_gguf_close(&parsed);
    fixture_free(&gguf);
    return tokenizer;
}

moe_tokenizer *small_bpe(const fault *f)
{
    vocabulary v;
    bpe_vocabulary(&v);
    return create(&v, false, f);
}

moe_tokenizer *small_spm(const fault *f)
{
    vocabulary v;
    spm_vocabulary(&v);
    return create(&v, true, f);
}

void expect_ids(const moe_tokenizer *tokenizer, const char *text, unsigned flags,
                const int32_t *ids, size_t n)
{
    moe_error err;
    int32_t *tokens;
    size_t n_tokens;
    assert_int_equal(
        moe_tokenizer_encode(tokenizer, text, strlen(text), flags, &tokens, &n_tokens, &err),
        MOE_OK);
    assert_int_equal(n_tokens, n);
    assert_memory_equal(tokens, ids, n * sizeof *ids);
    free(tokens);
}
