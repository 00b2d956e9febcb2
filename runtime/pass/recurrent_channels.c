/* SPDX-License-Identifier: MIT */
/* Kimi's delta attention: projections -> short convolutions -> delta rule with a decay for each
 * channel -> norm -> gate -> output. Decays and the output's gate are projected in two steps. */
#include "runtime/pass/recurrent_forms.h"

#include "runtime/pass/runner.h"

/* Where the parts of projections are in buffers->delta_parts; each is [n_rows][..]. */
typedef struct channel_parts {
    float *qkv[3], *f_a, *g_a, *beta, *f;
} channel_parts;

static channel_parts parts_of(const moe_runner *runner, uint32_t n_rows)
{
    const moe_recurrence *c = &runner->config->recurrence;
    size_t inner = n_rows * moe_recurrence_out_floats(c);
    channel_parts p;
    for (int i = 0; i < 3; i++) {
        p.qkv[i] = runner->buffers.delta_parts + (size_t)i * inner;
    }
    p.f_a = p.qkv[2] + inner;
    p.g_a = p.f_a + (size_t)n_rows * c->key_dim;
    p.beta = p.g_a + (size_t)n_rows * c->key_dim;
    p.f = p.qkv[0]; /* once the queries have been copied */
    return p;
}

static moe_weight weight_of(const moe_runner *runner, uint32_t layer, int tensor)
{
    return *moe_layer_weight(runner, layer, tensor);
}

static int project_first(moe_runner *runner, uint32_t layer, uint32_t n_rows,
                         const channel_parts *p, moe_error *err)
{
    moe_linear linears[6] = {
        /* three a call */
        {weight_of(runner, layer, MOE_LAYER_CHANNEL_Q), NULL, p->qkv[0]},
        {weight_of(runner, layer, MOE_LAYER_CHANNEL_K), NULL, p->qkv[1]},
        {weight_of(runner, layer, MOE_LAYER_CHANNEL_V), NULL, p->qkv[2]},
        {weight_of(runner, layer, MOE_LAYER_CHANNEL_F_A), NULL, p->f_a},
        {weight_of(runner, layer, MOE_LAYER_CHANNEL_G_A), NULL, p->g_a},
        {weight_of(runner, layer, MOE_LAYER_CHANNEL_BETA), NULL, p->beta},
    };
    const moe_device_ops *ops = runner->device->ops;
    const float *x = runner->buffers.norm;
    uint32_t n_embd = runner->config->n_embd;
    int status = ops->linear(runner->device, x, n_rows, n_embd, linears, 3, err);
    return status != MOE_OK ? status
                            : ops->linear(runner->device, x, n_rows, n_embd, linears + 3, 3, err);
}

static int project(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    const moe_device_ops *ops = runner->device->ops;
    moe_device *device = runner->device;
    moe_pass_buffers *b = &runner->buffers;
    uint32_t inner = (uint32_t)moe_recurrence_out_floats(c);
    channel_parts p = parts_of(runner, n_rows);
    int status = project_first(runner, layer, n_rows, &p, err);
    for (uint32_t i = 0; i < 3 && status == MOE_OK; i++) {
        status = ops->copy_rows(device, p.qkv[i], inner, b->mixed + (size_t)i * inner,
                                c->conv_channels, inner, n_rows, err);
    }
    moe_linear f = {weight_of(runner, layer, MOE_LAYER_CHANNEL_F_B), NULL, p.f};
    moe_linear g = {weight_of(runner, layer, MOE_LAYER_CHANNEL_G_B), NULL, b->delta_z};
    if (status == MOE_OK) {
        status = ops->linear(device, p.f_a, n_rows, c->key_dim, &f, 1, err);
    }
    if (status == MOE_OK) {
        status = ops->linear(device, p.g_a, n_rows, c->key_dim, &g, 1, err);
    }
    if (status == MOE_OK) {
        status = ops->copy_rows(device, p.beta, c->n_head, b->delta_gates, c->n_gates, c->n_head,
                                n_rows, err);
    }
    return status != MOE_OK ? status
                            : ops->copy_rows(device, p.f, inner, b->delta_gates + c->n_head,
                                             c->n_gates, inner, n_rows, err);
}

static int advance(moe_runner *runner, uint32_t layer, const moe_delta_sequence *sequences,
                   uint32_t n_sequences, moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    moe_channel_rule rule = {
        .n_head = c->n_head,
        .dim = c->key_dim,
        .conv_kernel = c->conv_kernel,
        .conv = {weight_of(runner, layer, MOE_LAYER_CHANNEL_CONV_Q).data,
                 weight_of(runner, layer, MOE_LAYER_CHANNEL_CONV_K).data,
                 weight_of(runner, layer, MOE_LAYER_CHANNEL_CONV_V).data},
        .decay = weight_of(runner, layer, MOE_LAYER_CHANNEL_DECAY).data,
        .dt_bias = weight_of(runner, layer, MOE_LAYER_CHANNEL_DT_BIAS).data,
        .convolved = runner->buffers.convolved,
        .sequences = sequences,
        .n_sequences = n_sequences,
    };
    return runner->device->ops->channel_rule(runner->device, &rule, err);
}

static int put_out(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    const moe_device_ops *ops = runner->device->ops;
    moe_pass_buffers *b = &runner->buffers;
    uint32_t inner = (uint32_t)moe_recurrence_out_floats(c);
    int status = ops->rms_norm(runner->device, b->delta_out,
                               weight_of(runner, layer, MOE_LAYER_CHANNEL_NORM).data, b->delta_out,
                               n_rows * c->n_head, c->value_dim, c->value_dim,
                               runner->config->norm_eps, err);
    moe_gating gating = {.kind = MOE_GATING_SIGMOID,
                         .gate = b->delta_z,
                         .gate_stride = inner,
                         .x = b->delta_out,
                         .x_stride = inner,
                         .n = inner};
    if (status == MOE_OK) {
        status = ops->gate(runner->device, &gating, n_rows, err);
    }
    moe_linear out = {weight_of(runner, layer, MOE_LAYER_CHANNEL_OUT), NULL, b->branch};
    return status != MOE_OK
               ? status
               : ops->linear(runner->device, b->delta_out, n_rows, inner, &out, 1, err);
}

const moe_recurrent_form moe_recurrent_channels = {project, advance, put_out};
