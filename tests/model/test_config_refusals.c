/* SPDX-License-Identifier: MIT */
/* Impossible metadata are refused, and the message names them. */
#include "tests/model/config_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/families/families.h"
#include "runtime/families/families_missing.h"

/* One key put in (or, without a value, taken out) spoils a valid file. */
typedef struct refusal {
    const char *architecture;
    const char *key; /* in full */
    enum { GONE, U32, F32, TEXT, MIXED } kind;
    double number;
    int status;
    const char *says;
} refusal;

static const refusal refusals[] = {
    {"olmoe", "general.architecture", GONE, 0, MOE_ERR_FORMAT, "'general.architecture' is missing"},
    {"olmoe", "general.architecture", TEXT, 0, MOE_ERR_UNSUPPORTED,
     "supported are llama, olmoe, qwen2moe, qwen3moe, "},
    {"olmoe", "general.architecture", U32, 1, MOE_ERR_FORMAT, "is a u32, not a string"},
    {"llama", "llama.expert_count", GONE, 0, MOE_ERR_UNSUPPORTED,
     "this 'llama' model has no experts"},
    {"llama", "llama.expert_count", U32, 0, MOE_ERR_UNSUPPORTED, "has no experts"},
    {"olmoe", "olmoe.block_count", GONE, 0, MOE_ERR_FORMAT, "'olmoe.block_count'"},
    {"olmoe", "olmoe.block_count", U32, 0, MOE_ERR_FORMAT, "'olmoe.block_count' is 0"},
    {"olmoe", "olmoe.block_count", U32, 4096, MOE_ERR_FORMAT, "'olmoe.block_count' is 4096"},
    {"olmoe", "olmoe.block_count", TEXT, 0, MOE_ERR_FORMAT, "a string, not an integer"},
    {"olmoe", "olmoe.embedding_length", GONE, 0, MOE_ERR_FORMAT, "'olmoe.embedding_length'"},
    {"olmoe", "olmoe.embedding_length", U32, 4e9, MOE_ERR_FORMAT, "embedding_length"},
    {"olmoe", "olmoe.context_length", GONE, 0, MOE_ERR_FORMAT, "'olmoe.context_length'"},
    {"olmoe", "olmoe.context_length", U32, 0, MOE_ERR_FORMAT, "'olmoe.context_length' is 0"},
    {"olmoe", "olmoe.attention.layer_norm_rms_epsilon", GONE, 0, MOE_ERR_FORMAT, "epsilon"},
    {"olmoe", "olmoe.attention.layer_norm_rms_epsilon", F32, 0, MOE_ERR_FORMAT, "epsilon' is 0"},
    {"olmoe", "olmoe.attention.layer_norm_rms_epsilon", F32, NAN, MOE_ERR_FORMAT, "out of range"},
    {"olmoe", "olmoe.attention.head_count", GONE, 0, MOE_ERR_FORMAT, "attention.head_count'"},
    {"olmoe", "olmoe.attention.head_count", U32, 0, MOE_ERR_FORMAT, "head_count' is 0"},
    {"olmoe", "olmoe.attention.head_count", U32, 1e9, MOE_ERR_FORMAT, "head_count' is 1000000000"},
    {"olmoe", "olmoe.attention.head_count", MIXED, 0, MOE_ERR_UNSUPPORTED,
     "differs between layers"},
    {"olmoe", "olmoe.attention.head_count_kv", U32, 3, MOE_ERR_FORMAT, "not a multiple"},
    {"olmoe", "olmoe.attention.head_count_kv", U32, 0, MOE_ERR_FORMAT, "head_count_kv' is 0"},
    {"olmoe", "olmoe.attention.head_count_kv", U32, 8, MOE_ERR_FORMAT, "head_count_kv' is 8"},
    {"olmoe", "olmoe.attention.key_length", U32, 0, MOE_ERR_FORMAT, "key_length' is 0"},
    {"olmoe", "olmoe.attention.value_length", U32, 1e9, MOE_ERR_FORMAT, "value_length"},
    {"olmoe", "olmoe.attention.clamp_kqv", F32, -1, MOE_ERR_FORMAT, "clamp_kqv' is negative"},
    {"olmoe", "olmoe.attention.scale", F32, -1, MOE_ERR_FORMAT, "attention scale -1"},
    {"llama", "llama.attention.clamp_kqv", F32, 8, MOE_ERR_UNSUPPORTED, "clamp_kqv' is 8"},
    {"llama", "llama.attention.rope_pattern", U32, 0, MOE_ERR_UNSUPPORTED, "rope_pattern' is 0"},
    {"llama", "llama.logit_scale", F32, 0.5, MOE_ERR_UNSUPPORTED, "logit_scale' is 0.5"},
    {"llama", "llama.expert_group_count", U32, 4, MOE_ERR_UNSUPPORTED, "expert_group_count' is 4"},
    {"llama", "llama.leading_dense_block_count", U32, 1, MOE_ERR_UNSUPPORTED, "leading_dense"},
    {"llama", "llama.interleave_moe_layer_step", U32, 2, MOE_ERR_UNSUPPORTED, "interleave"},
    {"llama", "llama.final_logit_softcapping", F32, 30, MOE_ERR_UNSUPPORTED, "softcapping' is 30"},
    {"grok", "grok.attn_logit_softcapping", F32, -1, MOE_ERR_FORMAT, "softcapping' is -1"},
    {"grok", "grok.attention.temperature_length", U32, 1024, MOE_ERR_UNSUPPORTED,
     "temperature_length' is 1024"},
    {"gemma4", "gemma4.attention.shared_kv_layers", U32, 10, MOE_ERR_UNSUPPORTED,
     "shared_kv_layers' is 10"},
    {"dbrx", "dbrx.attention.layer_norm_rms_epsilon", GONE, 0, MOE_ERR_FORMAT,
     "layer_norm_epsilon'"},
    {"mimo2", "mimo2.attention.head_count_kv", MIXED, 0, MOE_ERR_FORMAT, "head_count_kv' is 8"},
    {"mimo2", "mimo2.attention.key_length_swa", U32, 1e9, MOE_ERR_FORMAT, "key_length' is 1000000"},
    {"mimo2", "mimo2.rope.dimension_count_swa", U32, 99999, MOE_ERR_FORMAT,
     "dimension_count_swa' is 99999"},
    {"llama", "llama.rope.dimension_count", U32, 15, MOE_ERR_FORMAT, "(15) is odd"},
    {"llama", "llama.rope.dimension_count", U32, 18, MOE_ERR_FORMAT, "is 18, not 2 to 16"},
    {"llama", "llama.rope.dimension_count", U32, 0, MOE_ERR_FORMAT, "is 0, not 2 to 16"},
    {"llama", "llama.rope.freq_base", F32, 0, MOE_ERR_FORMAT, "freq_base"},
    {"llama", "llama.rope.freq_base", F32, INFINITY, MOE_ERR_FORMAT, "freq_base' is out of range"},
    {"llama", "llama.rope.scaling.factor", F32, -2, MOE_ERR_FORMAT, "scaling.factor' (-2)"},
    {"llama", "llama.rope.scaling.type", TEXT, 0, MOE_ERR_UNSUPPORTED,
     "none, linear, yarn and longrope"},
    {"llama", "llama.rope.scaling.type", U32, 1, MOE_ERR_FORMAT, "not a string"},
    {"llama", "llama.rope.scaling.yarn_log_multiplier", F32, 0.1, MOE_ERR_UNSUPPORTED, "yarn_log"},
    {"llama", "llama.expert_count", U32, 2048, MOE_ERR_FORMAT, "expert_count' is 2048"},
    {"llama", "llama.expert_used_count", GONE, 0, MOE_ERR_FORMAT, "expert_used_count'"},
    {"llama", "llama.expert_used_count", U32, 0, MOE_ERR_FORMAT, "expert_used_count' is 0"},
    {"llama", "llama.expert_used_count", U32, 9, MOE_ERR_FORMAT, "is 9, not 1 to 8"},
    {"llama", "llama.feed_forward_length", GONE, 0, MOE_ERR_FORMAT, "'llama.feed_forward_length'"},
    {"llama", "llama.expert_gating_func", U32, 5, MOE_ERR_UNSUPPORTED, "expert_gating_func' is 5"},
    {"llama", "llama.expert_weights_norm", U32, 2, MOE_ERR_FORMAT, "neither 0 nor 1"},
    {"llama", "tokenizer.ggml.tokens", MIXED, 0, MOE_OK, ""},
    {"deepseek", "deepseek.expert_feed_forward_length", GONE, 0, MOE_ERR_FORMAT, "is missing"},
    {"deepseek", "deepseek.feed_forward_length", GONE, 0, MOE_ERR_FORMAT, "is missing"},
    {"deepseek", "deepseek.feed_forward_length", MIXED, 0, MOE_ERR_UNSUPPORTED, "only uniform"},
    {"deepseek", "deepseek.expert_shared_count", U32, 4e9, MOE_ERR_FORMAT, "expert_shared_count"},
    {"deepseek", "deepseek.leading_dense_block_count", U32, 2, MOE_ERR_FORMAT, "is 2, not 0 to 1"},
    {"deepseek2", "deepseek2.attention.kv_lora_rank", GONE, 0, MOE_ERR_FORMAT, "kv_lora_rank'"},
    {"deepseek2", "deepseek2.attention.kv_lora_rank", U32, 0, MOE_ERR_FORMAT, "kv_lora_rank' is 0"},
    {"deepseek2", "deepseek2.attention.kv_lora_rank", U32, 4e9, MOE_ERR_FORMAT, "kv_lora_rank"},
    {"deepseek2", "deepseek2.rope.dimension_count", GONE, 0, MOE_ERR_FORMAT, "dimension_count'"},
    {"deepseek2", "deepseek2.rope.dimension_count", U32, 48, MOE_ERR_FORMAT, "is not above key"},
    {"deepseek2", "deepseek2.attention.value_length_mla", GONE, 0, MOE_ERR_FORMAT, "length_mla'"},
    {"deepseek2", "deepseek2.attention.value_length_mla", U32, 0, MOE_ERR_FORMAT, "value_length"},
    {"deepseek2", "deepseek2.expert_group_count", U32, 3, MOE_ERR_FORMAT, "group_used_count"},
    {"deepseek2", "deepseek2.attention.indexer.top_k", U32, 64, MOE_ERR_UNSUPPORTED,
     "top_k' is 64"},
    {"granitemoe", "granitemoe.embedding_scale", F32, -2, MOE_ERR_FORMAT, "embedding_scale' is -2"},
    {"granitemoe", "granitemoe.logit_scale", F32, -2, MOE_ERR_FORMAT, "logit_scale' is -2"},
    {"granitemoe", "granitemoe.residual_scale", TEXT, 0, MOE_ERR_FORMAT, "residual_scale"},
    {"ernie4_5-moe", "ernie4_5-moe.interleave_moe_layer_step", U32, 3, MOE_ERR_FORMAT,
     "interleave_moe_layer_step' is 3, not 1 to 2"},
    {"ernie4_5-moe", "ernie4_5-moe.expert_group_count", U32, 4, MOE_ERR_UNSUPPORTED, "is 4"},
    {"deepseek2", "deepseek2.attention.temperature_scale", F32, 0.1, MOE_ERR_FORMAT,
     "0 or missing"},
    {"deepseek2", "deepseek2.nextn_predict_layers", U32, 9, MOE_ERR_FORMAT, "nextn_predict_layers"},
};

static void spoil(gguf_builder *b, const refusal *row)
{
    gb_remove(b, row->key);
    if (row->kind == U32) {
        gb_u32(b, row->key, (uint32_t)row->number);
    } else if (row->kind == F32) {
        gb_f32(b, row->key, (float)row->number);
    } else if (row->kind == TEXT) {
        gb_string(b, row->key, "something else");
    } else if (row->kind == MIXED) {
        gb_array_i32(b, row->key, (int32_t[]){4, 8}, 2);
    }
}

static void test_refusals(void **state)
{
    int n_wrong = 0;
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *row = &refusals[i];
        gguf_builder *b = preset(row->architecture);
        moe_model_config config;
        moe_error err = {""};
        spoil(b, row);
        int status = read_config(b, &config, &err);
        if (status != row->status || strstr(err.message, row->says) == NULL) {
            print_error("%s, kind %d, %g: status %d, \"%s\"\n", row->key, (int)row->kind,
                        row->number, status, err.message);
            n_wrong++;
        }
        assert_int_equal(read_config(b, &config, NULL), row->status);
        gb_free(b);
    }
    assert_int_equal(n_wrong, 0);
}

/* The message names some, and counts the others. */
static void test_unknown_architecture(void **state)
{
    (void)state;
    static const refusal unknown = {"olmoe", "general.architecture", TEXT, 0, 0, ""};
    gguf_builder *b = preset(unknown.architecture);
    moe_model_config config;
    moe_error err = {""};
    spoil(b, &unknown);
    assert_int_equal(read_config(b, &config, &err), MOE_ERR_UNSUPPORTED);
    const char *more = strstr(err.message, " and ");
    assert_non_null(more);
    size_t n = 1, rest = strtoul(more + strlen(" and "), NULL, 10);
    for (const char *c = strstr(err.message, "supported are "); c < more; c++) {
        n += *c == ',';
    }
    assert_true(rest > 0 && n + rest == moe_family_count());
    assert_string_equal(err.message + strlen(err.message) - strlen(" more"), " more");
    gb_free(b);
}

/* What is known and does not run is refused with what it would need. */
static void test_missing_families(void **state)
{
    (void)state;
    for (size_t i = 0; i < moe_missing_family_count(); i++) {
        const moe_missing_family *missing = moe_missing_family_at(i);
        gguf_builder *b = preset("olmoe");
        moe_model_config config;
        moe_error err = {""};
        gb_remove(b, "general.architecture");
        gb_string(b, "general.architecture", missing->architecture);
        assert_int_equal(read_config(b, &config, &err), MOE_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, missing->name));
        assert_non_null(strstr(err.message, missing->missing));
        assert_null(moe_family_find(missing->architecture));
        gb_free(b);
    }
    assert_null(moe_missing_family_at(moe_missing_family_count()));
    assert_string_equal(moe_missing_family_find("SolarOpen2")->architecture, "solar-open2");
    assert_string_equal(moe_missing_family_find("mistral_large_4")->architecture, "mistral-large4");
    assert_null(moe_missing_family_find("solar-open"));
    assert_null(moe_missing_family_find("-"));
    assert_null(moe_missing_family_find("glm-dsa"));
}

static void test_group_relations(void **state)
{
    static const struct {
        uint32_t count, used, n_used;
        const char *says;
    } rows[] = {
        {3, 1, 2, "does not divide"},
        {4, 5, 2, "expert_group_used_count' is 5"},
        {4, 1, 3, "3 experts cannot be chosen from 1 groups of 2"},
        {8, 2, 2, "2 groups of 1"}, /* no two best in a group of one */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gguf_builder *b = preset("deepseek2");
        moe_model_config config;
        moe_error err = {""};
        gb_u32(b, "deepseek2.expert_group_count", rows[i].count);
        gb_u32(b, "deepseek2.expert_group_used_count", rows[i].used);
        gb_u32(b, "deepseek2.expert_gating_func", 2);
        gb_remove(b, "deepseek2.expert_used_count");
        gb_u32(b, "deepseek2.expert_used_count", rows[i].n_used);
        assert_int_equal(read_config(b, &config, &err), MOE_ERR_FORMAT);
        assert_non_null(strstr(err.message, rows[i].says));
        gb_free(b);
    }
    gguf_builder *b = preset("llama");
    moe_error err = {""};
    moe_model_config config;
    gb_array_tokens(b, "tokenizer.ggml.tokens", 97);
    assert_int_equal(read_config(b, &config, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "97 tokens"));
    gb_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_unknown_architecture),
        cmocka_unit_test(test_missing_families),
        cmocka_unit_test(test_group_relations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
