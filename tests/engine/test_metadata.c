/* SPDX-License-Identifier: MIT */
/* Effects of unusual metadata on an opened model: the logits, the context, and the lines that the
 * caller is told. Models are copies of the oracle's with other metadata. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "tests/model/gguf_edit.h"

#define N_PROMPT 40
#define N_VOCAB  288

static const char *oracle_folder;
static char folder[] = "/tmp/moe-metadata-XXXXXX";

typedef struct notes {
    char text[4096];
    int n_lines;
} notes;

static void take_note(const char *line, void *user)
{
    notes *n = user;
    size_t used = strlen(n->text);
    snprintf(n->text + used, sizeof n->text - used, "%s\n", line);
    n->n_lines++;
}

/* The path of an edited copy of the oracle's model, valid until the next one is made. */
static const char *edited(const char *name, const char *const *edits, size_t n)
{
    static char out[128];
    char in[1024];
    snprintf(in, sizeof in, "%s/%s/model.gguf", oracle_folder, name);
    snprintf(out, sizeof out, "%s/model.gguf", folder);
    assert_int_equal(gguf_edit(in, out, edits, n), 0);
    return out;
}

#define EDITED(name, ...)                                                                          \
    edited(name, (const char *const[]){__VA_ARGS__},                                               \
           sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

static int open_with(moe_engine **engine, const char *path, uint32_t context, notes *told,
                     moe_error *err)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = path;
    options.n_threads = 2;
    options.context = context;
    options.kv_cache = MOE_KV_CACHE_F32;
    *told = (notes){0};
    options.log = take_note;
    options.user = told;
    return moe_engine_open(engine, &options, err);
}

static bool keep_last(size_t position, const float *logits, void *user)
{
    (void)position;
    memcpy(user, logits, N_VOCAB * sizeof *logits);
    return true;
}

static void last_logits(moe_engine *engine, float logits[N_VOCAB])
{
    int32_t prompt[N_PROMPT];
    moe_session *session = greedy_session(engine);
    make_prompt(prompt, N_PROMPT, N_VOCAB, 3);
    assert_int_equal(moe_session_score(session, prompt, N_PROMPT, keep_last, logits, NULL), MOE_OK);
    moe_session_close(&session);
}

static void logits_of(const char *path, float logits[N_VOCAB], notes *told)
{
    moe_engine *engine = NULL;
    moe_error err = {""};
    if (open_with(&engine, path, 0, told, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    last_logits(engine, logits);
    moe_engine_close(&engine);
}

static double largest_difference(const float *a, const float *b)
{
    double delta = 0;
    double value = 0;
    for (int i = 0; i < N_VOCAB; i++) {
        delta = fmax(delta, fabs((double)a[i] - (double)b[i]));
        value = fmax(value, fabs((double)a[i]));
    }
    return delta / value;
}

/* Queries and keys are each multiplied by the factor, all of their elements (n_rot is the head's
 * size here): so the attention's scale times the square of the factor gives the same. */
static void test_yarn_attention_factor(void **state)
{
    (void)state;
    const double usual = 1 + 0.1 * log(4);
    float plain[N_VOCAB], factored[N_VOCAB], scaled[N_VOCAB];
    notes told;
    char scale[64];
    logits_of(EDITED("qwen3moe-yarn", "general.x=u32:1"), plain, &told);
    assert_int_equal(told.n_lines, 0);
    char same[64];
    snprintf(same, sizeof same, "qwen3moe.rope.scaling.yarn_attn_factor=f32:%.9g", usual);
    logits_of(EDITED("qwen3moe-yarn", same), factored, &told);
    assert_true(largest_difference(plain, factored) < 1e-6);

    snprintf(scale, sizeof scale, "qwen3moe.attention.scale=f32:%.9g",
             0.5 * 0.5 / (usual * usual) / sqrt(32));
    logits_of(EDITED("qwen3moe-yarn", scale), scaled, &told);
    logits_of(EDITED("qwen3moe-yarn", "qwen3moe.rope.scaling.yarn_attn_factor=f32:0.5"), factored,
              &told);
    printf("yarn_attn_factor 0.5: %.2e from the scale's square, %.2e from without\n",
           largest_difference(scaled, factored), largest_difference(plain, factored));
    assert_true(largest_difference(scaled, factored) < 1e-5);
    assert_true(largest_difference(plain, factored) > 1e-2);
    assert_int_equal(told.n_lines, 0);
}

/* A DeepSeek-V3 without the keys for its gate has the bits of one with them, and one line says so.
 */
static void test_gate_that_is_not_said(void **state)
{
    (void)state;
    float stated[N_VOCAB], assumed[N_VOCAB];
    notes told;
    logits_of(EDITED("deepseek2-v3", "general.x=u32:1"), stated, &told);
    assert_int_equal(told.n_lines, 0);
    logits_of(
        EDITED("deepseek2-v3", "-deepseek2.expert_gating_func", "-deepseek2.expert_weights_norm"),
        assumed, &told);
    assert_memory_equal(stated, assumed, sizeof stated);
    assert_int_equal(told.n_lines, 1);
    assert_non_null(strstr(told.text, "deepseek2.expert_gating_func"));
}

/* A window that a text does not reach past changes nothing, a shorter one does; contexts may be
 * longer than it. */
static void test_window_is_a_mask(void **state)
{
    (void)state;
    float plain[N_VOCAB], windowed[N_VOCAB];
    char setting[64];
    notes told;
    logits_of(EDITED("mixtral", "general.x=u32:1"), plain, &told);
    const uint32_t windows[] = {0, N_PROMPT, 4096, N_PROMPT - 1, 3};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        snprintf(setting, sizeof setting, "llama.attention.sliding_window=u32:%u", windows[i]);
        logits_of(EDITED("mixtral", setting), windowed, &told);
        assert_int_equal(told.n_lines, 0);
        bool same = memcmp(plain, windowed, sizeof plain) == 0;
        assert_int_equal(same, i < 3);
    }
    /* Of a period of two the second layer sees everything; a list says it layer by layer. */
    float second[N_VOCAB];
    logits_of(EDITED("mixtral", "llama.attention.sliding_window=u32:3",
                     "llama.attention.sliding_window_pattern=u32:2"),
              second, &told);
    assert_memory_not_equal(second, windowed, sizeof second);
    logits_of(EDITED("mixtral", "llama.attention.sliding_window=u32:3",
                     "llama.attention.sliding_window_pattern=u32s:1,0"),
              windowed, &told);
    assert_memory_equal(second, windowed, sizeof second);
    logits_of(EDITED("mixtral", "llama.attention.sliding_window=u32:3",
                     "llama.attention.sliding_window_pattern=u32s:0,0"),
              windowed, &told);
    assert_memory_equal(plain, windowed, sizeof plain);
    moe_engine *engine = NULL;
    moe_error err = {""};
    assert_int_equal(open_with(&engine,
                               EDITED("mixtral", "llama.attention.sliding_window=u32:3",
                                      "llama.attention.sliding_window_pattern=u32s:1"),
                               0, &told, &err),
                     MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "layer 1"));
}

/* Sizes that no recurrent layer can have are refused with the name of the key; a list of layers
 * says the same as the period it follows. */
static void test_sizes_of_recurrent_layers(void **state)
{
    (void)state;
    static const struct {
        const char *setting, *says;
    } cases[] = {
        {"lfm2moe.shortconv.l_cache=u32:0", "shortconv.l_cache' is 0; supported are 2 to 8"},
        {"lfm2moe.shortconv.l_cache=u32:1", "shortconv.l_cache' is 1"},
        {"lfm2moe.shortconv.l_cache=u32:9", "shortconv.l_cache' is 9"},
        {"lfm2moe.shortconv.l_cache=u32:4", "blk.0.shortconv.conv.weight' has shape"},
        {"lfm2moe.shortconv.l_cache=str:3", "shortconv.l_cache"},
        {"lfm2moe.attention.head_count_kv=u32s:0,0,2", "has no number for layer 3"},
        {"lfm2moe.attention.head_count_kv=u32s:0,0,0,0", "head_count_kv' is 0"},
        {"lfm2moe.attention.head_count_kv=u32s:0,0,3,0", "is not a multiple of head_count_kv (3)"},
        {"lfm2moe.attention.head_count_kv=u32s:0,3,4,0",
         "is 3 in layer 1, which does not divide the 4 heads"},
        {"lfm2moe.attention.head_count_kv=u32s:0,0,0,2",
         "blk.2.shortconv.in_proj.weight' is missing"},
        {"lfm2moe.attention.head_count_kv=u32:2", "blk.0.attn_q.weight' is missing"},
        {"granitehybrid.ssm.inner_size=u32:63", "ssm.inner_size' (63)"},
        {"granitehybrid.ssm.group_count=u32:3", "'.group_count' (3)"},
        {"granitehybrid.ssm.state_size=u32:0", "ssm.state_size' is 0"},
        {"granitehybrid.ssm.state_size=u32:8", "blk.0.ssm_in.weight' has shape"},
        {"granitehybrid.ssm.group_count=u32:2", "blk.0.ssm_in.weight' has shape"},
        {"granitehybrid.attention.head_count_kv=u32s:0,0,2", "has no number for layer 3"},
        {"jamba.ssm.inner_size=u32:63", "blk.0.ssm_in.weight' has shape"},
        {"jamba.ssm.inner_size=u32:4294967295", "ssm.inner_size' is 4294967295"},
        {"jamba.ssm.time_step_rank=u32:0", "ssm.time_step_rank' is 0"},
        {"jamba.ssm.time_step_rank=u32:5", "blk.0.ssm_x.weight' has shape"},
        {"jamba.ssm.state_size=u32:257", "ssm.state_size' is 257; supported are 1 to 256"},
        {"jamba.ssm.conv_kernel=u32:0", "ssm.conv_kernel' is 0"},
        {"jamba.attention.head_count_kv=u32s:0,2,0,0", "blk.1.attn_q.weight' is missing"},
        {"nemotron_h_moe.feed_forward_length=u32:16", "blk.0.ffn_gate_inp.weight' is missing"},
        {"nemotron_h_moe.feed_forward_length=u32s:0,16,0,0", "has no number for layer 4"},
        {"nemotron_h_moe.feed_forward_length=u32s:0,16,0,16,16",
         "blk.3.ffn_gate_inp.weight' is missing"},
        {"nemotron_h_moe.attention.head_count_kv=u32s:0,0,0,0,0", "head_count_kv' is 0"},
        {"deepseek32.attention.indexer.top_k=u32:0", "attention.indexer.top_k' is 0, not 1 to"},
        {"deepseek32.attention.indexer.head_count=u32:257", "head_count' is 257, not 1 to 256"},
        {"deepseek32.attention.indexer.head_count=u32:3", "indexer.attn_q_b.weight' has shape"},
        {"deepseek32.attention.indexer.key_length=u32:4", "key_length' is 4, not 8 to"},
        {"kimi-linear.kda.head_dim=u32:0", "kda.head_dim' is 0; supported are 1 to 256"},
        {"kimi-linear.kda.head_dim=u32:257", "kda.head_dim' is 257"},
        {"kimi-linear.kda.head_dim=u32:16", "blk.0.attn_q.weight' has shape"},
        {"kimi-linear.ssm.conv_kernel=u32:9", "ssm.conv_kernel' is 9"},
        {"kimi-linear.attention.head_count_kv=u32s:0,1", "has no number for layer 2"},
        {"kimi-linear.attention.head_count_kv=u32s:0,1,0", "blk.1.attn_q.weight' has shape"},
        {"kimi-k3.attn_res.block_size=u32:0", "attn_res.block_size' is 0, not 1 to 1024"},
        {"kimi-k3.expert_latent_length=u32:8", "ffn_routed_down.weight' has shape"},
        {"kimi-k3.activation.situ_beta=f32:0", "situ_beta' is 0, not above 0"},
        {"bailingmoe3.kda.gate_lower_bound=f32:0", "kda.gate_lower_bound' is 0, not below 0"},
        {"bailingmoe3.kda.safe_gate=bool:0", "kda.safe_gate' is false; supported are"},
        {"qwen35moe.ssm.conv_kernel=u32:0", "ssm.conv_kernel' is 0"},
        {"qwen35moe.ssm.conv_kernel=u32:9", "ssm.conv_kernel' is 9"},
        {"qwen35moe.ssm.state_size=u32:257", "ssm.state_size' is 257"},
        {"qwen35moe.ssm.group_count=u32:3", "'.group_count' (3)"},
        {"qwen35moe.ssm.group_count=u32:0", "ssm.group_count' is 0"},
        {"qwen35moe.ssm.time_step_rank=u32:5", "'.time_step_rank' (5)"},
        {"qwen35moe.ssm.time_step_rank=u32:4294967295", "ssm.time_step_rank' is 4294967295"},
        {"qwen35moe.ssm.inner_size=u32:2", "ssm.inner_size' (2)"},
        {"qwen35moe.ssm.inner_size=u32:2048", "ssm.inner_size' (2048)"},
        {"qwen35moe.full_attention_interval=u32:0", "full_attention_interval' is 0"},
        {"qwen35moe.full_attention_interval=u32:3", "blk.2.attn_qkv.weight' has shape"},
        {"qwen35moe.attention.value_length=u32:8", "a head's gate is as wide as its query"},
    };
    notes told;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        moe_engine *engine = NULL;
        moe_error err = {""};
        char gone[64], model[32]; /* its folder has the architecture's name */
        snprintf(gone, sizeof gone, "-%.*s", (int)strcspn(cases[i].setting, "="), cases[i].setting);
        snprintf(model, sizeof model, "%.*s", (int)strcspn(cases[i].setting, "."),
                 cases[i].setting);
        const char *path = EDITED(model, gone, cases[i].setting);
        assert_int_not_equal(open_with(&engine, path, 0, &told, &err), MOE_OK);
        if (strstr(err.message, cases[i].says) == NULL) {
            fail_msg("%s: %s", cases[i].setting, err.message);
        }
    }
    moe_engine *engine = NULL;
    moe_error err = {""};
    const char *list = "qwen35moe.attention.recurrent_layers=u32s:1,1";
    assert_int_equal(open_with(&engine, EDITED("qwen35moe", list), 0, &told, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "has no number for layer 2"));
    static const char *const latent[][2] = {
        {"nemotron_h_moe.moe_latent_size=u32:33", "moe_latent_size' is 33, not 1 to 32"},
        {"nemotron_h_moe.moe_latent_size=u32:8", "blk.1.ffn_latent_down.weight' is missing"},
    };
    for (int i = 0; i < 2; i++) {
        const char *path = EDITED("nemotron_h_moe", latent[i][0]);
        assert_int_equal(open_with(&engine, path, 0, &told, &err), MOE_ERR_FORMAT);
        assert_non_null(strstr(err.message, latent[i][1]));
    }
    list = "qwen35moe.attention.recurrent_layers=u32s:1,1,1,0,0";
    assert_int_equal(open_with(&engine, EDITED("qwen35moe", list), 0, &told, NULL), MOE_OK);
    moe_engine_close(&engine);
}

typedef struct edited_case {
    const char *gone, *setting, *says;
} edited_case;

static void expect_refusals(const edited_case *cases, size_t n)
{
    notes told;
    for (size_t i = 0; i < n; i++) {
        moe_engine *engine = NULL;
        moe_error err = {""};
        char model[32]; /* its folder has the architecture's name */
        snprintf(model, sizeof model, "%.*s", (int)strcspn(cases[i].setting, "."),
                 cases[i].setting);
        const char *path = EDITED(model, cases[i].gone, cases[i].setting);
        assert_int_not_equal(open_with(&engine, path, 0, &told, &err), MOE_OK);
        if (strstr(err.message, cases[i].says) == NULL) {
            fail_msg("%s: %s", cases[i].setting, err.message);
        }
    }
}

static void test_streams(void **state)
{
    (void)state;
    static const edited_case cases[] = {
        {"-hy_v4.hyper_connection.count", "hy_v4.hyper_connection.count=u32:1",
         "hyper_connection.count' is 1, not 2 to 16"},
        {"-hy_v4.hyper_connection.count", "hy_v4.hyper_connection.count=u32:17",
         "hyper_connection.count' is 17, not 2 to 16"},
        {"-hy_v4.hyper_connection.count", "hy_v4.hyper_connection.count=u32:3",
         "blk.0.hc_attn_fn.weight' has shape"},
        {"-hy_v4.hyper_connection.epsilon", "hy_v4.hyper_connection.epsilon=f32:-1",
         "hyper_connection.epsilon' is -1"},
        {"-hy_v4.hyper_connection.magnitude", "hy_v4.one=u32:1",
         "hyper_connection.magnitude', which every"},
        /* Streams that are mixed otherwise. */
        {"hy_v4.one=u32:1", "hy_v4.hyper_connection.sinkhorn_iterations=u32:20",
         "sinkhorn_iterations' is 20"},
        {"hy_v4.one=u32:1", "hy_v4.hyper_connection.low_rank=u32:64", "low_rank' is 64"},
        {"-glm5-next.hyper_connection.sinkhorn_iterations",
         "glm5-next.hyper_connection.sinkhorn_iterations=u32:0",
         "sinkhorn_iterations' is 0, not 1 to"},
        {"glm5-next.one=u32:1", "glm5-next.hyper_connection.magnitude=f32:2", "magnitude' is 2"},
        {"-glm5-next.attention.indexer.kpool", "glm5-next.attention.indexer.kpool=u32:1",
         "indexer.kpool' is 1, not 2 to 64"},
        {"-glm5-next.attention.indexer.kpool", "glm5-next.attention.indexer.kpool=u32:3",
         "indexer.kpool' (3) does not divide top_k (8)"},
        {"-glm5-next.attention.indexer.kpool", "glm5-next.attention.indexer.kpool=u32:8",
         "blk.2.indexer.kpool_ape.weight' has shape"},
        {"-glm5-next.attention.indexer.kpool_select_tail",
         "glm5-next.attention.indexer.kpool_select_tail=bool:0", "kpool_select_tail' is false"},
        {"-qwen4exp.hyper_connection.low_rank", "qwen4exp.hyper_connection.low_rank=u32:8",
         "blk.0.hc_attn_down.weight' has shape"},
        {"-qwen4exp.hyper_connection.low_rank", "qwen4exp.one=u32:1", "low_rank', which every"},
        {"-qwen4exp.attention.compress_ratios", "qwen4exp.attention.compress_ratios=u32s:0,0,5",
         "compress_ratios' has 5, not 2 to 64 that divide top_k (16)"},
        {"-qwen4exp.attention.compress_ratios", "qwen4exp.one=u32:1",
         "compress_ratios', which every"},
        /* A table in no layer, in two, in one that is not there; of too few rows; of odd lists. */
        {"-qwen4exp.ple.layers", "qwen4exp.one=u32:1",
         "tensor 'per_layer_token_embd.weight' is not one"},
        {"-qwen4exp.ple.layers", "qwen4exp.ple.layers=u32s:0,1", "supported is one table"},
        {"-qwen4exp.ple.layers", "qwen4exp.ple.layers=u32s:3", "supported is one table"},
        {"-qwen4exp.ple.head_offsets", "qwen4exp.ple.head_offsets=u32s:0,9,9,9,9,90000",
         "per_layer_token_embd.weight' has shape"},
        {"-qwen4exp.ple.head_vocab_sizes", "qwen4exp.ple.head_vocab_sizes=u32s:9,9,0,9,9,9",
         "head_vocab_sizes' is not a list of 6 numbers from 1"},
        {"-qwen4exp.ple.layer_multipliers", "qwen4exp.ple.layer_multipliers=u32s:1,2",
         "layer_multipliers' is not a list of 3 numbers from 0"},
        {"-qwen4exp.ple.eos_token_id", "qwen4exp.ple.eos_token_id=u32:96",
         "eos_token_id' is 96, not 0 to 95"},
        {"-qwen4exp.ple.ngram_size", "qwen4exp.ple.ngram_size=u32:1",
         "ngram_size' is 1, not 2 to 8"},
    };
    expect_refusals(cases, sizeof cases / sizeof cases[0]);
}

/* DeepSeek-V4's compressed keys, and experts by the token. */
static void test_compressed_keys(void **state)
{
    (void)state;
    static const edited_case cases[] = {
        {"deepseek4.one=u32:1", "deepseek4.engram.layer_count=u32:2", "engram.layer_count' is 2"},
        {"-deepseek4.attention.compress_ratios", "deepseek4.attention.compress_ratios=u32s:0,8,128",
         "compress_ratios' is 8 in layer 1: supported are 0, 4 and 128"},
        {"-deepseek4.attention.compress_ratios", "deepseek4.attention.compress_ratios=u32s:0,4",
         "compress_ratios' has no number for layer 2"},
        {"-deepseek4.attention.compress_ratios", "deepseek4.one=u32:1",
         "compress_ratios' is -1 in layer 0"},
        {"-deepseek4.attention.compress_ratios", "deepseek4.attention.compress_ratios=u32s:0,4,4",
         "blk.2.attn_compressor_kv.weight' has shape"},
        {"-deepseek4.attention.output_group_count", "deepseek4.attention.output_group_count=u32:3",
         "output_group_count (3) does not divide head_count (4)"},
        {"-deepseek4.attention.compress_rope_freq_base", "deepseek4.one=u32:1",
         "compress_rope_freq_base', which every"},
        {"-deepseek4.hash_layer_count", "deepseek4.hash_layer_count=u32:2",
         "blk.1.ffn_gate_tid2eid.weight' is missing"},
        {"-deepseek4.expert_gating_func", "deepseek4.expert_gating_func=u32:5",
         "expert_gating_func' is 5"},
    };
    expect_refusals(cases, sizeof cases / sizeof cases[0]);
}

/* MiniMax-M3's blocks, and dots.3's latents of layers with a window. */
static void test_chosen_blocks(void **state)
{
    (void)state;
    static const edited_case cases[] = {
        {"-minimax-m3.attention.indexer.block_size", "minimax-m3.one=u32:1",
         "indexer.block_size', which every"},
        {"-minimax-m3.attention.indexer.block_size",
         "minimax-m3.attention.indexer.block_size=u32:1", "block_size' is 1, not 2 to 1024"},
        {"-minimax-m3.attention.indexer.top_k", "minimax-m3.attention.indexer.top_k=u32:4294967295",
         "top_k' is 4294967295, not 1 to 4096"},
        {"-minimax-m3.attention.indexer.local_blocks",
         "minimax-m3.attention.indexer.local_blocks=u32:0", "local_blocks' is 0, not 1 to 16"},
        {"-minimax-m3.attention.indexer.head_count",
         "minimax-m3.attention.indexer.head_count=u32:3",
         "head_count' (3) does not divide head_count_kv (2)"},
        {"-minimax-m3.attention.indexer.key_length",
         "minimax-m3.attention.indexer.key_length=u32:8", "blk.1.indexer.k_proj.weight' has shape"},
        {"-dots3note.attention.kv_lora_rank_swa", "dots3note.one=u32:1",
         "kv_lora_rank_swa', which every"},
        {"-dots3note.attention.kv_lora_rank_swa",
         "dots3note.attention.kv_lora_rank_swa=u32:4294967295", "kv_lora_rank_swa' is 4294967295"},
        {"-dots3note.attention.key_length_mla_swa", "dots3note.attention.key_length_mla_swa=u32:8",
         "key_length_mla_swa' is 8, not 9 to"},
        {"-dots3note.attention.head_count", "dots3note.attention.head_count=u32s:4,0,2",
         "layer 1 has 0 heads"},
        {"-dots3note.attention.value_length_mla_swa",
         "dots3note.attention.value_length_mla_swa=u32:9", "blk.1.attn_v_b.weight' has shape"},
    };
    expect_refusals(cases, sizeof cases / sizeof cases[0]);
}

static bool pass_by(size_t position, const float *logits, void *user)
{
    (void)position, (void)logits, (void)user;
    return true;
}

static void score_prompt(moe_engine *engine)
{
    int32_t prompt[N_PROMPT];
    moe_session *session = greedy_session(engine);
    make_prompt(prompt, N_PROMPT, 96, 3);
    assert_int_equal(moe_session_score(session, prompt, N_PROMPT, pass_by, NULL, NULL), MOE_OK);
    moe_session_close(&session);
}

/* A file without its model's indexers is told of once, when a text is longer than they choose. */
static void test_missing_indexers(void **state)
{
    (void)state;
    notes told;
    moe_error err = {""};
    const uint32_t chosen[] = {N_PROMPT / 4, N_PROMPT / 4 - 1};
    for (int i = 0; i < 2; i++) {
        char setting[64];
        snprintf(setting, sizeof setting, "minimax-m3.attention.indexer.top_k=u32:%u", chosen[i]);
        const char *path = EDITED("minimax-m3-clamped", "-minimax-m3.attention.indexer.top_k",
                                  setting, "-minimax-m3.attention.indexer.block_size",
                                  "minimax-m3.attention.indexer.block_size=u32:4");
        moe_engine *engine = NULL;
        assert_int_equal(open_with(&engine, path, 0, &told, &err), MOE_OK);
        assert_int_equal(told.n_lines, 0);
        score_prompt(engine);
        score_prompt(engine);
        assert_int_equal(told.n_lines, i);
        moe_engine_close(&engine);
    }
    assert_non_null(strstr(told.text, "longer than 36 tokens"));
    assert_non_null(strstr(told.text, "blk.N.indexer.k_proj.weight"));
}

static void test_unknown_keys_are_told_once(void **state)
{
    (void)state;
    notes told;
    moe_error err = {""};
    moe_engine *engine = NULL;
    moe_memory_plan plan = {.struct_size = sizeof plan};
    const char *path = EDITED("olmoe", "olmoe.one=u32:1", "olmoe.two=str:a\nb", "olmoe.three=f32:3",
                              "olmoe.four=bool:1", "olmoe.five=u32s:1,2,3", "other.six=u32:6");
    assert_int_equal(open_with(&engine, path, 0, &told, &err), MOE_OK);
    moe_engine_close(&engine);
    assert_string_equal(told.text,
                        "the file says olmoe.one = 1, olmoe.two = a\\nb, olmoe.three = 3, "
                        "olmoe.four = true and 1 more, which this version does not know; the text "
                        "may differ\n");
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = path;
    options.log = take_note;
    options.user = &told;
    told = (notes){0};
    assert_int_equal(moe_plan_memory(&options, &plan, &err), MOE_OK);
    assert_int_equal(told.n_lines, 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yarn_attention_factor),
        cmocka_unit_test(test_gate_that_is_not_said),
        cmocka_unit_test(test_window_is_a_mask),
        cmocka_unit_test(test_sizes_of_recurrent_layers),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_compressed_keys),
        cmocka_unit_test(test_chosen_blocks),
        cmocka_unit_test(test_missing_indexers),
        cmocka_unit_test(test_unknown_keys_are_told_once),
    };
    if (argc < 2 || mkdtemp(folder) == NULL) {
        return 1;
    }
    oracle_folder = argv[1];
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char path[128];
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    unlink(path);
    rmdir(folder);
    return failed;
}
