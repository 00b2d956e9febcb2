/* SPDX-License-Identifier: MIT */
/* Every metadata key that is known elsewhere has a row in metadata_keys.c, and rows mean what they
 * say. */
#include "tests/model/config_fixture.h"

#include <math.h>

#include "runtime/families/families.h"
#include "runtime/model/metadata_keys.h"
#include "runtime/model/override_check.h"
#include "tests/test_size.h"

/* What the gguf package's constants and llama.cpp's names of keys hold under "{arch}.". */
static const char *const known_elsewhere[] = {
    "activation_sparsity_scale",
    "altup.active_idx",
    "altup.num_inputs",
    "attention.causal",
    "attention.clamp_kqv",
    "attention.compress_ratios",
    "attention.compress_rope_freq_base",
    "attention.decay_lora_rank",
    "attention.gate_lora_rank",
    "attention.group_norm_epsilon",
    "attention.group_norm_groups",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.iclr_lora_rank",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "attention.key_length",
    "attention.key_length_mla",
    "attention.key_length_swa",
    "attention.kv_lora_rank",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.max_alibi_bias",
    "attention.output_group_count",
    "attention.output_lora_rank",
    "attention.output_scale",
    "attention.q_lora_rank",
    "attention.recurrent_layers",
    "attention.relative_buckets_count",
    "attention.scale",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_length",
    "attention.value_length_mla",
    "attention.value_length_swa",
    "attention.value_residual_mix_lora_rank",
    "attention.value_scale",
    "attn_logit_softcapping",
    "block_count",
    "classifier.output_labels",
    "context_length",
    "convnext.block_count",
    "convnext.embedding_length",
    "decoder_block_count",
    "decoder_start_token_id",
    "deepstack_mapping",
    "dense_2_feat_in",
    "dense_2_feat_out",
    "dense_3_feat_in",
    "dense_3_feat_out",
    "embedding_length",
    "embedding_length_out",
    "embedding_length_per_layer_input",
    "embedding_scale",
    "expert_chunk_feed_forward_length",
    "expert_count",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_scale",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "experts_per_group",
    "features_length",
    "feed_forward_length",
    "final_logit_softcapping",
    "full_attention_interval",
    "hash_layer_count",
    "hidden_activation",
    "hyper_connection.count",
    "hyper_connection.epsilon",
    "hyper_connection.sinkhorn_iterations",
    "interleave_moe_layer_step",
    "kda.head_dim",
    "leading_dense_block_count",
    "logit_scale",
    "moe_every_n_layers",
    "moe_latent_size",
    "n_deepstack_layers",
    "nextn_predict_layers",
    "norm_before_residual",
    "pooling_type",
    "posnet.block_count",
    "posnet.embedding_length",
    "rescale_every_n_layers",
    "residual_scale",
    "rope.dimension_count",
    "rope.dimension_count_swa",
    "rope.dimension_sections",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.alpha",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "router_logit_softcapping",
    "shortconv.l_cache",
    "ssm.conv_kernel",
    "ssm.dt_b_c_rms",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
    "swin_norm",
    "target_hidden_size",
    "target_layers",
    "tensor_data_layout",
    "time_decay_extra_dim",
    "time_mix_extra_dim",
    "token_shift_count",
    "use_parallel_residual",
    "vocab_size",
    "wkv.head_size",
};

/* A valid model with one more key. */
static gguf_builder *with_number(const char *architecture, const char *suffix, float value)
{
    char key[128];
    gguf_builder *b = preset(architecture);
    snprintf(key, sizeof key, "%s.%s", architecture, suffix);
    gb_remove(b, key);
    gb_f32(b, key, value);
    return b;
}

static moe_key_use use_of(gguf_builder *b, const char *architecture, const char *suffix,
                          const char **why)
{
    moe_gguf *gguf = NULL;
    char key[128];
    size_t size;
    const uint8_t *bytes = gb_finish(b, &size);
    snprintf(key, sizeof key, "%s.%s", architecture, suffix);
    assert_int_equal(moe_gguf_parse(&gguf, bytes, size, NULL), MOE_OK);
    const moe_gguf_kv *kv = moe_gguf_find(gguf, key);
    assert_non_null(kv);
    moe_key_use use = moe_metadata_key_use(moe_family_find(architecture), gguf, kv, why);
    moe_gguf_close(&gguf);
    return use;
}

static void test_every_key_is_known(void **state)
{
    int n_unknown = 0;
    (void)state;
    for (size_t f = 0; f < moe_family_count(); f++) {
        const char *architecture = moe_family_at(f)->architecture;
        for (size_t i = 0; i < sizeof known_elsewhere / sizeof known_elsewhere[0]; i++) {
            const char *why = NULL;
            if (test_leaves_out((uint32_t)(f + i), 8)) {
                continue;
            }
            gguf_builder *b = with_number(architecture, known_elsewhere[i], 7);
            moe_key_use use = use_of(b, architecture, known_elsewhere[i], &why);
            gb_free(b);
            if (use == MOE_KEY_USE_UNKNOWN || use == MOE_KEY_USE_NOT_OURS || why[0] == '\0') {
                print_error("%s.%s: %d\n", architecture, known_elsewhere[i], (int)use);
                n_unknown++;
            }
        }
    }
    assert_int_equal(n_unknown, 0);
}

/* Every key of the families' own files sets a dial or is known to change nothing. */
static void test_own_keys(void **state)
{
    (void)state;
    for (size_t f = 0; f < moe_family_count(); f++) {
        const moe_family *family = moe_family_at(f);
        gguf_builder *b = preset(family->architecture);
        moe_gguf *gguf = NULL;
        size_t size;
        size_t n_read = 0;
        const uint8_t *bytes = gb_finish(b, &size);
        assert_int_equal(moe_gguf_parse(&gguf, bytes, size, NULL), MOE_OK);
        for (size_t i = 0; i < moe_gguf_n_kvs(gguf); i++) {
            const moe_gguf_kv *kv = moe_gguf_kv_at(gguf, i);
            moe_key_use use = moe_metadata_key_use(family, gguf, kv, NULL);
            assert_true(use != MOE_KEY_USE_UNKNOWN && use != MOE_KEY_USE_REFUSED);
            n_read += use == MOE_KEY_USE_READ;
        }
        assert_true(n_read > 10);
        moe_gguf_close(&gguf);
        gb_free(b);
    }
}

static void test_unknown_and_not_ours(void **state)
{
    (void)state;
    static const char *const unknown[] = {"frobnication", "attention.",    "attention.scale2",
                                          "ss",           "rope.scaling.", ""};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        const char *why = NULL;
        gguf_builder *b = with_number("olmoe", unknown[i], 0);
        assert_int_equal(use_of(b, "olmoe", unknown[i], &why), MOE_KEY_USE_UNKNOWN);
        assert_string_equal(why, "");
        moe_model_config config = config_of(b); /* it is told, not refused */
        assert_int_equal(config.n_layer, 2);
    }
    gguf_builder *b = with_number("olmoe", "x", 0);
    gb_f32(b, "olmo.attention.sliding_window", 4);
    gb_f32(b, "olmoes.attention.sliding_window", 4);
    moe_gguf *gguf = NULL;
    size_t size;
    const uint8_t *bytes = gb_finish(b, &size);
    assert_int_equal(moe_gguf_parse(&gguf, bytes, size, NULL), MOE_OK);
    for (const char *const *key =
             (const char *const[]){"olmo.attention.sliding_window",
                                   "olmoes.attention.sliding_window", "general.architecture", NULL};
         *key != NULL; key++) {
        assert_int_equal(
            moe_metadata_key_use(moe_family_find("olmoe"), gguf, moe_gguf_find(gguf, *key), NULL),
            MOE_KEY_USE_NOT_OURS);
    }
    moe_gguf_close(&gguf);
    gb_free(b);
}

/* The same key with a value that changes nothing, and with one that would. */
static void test_neutral_values(void **state)
{
    static const struct {
        const char *architecture, *suffix;
        float neutral, other;
    } rows[] = {
        {"olmoe", "logit_scale", 1, 0.5f},
        {"olmoe", "logit_scale", 0, 2},
        {"llama", "attention.clamp_kqv", 0, 8},
        {"llama", "attention.causal", 1, 0},
        {"llama", "expert_group_count", 1, 4},
        {"llama", "use_parallel_residual", 0, 1},
        {"llama", "attention.q_lora_rank", 0, 24},
        {"llama", "attention.decay_lora_rank", 0, 24},
        {"llama", "rope.freq_base_swa", 10000, 1e6f},
        {"llama", "attention.key_length_swa", 16, 32},
        {"llama", "embedding_length_out", 64, 32},
        {"llama", "full_attention_interval", 1, 4},
        {"llama", "attention.indexer.top_k", 0, 2048},
        {"llama", "ssm.conv_kernel", 0, 4},
        {"llama", "attention.output_scale", 1, 0.5f},
        {"llama", "rope.scaling.alpha", 1, 1000},
        {"llama", "rope.scaling.yarn_ext_factor", 1, 0.5f},
        {"qwen2moe", "expert_shared_count", 1, 4},
        {"qwen3moe", "leading_dense_block_count", 0, 1},
        {"qwen3moe", "swiglu_clamp_exp", 0, 7},
        {"glm4moe", "attention.temperature_scale", 0, 0.1f},
        {"glm4moe", "attention.temperature_length", 0, 8192},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gguf_builder *b = with_number(rows[i].architecture, rows[i].suffix, rows[i].neutral);
        assert_int_equal(use_of(b, rows[i].architecture, rows[i].suffix, NULL),
                         MOE_KEY_USE_HARMLESS);
        (void)config_of(b);

        moe_error err = {""};
        moe_model_config config;
        char says[64];
        b = with_number(rows[i].architecture, rows[i].suffix, rows[i].other);
        assert_int_equal(use_of(b, rows[i].architecture, rows[i].suffix, NULL),
                         MOE_KEY_USE_REFUSED);
        assert_int_equal(read_config(b, &config, &err), MOE_ERR_UNSUPPORTED);
        snprintf(says, sizeof says, "%s' is %g", rows[i].suffix, (double)rows[i].other);
        assert_non_null(strstr(err.message, says));
        gb_free(b);
    }
}

static void test_texts_and_arrays(void **state)
{
    (void)state;
    moe_model_config config;
    moe_error err = {""};
    gguf_builder *b = preset("llama");
    gb_string(b, "llama.hidden_activation", "silu");
    gb_string(b, "llama.tensor_data_layout", "Meta AI original pth");
    gb_array_f32(b, "llama.swiglu_clamp_exp", (float[]){0, 0}, 2);
    gb_array_i32(b, "llama.attention.recurrent_layers", (int32_t[]){0, 0}, 2);
    gb_array_i32(b, "llama.rope.dimension_sections", (int32_t[]){0, 0, 0, 0}, 4);
    (void)config_of(b);

    b = preset("llama");
    gb_string(b, "llama.hidden_activation", "gelu");
    assert_int_equal(read_config(b, &config, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "'llama.hidden_activation' is 'gelu'"));
    gb_free(b);

    b = preset("llama");
    gb_array_f32(b, "llama.swiglu_clamp_exp", (float[]){0, 7}, 2);
    assert_int_equal(read_config(b, &config, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "'llama.swiglu_clamp_exp' is an array that has 7"));
    gb_free(b);

    /* One value for each layer, where one value is expected. */
    b = preset("llama");
    gb_remove(b, "llama.rope.freq_base");
    gb_array_f32(b, "llama.rope.freq_base", (float[]){10000, 500}, 2);
    assert_int_equal(read_config(b, &config, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'llama.rope.freq_base' is an array"));
    gb_free(b);
}

static void test_window(void **state)
{
    (void)state;
    moe_model_config config = config_of(preset("llama"));
    assert_int_equal(config.attention_window, 0);
    gguf_builder *b = preset("llama");
    gb_u32(b, "llama.attention.sliding_window", 4096);
    gb_array_i32(b, "llama.attention.sliding_window_pattern", (int32_t[]){1, 0}, 2);
    config = config_of(b);
    assert_int_equal(config.attention_window, 4096);

    b = preset("llama");
    moe_error err = {""};
    gb_array_i32(b, "llama.attention.sliding_window", (int32_t[]){4096, 0}, 2);
    assert_int_equal(read_config(b, &config, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "'llama.attention.sliding_window' differs between layers"));
    gb_free(b);
}

/* A bias for the choice of experts, and no word on the gate. */
static void test_gate_that_is_not_said(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("deepseek2");
    model.selection_bias = 1;
    gguf_builder *b = gb_model_build(&model);
    gb_remove(b, "deepseek2.expert_gating_func");
    gb_remove(b, "deepseek2.expert_weights_norm");
    moe_model_config config = config_of(b);
    assert_int_equal(config.gate, MOE_GATE_SIGMOID);
    assert_true(config.gate_renormalise && config.gate_assumed);
    assert_int_equal(config.group_score, MOE_GROUP_SCORE_TOP2_SUM);

    b = gb_model_build(&model);
    gb_remove(b, "deepseek2.expert_gating_func");
    gb_u32(b, "deepseek2.expert_gating_func", 1);
    config = config_of(b); /* what the file says holds */
    assert_int_equal(config.gate, MOE_GATE_SOFTMAX);
    assert_false(config.gate_assumed);

    model = gb_model_preset("qwen3moe");
    model.selection_bias = 1;
    b = gb_model_build(&model);
    gb_remove(b, "qwen3moe.expert_gating_func");
    moe_error err = {""};
    assert_int_equal(read_config(b, &config, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "key 'qwen3moe.expert_gating_func' is missing"));
    assert_non_null(strstr(err.message, "exp_probs_b"));
    gb_free(b);
}

/* A parsed model with overrides; NULL: they are refused, and *err says why. */
static moe_gguf *overridden(gguf_builder *b, const moe_metadata_override *overrides, size_t n,
                            moe_error *err)
{
    moe_gguf *gguf = NULL;
    size_t size;
    const uint8_t *bytes = gb_finish(b, &size);
    assert_int_equal(moe_gguf_parse(&gguf, bytes, size, NULL), MOE_OK);
    int status = moe_gguf_override(gguf, overrides, n, err);
    if (status != MOE_OK) {
        assert_int_equal(status, MOE_ERR_ARGUMENT);
        moe_gguf_close(&gguf);
    }
    return gguf;
}

static void test_overrides(void **state)
{
    (void)state;
    moe_error err = {""};
    gguf_builder *b = preset("olmoe");
    char text[] = "a,b=c,d";
    char key[] = "new.text";
    const moe_metadata_override given[] = {
        {"olmoe.context_length", MOE_METADATA_INT, {.integer = 99}},
        {key, MOE_METADATA_TEXT, {.text = text}},
        {"new.number", MOE_METADATA_FLOAT, {.real = -2.5e3}},
        {"olmoe.block_count", MOE_METADATA_INT, {.integer = -1}},
        {"new.flag", MOE_METADATA_BOOL, {.flag = true}},
        {"new.empty", MOE_METADATA_TEXT, {.text = ""}},
    };
    moe_gguf *gguf = overridden(b, given, sizeof given / sizeof given[0], &err);
    memset(text, '-', sizeof text - 1); /* the strings have been copied */
    memset(key, '-', sizeof key - 1);
    assert_non_null(gguf);
    uint32_t number = 0;
    float real = 0;
    bool flag = false;
    moe_string_view found = {0};
    assert_int_equal(moe_gguf_get_u32(gguf, "olmoe.context_length", &number, NULL), MOE_OK);
    assert_int_equal(number, 99);
    assert_int_equal(moe_gguf_get_u32(gguf, "olmoe.embedding_length", &number, NULL), MOE_OK);
    assert_int_equal(number, 64);
    assert_int_equal(moe_gguf_get_u32(gguf, "olmoe.block_count", &number, NULL), MOE_ERR_FORMAT);
    assert_int_equal(moe_gguf_get_f32(gguf, "new.number", &real, NULL), MOE_OK);
    assert_true(real == -2500);
    assert_int_equal(moe_gguf_get_bool(gguf, "new.flag", &flag, NULL), MOE_OK);
    assert_true(flag);
    assert_int_equal(moe_gguf_get_string(gguf, "new.text", &found, NULL), MOE_OK);
    assert_int_equal(found.size, 7);
    assert_memory_equal(found.data, "a,b=c,d", 7);
    assert_int_equal(moe_gguf_get_string(gguf, "new.empty", &found, NULL), MOE_OK);
    assert_int_equal(found.size, 0);
    moe_gguf_close(&gguf);

    const moe_metadata_override wrong[] = {
        {NULL, MOE_METADATA_INT, {.integer = 1}},
        {"", MOE_METADATA_INT, {.integer = 1}},
        {"key", (moe_metadata_type)(MOE_METADATA_TEXT + 1), {.integer = 1}},
        {"key", (moe_metadata_type)-1, {.integer = 1}},
        {"key", MOE_METADATA_TEXT, {.text = NULL}},
        {"key", MOE_METADATA_FLOAT, {.real = NAN}},
        {"key", MOE_METADATA_FLOAT, {.real = INFINITY}},
        {"split.no", MOE_METADATA_INT, {.integer = 1}},
        {"general.alignment", MOE_METADATA_INT, {.integer = 64}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const moe_metadata_override both[] = {given[0], wrong[i]};
        if (overridden(b, both, 2, &err) != NULL) {
            fail_msg("override %zu is accepted", i);
        }
        assert_non_null(strstr(err.message, "overrid"));
    }
    gb_free(b);
}

/* More new keys than the file has. */
static void test_many_overrides(void **state)
{
    (void)state;
    char keys[200][16];
    moe_metadata_override list[200];
    gguf_builder *b = preset("olmoe");
    for (int i = 0; i < 200; i++) {
        snprintf(keys[i], sizeof keys[i], "new.key%d", i);
        list[i] = (moe_metadata_override){keys[i], MOE_METADATA_INT, {.integer = i}};
    }
    moe_gguf *gguf = overridden(b, list, 200, NULL);
    assert_non_null(gguf);
    for (uint32_t i = 0; i < 200; i++) {
        char key[32];
        uint32_t value = 1000;
        snprintf(key, sizeof key, "new.key%u", i);
        assert_int_equal(moe_gguf_get_u32(gguf, key, &value, NULL), MOE_OK);
        assert_int_equal(value, i);
    }
    moe_gguf_close(&gguf);
    gb_free(b);
}

/* Overrides one key of an OLMoE file that says more than it needs to. */
static int check_override(const moe_metadata_override *o, const moe_family *family, moe_error *err)
{
    gguf_builder *b = preset("olmoe");
    gb_f32(b, "olmoe.logit_scale", 3);
    gb_bool(b, "olmoe.rope.scaling.finetuned", true);
    gb_string(b, "tokenizer.ggml.model", "gpt2");
    moe_gguf *gguf = overridden(b, o, 1, NULL);
    assert_non_null(gguf);
    int status = moe_overrides_check(gguf, family, o, 1, err);
    moe_gguf_close(&gguf);
    gb_free(b);
    return status;
}

static void test_overrides_without_effect(void **state)
{
    (void)state;
    const struct {
        const char *key;
        bool vocabulary;  /* only the vocabulary is opened */
        const char *says; /* NULL: the key has an effect */
    } cases[] = {
        {"olmoe.context_length", false, NULL},
        {"olmoe.logit_scale", false, NULL}, /* in the file a value that would be refused */
        {"olmoe.residual_scale", false, "(a scale of what layers add)"},
        {"olmoe.rope.scaling.finetuned", false, "(it says how the model was trained"},
        {"olmoe.contxt_length", false, "known keys like it: olmoe.context_length"},
        {"llama.rope.freq_base", false, "known keys like it: olmoe.rope.freq_base"},
        {"expert_used_count", false, "known keys like it: olmoe.expert_used_count"},
        {"olmoe.attention.recurrent_layers", false, NULL}, /* refused for its value, by name */
        {"nothing.of.the.kind", false, "nothing reads it for OLMoE models"},
        {"tokenizer.ggml.pre", false, NULL},
        {"tokenizer.ggml.add_space_prefix", false, "(the model's tokenizer is of another kind)"},
        {"tokenizer.ggml.bos_token", false, "known keys like it: tokenizer.ggml.bos_token_id"},
        {"tokenizer.ggml.pre", true, NULL},
        {"olmoe.context_length", true, "where only the vocabulary is opened"},
        {"general.architecture", true, "where only the vocabulary is opened"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        moe_metadata_override o = {cases[i].key, MOE_METADATA_INT, {.integer = 1}};
        moe_error err = {""};
        const moe_family *family = cases[i].vocabulary ? NULL : moe_family_find("olmoe");
        int status = check_override(&o, family, &err);
        if (status != (cases[i].says == NULL ? MOE_OK : MOE_ERR_ARGUMENT) ||
            (cases[i].says != NULL && (strstr(err.message, cases[i].says) == NULL ||
                                       strstr(err.message, cases[i].key) == NULL))) {
            fail_msg("override of %s: %d, %s", cases[i].key, status, err.message);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key_is_known),
        cmocka_unit_test(test_own_keys),
        cmocka_unit_test(test_unknown_and_not_ours),
        cmocka_unit_test(test_neutral_values),
        cmocka_unit_test(test_texts_and_arrays),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_gate_that_is_not_said),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_many_overrides),
        cmocka_unit_test(test_overrides_without_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
