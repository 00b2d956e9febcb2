/* SPDX-License-Identifier: MIT */
/* Tokenizer metadata that is wrong: each case is a clean error that names the key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/tokenizer/small_vocabulary.h"

static void write_bert(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    fixture_string(gguf, "tokenizer.ggml.model", "bert");
}

static void write_no_tokens(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    fixture_strings(gguf, "tokenizer.ggml.tokens", NULL, NULL, 0);
}

static void write_number_tokens(fixture_gguf *gguf, const vocabulary *v)
{
    fixture_numbers(gguf, "tokenizer.ggml.tokens", MOE_GGUF_I32, v->types, v->n);
}

static void write_huge_token(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    char *huge = calloc(1000001, 1);
    assert_non_null(huge);
    memset(huge, 'a', 1000000);
    const char *texts[] = {huge};
    fixture_strings(gguf, "tokenizer.ggml.tokens", texts, NULL, 1);
    free(huge);
}

static void write_few_types(fixture_gguf *gguf, const vocabulary *v)
{
    fixture_numbers(gguf, "tokenizer.ggml.token_type", MOE_GGUF_I32, v->types, v->n - 1);
}

static void write_bad_type(fixture_gguf *gguf, const vocabulary *v)
{
    vocabulary copy = *v;
    copy.types[7] = 7;
    fixture_numbers(gguf, "tokenizer.ggml.token_type", MOE_GGUF_I32, copy.types, copy.n);
}

static void write_text_types(fixture_gguf *gguf, const vocabulary *v)
{
    fixture_strings(gguf, "tokenizer.ggml.token_type", v->texts, NULL, v->n);
}

static void write_misspelt_byte(fixture_gguf *gguf, const vocabulary *v)
{
    vocabulary copy = *v;
    copy.texts[FIRST_BYTE + 9] = "<0x9>";
    fixture_strings(gguf, "tokenizer.ggml.tokens", copy.texts, NULL, copy.n);
}

static void write_few_scores(fixture_gguf *gguf, const vocabulary *v)
{
    fixture_numbers(gguf, "tokenizer.ggml.scores", MOE_GGUF_F32, v->scores, 3);
}

static void write_nan_score(fixture_gguf *gguf, const vocabulary *v)
{
    vocabulary copy = *v;
    copy.scores[S_AB] = NAN;
    fixture_numbers(gguf, "tokenizer.ggml.scores", MOE_GGUF_F32, copy.scores, copy.n);
}

static void write_text_scores(fixture_gguf *gguf, const vocabulary *v)
{
    fixture_strings(gguf, "tokenizer.ggml.scores", v->texts, NULL, v->n);
}

static void write_bos_beyond(fixture_gguf *gguf, const vocabulary *v)
{
    fixture_u32(gguf, "tokenizer.ggml.bos_token_id", (uint32_t)v->n);
}

static void write_text_eos(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    fixture_string(gguf, "tokenizer.ggml.eos_token_id", "</s>");
}

static void write_text_switch(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    fixture_string(gguf, "tokenizer.ggml.add_bos_token", "yes");
}

static void write_padding_beyond(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    fixture_u32(gguf, "tokenizer.ggml.padding_token_id", 5000);
}

static void write_unknown_pre(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    fixture_string(gguf, "tokenizer.ggml.pre", "tomorrow");
}

static void write_number_pre(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    fixture_u32(gguf, "tokenizer.ggml.pre", 2);
}

static void write_merge(fixture_gguf *gguf, const char *merge)
{
    fixture_strings(gguf, "tokenizer.ggml.merges", &merge, NULL, 1);
}

static void write_absent_merge(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    write_merge(gguf, "ab d");
}

static void write_absent_half(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    write_merge(gguf, "abd d");
}

static void write_merge_of_one(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    write_merge(gguf, "ab");
}

static void write_empty_merge(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    write_merge(gguf, "");
}

static void write_open_merge(fixture_gguf *gguf, const vocabulary *v)
{
    (void)v;
    write_merge(gguf, "a ");
}

static void write_number_merges(fixture_gguf *gguf, const vocabulary *v)
{
    fixture_numbers(gguf, "tokenizer.ggml.merges", MOE_GGUF_I32, v->types, 3);
}

#define F MOE_ERR_FORMAT

static const fault faults[] = {
    {"no model", "model", NULL, false, MOE_ERR_UNSUPPORTED, "known: llama gpt2"},
    {"another model", "model", write_bert, false, MOE_ERR_UNSUPPORTED, "\"bert\""},
    {"no tokens", "tokens", NULL, false, F, "tokenizer.ggml.tokens"},
    {"empty tokens", "tokens", write_no_tokens, false, F, "tokenizer.ggml.tokens"},
    {"tokens are numbers", "tokens", write_number_tokens, true, F, "tokenizer.ggml.tokens"},
    {"a token of a million bytes", "tokens", write_huge_token, false, F, "1000000 bytes"},
    {"too few types", "token_type", write_few_types, false, F, "token_type"},
    {"a type out of range", "token_type", write_bad_type, false, F, "token_type[7]"},
    {"types are texts", "token_type", write_text_types, true, F, "token_type[0]"},
    {"a byte misspelt", "tokens", write_misspelt_byte, true, F, "tokens[12]"},
    {"no scores", "scores", NULL, true, F, "scores"},
    {"too few scores", "scores", write_few_scores, true, F, "scores"},
    {"a score is NaN", "scores", write_nan_score, true, F, "scores[262]"},
    {"scores are texts", "scores", write_text_scores, true, F, "scores[0]"},
    {"BOS out of range", "bos", write_bos_beyond, true, F, "bos_token_id is 265"},
    {"EOS is a text", "eos", write_text_eos, true, F, "eos_token_id"},
    {"padding out of range", NULL, write_padding_beyond, false, F, "padding_token_id is 5000"},
    {"add_bos_token is a text", NULL, write_text_switch, true, F, "add_bos_token"},
    {"an unknown pre-tokenizer", "pre", write_unknown_pre, false, MOE_ERR_UNSUPPORTED,
     "'tomorrow', which is not a known pre-tokenizer; options.metadata_overrides"},
    {"the pre-tokenizer is a number", "pre", write_number_pre, false, F, "tokenizer.ggml.pre"},
    {"no merges", "merges", NULL, false, F, "merges"},
    {"merges are numbers", "merges", write_number_merges, false, F, "merges"},
    {"a merge gives no token", "merges", write_absent_merge, false, F, "merges[0] (\"ab d\")"},
    {"half a merge is no token", "merges", write_absent_half, false, F, "merges[0]"},
    {"a merge of one", "merges", write_merge_of_one, false, F, "merges[0]"},
    {"an empty merge", "merges", write_empty_merge, false, F, "merges[0]"},
    {"a merge with nothing", "merges", write_open_merge, false, F, "merges[0]"},
};

static void test_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        const fault *f = &faults[i];
        vocabulary v;
        if (f->spm) {
            spm_vocabulary(&v);
        } else {
            bpe_vocabulary(&v);
        }
        fixture_gguf gguf;
        build_vocabulary(&gguf, &v, f->spm, f);
        moe_gguf *parsed = fixture_parse(&gguf);
        moe_tokenizer *t = NULL;
        moe_error err;
        int status = moe_tokenizer_create(&t, parsed, &err);
        if (status != f->status || strstr(err.message, f->message) == NULL) {
            fail_msg("%s: status %d, \"%s\"", f->what, status, status < 0 ? err.message : "");
        }
        assert_null(t);
        assert_int_equal(moe_tokenizer_create(&t, parsed, NULL), f->status);
        moe_gguf_close(&parsed);
        fixture_free(&gguf);
    }
}

/* Without types every token is ordinary, and bytes are known by their spelling. */
static void test_no_types(void **state)
{
    (void)state;
    const fault f = {.drop = "token_type"};
    moe_tokenizer *t = small_spm(&f);
    expect_ids(t, "\xC3\xA9", 0, IDS(S_SPACE, FIRST_BYTE + 0xC3, FIRST_BYTE + 0xA9));
    moe_tokenizer_destroy(&t);
    t = small_bpe(&f);
    expect_ids(t, "<think>", 0, IDS('<', 't', 'h', 'i', 'n', 'k', '>'));
    /* Markup of chats stays markup. */
    expect_ids(t, "<|im_end|>", 0, IDS('<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'));
    assert_true(moe_tokenizer_is_control(t, IM_END));
    moe_tokenizer_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_no_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
