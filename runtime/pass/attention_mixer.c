/* SPDX-License-Identifier: MIT */
/* projections -> (QK-norm, clip) -> rotary embedding -> KV cache -> attention -> output.
 *
 * MLA runs in its absorbed form: the cache holds one latent (and one rotary key) per position. k_b
 * maps the queries' part without position into the latent's space, and v_b maps the attended latent
 * out of it. */
#include "runtime/pass/attention_mixer.h"

#include "runtime/pass/runner.h"

static int rope_heads(moe_runner *runner, float *x, size_t row_stride, size_t head_stride,
                      uint32_t n_head, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_rope rope = {.x = x,
                     .row_stride = row_stride,
                     .head_stride = head_stride,
                     .n_head = n_head,
                     .n_rot = c->n_rot,
                     .interleaved = c->rope == MOE_ROPE_INTERLEAVED,
                     .cos = runner->buffers.rope_cos,
                     .sin = runner->buffers.rope_sin};
    return runner->device->ops->rope(runner->device, &rope, n_rows, err);
}

static int norm_rows(moe_runner *runner, const float *weight, float *x, uint32_t n_rows, uint32_t n,
                     size_t stride, moe_error *err)
{
    return runner->device->ops->rms_norm(runner->device, x, weight, x, n_rows, n, stride,
                                         runner->config->norm_eps, err);
}

static const float *norm_weight(const moe_runner *runner, uint32_t layer, int tensor)
{
    return runner->config->qk_norm == MOE_QK_NORM_UNIT
               ? runner->buffers.ones
               : moe_layer_weight(runner, layer, tensor)->data;
}

static int norm_q_and_k(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    bool unit = c->qk_norm == MOE_QK_NORM_UNIT;
    if (c->qk_norm == MOE_QK_NORM_NONE || (unit && c->layers[layer].no_rope)) {
        return MOE_OK;
    }
    bool whole = c->qk_norm == MOE_QK_NORM_FULL;
    uint32_t q_dim = whole ? c->n_head * c->head_dim_k : c->head_dim_k;
    uint32_t k_dim = whole ? c->n_head_kv * c->head_dim_k : c->head_dim_k;
    int status = norm_rows(runner, norm_weight(runner, layer, MOE_LAYER_ATTN_Q_NORM), b->q,
                           whole ? n_rows : n_rows * c->n_head, q_dim, q_dim, err);
    if (status == MOE_OK) {
        status = norm_rows(runner, norm_weight(runner, layer, MOE_LAYER_ATTN_K_NORM), b->k,
                           whole ? n_rows : n_rows * c->n_head_kv, k_dim, k_dim, err);
    }
    return status;
}

static int clip_projections(moe_runner *runner, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    if (c->clip_qkv == 0.0f) {
        return MOE_OK;
    }
    size_t kv_heads = (size_t)n_rows * c->n_head_kv;
    int status = device->ops->clamp(device, c->clip_qkv, b->q,
                                    (size_t)n_rows * c->n_head * c->head_dim_k, err);
    if (status == MOE_OK) {
        status = device->ops->clamp(device, c->clip_qkv, b->k, kv_heads * c->head_dim_k, err);
    }
    if (status == MOE_OK) {
        status = device->ops->clamp(device, c->clip_qkv, b->v, kv_heads * c->head_dim_v, err);
    }
    return status;
}

/* Queries, and perhaps the gate, which may stand between them. */
static int split_queries(moe_runner *runner, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    return c->attention_gate != MOE_ATTENTION_GATE_JOINED
               ? MOE_OK
               : runner->device->ops->copy_rows(runner->device, b->gate, 2 * (size_t)c->head_dim_k,
                                                b->q, c->head_dim_k, c->head_dim_k,
                                                (size_t)n_rows * c->n_head, err);
}

/* Gates what attention has put out. */
static int gate_values(moe_runner *runner, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    size_t n = c->head_dim_v;
    if (c->attention_gate == MOE_ATTENTION_GATE_NONE) {
        return MOE_OK;
    }
    bool joined = c->attention_gate == MOE_ATTENTION_GATE_JOINED;
    moe_gating gating = {.kind = MOE_GATING_SIGMOID,
                         .gate = joined ? b->gate + c->head_dim_k : b->gate,
                         .gate_stride = joined ? 2 * n : n,
                         .x = b->values,
                         .x_stride = n,
                         .n = c->head_dim_v};
    return runner->device->ops->gate(runner->device, &gating, (size_t)n_rows * c->n_head, err);
}

static int project_gqa(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    bool joined = c->attention_gate == MOE_ATTENTION_GATE_JOINED;
    bool own = c->attention_gate == MOE_ATTENTION_GATE_OWN;
    moe_linear linears[4] = {
        {*moe_layer_weight(runner, layer, MOE_LAYER_ATTN_Q),
         moe_layer_weight(runner, layer, MOE_LAYER_ATTN_Q_BIAS)->data, joined ? b->gate : b->q},
        {*moe_layer_weight(runner, layer, MOE_LAYER_ATTN_K),
         moe_layer_weight(runner, layer, MOE_LAYER_ATTN_K_BIAS)->data, b->k},
        {*moe_layer_weight(runner, layer, MOE_LAYER_ATTN_V),
         moe_layer_weight(runner, layer, MOE_LAYER_ATTN_V_BIAS)->data, b->v},
        {*moe_layer_weight(runner, layer, MOE_LAYER_ATTN_GATE), NULL, b->gate},
    };
    int status = runner->device->ops->linear(runner->device, b->norm, n_rows, c->n_embd, linears,
                                             own ? 4 : 3, err);
    if (status == MOE_OK) {
        status = split_queries(runner, n_rows, err);
    }
    if (status == MOE_OK && !c->qk_norm_after_rope) {
        status = norm_q_and_k(runner, layer, n_rows, err);
    }
    if (status == MOE_OK) {
        status = clip_projections(runner, n_rows, err);
    }
    size_t q_stride = (size_t)c->n_head * c->head_dim_k;
    size_t k_stride = (size_t)c->n_head_kv * c->head_dim_k;
    bool turns = !c->layers[layer].no_rope;
    if (status == MOE_OK && turns) {
        status = rope_heads(runner, b->q, q_stride, c->head_dim_k, c->n_head, n_rows, err);
    }
    if (status == MOE_OK && turns) {
        status = rope_heads(runner, b->k, k_stride, c->head_dim_k, c->n_head_kv, n_rows, err);
    }
    if (status == MOE_OK && c->qk_norm_after_rope) {
        status = norm_q_and_k(runner, layer, n_rows, err);
    }
    return status;
}

/* Computes q and the latent from the norm of x; with q_lora in two steps with a norm between. */
static int project_mla_inputs(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    bool lora = c->q_lora_rank > 0;
    moe_linear inputs[2] = {
        {*moe_layer_weight(runner, layer, lora ? MOE_LAYER_ATTN_Q_A : MOE_LAYER_ATTN_Q), NULL,
         lora ? b->q_a : b->q},
        {*moe_layer_weight(runner, layer, MOE_LAYER_ATTN_KV_A), NULL, b->k},
    };
    int status = device->ops->linear(device, b->norm, n_rows, c->n_embd, inputs, 2, err);
    if (lora && status == MOE_OK) {
        status = norm_rows(runner, moe_layer_weight(runner, layer, MOE_LAYER_ATTN_Q_A_NORM)->data,
                           b->q_a, n_rows, c->q_lora_rank, c->q_lora_rank, err);
    }
    if (lora && status == MOE_OK) {
        moe_linear q_b = {*moe_layer_weight(runner, layer, MOE_LAYER_ATTN_Q_B), NULL, b->q};
        status = device->ops->linear(device, b->q_a, n_rows, c->q_lora_rank, &q_b, 1, err);
    }
    if (status == MOE_OK) {
        status = norm_rows(runner, moe_layer_weight(runner, layer, MOE_LAYER_ATTN_KV_A_NORM)->data,
                           b->k, n_rows, c->kv_lora_rank, c->head_dim_k, err);
    }
    return status;
}

static int project_mla(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    uint32_t q_dim = c->qk_nope_dim + c->n_rot;
    size_t n_heads = (size_t)n_rows * c->n_head;
    int status = project_mla_inputs(runner, layer, n_rows, err);
    if (status == MOE_OK) {
        status = rope_heads(runner, b->q + c->qk_nope_dim, (size_t)c->n_head * q_dim, q_dim,
                            c->n_head, n_rows, err);
    }
    if (status == MOE_OK) {
        status = rope_heads(runner, b->k + c->kv_lora_rank, c->head_dim_k, c->head_dim_k, 1, n_rows,
                            err);
    }
    if (status == MOE_OK) {
        moe_head_linear absorb = {.weight = *moe_layer_weight(runner, layer, MOE_LAYER_ATTN_K_B),
                                  .n_head = c->n_head,
                                  .x = b->q,
                                  .x_row_stride = (size_t)c->n_head * q_dim,
                                  .x_head_stride = q_dim,
                                  .out = b->q_latent,
                                  .out_row_stride = (size_t)c->n_head * c->head_dim_k,
                                  .out_head_stride = c->head_dim_k};
        status = device->ops->head_linear(device, &absorb, n_rows, err);
    }
    if (status == MOE_OK) {
        status = device->ops->copy_rows(device, b->q + c->qk_nope_dim, q_dim,
                                        b->q_latent + c->kv_lora_rank, c->head_dim_k, c->n_rot,
                                        n_heads, err);
    }
    return status;
}

static int decompress_values(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    moe_head_linear expand = {.weight = *moe_layer_weight(runner, layer, MOE_LAYER_ATTN_V_B),
                              .n_head = c->n_head,
                              .x = b->attention,
                              .x_row_stride = (size_t)c->n_head * c->head_dim_v,
                              .x_head_stride = c->head_dim_v,
                              .out = b->values,
                              .out_row_stride = (size_t)c->n_head * c->v_head_dim,
                              .out_head_stride = c->v_head_dim};
    return runner->device->ops->head_linear(runner->device, &expand, n_rows, err);
}

static int attend(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    int status = device->ops->kv_store(device, &runner->kv->layers[layer], pass->kv_rows,
                                       pass->n_rows, b->k, (size_t)c->n_head_kv * c->head_dim_k,
                                       b->v, (size_t)c->n_head_kv * c->head_dim_v, err);
    if (status != MOE_OK) {
        return status;
    }
    moe_attention attention = {.layout = runner->kv->layers[layer],
                               .rows = pass->kv_rows,
                               .q = b->q_latent,
                               .n_head = c->n_head,
                               .scale = c->attention_scale,
                               .window = c->layers[layer].window,
                               .chunk = c->layers[layer].chunk,
                               .row_scales = c->layers[layer].tempered ? b->temperatures : NULL,
                               .sinks = moe_layer_weight(runner, layer, MOE_LAYER_ATTN_SINKS)->data,
                               .out = b->attention};
    return device->ops->attention(device, &attention, pass->n_rows, err);
}

static int project_output(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    const moe_weight *weight = moe_layer_weight(runner, layer, MOE_LAYER_ATTN_OUT);
    moe_linear output = {*weight, moe_layer_weight(runner, layer, MOE_LAYER_ATTN_OUT_BIAS)->data,
                         b->branch};
    return runner->device->ops->linear(runner->device, b->values, n_rows, weight->n_in, &output, 1,
                                       err);
}

int moe_mix_attention(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    int status = project_gqa(runner, layer, pass->n_rows, err);
    if (status == MOE_OK) {
        status = attend(runner, pass, layer, err);
    }
    if (status == MOE_OK) {
        status = gate_values(runner, pass->n_rows, err);
    }
    return status != MOE_OK ? status : project_output(runner, layer, pass->n_rows, err);
}

int moe_mix_latent(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    int status = project_mla(runner, layer, pass->n_rows, err);
    if (status == MOE_OK) {
        status = attend(runner, pass, layer, err);
    }
    if (status == MOE_OK) {
        status = decompress_values(runner, layer, pass->n_rows, err);
    }
    return status != MOE_OK ? status : project_output(runner, layer, pass->n_rows, err);
}
