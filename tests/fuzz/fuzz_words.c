/* SPDX-License-Identifier: MIT */
/* What a file or a user says about keys and words. The first byte chooses:
 *   0  the rest is a tokenizer.json, a 0 byte, and a text that its pre-tokenizer cuts
 *   1  the rest is a key and a value that an override gives
 *   2  the rest is a text for BPE of characters: decoding must give it back, but for U+2581
 * Any other byte is as that byte modulo 3. */
#include <stdlib.h>
#include <string.h>

#include "runtime/families/families.h"
#include "runtime/model/override_check.h"
#include "runtime/model/pretokenizer_json.h"
#include "runtime/model/tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/model/gguf_builder.h"
#include "tests/tokenizer/small_vocabulary.h"

static void fuzz_json(const uint8_t *data, size_t size)
{
    static moe_pretokenizer_json read;
    moe_error err = {""};
    moe_pretokenizer_code *code = NULL;
    const uint8_t *end = memchr(data, 0, size);
    const size_t n_json = end == NULL ? size : (size_t)(end - data);
    int status =
        moe_pretokenizer_from_json(&read, (moe_string_view){(const char *)data, n_json}, &err);
    if (status == MOE_OK) {
        status = moe_pretokenizer_compile(&code, &read.row, &err);
    }
    fuzz_expect((status == MOE_OK) == (err.message[0] == '\0'));
    if (code == NULL) {
        return;
    }
    const size_t n = end == NULL ? 0 : size - n_json - 1;
    char *text = malloc(n + 1); /* splitting wants UTF-8 */
    moe_pretokenizer_scratch *scratch = moe_pretokenizer_scratch_create();
    moe_split_lists lists = {0};
    fuzz_expect(text != NULL && scratch != NULL);
    for (size_t i = 0; i < n; i++) {
        text[i] = (char)(end[1 + i] & 0x7F);
    }
    if (moe_pretokenizer_split(code, scratch, text, n, &lists, &err) == MOE_OK) {
        size_t start = 0;
        for (size_t i = 0; i < lists.current.n; i++) {
            fuzz_expect(lists.current.ends[i] > start);
            start = lists.current.ends[i];
        }
        fuzz_expect(start == n);
    }
    free(text);
    free(lists.current.ends);
    free(lists.next.ends);
    moe_pretokenizer_scratch_destroy(&scratch);
    moe_pretokenizer_free(&code);
}

static void fuzz_override(const uint8_t *data, size_t size)
{
    static gguf_builder *builder;
    static const uint8_t *bytes;
    static size_t n_bytes;
    if (builder == NULL) {
        builder = gb_new();
        gb_string(builder, "general.architecture", "olmoe");
        gb_u32(builder, "olmoe.context_length", 8);
        gb_f32(builder, "olmoe.logit_scale", 3);
        gb_string(builder, "tokenizer.ggml.model", "gpt2");
        bytes = gb_finish(builder, &n_bytes);
    }
    char *key = calloc(size + 1, 1);
    moe_gguf *gguf = NULL;
    moe_error err = {""};
    fuzz_expect(key != NULL && moe_gguf_parse(&gguf, bytes, n_bytes, NULL) == MOE_OK);
    memcpy(key, data, size);
    moe_metadata_override o = {key, MOE_METADATA_INT, {.integer = (int64_t)size}};
    if (size % 2 == 0) {
        o.type = MOE_METADATA_TEXT;
        o.value.text = key + strlen(key);
    }
    int status = moe_gguf_override(gguf, &o, 1, &err);
    const moe_family *family = size % 3 == 0 ? NULL : moe_family_find("olmoe");
    if (status == MOE_OK) {
        status = moe_overrides_check(gguf, family, &o, 1, &err);
    }
    fuzz_expect((status == MOE_OK) == (err.message[0] == '\0'));
    moe_gguf_close(&gguf);
    free(key);
}

static moe_tokenizer *characters(void)
{
    static const char *const merges[] = {"a b", "\xE2\x96\x81 a"};
    vocabulary v;
    fixture_gguf gguf;
    moe_tokenizer *tokenizer;
    spm_vocabulary(&v);
    fixture_begin(&gguf);
    fixture_string(&gguf, "tokenizer.ggml.model", "gemma4");
    fixture_strings(&gguf, "tokenizer.ggml.tokens", v.texts, NULL, v.n);
    fixture_numbers(&gguf, "tokenizer.ggml.token_type", MOE_GGUF_I32, v.types, v.n);
    fixture_strings(&gguf, "tokenizer.ggml.merges", merges, NULL, 2);
    moe_gguf *parsed = fixture_parse(&gguf);
    fuzz_expect(moe_tokenizer_create(&tokenizer, parsed, NULL) == MOE_OK);
    moe_gguf_close(&parsed);
    fixture_free(&gguf);
    return tokenizer;
}

static void fuzz_characters(const char *text, size_t size)
{
    static moe_tokenizer *tokenizer;
    tokenizer = tokenizer == NULL ? characters() : tokenizer;
    int32_t *tokens;
    size_t n;
    size_t at = 0;
    fuzz_expect(moe_tokenizer_encode(tokenizer, text, size, 0, &tokens, &n, NULL) == MOE_OK);
    for (size_t i = 0; i < n; i++) {
        moe_string_view piece = moe_tokenizer_piece(tokenizer, tokens[i], true);
        for (size_t b = 0; b < piece.size; b++) {
            bool mark = size - at >= 3 && memcmp(text + at, "\xE2\x96\x81", 3) == 0;
            fuzz_expect(at < size && piece.data[b] == (mark ? ' ' : text[at]));
            at += mark ? 3 : 1;
        }
    }
    fuzz_expect(at == size);
    free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    switch (data[0] % 3) {
    case 0:
        fuzz_json(data + 1, size - 1);
        break;
    case 1:
        fuzz_override(data + 1, size - 1);
        break;
    default:
        fuzz_characters((const char *)data + 1, size - 1);
        break;
    }
    return 0;
}
