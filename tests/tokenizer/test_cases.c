/* SPDX-License-Identifier: MIT */
/* The strings of cases/: splits of every pre-tokenizer, ids of the tokenizers that are published as
 * JSON (their vocabularies are read where they lie beside the tree), round trips.
 * Usage: test_cases CASES_FOLDER splits
 *        test_cases CASES_FOLDER json    -- the same, as tokenizer.json says the expressions
 *        test_cases CASES_FOLDER NAME TOKENIZER_JSON PRE  -- exits 77 when there is no such file */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/model/json_spans.h"
#include "runtime/model/pretokenizer_json.h"
#include "runtime/model/pretokenizers.h"
#include "runtime/model/tokenizer.h"
#include "tests/tokenizer/json_vocabulary.h"
#include "tests/tokenizer/split_names.h"
#include "tests/tokenizer/tokenizer_fixture.h"

static const char *cases_folder;
static const char *name;
static const char *json_path;
static const char *pre;

typedef struct reader {
    char *data;
    const uint8_t *at, *end;
} reader;

static reader open_case_file(const char *file)
{
    char path[4096];
    size_t size = 0;
    snprintf(path, sizeof path, "%s/%s", cases_folder, file);
    reader r = {.data = fixture_read_file(path, &size)};
    assert_non_null(r.data);
    r.at = (const uint8_t *)r.data;
    r.end = r.at + size;
    return r;
}

static uint64_t read_number(reader *r)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(r->at < r->end && shift < 64);
        uint8_t byte = *r->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            return value;
        }
    }
}

static const char *read_string(reader *r, size_t *size)
{
    *size = read_number(r);
    assert_true(*size <= (size_t)(r->end - r->at));
    const char *text = (const char *)r->at;
    r->at += *size;
    return text;
}

/* --- splits ----------------------------------------------------------------------------------- */

static uint16_t hash_ends(const moe_split_list *list)
{
    uint32_t hash = 0x811C9DC5u;
    for (size_t i = 0; i < list->n; i++) {
        for (int shift = 0; shift < 32; shift += 8) {
            hash = (hash ^ (list->ends[i] >> shift & 0xFF)) * 0x01000193u;
        }
    }
    return (uint16_t)(hash >> 16 ^ (hash & 0xFFFF));
}

static void test_splits(void **state)
{
    (void)state;
    moe_error err;
    moe_pretokenizer_code *codes[N_SPLITTERS];
    moe_pretokenizer_scratch *scratch = moe_pretokenizer_scratch_create();
    moe_split_lists lists = {0};
    assert_non_null(scratch);
    for (size_t s = 0; s < N_SPLITTERS; s++) {
        const moe_pretokenizer *row = moe_pretokenizer_find(splitters[s], strlen(splitters[s]));
        assert_non_null(row);
        assert_int_equal(moe_pretokenizer_compile(&codes[s], row, &err), MOE_OK);
    }
    reader strings = open_case_file("strings.bin");
    reader splits = open_case_file("splits.bin");
    uint64_t n = read_number(&strings);
    assert_true(n >= 1000);
    unsigned n_wrong = 0;
    for (uint64_t i = 0; i < n; i++) {
        size_t size;
        const char *text = read_string(&strings, &size);
        for (size_t s = 0; s < N_SPLITTERS; s++) {
            uint16_t expected;
            assert_true(splits.end - splits.at >= (ptrdiff_t)sizeof expected);
            memcpy(&expected, splits.at, sizeof expected);
            splits.at += sizeof expected;
            assert_int_equal(moe_pretokenizer_split(codes[s], scratch, text, size, &lists, &err),
                             MOE_OK);
            if (hash_ends(&lists.current) != expected) {
                print_error("%s splits string %u otherwise: \"%.*s\"\n", splitters[s], (unsigned)i,
                            (int)size, text);
                n_wrong++;
            }
        }
    }
    assert_true(splits.at == splits.end);
    assert_int_equal(n_wrong, 0);
    for (size_t s = 0; s < N_SPLITTERS; s++) {
        moe_pretokenizer_free(&codes[s]);
    }
    moe_pretokenizer_scratch_destroy(&scratch);
    free(lists.current.ends);
    free(lists.next.ends);
    free(strings.data);
    free(splits.data);
}

/* Of these, tokenizer.json's expressions are refused: they have an intersection of classes, a
 * word's border, and more characters than any file needs. */
static bool is_refused_as_json(const char *splitter)
{
    return strcmp(splitter, "kimi-k2") == 0 || strcmp(splitter, "tiny_aya") == 0 ||
           strcmp(splitter, "deepseek-llm") == 0;
}

/* Reads the pre-tokenizer that pretokenizers.json has under this name; NULL: it is refused. */
static moe_pretokenizer_code *open_as_json(moe_string_view files, const char *splitter)
{
    static moe_pretokenizer_json read;
    moe_string_view json;
    moe_pretokenizer_code *code = NULL;
    moe_error err = {""};
    assert_true(moe_json_member(files, splitter, &json));
    int status = moe_pretokenizer_from_json(&read, json, &err);
    if (status == MOE_OK) {
        status = moe_pretokenizer_compile(&code, &read.row, &err);
    }
    if (is_refused_as_json(splitter)) {
        assert_int_equal(status, MOE_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, "options.metadata_overrides can name one"));
        return NULL;
    }
    if (status != MOE_OK) {
        fail_msg("%s: %s", splitter, err.message);
    }
    return code;
}

static void test_json_splits(void **state)
{
    (void)state;
    moe_error err;
    moe_pretokenizer_scratch *scratch = moe_pretokenizer_scratch_create();
    moe_split_lists lists = {0};
    reader files = open_case_file("pretokenizers.json");
    moe_string_view all = {files.data, (size_t)(files.end - (const uint8_t *)files.data)};
    for (size_t s = 0; s < N_SPLITTERS; s++) {
        moe_pretokenizer_code *code = open_as_json(all, splitters[s]);
        reader strings = open_case_file("strings.bin");
        reader splits = open_case_file("splits.bin");
        uint64_t n = read_number(&strings);
        for (uint64_t i = 0; i < n && code != NULL; i++) {
            size_t size;
            const char *text = read_string(&strings, &size);
            uint16_t expected;
            memcpy(&expected, splits.data + (i * N_SPLITTERS + s) * sizeof expected,
                   sizeof expected);
            assert_int_equal(moe_pretokenizer_split(code, scratch, text, size, &lists, &err),
                             MOE_OK);
            if (hash_ends(&lists.current) != expected) {
                fail_msg("%s as JSON splits string %u otherwise: \"%.*s\"", splitters[s],
                         (unsigned)i, (int)size, text);
            }
        }
        moe_pretokenizer_free(&code);
        free(strings.data);
        free(splits.data);
    }
    moe_pretokenizer_scratch_destroy(&scratch);
    free(lists.current.ends);
    free(lists.next.ends);
    free(files.data);
}

/* What a tokenizer.json may say that is no pre-tokenizer of ours. */
static void test_json_refusals(void **state)
{
    static const struct {
        const char *json;
        const char *message; /* a part of it; NULL: it is taken */
    } cases[] = {
        {"", "no member \"pre_tokenizer\""},
        {"[]", "no member"},
        {"{\"pre_tokenizer\"", "no member"},
        {"{\"pre_tokenizer\": ", "no member"},
        {"{\"pre_tokenizer\": null}", "absence"},
        {"{\"a\": \"\\\"}\", \"pre_tokenizer\": {\"type\": \"Digits\"}}", NULL},
        {"{\"a\": [1, {\"pre_tokenizer\": 1}], \"pre_tokenizer\": {\"type\": \"Digits\"}}", NULL},
        {"{\"pre_tokenizer\": {\"type\": \"Metaspace\"}}", "step \"Metaspace\""},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}}", "add_prefix_space"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \" \"}, "
         "\"behavior\": \"MergedWithPrevious\"}}",
         "behavior \"MergedWithPrevious\""},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"a.\"}}}", NULL},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"\"}}}", "pattern"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?R)\"}}}",
         "expression"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(*UTF)a\"}}}",
         "expression"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\\\\Kb\"}}}",
         "expression"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a\"}}}",
         "expression"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a(\"}}}",
         "refused by PCRE2"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\u00"
         "00\"}}}",
         "expression"},
        {"{\"pre_tokenizer\": {\"type\": \"Digits\"}, \"normalizer\": {\"type\": \"Lowercase\"}}",
         "normalizer \"Lowercase\""},
        {"{\"pre_tokenizer\": {\"type\": \"Digits\"}, \"model\": {\"type\": \"Unigram\"}}",
         "\"Unigram\""},
        {"{\"pre_tokenizer\": {\"type\": \"Digits\"}, \"model\": {}}", "model beside it"},
        {"{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"},"
         "{\"type\": \"Digits\"},{\"type\": \"Digits\"},{\"type\": \"Digits\"},"
         "{\"type\": \"Digits\"},{\"type\": \"Digits\"},{\"type\": \"Digits\"}]}}",
         "number of steps"},
    };
    (void)state;
    static moe_pretokenizer_json read;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        moe_error err = {""};
        moe_pretokenizer_code *code = NULL;
        moe_string_view json = {cases[i].json, strlen(cases[i].json)};
        int status = moe_pretokenizer_from_json(&read, json, &err);
        if (status == MOE_OK) {
            status = moe_pretokenizer_compile(&code, &read.row, &err);
        }
        moe_pretokenizer_free(&code);
        if ((status == MOE_OK) != (cases[i].message == NULL) ||
            (cases[i].message != NULL && strstr(err.message, cases[i].message) == NULL)) {
            fail_msg("%s: %d, %s", cases[i].json, status, err.message);
        }
    }
}

/* What llama.cpp knows by name, but for what cannot be a row (pretokenizer_rows.c says why). */
static void test_names(void **state)
{
    static const char *const names[] = {"default",
                                        "llama3",
                                        "llama-v3",
                                        "llama-bpe",
                                        "falcon3",
                                        "falcon-h1",
                                        "pixtral",
                                        "midm-2.0",
                                        "lfm2",
                                        "jina-v5-nano",
                                        "deepseek-llm",
                                        "deepseek-coder",
                                        "deepseek-v3",
                                        "falcon",
                                        "mpt",
                                        "starcoder",
                                        "gpt-2",
                                        "phi-2",
                                        "jina-es",
                                        "jina-de",
                                        "gigachat",
                                        "jina-v2-es",
                                        "jina-v2-de",
                                        "a.x-4.0",
                                        "mellum",
                                        "modern-bert",
                                        "jais-2",
                                        "refact",
                                        "command-r",
                                        "qwen2",
                                        "deepseek-r1-qwen",
                                        "kormo",
                                        "f2llmv2",
                                        "qwen35",
                                        "stablelm2",
                                        "olmo",
                                        "dbrx",
                                        "smaug-bpe",
                                        "poro-chat",
                                        "glm4",
                                        "glm5",
                                        "chatglm-bpe",
                                        "viking",
                                        "jais",
                                        "tekken",
                                        "smollm",
                                        "codeshell",
                                        "bloom",
                                        "gpt3-finnish",
                                        "exaone",
                                        "exaone4",
                                        "exaone-moe",
                                        "chameleon",
                                        "minerva-7b",
                                        "megrez",
                                        "gpt-4o",
                                        "llama4",
                                        "kanana2",
                                        "talkie",
                                        "granite-embed-multi-97m",
                                        "tiny_aya",
                                        "cohere2moe",
                                        "superbpe",
                                        "trillion",
                                        "granite-docling",
                                        "bailingmoe",
                                        "bailingmoe2",
                                        "llada-moe",
                                        "seed-coder",
                                        "hunyuan",
                                        "hunyuan-dense",
                                        "hy_v4",
                                        "joyai-llm",
                                        "kimi-k2",
                                        "ufakzeka",
                                        "grok-2",
                                        "afmoe",
                                        "laguna",
                                        "minimax-m2",
                                        "solar-open",
                                        "mellum2",
                                        "minicpm5",
                                        "youtu",
                                        "spark2_5",
                                        "gemma4",
                                        "granite-embed-multi-311m",
                                        "sarvam-moe",
                                        "jina-v1-en",
                                        "jina-v2-code",
                                        "roberta-bpe"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (moe_pretokenizer_find(names[i], strlen(names[i])) == NULL) {
            fail_msg("'%s' is not known", names[i]);
        }
    }
    assert_null(moe_pretokenizer_find("gpt", 3));
    assert_null(moe_pretokenizer_find("gpt-2 gpt2", 10));
    assert_null(moe_pretokenizer_find("", 0));
}

/* Long runs of one kind take time in proportion. One pattern that looked ahead to the run's end
 * from every place took 6 s for one of these. */
static void test_long_runs(void **state)
{
    static const char *const units[] = {"a",   "A", " ", "1", "ไ",  "的", "a ",        "'",  "\n",
                                        " \n", "é", "!", "①", "1a", "aB", "e\xcc\x81", "x'", "1 "};
    enum { SIZE = 100000 };
    (void)state;
    char *text = malloc(SIZE + 1);
    moe_pretokenizer_scratch *scratch = moe_pretokenizer_scratch_create();
    moe_split_lists lists = {0};
    moe_error err;
    clock_t start = clock();
    assert_true(text != NULL && scratch != NULL);
    for (size_t s = 0; s < N_SPLITTERS; s++) {
        moe_pretokenizer_code *code;
        const moe_pretokenizer *row = moe_pretokenizer_find(splitters[s], strlen(splitters[s]));
        assert_int_equal(moe_pretokenizer_compile(&code, row, &err), MOE_OK);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t n = 0;
            for (size_t unit = strlen(units[u]); n + unit <= SIZE; n += unit) {
                memcpy(text + n, units[u], unit);
            }
            text[n] = 'x';
            for (size_t end = n; end <= n + 1; end++) {
                assert_int_equal(moe_pretokenizer_split(code, scratch, text, end, &lists, &err),
                                 MOE_OK);
                assert_int_equal(lists.current.ends[lists.current.n - 1], end);
            }
        }
        moe_pretokenizer_free(&code);
    }
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    printf("%.2f s for %zu texts\n", seconds, N_SPLITTERS * 2 * sizeof units / sizeof units[0]);
    assert_true(seconds < 10);
    moe_pretokenizer_scratch_destroy(&scratch);
    free(lists.current.ends);
    free(lists.next.ends);
    free(text);
}

/* --- ids ----------------------------------------------------------------------------------------
 */

/* True when encoding gives n ids as they stand at the reader, which moves past them. */
static bool ids_match(const moe_tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                      reader *ids, uint64_t n)
{
    moe_error err;
    int32_t *tokens;
    size_t n_tokens;
    if (moe_tokenizer_encode(tokenizer, text, size, flags, &tokens, &n_tokens, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    bool same = n_tokens == n;
    for (uint64_t i = 0; i < n; i++) {
        int32_t expected = (int32_t)read_number(ids);
        same = same && tokens[i] == expected;
    }
    free(tokens);
    return same;
}

static void test_ids(void **state)
{
    (void)state;
    char file[256];
    snprintf(file, sizeof file, "%s.ids", name);
    moe_tokenizer *tokenizer = json_vocabulary_open(json_path, pre, NULL, NULL);
    reader strings = open_case_file("strings.bin");
    reader ids = open_case_file(file);
    uint64_t n = read_number(&strings);
    unsigned n_wrong = 0;
    unsigned n_special = 0;
    for (uint64_t i = 0; i < n; i++) {
        size_t size;
        const char *text = read_string(&strings, &size);
        reader start = ids;
        uint64_t n_ids = read_number(&ids);
        bool same = ids_match(tokenizer, text, size, MOE_ENCODE_PARSE_SPECIAL, &ids, n_ids);
        uint64_t n_plain = read_number(&ids);
        if (n_plain > 0) {
            n_special++;
            same = ids_match(tokenizer, text, size, 0, &ids, n_plain - 1) && same;
        } else {
            uint64_t again = read_number(&start);
            same = ids_match(tokenizer, text, size, 0, &start, again) && same;
        }
        if (!same) {
            print_error("%s: other ids for string %u: \"%.*s\"\n", name, (unsigned)i, (int)size,
                        text);
            n_wrong++;
        }
    }
    assert_true(ids.at == ids.end);
    assert_true(n_special >= 50);
    assert_int_equal(n_wrong, 0);
    free(strings.data);
    free(ids.data);
    moe_tokenizer_destroy(&tokenizer);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[2], "splits") == 0) {
        cases_folder = argv[1];
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_splits),
                                           cmocka_unit_test(test_names),
                                           cmocka_unit_test(test_long_runs)};
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    if (argc == 3 && strcmp(argv[2], "json") == 0) {
        cases_folder = argv[1];
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_json_splits),
                                           cmocka_unit_test(test_json_refusals)};
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    if (argc != 5) {
        fprintf(stderr, "usage: %s CASES_FOLDER (splits | NAME TOKENIZER_JSON PRE)\n", argv[0]);
        return 2;
    }
    cases_folder = argv[1];
    name = argv[2];
    json_path = argv[3];
    pre = argv[4];
    if (access(json_path, R_OK) != 0) {
        fprintf(stderr, "skipped: no vocabulary at %s\n", json_path);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ids)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
