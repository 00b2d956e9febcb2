/* SPDX-License-Identifier: MIT */
/* Where every tensor of every family's layouts is found, and which files are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/families/families.h"
#include "runtime/program/program.h"
#include "tests/model/gguf_builder.h"

static const char *const architectures[] = {"llama",    "olmoe",    "qwen2moe",
                                            "qwen3moe", "deepseek", "deepseek2"};

/* A parsed model; the builder owns the bytes. */
typedef struct opened {
    gguf_builder *builder;
    moe_gguf *gguf;
    moe_model_config config;
    moe_tensor_map map;
} opened;

static int try_open(opened *o, gguf_builder *b, moe_error *err)
{
    size_t size;
    *o = (opened){.builder = b};
    const uint8_t *bytes = gb_finish(b, &size);
    int status = moe_gguf_parse(&o->gguf, bytes, size, err);
    if (status == MOE_OK) {
        status = moe_model_config_read(&o->config, o->gguf, err);
    }
    if (status == MOE_OK) {
        status = moe_tensor_map_build(&o->map, &o->config, o->gguf, err);
    }
    return status;
}

static void close_opened(opened *o)
{
    moe_tensor_map_free(&o->map);
    moe_gguf_close(&o->gguf);
    gb_free(o->builder);
}

static opened open_model(const gb_model *model)
{
    opened o;
    moe_error err = {""};
    if (try_open(&o, gb_model_build(model), &err) != MOE_OK) {
        fail_msg("%s: %s", model->architecture, err.message);
    }
    return o;
}

static void assert_ref_is(const opened *o, const moe_tensor_ref *ref, const char *name,
                          uint64_t n_in, uint64_t n_out)
{
    const moe_gguf_tensor *tensor = moe_gguf_find_tensor(o->gguf, name);
    assert_non_null(tensor);
    assert_int_equal(ref->offset, tensor->offset);
    assert_int_equal(ref->size, tensor->size);
    assert_int_equal(ref->type, tensor->type);
    assert_int_equal(ref->n_in, n_in);
    assert_int_equal(ref->n_out, n_out);
}

static const moe_tensor_ref *layer_ref(const opened *o, int layer, moe_layer_tensor which)
{
    return &o->map.layers[layer].tensors[which];
}

static const moe_tensor_ref *part_ref(const opened *o, int layer, int expert, moe_expert_part part)
{
    return &o->map.layers[layer].experts[expert].parts[part];
}

/* Sums over the file, which the map must reach by its own way. */
static void assert_covers_file(const opened *o, uint64_t ignored_bytes)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < moe_gguf_n_tensors(o->gguf); i++) {
        n_bytes += moe_gguf_tensor_at(o->gguf, i)->size;
    }
    assert_int_equal(o->map.resident_bytes + o->map.expert_bytes + ignored_bytes, n_bytes);
}

static void test_every_family(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++) {
        gb_model model = gb_model_preset(architectures[i]);
        model.expert_type = MOE_DTYPE_Q4_0;
        model.matrix_type = MOE_DTYPE_Q8_0;
        opened o = open_model(&model);
        assert_int_equal(o.map.n_layer, 2);
        assert_int_equal(o.map.n_expert, 8);
        assert_covers_file(&o, 0);
        assert_ref_is(&o, &o.map.token_embedding, "token_embd.weight", 64, 96);
        assert_ref_is(&o, &o.map.output, "output.weight", 64, 96);
        assert_ref_is(&o, &o.map.output_norm, "output_norm.weight", 64, 1);
        assert_int_equal(o.map.rope_freqs.size, 0);
        assert_ref_is(&o, layer_ref(&o, 1, MOE_LAYER_ROUTER), "blk.1.ffn_gate_inp.weight", 64, 8);
        /* 8 experts of 3 * 64 * 32 weights; 18 bytes hold 32 */
        int n_moe_layers = 2 - model.n_dense_lead;
        assert_int_equal(o.map.expert_bytes, n_moe_layers * 8 * 3 * 64 * 32 / 32 * 18);
        assert_int_equal(moe_expert_ref_bytes(&o.map.layers[1].experts[0]), 3 * 64 * 18);
        assert_int_equal(o.map.n_parameters - o.map.n_parameters_active,
                         n_moe_layers * 6 * 3 * 64 * 32);
        assert_true((o.map.layers[0].experts == NULL) == (model.n_dense_lead == 1));
        close_opened(&o);
    }
}

static void test_tensors_of_families(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("qwen2moe");
    opened o = open_model(&model);
    assert_ref_is(&o, layer_ref(&o, 1, MOE_LAYER_ATTN_K_BIAS), "blk.1.attn_k.bias", 32, 1);
    assert_ref_is(&o, layer_ref(&o, 1, MOE_LAYER_SHARED_DOWN), "blk.1.ffn_down_shexp.weight", 32,
                  64);
    assert_ref_is(&o, layer_ref(&o, 0, MOE_LAYER_SHARED_ROUTER), "blk.0.ffn_gate_inp_shexp.weight",
                  64, 1);
    assert_int_equal(layer_ref(&o, 0, MOE_LAYER_FFN_GATE)->size, 0);
    assert_int_equal(layer_ref(&o, 0, MOE_LAYER_ATTN_Q_NORM)->size, 0);
    close_opened(&o);
    model = gb_model_preset("olmoe");
    o = open_model(&model);
    assert_ref_is(&o, layer_ref(&o, 0, MOE_LAYER_ATTN_Q_NORM), "blk.0.attn_q_norm.weight", 64, 1);
    assert_ref_is(&o, layer_ref(&o, 0, MOE_LAYER_ATTN_K_NORM), "blk.0.attn_k_norm.weight", 32, 1);
    close_opened(&o);
    model = gb_model_preset("deepseek");
    o = open_model(&model);
    assert_ref_is(&o, layer_ref(&o, 0, MOE_LAYER_FFN_DOWN), "blk.0.ffn_down.weight", 96, 64);
    assert_int_equal(layer_ref(&o, 1, MOE_LAYER_FFN_DOWN)->size, 0);
    assert_int_equal(layer_ref(&o, 0, MOE_LAYER_ROUTER)->size, 0);
    close_opened(&o);
}

static void test_latent_attention(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("deepseek2");
    model.q_rank = 24;
    model.selection_bias = 1;
    opened o = open_model(&model);
    assert_ref_is(&o, layer_ref(&o, 0, MOE_LAYER_ATTN_Q_B), "blk.0.attn_q_b.weight", 24, 4 * 48);
    assert_ref_is(&o, layer_ref(&o, 0, MOE_LAYER_ATTN_KV_A), "blk.0.attn_kv_a_mqa.weight", 64, 48);
    assert_ref_is(&o, layer_ref(&o, 0, MOE_LAYER_ATTN_K_B), "blk.0.attn_k_b.weight", 32, 4 * 32);
    assert_ref_is(&o, layer_ref(&o, 0, MOE_LAYER_ATTN_V_B), "blk.0.attn_v_b.weight", 32, 4 * 32);
    assert_int_equal(layer_ref(&o, 0, MOE_LAYER_ATTN_KV_B)->size, 0);
    assert_int_equal(layer_ref(&o, 0, MOE_LAYER_ATTN_Q)->size, 0);
    assert_int_equal(layer_ref(&o, 0, MOE_LAYER_ROUTER_SELECTION_BIAS)->size, 0);
    assert_ref_is(&o, layer_ref(&o, 1, MOE_LAYER_ROUTER_SELECTION_BIAS), "blk.1.exp_probs_b.bias",
                  8, 1);
    close_opened(&o);

    model = gb_model_preset("deepseek2");
    model.joined_kv = 1;
    o = open_model(&model);
    assert_ref_is(&o, layer_ref(&o, 1, MOE_LAYER_ATTN_KV_B), "blk.1.attn_kv_b.weight", 32, 4 * 64);
    assert_ref_is(&o, layer_ref(&o, 1, MOE_LAYER_ATTN_Q), "blk.1.attn_q.weight", 64, 4 * 48);
    assert_int_equal(layer_ref(&o, 1, MOE_LAYER_ATTN_K_B)->size, 0);
    close_opened(&o);

    /* Both layouts in one file, the split one flat: the split one is used. */
    model.joined_kv = 0;
    gguf_builder *b = gb_model_build(&model);
    gb_remove_tensor(b, "blk.0.attn_k_b.weight");
    gb_tensor(b, "blk.0.attn_k_b.weight", MOE_DTYPE_F32, 2, 32, 128);
    gb_tensor(b, "blk.0.attn_kv_b.weight", MOE_DTYPE_F32, 2, 32, 256);
    moe_error err = {""};
    assert_int_equal(try_open(&o, b, &err), MOE_OK);
    assert_ref_is(&o, layer_ref(&o, 0, MOE_LAYER_ATTN_K_B), "blk.0.attn_k_b.weight", 32, 128);
    assert_int_equal(layer_ref(&o, 0, MOE_LAYER_ATTN_KV_B)->size, 0);
    assert_covers_file(&o, 32 * 256 * 4);
    close_opened(&o);
}

/* Expert e of a stacked tensor is its e-th slice. */
static void test_stacked_experts(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("olmoe");
    model.expert_type = MOE_DTYPE_Q5_0; /* 22 bytes hold 32 */
    opened o = open_model(&model);
    uint64_t gate = moe_gguf_find_tensor(o.gguf, "blk.1.ffn_gate_exps.weight")->offset;
    uint64_t down = moe_gguf_find_tensor(o.gguf, "blk.1.ffn_down_exps.weight")->offset;
    for (int e = 0; e < 8; e++) {
        const moe_tensor_ref *ref = part_ref(&o, 1, e, MOE_EXPERT_GATE);
        assert_int_equal(ref->offset, gate + (uint64_t)e * 32 * 2 * 22);
        assert_int_equal(ref->size, 32 * 2 * 22);
        assert_int_equal(ref->n_in, 64);
        assert_int_equal(ref->n_out, 32);
        ref = part_ref(&o, 1, e, MOE_EXPERT_DOWN);
        assert_int_equal(ref->offset, down + (uint64_t)e * 64 * 22);
        assert_int_equal(ref->n_in, 32);
        assert_int_equal(ref->n_out, 64);
    }
    close_opened(&o);
}

static void test_fused_experts(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("qwen3moe");
    model.fused_experts = 1;
    opened o = open_model(&model);
    uint64_t start = moe_gguf_find_tensor(o.gguf, "blk.0.ffn_gate_up_exps.weight")->offset;
    uint64_t half = 32 * 64 * 4;
    for (int e = 0; e < 8; e++) {
        assert_int_equal(part_ref(&o, 0, e, MOE_EXPERT_GATE)->offset,
                         start + 2 * (uint64_t)e * half);
        assert_int_equal(part_ref(&o, 0, e, MOE_EXPERT_UP)->offset,
                         start + (2 * (uint64_t)e + 1) * half);
        assert_int_equal(part_ref(&o, 0, e, MOE_EXPERT_UP)->size, half);
        assert_int_equal(part_ref(&o, 0, e, MOE_EXPERT_UP)->n_out, 32);
    }
    assert_covers_file(&o, 0);
    close_opened(&o);
}

static void test_single_experts(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("llama");
    model.single_experts = 1;
    opened o = open_model(&model);
    for (int e = 0; e < 8; e++) {
        char name[64];
        snprintf(name, sizeof name, "blk.1.ffn_up.%d.weight", e);
        assert_ref_is(&o, part_ref(&o, 1, e, MOE_EXPERT_UP), name, 64, 32);
    }
    assert_covers_file(&o, 0);
    close_opened(&o);
}

static void test_tied_and_optional(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("qwen3moe");
    opened untied = open_model(&model);
    model.tied = 1;
    gguf_builder *b = gb_model_build(&model);
    gb_tensor(b, "rope_freqs.weight", MOE_DTYPE_F32, 1, 8);
    gb_tensor(b, "blk.0.attn_rot_embd.weight", MOE_DTYPE_F32, 1, 8);
    gb_tensor(b, "blk.2.attn_q.weight", MOE_DTYPE_F32, 1, 8); /* of a layer that is not run */
    moe_error err = {""};
    opened o;
    assert_int_equal(try_open(&o, b, &err), MOE_OK);
    assert_true(o.config.tied_output);
    assert_memory_equal(&o.map.output, &o.map.token_embedding, sizeof o.map.output);
    assert_int_equal(o.map.rope_freqs.n_in, 8);
    assert_int_equal(untied.map.resident_bytes - o.map.resident_bytes, (64 * 96 - 8) * 4);
    assert_int_equal(untied.map.n_parameters - o.map.n_parameters, 64 * 96 - 8);
    assert_covers_file(&o, 2 * 8 * 4);
    close_opened(&o);
    close_opened(&untied);
}

/* attn_qkv holds the rows of Q, then K's, then V's. */
static void test_joined_qkv(void **state)
{
    (void)state;
    static const moe_layer_tensor parts[] = {MOE_LAYER_ATTN_Q, MOE_LAYER_ATTN_K, MOE_LAYER_ATTN_V};
    static const moe_layer_tensor biases[] = {MOE_LAYER_ATTN_Q_BIAS, MOE_LAYER_ATTN_K_BIAS,
                                              MOE_LAYER_ATTN_V_BIAS};
    static const uint64_t rows[] = {64, 32, 32};
    gb_model model = gb_model_preset("llama");
    gguf_builder *b = gb_model_build(&model);
    for (const char *p = "qkv"; *p != '\0'; p++) {
        char name[32];
        snprintf(name, sizeof name, "blk.1.attn_%c.weight", *p);
        gb_remove_tensor(b, name);
    }
    gb_tensor(b, "blk.1.attn_qkv.weight", MOE_DTYPE_Q8_0, 2, 64, 128);
    gb_tensor(b, "blk.1.attn_qkv.bias", MOE_DTYPE_F32, 1, 128);
    moe_error err = {""};
    opened o;
    if (try_open(&o, b, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    const moe_tensor_ref *tensors = o.map.layers[1].tensors;
    for (size_t i = 0, at = 0; i < 3; at += rows[i++]) {
        const moe_tensor_ref *part = &tensors[parts[i]];
        const moe_tensor_ref *bias = &tensors[biases[i]];
        assert_int_equal(part->n_in, 64);
        assert_int_equal(part->n_out, rows[i]);
        assert_int_equal(part->size, rows[i] * 68);
        assert_int_equal(part->offset - tensors[MOE_LAYER_ATTN_Q].offset, at * 68);
        assert_int_equal(bias->n_in, rows[i]);
        assert_int_equal(bias->size, rows[i] * 4);
        assert_int_equal(bias->offset - tensors[MOE_LAYER_ATTN_Q_BIAS].offset, at * 4);
    }
    close_opened(&o);
}

/* A part of an indexer would be ignored: the file is refused. */
static void test_indexers(void **state)
{
    (void)state;
    for (int known = 0; known < 2; known++) {
        gb_model model = gb_model_preset("deepseek2");
        model.architecture = known ? "deepseek32" : "deepseek2";
        gguf_builder *b = gb_model_build(&model);
        gb_tensor(b, "blk.1.indexer.attn_q_b.weight", MOE_DTYPE_F32, 2, 24, 64);
        moe_error err = {""};
        opened o;
        assert_int_equal(try_open(&o, b, &err), MOE_ERR_UNSUPPORTED);
        close_opened(&o);
    }
}

/* A tensor taken out of a valid file, or replaced by one of another type or shape. */
typedef struct refusal {
    const char *architecture;
    const char *name;
    int gone;
    uint32_t type;
    int n_dims, dims[3];
    int status;
    const char *says;
} refusal;

static const refusal refusals[] = {
    {"olmoe", "token_embd.weight", 1, 0, 0, {0}, MOE_ERR_FORMAT, "'token_embd.weight' is missing"},
    {"olmoe",
     "output_norm.weight",
     1,
     0,
     0,
     {0},
     MOE_ERR_FORMAT,
     "'output_norm.weight' is missing"},
    {"olmoe",
     "blk.1.attn_norm.weight",
     1,
     0,
     0,
     {0},
     MOE_ERR_FORMAT,
     "(layer 1, operation 'norm = rms_norm(x) * attn_norm')"},
    {"olmoe", "blk.0.attn_q_norm.weight", 1, 0, 0, {0}, MOE_ERR_FORMAT, "is missing"},
    {"olmoe", "blk.0.ffn_gate_inp.weight", 1, 0, 0, {0}, MOE_ERR_FORMAT, "all of this OLMoE model"},
    {"olmoe",
     "blk.1.ffn_up_exps.weight",
     1,
     0,
     0,
     {0},
     MOE_ERR_FORMAT,
     "ffn_up_exps.weight' is miss"},
    {"deepseek", "blk.0.ffn_up.weight", 1, 0, 0, {0}, MOE_ERR_FORMAT, "blk.0.ffn_up.weight"},
    {"deepseek", "blk.1.ffn_up_shexp.weight", 1, 0, 0, {0}, MOE_ERR_FORMAT, "ffn_up_shexp"},
    {"qwen2moe", "blk.1.ffn_gate_inp_shexp.weight", 1, 0, 0, {0}, MOE_ERR_FORMAT, "inp_shexp"},
    {"deepseek2", "blk.1.attn_v_b.weight", 1, 0, 0, {0}, MOE_ERR_FORMAT, "blk.1.attn_v_b.weight"},
    {"deepseek2",
     "blk.1.attn_k_b.weight",
     1,
     0,
     0,
     {0},
     MOE_ERR_FORMAT,
     "attn_k_b.weight' is miss"},
    {"olmoe",
     "token_embd.weight",
     0,
     MOE_DTYPE_F32,
     2,
     {32, 96},
     MOE_ERR_FORMAT,
     "'token_embd.weight' has shape [32, 96, 1, 1], expected [64, 96]"},
    {"olmoe", "output.weight", 0, MOE_DTYPE_F32, 2, {64, 95}, MOE_ERR_FORMAT, "expected [64, 96]"},
    {"olmoe", "output_norm.weight", 0, MOE_DTYPE_F32, 1, {65}, MOE_ERR_FORMAT, "expected [64]"},
    {"olmoe", "output_norm.weight", 0, MOE_DTYPE_F32, 2, {64, 2}, MOE_ERR_FORMAT, "expected [64]"},
    {"olmoe", "blk.0.attn_k.weight", 0, MOE_DTYPE_F32, 2, {64, 64}, MOE_ERR_FORMAT, "[64, 32]"},
    {"olmoe",
     "blk.0.attn_output.weight",
     0,
     MOE_DTYPE_F32,
     2,
     {32, 64},
     MOE_ERR_FORMAT,
     "expected [64, 64] (layer 0, operation 'branch = attn_output . attended')"},
    {"olmoe",
     "blk.0.ffn_down_exps.weight",
     0,
     MOE_DTYPE_F32,
     3,
     {32, 64, 7},
     MOE_ERR_FORMAT,
     "has shape [32, 64, 7, 1], expected [32, 64, 8]"},
    {"olmoe",
     "blk.0.ffn_down_exps.weight",
     0,
     MOE_DTYPE_F32,
     2,
     {32, 512},
     MOE_ERR_FORMAT,
     "expected [32, 64, 8]"},
    {"olmoe",
     "blk.0.ffn_gate_exps.weight",
     0,
     MOE_DTYPE_F32,
     3,
     {32, 64, 8},
     MOE_ERR_FORMAT,
     "expected [64, 32, 8]"},
    {"olmoe", "rope_freqs.weight", 0, MOE_DTYPE_F32, 1, {16}, MOE_ERR_FORMAT, "expected [8]"},
    {"olmoe",
     "blk.0.attn_norm.weight",
     0,
     MOE_DTYPE_F16,
     1,
     {64},
     MOE_ERR_UNSUPPORTED,
     "is of type F16; norms and biases must be F32"},
    {"qwen2moe", "blk.0.attn_q.bias", 0, MOE_DTYPE_Q8_0, 1, {64}, MOE_ERR_UNSUPPORTED, "Q8_0"},
    {"olmoe",
     "blk.1.attn_q.weight",
     0,
     153,
     2,
     {64, 64},
     MOE_ERR_UNSUPPORTED,
     "'blk.1.attn_q.weight' is of type IQ2_KT (153), which is not supported: the trellis types"},
    {"olmoe",
     "blk.1.attn_q.weight",
     0,
     157,
     2,
     {64, 64},
     MOE_ERR_UNSUPPORTED,
     "is of type IQ2_KL (157), which is not supported: use a file of IQ2_K"},
    {"olmoe",
     "blk.1.attn_q.weight",
     0,
     339,
     2,
     {64, 64},
     MOE_ERR_UNSUPPORTED,
     "is of type IQ4_K_R4 (339), which is not supported: ik_llama.cpp repacked its rows"},
    {"olmoe",
     "blk.1.attn_q.weight",
     0,
     212,
     2,
     {64, 64},
     MOE_ERR_UNSUPPORTED,
     "is of type Q4_K_R4 (212), which is not supported: ik_llama.cpp repacked its rows"},
    {"olmoe",
     "blk.1.attn_q.weight",
     0,
     31,
     2,
     {64, 64},
     MOE_ERR_UNSUPPORTED,
     "is of type Q4_0_4_4 (31), which is not supported: llama.cpp retired this type"},
    {"olmoe",
     "blk.1.ffn_up_exps.weight",
     0,
     4000,
     3,
     {64, 32, 8},
     MOE_ERR_UNSUPPORTED,
     "is of type unknown (4000)"},
    {"olmoe",
     "blk.1.attn_sinks.weight",
     0,
     MOE_DTYPE_F32,
     1,
     {4},
     MOE_ERR_UNSUPPORTED,
     "'blk.1.attn_sinks.weight' is not one that OLMoE models"},
    {"olmoe",
     "blk.1.ffn_gate_shexp.weight",
     0,
     MOE_DTYPE_F32,
     2,
     {64, 32},
     MOE_ERR_UNSUPPORTED,
     "ignoring it would give wrong results"},
    {"glm4moe",
     "blk.0.post_attention_norm.weight",
     1,
     0,
     0,
     {0},
     MOE_ERR_FORMAT,
     "'blk.0.post_attention_norm.weight' is missing"},
    {"olmoe",
     "blk.0.attn_qkv.weight",
     0,
     MOE_DTYPE_F32,
     2,
     {64, 127},
     MOE_ERR_FORMAT,
     "expected [64, 128]"},
    {"olmoe",
     "blk.0.post_attention_norm.weight",
     0,
     MOE_DTYPE_F32,
     1,
     {64},
     MOE_ERR_UNSUPPORTED,
     "ignoring it would give wrong results"},
    {"olmoe", "output.bias", 0, MOE_DTYPE_F32, 1, {96}, MOE_ERR_UNSUPPORTED, "'output.bias'"},
};

static void test_refusals(void **state)
{
    int n_wrong = 0;
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *row = &refusals[i];
        gb_model model = gb_model_preset(row->architecture);
        gguf_builder *b = gb_model_build(&model);
        gb_remove_tensor(b, row->name);
        if (!row->gone) {
            gb_tensor(b, row->name, row->type, row->n_dims, row->dims[0], row->dims[1],
                      row->dims[2]);
        }
        opened o;
        moe_error err = {""};
        int status = try_open(&o, b, &err);
        if (status != row->status || strstr(err.message, row->says) == NULL) {
            print_error("%s: status %d, \"%s\"\n", row->name, status, err.message);
            n_wrong++;
        }
        assert_null(o.map.layers);
        close_opened(&o);
    }
    assert_int_equal(n_wrong, 0);
}

static void test_single_expert_missing(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("llama");
    model.single_experts = 1;
    gguf_builder *b = gb_model_build(&model);
    gb_remove_tensor(b, "blk.1.ffn_down.5.weight");
    opened o;
    moe_error err = {""};
    assert_int_equal(try_open(&o, b, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'blk.1.ffn_down.5.weight' is missing"));
    close_opened(&o);
}

/* A file that lost its end after its header was written. */
static void test_beyond_the_file(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("olmoe");
    gguf_builder *b = gb_model_build(&model);
    size_t size;
    const uint8_t *bytes = gb_finish(b, &size);
    moe_gguf *gguf = NULL;
    moe_error err = {""};
    assert_int_equal(moe_gguf_parse(&gguf, bytes, size - 32, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "tensor 'output.weight'"));
    assert_non_null(strstr(err.message, "download it again"));
    gb_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_family),
        cmocka_unit_test(test_tensors_of_families),
        cmocka_unit_test(test_latent_attention),
        cmocka_unit_test(test_stacked_experts),
        cmocka_unit_test(test_fused_experts),
        cmocka_unit_test(test_single_experts),
        cmocka_unit_test(test_tied_and_optional),
        cmocka_unit_test(test_joined_qkv),
        cmocka_unit_test(test_indexers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_single_expert_missing),
        cmocka_unit_test(test_beyond_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
