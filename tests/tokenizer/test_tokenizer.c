/* SPDX-License-Identifier: MIT */
/* Tokenizers of small vocabularies made here: flags, special tokens, spaces, bytes that are no
 * text, streaming, and metadata that is wrong. Usage: test_tokenizer DATA_FOLDER */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/model/tokenizer.h"
#include "tests/tokenizer/small_vocabulary.h"

static const char *data_folder;

/* --- encoding -----------------------------------------------------------------------------------
 */

static void write_bos_on(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    fixture_bool(gguf, "tokenizer.ggml.add_bos_token", 1);
    fixture_bool(gguf, "tokenizer.ggml.add_eos_token", 1);
}

static void write_no_prefix(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    fixture_bool(gguf, "tokenizer.ggml.add_bos_token", 0);
    fixture_bool(gguf, "tokenizer.ggml.add_space_prefix", 0);
}

static void test_bpe_specials(void **state)
{
    (void)state;
    moe_tokenizer *t = small_bpe(NULL);
    expect_ids(t, "abcab", 0, IDS(BPE_ABC, BPE_AB));
    expect_ids(t, "<|im_end|>a", MOE_ENCODE_PARSE_SPECIAL, IDS(IM_END, 'a'));
    expect_ids(t, "<|im_end|>", 0, IDS('<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'));
    /* The user's tokens are found in any case, the longest first. */
    expect_ids(t, "a<think>b<think>ing", 0, IDS('a', USER_THINK, 'b', USER_THINKING));
    expect_ids(t, "<think<think>>", 0, IDS('<', 't', 'h', 'i', 'n', 'k', USER_THINK, '>'));
    /* A merge does not reach over one. */
    expect_ids(t, "a<think>bc", 0, IDS('a', USER_THINK, 'b', 'c'));
    expect_ids(t, "", MOE_ENCODE_ADD_SPECIAL, NULL, 0);
    moe_tokenizer_destroy(&t);

    const fault with_bos = {.write = write_bos_on};
    t = small_bpe(&with_bos);
    expect_ids(t, "ab", MOE_ENCODE_ADD_SPECIAL, IDS(ENDOFTEXT, BPE_AB, ENDOFTEXT));
    expect_ids(t, "ab", 0, IDS(BPE_AB));
    moe_tokenizer_destroy(&t);
    assert_null(t);
    moe_tokenizer_destroy(&t);
}

static void test_queries(void **state)
{
    (void)state;
    moe_tokenizer *t = small_bpe(NULL);
    assert_int_equal(moe_tokenizer_n_tokens(t), 264);
    assert_int_equal(moe_tokenizer_bos(t), ENDOFTEXT);
    assert_int_equal(moe_tokenizer_eos(t), ENDOFTEXT);
    assert_true(moe_tokenizer_is_end(t, ENDOFTEXT));
    assert_true(moe_tokenizer_is_end(t, IM_END)); /* by its text */
    assert_false(moe_tokenizer_is_end(t, IM_START));
    assert_false(moe_tokenizer_is_end(t, MOE_NO_TOKEN));
    assert_false(moe_tokenizer_is_end(t, 264));
    assert_true(moe_tokenizer_is_control(t, IM_START));
    assert_false(moe_tokenizer_is_control(t, USER_THINK));
    assert_false(moe_tokenizer_is_control(t, INT32_MAX));
    assert_int_equal(moe_tokenizer_find(t, "<|im_start|>", 12), IM_START);
    assert_int_equal(moe_tokenizer_find(t, "<|im_start|>x", 13), MOE_NO_TOKEN);
    assert_int_equal(moe_tokenizer_find(t, "abc", 3), BPE_ABC);
    assert_int_equal(moe_tokenizer_find(t, "\xE2\x82", 2), BPE_EURO);
    assert_int_equal(moe_tokenizer_find(t, "abcd", 4), MOE_NO_TOKEN);
    assert_int_equal(moe_tokenizer_find(t, "", 0), MOE_NO_TOKEN);
    assert_int_equal(moe_tokenizer_piece(t, IM_END, false).size, 0);
    assert_int_equal(moe_tokenizer_piece(t, IM_END, true).size, 10);
    assert_int_equal(moe_tokenizer_piece(t, BPE_EURO, false).size, 2);
    assert_int_equal(moe_tokenizer_piece(t, -1, true).size, 0);
    assert_int_equal(moe_tokenizer_piece(t, 264, true).size, 0);
    moe_tokenizer_destroy(&t);

    const fault no_ids = {.drop = "bos"};
    t = small_spm(&no_ids);
    assert_int_equal(moe_tokenizer_bos(t), MOE_NO_TOKEN);
    assert_true(moe_tokenizer_is_control(t, UNK));
    expect_ids(t, "a", MOE_ENCODE_ADD_SPECIAL, IDS(S_SPACE_A));
    moe_tokenizer_destroy(&t);
}

static void test_spm_spaces(void **state)
{
    (void)state;
    moe_tokenizer *t = small_spm(NULL);
    expect_ids(t, "ab", MOE_ENCODE_ADD_SPECIAL, IDS(S_BOS, S_SPACE, S_AB));
    expect_ids(t, "a", 0, IDS(S_SPACE_A));
    expect_ids(t, "", 0, NULL, 0);
    expect_ids(t, " ", 0, IDS(S_SPACE, S_SPACE));
    expect_ids(t, "b a", 0, IDS(S_SPACE, S_B, S_SPACE_A));
    /* The prefix comes again after each special token, and only there. */
    expect_ids(t, "a<mark>a", 0, IDS(S_SPACE_A, S_MARK, S_SPACE_A));
    expect_ids(t, "<s>a", MOE_ENCODE_PARSE_SPECIAL, IDS(S_BOS, S_SPACE_A));
    expect_ids(t, "<mark>", 0, IDS(S_MARK));
    /* Byte tokens and control tokens are never found in plain text. */
    expect_ids(t, "<s>", 0, IDS(S_SPACE, FIRST_BYTE + '<', FIRST_BYTE + 's', FIRST_BYTE + '>'));
    /* U+2581 is a space to SentencePiece; other characters fall back to their bytes. */
    expect_ids(t,
               "\xE2\x96\x81"
               "a",
               0, IDS(S_SPACE, S_SPACE_A));
    expect_ids(t, "\xC3\xA9", 0, IDS(S_SPACE, FIRST_BYTE + 0xC3, FIRST_BYTE + 0xA9));
    moe_tokenizer_destroy(&t);

    const fault bare = {.write = write_no_prefix};
    t = small_spm(&bare);
    expect_ids(t, "ab a", MOE_ENCODE_ADD_SPECIAL, IDS(S_AB, S_SPACE_A));
    moe_tokenizer_destroy(&t);
}

/* A vocabulary without byte tokens: an unknown character is one unknown token, or an error. */
static void test_spm_unknown(void **state)
{
    (void)state;
    static const char *const texts[] = {"<unk>", "\xE2\x96\x81", "a"};
    static const int32_t types[] = {2, 1, 1};
    static const float scores[] = {0, -1, -2};
    for (int with_unknown = 0; with_unknown < 2; with_unknown++) {
        fixture_gguf gguf;
        fixture_begin(&gguf);
        fixture_string(&gguf, "tokenizer.ggml.model", "llama");
        fixture_strings(&gguf, "tokenizer.ggml.tokens", texts, NULL, 3);
        fixture_numbers(&gguf, "tokenizer.ggml.token_type", MOE_GGUF_I32, types, 3);
        fixture_numbers(&gguf, "tokenizer.ggml.scores", MOE_GGUF_F32, scores, 3);
        if (with_unknown) {
            fixture_u32(&gguf, "tokenizer.ggml.unknown_token_id", 0);
        }
        moe_gguf *parsed = fixture_parse(&gguf);
        moe_tokenizer *t;
        moe_error err;
        assert_int_equal(moe_tokenizer_create(&t, parsed, &err), MOE_OK);
        if (with_unknown) {
            expect_ids(t,
                       "a\xC3\xA9"
                       "a",
                       0, IDS(1, 2, 0, 2));
        } else {
            int32_t *tokens;
            size_t n;
            assert_int_equal(moe_tokenizer_encode(t, "\xC3\xA9", 2, 0, &tokens, &n, &err),
                             MOE_ERR_UNSUPPORTED);
            assert_null(tokens);
            assert_non_null(strstr(err.message, "0xC3"));
        }
        moe_tokenizer_destroy(&t);
        moe_gguf_close(&parsed);
        fixture_free(&gguf);
    }
}

/* --- bytes that are no text ---------------------------------------------------------------------
 */

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static size_t random_bytes(uint64_t *seed, char *out, size_t limit)
{
    static const char *const parts[] = {
        "\xE2\x82",     "\xF0\x9F\x98", "\xC0\xAF", "\xED\xA0\x80",
        "\xFF",         "\x80",         " the",     "\xF4\x90\x80\x80",
        "\xE4\xBD\xA0", "\n\n ",        "42",       "\xC3\xA9",
        "'s",           "  ",           "<|",       "\xF0\x9F\x9A\x80"};
    size_t size = 0;
    size_t n = next_random(seed) % 24;
    for (size_t i = 0; i < n && size + 8 < limit; i++) {
        uint32_t kind = next_random(seed) % 24;
        if (kind < sizeof parts / sizeof parts[0]) {
            size_t length = strlen(parts[kind]);
            memcpy(out + size, parts[kind], length);
            size += length;
        } else {
            out[size++] = (char)next_random(seed);
        }
    }
    return size;
}

static void check_round_trip(const moe_tokenizer *t, const char *text, size_t size,
                             bool drops_space)
{
    moe_error err;
    int32_t *tokens;
    size_t n;
    if (moe_tokenizer_encode(t, text, size, 0, &tokens, &n, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        moe_string_view piece = moe_tokenizer_piece(t, tokens[i], true);
        if (i == 0 && drops_space) {
            assert_true(piece.size > 0 && piece.data[0] == ' ');
            piece.data++;
            piece.size--;
        }
        assert_true(at + piece.size <= size);
        assert_memory_equal(piece.data, text + at, piece.size);
        at += piece.size;
    }
    assert_int_equal(at, size);
    free(tokens);
}

/* DeepSeek's vocabularies have no tokens for the bytes that no UTF-8 has. */
static void use_known_bytes(char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        uint8_t byte = (uint8_t)text[i];
        if (byte == 0xC0 || byte == 0xC1 || byte >= 0xF5) {
            text[i] = '\x80';
        }
    }
}

static void test_any_bytes(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-2", "deepseek-llm", "llama-spm"};
    for (size_t v = 0; v < 3; v++) {
        char path[4096];
        moe_gguf *gguf;
        moe_tokenizer *t;
        moe_error err;
        snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf", data_folder, names[v]);
        assert_int_equal(moe_gguf_open(&gguf, path, &err), MOE_OK);
        assert_int_equal(moe_tokenizer_create(&t, gguf, &err), MOE_OK);
        moe_gguf_close(&gguf);
        uint64_t seed = 7 + v;
        char text[4096];
        for (int i = 0; i < 1000; i++) {
            size_t size = random_bytes(&seed, text, 512);
            if (v == 1) {
                use_known_bytes(text, size);
            }
            check_round_trip(t, text, size, v == 2 && size > 0);
        }
        /* Longer than the cache of words wants, and one word that is long. */
        for (size_t i = 0; i < sizeof text; i++) {
            text[i] = (char)(i % 7 == 0 ? next_random(&seed) : (uint32_t) "the <\xE2\x82 "[i % 8]);
        }
        if (v == 1) {
            use_known_bytes(text, sizeof text);
        }
        check_round_trip(t, text, sizeof text, v == 2);
        for (size_t i = 0; i < sizeof text; i++) {
            text[i] = (char)('a' + next_random(&seed) % 6);
        }
        check_round_trip(t, text, sizeof text, v == 2);
        moe_tokenizer_destroy(&t);
    }
}

/* Words remembered in a long text are encoded as they are alone. */
static void test_word_cache(void **state)
{
    (void)state;
    char path[4096];
    moe_gguf *gguf;
    moe_tokenizer *t;
    moe_error err;
    snprintf(path, sizeof path, "%s/ggml-vocab-gpt-2.gguf", data_folder);
    assert_int_equal(moe_gguf_open(&gguf, path, &err), MOE_OK);
    assert_int_equal(moe_tokenizer_create(&t, gguf, &err), MOE_OK);
    moe_gguf_close(&gguf);
    enum { REPEATS = 400 };
    static const char line[] = " Residency of experts, xqzzy 12345;";
    char *text = malloc(REPEATS * (sizeof line - 1));
    assert_non_null(text);
    for (int i = 0; i < REPEATS; i++) {
        memcpy(text + (size_t)i * (sizeof line - 1), line, sizeof line - 1);
    }
    int32_t *one;
    int32_t *all;
    size_t n_one;
    size_t n_all;
    assert_int_equal(moe_tokenizer_encode(t, line, sizeof line - 1, 0, &one, &n_one, &err), MOE_OK);
    assert_int_equal(
        moe_tokenizer_encode(t, text, REPEATS * (sizeof line - 1), 0, &all, &n_all, &err), MOE_OK);
    assert_int_equal(n_all, n_one * REPEATS);
    for (int i = 0; i < REPEATS; i++) {
        assert_memory_equal(all + (size_t)i * n_one, one, n_one * sizeof *one);
    }
    free(text);
    free(one);
    free(all);
    moe_tokenizer_destroy(&t);
}

/* --- streaming ----------------------------------------------------------------------------------
 */

typedef struct output {
    char text[2048];
    size_t size;
} output;

static output stream_all(const moe_tokenizer *t, const int32_t *tokens, size_t n)
{
    output out = {.size = 0};
    moe_text_stream stream = {0};
    for (size_t i = 0; i < n; i++) {
        assert_true(out.size + moe_text_stream_max(t) < sizeof out.text);
        size_t written = moe_text_stream_push(&stream, t, tokens[i], out.text + out.size);
        assert_true(written <= moe_text_stream_max(t));
        assert_true(stream.n_pending <= 3);
        out.size += written;
    }
    out.size += moe_text_stream_finish(&stream, out.text + out.size);
    out.text[out.size] = '\0';
    return out;
}

#define R "\xEF\xBF\xBD"

/* From the Unicode standard's chapter on conformance, and what lies beside. */
static const struct {
    const char *bytes, *text;
} streams[] = {
    {"plain", "plain"},
    {"\xE2\x82\xAC", "\xE2\x82\xAC"},
    {"\xF0\x9F\x9A\x80\xF0\x9F\xA6\x99", "\xF0\x9F\x9A\x80\xF0\x9F\xA6\x99"},
    {"\xE2\x82", R},
    {"\xE2\x82"
     "A",
     R "A"},
    {"\xE2"
     "A\x82",
     R "A" R},
    {"\xF0\x9F\x92\xF0\x9F\x92\xA9", R "\xF0\x9F\x92\xA9"},
    {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
     "A",
     R R R R R R R R "A"},
    {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
     "A",
     R R R R R R R R "A"},
    {"\xF4\x91\x92\x93\xFF"
     "A\x80\xBF"
     "B",
     R R R R R "A" R R "B"},
    {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
     "A",
     R R R R "A"},
    {"a\xF1\x80\x80\xE1\x80\xC2"
     "b\x80"
     "c\x80\xBF"
     "d",
     "a" R R R "b" R "c" R R "d"},
    {"\xF0\x9F\x9A", R},
    {"\xF0\x9F\x9A\xE2\x82\xAC\xE2", R "\xE2\x82\xAC" R},
};

/* Every text through single bytes, through the two-byte token wherever it fits, and in SPM. */
static void test_stream_bytes(void **state)
{
    (void)state;
    moe_tokenizer *bpe = small_bpe(NULL);
    moe_tokenizer *spm = small_spm(NULL);
    for (size_t s = 0; s < sizeof streams / sizeof streams[0]; s++) {
        const uint8_t *bytes = (const uint8_t *)streams[s].bytes;
        size_t size = strlen(streams[s].bytes);
        int32_t tokens[64];
        for (size_t i = 0; i < size; i++) {
            tokens[i] = bytes[i];
        }
        assert_string_equal(stream_all(bpe, tokens, size).text, streams[s].text);
        for (size_t i = 0; i < size; i++) {
            tokens[i] = FIRST_BYTE + bytes[i];
        }
        assert_string_equal(stream_all(spm, tokens, size).text, streams[s].text);
        size_t n = 0;
        for (size_t i = 0; i < size; i++) {
            if (i + 1 < size && bytes[i] == 0xE2 && bytes[i + 1] == 0x82) {
                tokens[n++] = BPE_EURO;
                i++;
            } else {
                tokens[n++] = bytes[i];
            }
        }
        assert_string_equal(stream_all(bpe, tokens, n).text, streams[s].text);
    }
    moe_tokenizer_destroy(&bpe);
    moe_tokenizer_destroy(&spm);
}

/* Every way of cutting a text into tokens gives the same text: the tokens here are all of its
 * stretches. */
static void test_stream_cuts(void **state)
{
    (void)state;
    static const char text[] = "\xE2\x82\xAC\xF0\x9F\x9A\x80\xF0\x9F\x92"
                               "a\xE2\x82";
    static const char expected[] = "\xE2\x82\xAC\xF0\x9F\x9A\x80" R "a" R;
    enum { SIZE = sizeof text - 1 };
    static char spellings[SIZE * SIZE][SIZE * 2 + 1];
    const char *texts[SIZE * SIZE];
    for (size_t from = 0; from < SIZE; from++) {
        for (size_t length = 1; length <= SIZE; length++) {
            size_t fits = from + length <= SIZE ? length : 1;
            char *spelling = spellings[from * SIZE + length - 1];
            spelling[fixture_byte_level((const uint8_t *)text + from, fits, spelling)] = '\0';
            texts[from * SIZE + length - 1] = spelling;
        }
    }
    fixture_gguf gguf;
    fixture_begin(&gguf);
    fixture_string(&gguf, "tokenizer.ggml.model", "gpt2");
    fixture_strings(&gguf, "tokenizer.ggml.tokens", texts, NULL, SIZE * SIZE);
    fixture_strings(&gguf, "tokenizer.ggml.merges", NULL, NULL, 0);
    moe_gguf *parsed = fixture_parse(&gguf);
    moe_tokenizer *t;
    moe_error err;
    assert_int_equal(moe_tokenizer_create(&t, parsed, &err), MOE_OK);
    for (uint32_t cuts = 0; cuts < 1u << (SIZE - 1); cuts++) {
        int32_t tokens[SIZE];
        size_t n = 0;
        size_t start = 0;
        for (size_t at = 1; at <= SIZE; at++) {
            if (at == SIZE || (cuts >> (at - 1) & 1) != 0) {
                tokens[n++] = (int32_t)(start * SIZE + (at - start) - 1);
                start = at;
            }
        }
        assert_string_equal(stream_all(t, tokens, n).text, expected);
    }
    moe_tokenizer_destroy(&t);
    moe_gguf_close(&parsed);
    fixture_free(&gguf);
}

static void test_stream_start(void **state)
{
    (void)state;
    moe_tokenizer *t = small_spm(NULL);
    const int32_t tokens[] = {S_BOS, S_SPACE_A, S_SPACE_A, S_EOS, UNK, -1, 9999};
    assert_string_equal(stream_all(t, tokens, 7).text, "a a");
    const int32_t spaces[] = {S_SPACE, S_SPACE, S_B};
    assert_string_equal(stream_all(t, spaces, 3).text, " b");
    char out[64];
    moe_text_stream started = {.started = true}; /* goes on after a prompt */
    assert_int_equal(moe_text_stream_push(&started, t, S_SPACE_A, out), 2);
    moe_tokenizer_destroy(&t);
    const fault bare = {.write = write_no_prefix};
    t = small_spm(&bare);
    assert_string_equal(stream_all(t, tokens, 7).text, " a a");
    moe_tokenizer_destroy(&t);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s DATA_FOLDER\n", argv[0]);
        return 2;
    }
    data_folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe_specials), cmocka_unit_test(test_queries),
        cmocka_unit_test(test_spm_spaces),   cmocka_unit_test(test_spm_unknown),
        cmocka_unit_test(test_any_bytes),    cmocka_unit_test(test_word_cache),
        cmocka_unit_test(test_stream_bytes), cmocka_unit_test(test_stream_cuts),
        cmocka_unit_test(test_stream_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
