/* SPDX-License-Identifier: MIT */
#include "tests/tokenizer/json_vocabulary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "runtime/base/clock.h"
#include "tests/tokenizer/tokenizer_fixture.h"

typedef struct token_list {
    const char **texts;
    int32_t *types;
    size_t n;
} token_list;

static void check(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "json_vocabulary: %s\n", what);
        exit(1);
    }
}

static void set_token(token_list *list, int64_t id, const char *text, int32_t type)
{
    check(id >= 0 && id < 1000000, "a token id is out of range");
    if ((size_t)id >= list->n) {
        size_t n = (size_t)id + 1;
        list->texts = realloc(list->texts, n * sizeof *list->texts);
        list->types = realloc(list->types, n * sizeof *list->types);
        check(list->texts != NULL && list->types != NULL, "out of memory");
        for (size_t i = list->n; i < n; i++) {
            list->texts[i] = "";
            list->types[i] = 5; /* unused */
        }
        list->n = n;
    }
    list->texts[id] = text;
    list->types[id] = type;
}

static json_object *member(json_object *object, const char *key)
{
    json_object *value = NULL;
    check(json_object_object_get_ex(object, key, &value), key);
    return value;
}

static void add_merges(fixture_gguf *gguf, json_object *merges)
{
    size_t n = json_object_array_length(merges);
    char **lines = calloc(n, sizeof *lines);
    check(lines != NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        json_object *merge = json_object_array_get_idx(merges, i);
        if (json_object_is_type(merge, json_type_string)) {
            lines[i] = strdup(json_object_get_string(merge));
            check(lines[i] != NULL, "out of memory");
        } else {
            const char *left = json_object_get_string(json_object_array_get_idx(merge, 0));
            const char *right = json_object_get_string(json_object_array_get_idx(merge, 1));
            check(asprintf(&lines[i], "%s %s", left, right) > 0, "out of memory");
        }
    }
    fixture_strings(gguf, "tokenizer.ggml.merges", (const char *const *)lines, NULL, n);
    for (size_t i = 0; i < n; i++) {
        free(lines[i]);
    }
    free(lines);
}

static bool looks_special(const char *text)
{
    size_t size = strlen(text);
    const char *end = text + size;
    return (size > 4 && strncmp(text, "<|", 2) == 0 && strcmp(end - 2, "|>") == 0) ||
           (size > 8 && strncmp(text, "<｜", 4) == 0 && strcmp(end - 4, "｜>") == 0);
}

/* As the published converters do: added tokens that are special, or look it, become control tokens,
 * the others the user's. */
static void add_tokens(fixture_gguf *gguf, json_object *json, const char *bos, const char *eos)
{
    token_list list = {0};
    json_object_object_foreach(member(member(json, "model"), "vocab"), text, id)
    {
        set_token(&list, json_object_get_int64(id), text, 1);
    }
    json_object *added = member(json, "added_tokens");
    for (size_t i = 0; i < json_object_array_length(added); i++) {
        json_object *token = json_object_array_get_idx(added, i);
        const char *content = json_object_get_string(member(token, "content"));
        bool special = json_object_get_boolean(member(token, "special")) || looks_special(content);
        set_token(&list, json_object_get_int64(member(token, "id")), content, special ? 3 : 4);
    }
    fixture_strings(gguf, "tokenizer.ggml.tokens", list.texts, NULL, list.n);
    fixture_numbers(gguf, "tokenizer.ggml.token_type", MOE_GGUF_I32, list.types, list.n);
    for (size_t i = 0; i < list.n; i++) {
        if (strcmp(list.texts[i], "<unk>") == 0) {
            fixture_u32(gguf, "tokenizer.ggml.unknown_token_id", (uint32_t)i);
        }
        if (bos != NULL && strcmp(list.texts[i], bos) == 0) {
            fixture_u32(gguf, "tokenizer.ggml.bos_token_id", (uint32_t)i);
        }
        if (eos != NULL && strcmp(list.texts[i], eos) == 0) {
            fixture_u32(gguf, "tokenizer.ggml.eos_token_id", (uint32_t)i);
        }
    }
    free(list.texts);
    free(list.types);
}

moe_tokenizer *json_vocabulary_open(const char *path, const char *pre, const char *bos,
                                    const char *eos)
{
    json_object *json = json_object_from_file(path);
    check(json != NULL, path);
    fixture_gguf gguf;
    fixture_begin(&gguf);
    bool is_gemma4 = strcmp(pre, "gemma4") == 0;
    fixture_string(&gguf, "tokenizer.ggml.model", is_gemma4 ? "gemma4" : "gpt2");
    fixture_string(&gguf, "tokenizer.ggml.pre", is_gemma4 ? "default" : pre);
    add_tokens(&gguf, json, bos, eos);
    add_merges(&gguf, member(member(json, "model"), "merges"));
    json_object_put(json);
    moe_gguf *parsed = fixture_parse(&gguf);
    moe_tokenizer *tokenizer;
    moe_error err;
    uint64_t start = moe_now_ns();
    if (moe_tokenizer_create(&tokenizer, parsed, &err) != MOE_OK) {
        check(false, err.message);
    }
    fprintf(stderr, "%s: %u tokens read in %.0f ms\n", path, moe_tokenizer_n_tokens(tokenizer),
            (double)(moe_now_ns() - start) / 1e6);
    moe_gguf_close(&parsed);
    fixture_free(&gguf);
    return tokenizer;
}
