/* SPDX-License-Identifier: MIT */
/* The dials that each family's metadata give. */
#include "tests/model/config_fixture.h"

#include "runtime/base/dtype.h"

#include <math.h>

static const char *const architectures[] = {"llama",    "olmoe",    "qwen2moe",
                                            "qwen3moe", "deepseek", "deepseek2"};
#define N_ARCHITECTURES (sizeof architectures / sizeof architectures[0])

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance * fabs(expected))) {
        fail_msg("%.9g is not %.9g", value, expected);
    }
}

static void test_common_dials(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        moe_model_config config = config_of(preset(architectures[i]));
        assert_string_equal(config.architecture, architectures[i]);
        assert_non_null(config.family);
        assert_int_equal(config.n_layer, 2);
        assert_int_equal(config.n_embd, 64);
        assert_int_equal(config.n_vocab, 96);
        assert_int_equal(config.n_context_train, 256);
        assert_true(config.norm_eps == 1e-5f);
        assert_true(config.embedding_scale == 1 && config.residual_scale == 1);
        assert_true(config.logit_scale == 1);
        assert_int_equal(config.n_head, 4);
        assert_int_equal(config.n_rot, 16);
        assert_true(config.rope_freq_base == 10000.0f);
        assert_int_equal(config.rope_scaling, MOE_ROPE_SCALING_NONE);
        assert_true(config.yarn_magnitude == 1);
        assert_int_equal(config.n_expert, 8);
        assert_int_equal(config.n_expert_used, 2);
        assert_int_equal(config.n_ff_expert, 32);
        assert_int_equal(config.moe_every, 1);
        assert_int_equal(config.n_group, 1);
        assert_int_equal(config.gate, MOE_GATE_SOFTMAX);
        assert_false(config.tied_output);
        assert_false(config.gate_selection_bias);
    }
}

static void test_dials_that_differ(void **state)
{
    static const struct {
        moe_attention_kind attention;
        moe_rope_kind rope;
        bool renormalise, shared_gated;
        float gate_scale;
        uint32_t n_dense_lead, n_ff_shared;
    } rows[N_ARCHITECTURES] = {
        {MOE_ATTENTION_GQA, MOE_ROPE_INTERLEAVED, true, false, 1, 0, 0},
        {MOE_ATTENTION_GQA, MOE_ROPE_HALVES, false, false, 1, 0, 0},
        {MOE_ATTENTION_GQA, MOE_ROPE_HALVES, false, true, 1, 0, 32},
        {MOE_ATTENTION_GQA, MOE_ROPE_HALVES, true, false, 1, 0, 0},
        {MOE_ATTENTION_GQA, MOE_ROPE_INTERLEAVED, false, false, 1.5f, 1, 64},
        {MOE_ATTENTION_MLA, MOE_ROPE_INTERLEAVED, false, false, 1.5f, 1, 64},
    };
    (void)state;
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        moe_model_config config = config_of(preset(architectures[i]));
        assert_int_equal(config.attention, rows[i].attention);
        assert_int_equal(config.rope, rows[i].rope);
        assert_int_equal(config.gate_renormalise, rows[i].renormalise);
        assert_int_equal(config.shared_gated, rows[i].shared_gated);
        assert_true(config.gate_scale == rows[i].gate_scale);
        assert_int_equal(config.n_dense_lead, rows[i].n_dense_lead);
        assert_int_equal(config.n_ff_shared, rows[i].n_ff_shared);
        assert_int_equal(moe_layer_has_experts(&config, 0), rows[i].n_dense_lead == 0);
        assert_true(moe_layer_has_experts(&config, 1));
    }
}

static void test_scales(void **state)
{
    (void)state;
    gguf_builder *b = preset("granitemoe");
    gb_f32(b, "granitemoe.embedding_scale", 12);
    gb_f32(b, "granitemoe.residual_scale", 0.25f);
    gb_f32(b, "granitemoe.logit_scale", 8);
    gb_f32(b, "granitemoe.attention.scale", 0.5f);
    moe_model_config config = config_of(b);
    assert_true(config.embedding_scale == 12 && config.residual_scale == 0.25f);
    assert_true(config.logit_scale == 0.125f); /* a divisor in this family */
    assert_true(config.attention_scale == 0.5f);

    b = preset("granitemoe"); /* 0 stands for an absent key */
    gb_f32(b, "granitemoe.residual_scale", 0);
    config = config_of(b);
    assert_true(config.embedding_scale == 1 && config.residual_scale == 1);
    assert_true(config.logit_scale == 1);
}

static void test_layers_with_experts(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("ernie4_5-moe");
    model.n_layer = 6;
    gguf_builder *b = gb_model_build(&model);
    gb_u32(b, "ernie4_5-moe.interleave_moe_layer_step", 2);
    gb_u32(b, "ernie4_5-moe.leading_dense_block_count", 2);
    moe_model_config config = config_of(b);
    assert_int_equal(config.n_ff_dense, model.n_ff);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(moe_layer_has_experts(&config, i), i == 3 || i == 5);
    }
}

/* What a file has and has not decides where the family leaves it open. */
static void test_told_by_tensors(void **state)
{
    (void)state;
    moe_model_config config = config_of(preset("hunyuan-moe"));
    assert_int_equal(config.n_ff_shared, 0);
    gguf_builder *b = preset("hunyuan-moe");
    gb_u32(b, "hunyuan-moe.expert_shared_feed_forward_length", 999);
    gb_tensor(b, "blk.1.ffn_up_shexp.weight", MOE_DTYPE_F32, 2, 64, 24);
    config = config_of(b);
    assert_int_equal(config.n_ff_shared, 24);
    assert_false(config.shared_gated);

    b = preset("dots1"); /* a gate that is not stated, and biases for the choice */
    gb_tensor(b, "blk.0.exp_probs_b.bias", MOE_DTYPE_F32, 1, 8);
    config = config_of(b);
    assert_int_equal(config.gate, MOE_GATE_SIGMOID);
    assert_true(config.gate_selection_bias);
}

static void test_stated_gate_wins(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        char key[64];
        moe_model_config plain = config_of(preset(architectures[i]));
        gguf_builder *b = preset(architectures[i]);
        snprintf(key, sizeof key, "%s.expert_weights_norm", architectures[i]);
        gb_bool(b, key, !plain.gate_renormalise);
        snprintf(key, sizeof key, "%s.expert_weights_scale", architectures[i]);
        gb_remove(b, key);
        gb_f32(b, key, 2.5f);
        snprintf(key, sizeof key, "%s.expert_gating_func", architectures[i]);
        gb_u32(b, key, 3);
        moe_model_config config = config_of(b);
        assert_int_equal(config.gate_renormalise, !plain.gate_renormalise);
        assert_true(config.gate_scale == 2.5f);
        assert_int_equal(config.gate, MOE_GATE_SOFTMAX_SELECTED);
    }
}

static void test_grouped_heads(void **state)
{
    (void)state;
    gguf_builder *b = preset("qwen3moe");
    gb_remove(b, "qwen3moe.attention.key_length");
    gb_remove(b, "qwen3moe.attention.value_length");
    gb_u32(b, "qwen3moe.attention.key_length", 32);
    gb_u32(b, "qwen3moe.attention.value_length", 24);
    gb_u32(b, "qwen3moe.rope.dimension_count", 8);
    moe_model_config config = config_of(b);
    assert_int_equal(config.n_head_kv, 2);
    assert_int_equal(config.head_dim_k, 32);
    assert_int_equal(config.head_dim_v, 24);
    assert_int_equal(config.n_rot, 8);
    assert_near((double)config.attention_scale, 1 / sqrt(32.0), 1e-7);

    b = preset("olmoe");
    gb_remove(b, "olmoe.attention.key_length");
    gb_remove(b, "olmoe.attention.value_length");
    gb_remove(b, "olmoe.attention.head_count_kv");
    gb_remove(b, "olmoe.rope.freq_base");
    gb_f32(b, "olmoe.attention.clamp_kqv", 8);
    config = config_of(b);
    assert_int_equal(config.n_head_kv, 4);
    assert_int_equal(config.head_dim_k, 16);
    assert_true(config.clip_qkv == 8);
    assert_true(config.rope_freq_base == 10000.0f);
}

static void test_latent_heads(void **state)
{
    (void)state;
    for (int joined = 0; joined < 2; joined++) {
        gb_model model = gb_model_preset("deepseek2");
        model.joined_kv = joined;
        model.q_rank = joined ? 0 : 24;
        moe_model_config config = config_of(gb_model_build(&model));
        assert_int_equal(config.q_lora_rank, joined ? 0 : 24);
        assert_int_equal(config.kv_lora_rank, 32);
        assert_int_equal(config.qk_nope_dim, 32);
        assert_int_equal(config.v_head_dim, 32);
        assert_int_equal(config.n_head_kv, 1);
        assert_int_equal(config.head_dim_k, 48);
        assert_int_equal(config.head_dim_v, 32);
        assert_near((double)config.attention_scale, 1 / sqrt(48.0), 1e-7);
    }
}

static void test_expert_widths(void **state)
{
    (void)state;
    gguf_builder *b = preset("qwen2moe");
    gb_remove(b, "qwen2moe.expert_feed_forward_length");
    gb_remove(b, "qwen2moe.expert_shared_feed_forward_length");
    moe_model_config config = config_of(b);
    assert_int_equal(config.n_ff_expert, 48); /* 96 / 2 used */
    assert_int_equal(config.n_ff_shared, 96);
    b = preset("qwen3moe");
    gb_remove(b, "qwen3moe.feed_forward_length");
    config = config_of(b);
    assert_int_equal(config.n_ff_expert, 32);
    /* Arrays of equal values, as some converters write them. */
    b = preset("deepseek");
    gb_remove(b, "deepseek.feed_forward_length");
    gb_array_i32(b, "deepseek.feed_forward_length", (int32_t[]){96, 96}, 2);
    config = config_of(b);
    assert_int_equal(config.n_ff_dense, 96);
}

static void test_groups_and_sigmoid(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("deepseek2");
    model.n_group = 4;
    model.n_group_used = 2;
    moe_model_config config = config_of(gb_model_build(&model));
    assert_int_equal(config.n_group, 4);
    assert_int_equal(config.n_group_used, 2);
    assert_int_equal(config.group_score, MOE_GROUP_SCORE_MAX);
    model.selection_bias = 1;
    gguf_builder *b = gb_model_build(&model);
    gb_bool(b, "deepseek2.expert_weights_norm", 1);
    config = config_of(b);
    assert_int_equal(config.gate, MOE_GATE_SIGMOID);
    assert_int_equal(config.group_score, MOE_GROUP_SCORE_TOP2_SUM);
    assert_true(config.gate_selection_bias);
    assert_true(config.gate_renormalise);

    /* DeepSeek-V3 before the key expert_gating_func, told by its shape; layers that predict
     * further tokens are not among the 61. */
    b = preset("deepseek2");
    gb_remove(b, "deepseek2.block_count");
    gb_remove(b, "deepseek2.expert_count");
    gb_u32(b, "deepseek2.block_count", 62);
    gb_u32(b, "deepseek2.nextn_predict_layers", 1);
    gb_u32(b, "deepseek2.expert_count", 256);
    config = config_of(b);
    assert_int_equal(config.n_layer, 61);
    assert_int_equal(config.gate, MOE_GATE_SIGMOID);
    assert_true(config.gate_renormalise);
}

static void test_vocabulary(void **state)
{
    (void)state;
    gguf_builder *b = preset("olmoe");
    gb_array_tokens(b, "tokenizer.ggml.tokens", 90); /* the embedding is padded */
    assert_int_equal(config_of(b).n_vocab, 96);
    b = preset("olmoe");
    gb_remove_tensor(b, "token_embd.weight");
    gb_remove(b, "olmoe.vocab_size");
    gb_array_tokens(b, "tokenizer.ggml.tokens", 90);
    assert_int_equal(config_of(b).n_vocab, 90);
    gb_model model = gb_model_preset("olmoe");
    model.tied = 1;
    assert_true(config_of(gb_model_build(&model)).tied_output);
}

/* Expected numbers: `transformers` 5.23, ROPE_INIT_FUNCTIONS and the `scaling` of its attention
 * modules, in float32, for the configurations named. */
static void expect_frequencies(const moe_model_config *config, const float *factors,
                               const int *index, const double *expected, int n)
{
    float frequencies[128];
    moe_rope_frequencies(config, factors, frequencies);
    for (int i = 0; i < n; i++) {
        assert_near((double)frequencies[index[i]], expected[i], 2e-6);
    }
}

static void test_linear_rope(void **state)
{
    (void)state;
    gguf_builder *b = preset("llama");
    gb_u32(b, "llama.rope.dimension_count", 16);
    gb_f32(b, "llama.rope.scaling.factor", 4); /* without a type: linear */
    moe_model_config config = config_of(b);
    assert_int_equal(config.rope_scaling, MOE_ROPE_SCALING_LINEAR);
    config.n_rot = 128;
    expect_frequencies(&config, NULL, (int[]){0, 1, 8, 63},
                       (double[]){0.25, 0.216491088, 0.079056941, 2.88695483e-05}, 4);
    b = preset("llama");
    gb_string(b, "llama.rope.scaling.type", "none");
    gb_f32(b, "llama.rope.scaling.factor", 4);
    config = config_of(b);
    assert_int_equal(config.rope_scaling, MOE_ROPE_SCALING_NONE);
    assert_true(config.rope_factor == 1);
}

/* Llama-3 scaling (rope_type llama3: factor 8, base 500000): the file holds its factors. */
static void test_rope_factors(void **state)
{
    float factors[64];
    (void)state;
    moe_model_config config = config_of(preset("llama"));
    config.n_rot = 128;
    config.rope_freq_base = 500000;
    for (int i = 0; i < 64; i++) {
        factors[i] = i < 29 ? 1 : 8; /* the blend in between is left out */
    }
    expect_frequencies(&config, factors, (int[]){0, 1, 16, 24, 63},
                       (double[]){1, 0.814617217, 0.0376060307, 0.00729266508, 3.06892588e-07}, 5);
}

static void test_yarn(void **state)
{
    (void)state;
    gguf_builder *b = preset("qwen3moe");
    gb_remove(b, "qwen3moe.rope.freq_base");
    gb_f32(b, "qwen3moe.rope.freq_base", 1e6f);
    gb_string(b, "qwen3moe.rope.scaling.type", "yarn");
    gb_f32(b, "qwen3moe.rope.scaling.factor", 4);
    gb_u32(b, "qwen3moe.rope.scaling.original_context_length", 32768);
    moe_model_config config = config_of(b);
    assert_int_equal(config.rope_scaling, MOE_ROPE_SCALING_YARN);
    assert_near((double)config.yarn_magnitude, 1.13862944, 1e-6);
    assert_near((double)config.attention_scale, 0.25, 1e-7);
    config.n_rot = 128;
    expect_frequencies(&config, NULL, (int[]){0, 1, 8, 12, 16, 20, 24, 63},
                       (double[]){1, 0.805842221, 0.177827939, 0.0749894157, 0.0316227786,
                                  0.0133352149, 0.00537532149, 3.10234441e-07},
                       8);
    b = preset("qwen2moe");
    gb_string(b, "qwen2moe.rope.scaling.type", "yarn");
    gb_f32(b, "qwen2moe.rope.scaling.factor", 4);
    gb_f32(b, "qwen2moe.rope.scaling.attn_factor", 0.5f);
    config = config_of(b);
    assert_int_equal(config.rope_original_context, 256);
    assert_near((double)config.yarn_magnitude, 1.13862944 / 2, 1e-6);
}

/* transformers' attention_factor, which is what converters write as yarn_attn_factor, stands in the
 * place of 0.1 ln(factor) + 1 (_compute_yarn_parameters() of its modeling_rope_utils.py). */
static void test_yarn_attention_factor(void **state)
{
    (void)state;
    gguf_builder *b = preset("qwen3moe");
    gb_f32(b, "qwen3moe.rope.scaling.yarn_attn_factor", 0.75f);
    assert_true(config_of(b).yarn_magnitude == 1); /* nothing without YaRN */

    b = preset("qwen3moe");
    gb_string(b, "qwen3moe.rope.scaling.type", "yarn");
    gb_f32(b, "qwen3moe.rope.scaling.factor", 4);
    gb_f32(b, "qwen3moe.rope.scaling.yarn_attn_factor", 0.75f);
    assert_near((double)config_of(b).yarn_magnitude, 0.75, 1e-7);

    b = preset("qwen3moe"); /* a factor of 1 changes no frequency, and leaves this one */
    gb_string(b, "qwen3moe.rope.scaling.type", "yarn");
    gb_f32(b, "qwen3moe.rope.scaling.yarn_attn_factor", 0.75f);
    gb_f32(b, "qwen3moe.rope.scaling.attn_factor", 2);
    moe_model_config config = config_of(b);
    assert_near((double)config.yarn_magnitude, 1.5, 1e-7);
    assert_int_equal(config.rope_scaling, MOE_ROPE_SCALING_NONE);

    b = preset("qwen3moe");
    gb_string(b, "qwen3moe.rope.scaling.type", "yarn");
    gb_f32(b, "qwen3moe.rope.scaling.factor", 4);
    gb_f32(b, "qwen3moe.rope.scaling.yarn_attn_factor", 0);
    moe_error err = {""};
    assert_int_equal(read_config(b, &config, &err), MOE_ERR_FORMAT);
    gb_free(b);
}

static gguf_builder *latent_yarn(float multiplier)
{
    gguf_builder *b = preset("deepseek2");
    gb_remove(b, "deepseek2.attention.key_length_mla");
    gb_u32(b, "deepseek2.attention.key_length_mla", 192);
    gb_remove(b, "deepseek2.rope.dimension_count");
    gb_u32(b, "deepseek2.rope.dimension_count", 64);
    gb_string(b, "deepseek2.rope.scaling.type", "yarn");
    gb_f32(b, "deepseek2.rope.scaling.factor", 40);
    gb_u32(b, "deepseek2.rope.scaling.original_context_length", 4096);
    if (multiplier != 0) {
        gb_f32(b, "deepseek2.rope.scaling.yarn_log_multiplier", multiplier);
    }
    return b;
}

static void test_latent_yarn(void **state)
{
    (void)state;
    moe_model_config config = config_of(latent_yarn(0.0707f)); /* V2: mscale_all_dim 0.707 */
    assert_near((double)config.attention_scale, 0.114721387, 1e-6);
    assert_true(config.yarn_magnitude == 1);
    expect_frequencies(&config, NULL, (int[]){0, 1, 8, 12, 16, 20, 24, 31},
                       (double[]){1, 0.749894202, 0.100000001, 0.0268793609, 0.00550000044,
                                  0.000790569407, 2.49999994e-05, 3.33380353e-06},
                       8);
    config = config_of(latent_yarn(0.1f)); /* V3: 1.0 */
    assert_near((double)config.attention_scale, 0.135233779, 1e-6);
    gguf_builder *b = latent_yarn(0.1f);
    gb_f32(b, "deepseek2.rope.scaling.yarn_attn_factor", 1.25f);
    config = config_of(b);
    assert_near((double)config.attention_scale, 0.135233779, 1e-6);
    assert_near((double)config.yarn_magnitude, 1.25, 1e-7);
    config = config_of(latent_yarn(0)); /* no mscale_all_dim: cos and sin alone are scaled */
    assert_near((double)config.attention_scale, 1 / sqrt(192.0), 1e-6);
    assert_near((double)config.yarn_magnitude, 1 + 0.1 * log(40), 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_common_dials),
        cmocka_unit_test(test_dials_that_differ),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_layers_with_experts),
        cmocka_unit_test(test_told_by_tensors),
        cmocka_unit_test(test_stated_gate_wins),
        cmocka_unit_test(test_grouped_heads),
        cmocka_unit_test(test_latent_heads),
        cmocka_unit_test(test_expert_widths),
        cmocka_unit_test(test_groups_and_sigmoid),
        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_linear_rope),
        cmocka_unit_test(test_rope_factors),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_yarn_attention_factor),
        cmocka_unit_test(test_latent_yarn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
