/* SPDX-License-Identifier: MIT */
/* norm -> the layer's mixer, which mixes positions -> addition to the residual stream. */
#include "runtime/pass/mixers.h"
#include "runtime/pass/runner.h"

int moe_attention_block(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    const moe_device_ops *ops = runner->device->ops;
    size_t n = (size_t)pass->n_rows * c->n_embd;
    int status = ops->rms_norm(runner->device, b->x,
                               moe_layer_weight(runner, layer, MOE_LAYER_ATTN_NORM)->data, b->norm,
                               pass->n_rows, c->n_embd, c->n_embd, c->norm_eps, err);
    if (status == MOE_OK) {
        status = moe_mixer_of(c->layers[layer].mixer)->run(runner, pass, layer, err);
    }
    if (status == MOE_OK && c->residual_scale != 1.0f) {
        status = ops->scale(runner->device, c->residual_scale, b->branch, n, err);
    }
    return status != MOE_OK ? status : ops->add(runner->device, b->x, b->branch, b->x, n, err);
}
