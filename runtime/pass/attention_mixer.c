/* SPDX-License-Identifier: MIT */
/* projections -> (QK-norm, clip) -> rotary embedding -> KV cache -> attention -> output.
 *
 * MLA runs in its absorbed form: the cache holds one latent (and one rotary key) per position. k_b
 * maps the queries' part without position into the latent's space, and v_b maps the attended latent
 * out of it. */
#include "runtime/pass/attention_mixer.h"

#include "runtime/pass/position_index.h"
#include "runtime/pass/runner.h"

static int rope_heads(moe_runner *runner, uint32_t layer, float *x, size_t row_stride,
                      size_t head_stride, uint32_t n_head, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    const moe_pass_buffers *b = &runner->buffers;
    bool window = c->layers[layer].window_rope;
    moe_rope rope = {.x = x,
                     .row_stride = row_stride,
                     .head_stride = head_stride,
                     .n_head = n_head,
                     .n_rot = window ? c->window_n_rot : c->n_rot,
                     .interleaved = c->rope == MOE_ROPE_INTERLEAVED,
                     .cos = window ? b->window_cos : b->rope_cos,
                     .sin = window ? b->window_sin : b->rope_sin};
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
    const moe_heads *h = &c->layers[layer].heads;
    bool whole = c->qk_norm == MOE_QK_NORM_FULL;
    uint32_t q_dim = whole ? h->n * h->k_dim : h->k_dim;
    uint32_t k_dim = whole ? h->n_kv * h->k_dim : h->k_dim;
    int status = norm_rows(runner, norm_weight(runner, layer, MOE_LAYER_ATTN_Q_NORM), b->q,
                           whole ? n_rows : n_rows * h->n, q_dim, q_dim, err);
    if (status == MOE_OK) {
        status = norm_rows(runner, norm_weight(runner, layer, MOE_LAYER_ATTN_K_NORM), b->k,
                           whole ? n_rows : n_rows * h->n_kv, k_dim, k_dim, err);
    }
    return status;
}

static int clip_projections(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    const moe_heads *h = &c->layers[layer].heads;
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    if (c->clip_qkv == 0.0f) {
        return MOE_OK;
    }
    size_t kv_heads = (size_t)n_rows * h->n_kv;
    int status =
        device->ops->clamp(device, c->clip_qkv, b->q, (size_t)n_rows * h->n * h->k_dim, err);
    if (status == MOE_OK) {
        status = device->ops->clamp(device, c->clip_qkv, b->k, kv_heads * h->k_dim, err);
    }
    if (status == MOE_OK) {
        status = device->ops->clamp(device, c->clip_qkv, b->v, kv_heads * h->v_dim, err);
    }
    return status;
}

/* Queries, and perhaps the gate, which may stand between them. */
static int split_queries(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_heads *h = &runner->config->layers[layer].heads;
    moe_pass_buffers *b = &runner->buffers;
    return runner->config->attention_gate != MOE_ATTENTION_GATE_JOINED
               ? MOE_OK
               : runner->device->ops->copy_rows(runner->device, b->gate, 2 * (size_t)h->k_dim, b->q,
                                                h->k_dim, h->k_dim, (size_t)n_rows * h->n, err);
}

/* Gates what attention has put out. */
static int gate_values(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    const moe_heads *h = &c->layers[layer].heads;
    moe_pass_buffers *b = &runner->buffers;
    size_t n = h->v_dim;
    size_t n_heads = (size_t)n_rows * h->n;
    if (c->attention_gate == MOE_ATTENTION_GATE_NONE) {
        return MOE_OK;
    }
    bool heads = c->attention_gate == MOE_ATTENTION_GATE_HEADS;
    if (heads && moe_layer_weight(runner, layer, MOE_LAYER_ATTN_GATE)->data == NULL) {
        return MOE_OK;
    }
    if (heads && !c->gate_softplus) {
        return runner->device->ops->sigmoid_scale(runner->device, b->gate, b->values,
                                                  (uint32_t)n_heads, h->v_dim, err);
    }
    bool joined = c->attention_gate == MOE_ATTENTION_GATE_JOINED;
    moe_gating gating = {.kind = c->gate_softplus ? MOE_GATING_SOFTPLUS : MOE_GATING_SIGMOID,
                         .one = heads,
                         .gate = joined ? b->gate + h->k_dim : b->gate,
                         .gate_stride = heads    ? 1
                                        : joined ? 2 * n
                                                 : n,
                         .x = b->values,
                         .x_stride = n,
                         .n = h->v_dim};
    return runner->device->ops->gate(runner->device, &gating, n_heads, err);
}

/* Queries, keys, values and the gates of attention's output, from the norm of x. */
static int project_inputs(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    const moe_heads *h = &c->layers[layer].heads;
    moe_pass_buffers *b = &runner->buffers;
    bool joined = c->attention_gate == MOE_ATTENTION_GATE_JOINED;
    const moe_weight *values = moe_layer_weight(runner, layer, MOE_LAYER_ATTN_V);
    const moe_weight *gates = moe_layer_weight(runner, layer, MOE_LAYER_ATTN_GATE);
    moe_linear linears[4] = {
        {*moe_layer_weight(runner, layer, MOE_LAYER_ATTN_Q),
         moe_layer_weight(runner, layer, MOE_LAYER_ATTN_Q_BIAS)->data, joined ? b->gate : b->q},
        {*moe_layer_weight(runner, layer, MOE_LAYER_ATTN_K),
         moe_layer_weight(runner, layer, MOE_LAYER_ATTN_K_BIAS)->data, b->k},
    };
    uint32_t n = 2;
    if (values->data != NULL) {
        linears[n++] = (moe_linear){
            *values, moe_layer_weight(runner, layer, MOE_LAYER_ATTN_V_BIAS)->data, b->v};
    }
    if (gates->data != NULL) {
        linears[n++] = (moe_linear){*gates, NULL, b->gate};
    }
    const moe_device_ops *ops = runner->device->ops;
    uint32_t n_in = linears[0].weight.n_in; /* an EAGLE-3 head reads more than the stream */
    int status = ops->linear(runner->device, b->norm, n_rows, n_in, linears, n, err);
    if (status == MOE_OK) {
        status = split_queries(runner, layer, n_rows, err);
    }
    size_t bytes = (size_t)n_rows * h->n_kv * h->k_dim * sizeof(float);
    return status == MOE_OK && values->data == NULL
               ? ops->copy(runner->device, b->v, b->k, bytes, err)
               : status;
}

static int project_gqa(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    const moe_heads *h = &c->layers[layer].heads;
    moe_pass_buffers *b = &runner->buffers;
    int status = project_inputs(runner, layer, n_rows, err);
    if (status == MOE_OK && !c->qk_norm_after_rope) {
        status = norm_q_and_k(runner, layer, n_rows, err);
    }
    if (status == MOE_OK && c->values_normed) {
        status = norm_rows(runner, b->ones, b->v, n_rows * h->n_kv, h->v_dim, h->v_dim, err);
    }
    if (status == MOE_OK) {
        status = clip_projections(runner, layer, n_rows, err);
    }
    size_t q_stride = (size_t)h->n * h->k_dim;
    size_t k_stride = (size_t)h->n_kv * h->k_dim;
    bool turns = !c->layers[layer].no_rope;
    if (status == MOE_OK && turns) {
        status = rope_heads(runner, layer, b->q, q_stride, h->k_dim, h->n, n_rows, err);
    }
    if (status == MOE_OK && turns) {
        status = rope_heads(runner, layer, b->k, k_stride, h->k_dim, h->n_kv, n_rows, err);
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
    bool turns = !c->layers[layer].no_rope;
    int status = project_mla_inputs(runner, layer, n_rows, err);
    if (status == MOE_OK && turns) {
        status = rope_heads(runner, layer, b->q + c->qk_nope_dim, (size_t)c->n_head * q_dim, q_dim,
                            c->n_head, n_rows, err);
    }
    if (status == MOE_OK && turns) {
        status = rope_heads(runner, layer, b->k + c->kv_lora_rank, c->head_dim_k, c->head_dim_k, 1,
                            n_rows, err);
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
    const moe_heads *h = &c->layers[layer].heads;
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    const float *keys;
    const moe_kv_row *rows;
    const uint32_t *chosen;
    int status = moe_index_keys(runner, pass, layer, &keys, err);
    if (status == MOE_OK) {
        status = device->ops->kv_store(device, &runner->kv->layers[layer], pass->kv_rows,
                                       pass->n_rows, keys, (size_t)h->n_kv * h->k_dim, b->v,
                                       (size_t)h->n_kv * h->v_dim, err);
    }
    if (status == MOE_OK) {
        status = moe_index_rows(runner, pass, layer, &rows, &chosen, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    moe_attention attention = {.layout = runner->kv->layers[layer],
                               .rows = rows,
                               .chosen = chosen,
                               .n_chosen = c->index_top_k,
                               .q = b->q_latent,
                               .n_head = h->n,
                               .scale = c->attention_scale,
                               .cap = c->attention_cap,
                               .window = c->layers[layer].window,
                               .chunk = c->layers[layer].chunk,
                               .row_scales =
                                   c->layers[layer].scales_queries ? b->temperatures : NULL,
                               .sinks = moe_layer_weight(runner, layer, MOE_LAYER_ATTN_SINKS)->data,
                               .out = b->attention};
    if (c->layers[layer].indexer == MOE_INDEXER_OWN) {
        attention.layout.k_dim = c->head_dim_k; /* less the index key behind it */
    }
    return device->ops->attention(device, &attention, pass->n_rows, err);
}

static int project_output(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    const moe_device_ops *ops = runner->device->ops;
    float scale = runner->config->attention_out_scale;
    const moe_weight *weight = moe_layer_weight(runner, layer, MOE_LAYER_ATTN_OUT);
    moe_linear output = {*weight, moe_layer_weight(runner, layer, MOE_LAYER_ATTN_OUT_BIAS)->data,
                         b->branch};
    int status = ops->linear(runner->device, b->values, n_rows, weight->n_in, &output, 1, err);
    size_t n = (size_t)n_rows * weight->n_out;
    return status == MOE_OK && scale != 1.0f ? ops->scale(runner->device, scale, b->branch, n, err)
                                             : status;
}

int moe_mix_attention(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    int status = project_gqa(runner, layer, pass->n_rows, err);
    if (status == MOE_OK) {
        status = attend(runner, pass, layer, err);
    }
    if (status == MOE_OK) {
        status = gate_values(runner, layer, pass->n_rows, err);
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
