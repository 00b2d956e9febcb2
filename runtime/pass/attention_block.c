/* SPDX-License-Identifier: MIT */
/* norm -> the layer's mixer, which mixes positions -> addition to the residual stream. What the
 * experts or their router take from the layer's input is computed first, while it is there. */
#include "runtime/pass/layer_norms.h"
#include "runtime/pass/mixers.h"
#include "runtime/pass/routing.h"
#include "runtime/pass/runner.h"

static int read_layer_input(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    if (!moe_layer_has_experts(c, layer)) {
        return MOE_OK;
    }
    if (c->experts_input == MOE_EXPERTS_LAYER_NORM) {
        int status = moe_norm_embedding(runner, layer, MOE_LAYER_EXPERTS_NORM, b->x, b->layer_norm,
                                        n_rows, err);
        return status != MOE_OK ? status
                                : moe_queue_router(runner, layer, b->layer_norm, n_rows, err);
    }
    return c->router_input == MOE_ROUTER_LAYER_INPUT
               ? moe_queue_router(runner, layer, b->x, n_rows, err)
               : MOE_OK;
}

int moe_attention_block(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    const moe_device_ops *ops = runner->device->ops;
    size_t n = (size_t)pass->n_rows * c->n_embd;
    int status = read_layer_input(runner, layer, pass->n_rows, err);
    if (c->layers[layer].mixer == MOE_MIXER_NONE) {
        return status;
    }
    if (status == MOE_OK) {
        status = moe_norm_embedding(runner, layer, MOE_LAYER_ATTN_NORM, b->x, b->norm, pass->n_rows,
                                    err);
    }
    if (status == MOE_OK) {
        status = moe_mixer_of(c->layers[layer].mixer)->run(runner, pass, layer, err);
    }
    if (status == MOE_OK && c->attn_post_norm_tensor != NULL) {
        status = moe_norm_embedding(runner, layer, MOE_LAYER_ATTN_POST_NORM, b->branch, b->branch,
                                    pass->n_rows, err);
    }
    if (status == MOE_OK && c->residual_scale != 1.0f) {
        status = ops->scale(runner->device, c->residual_scale, b->branch, n, err);
    }
    return status != MOE_OK ? status : ops->add(runner->device, b->x, b->branch, b->x, n, err);
}
