/* SPDX-License-Identifier: MIT */
#include "runtime/pass/route_rules.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/runner.h"

static int load_bias(moe_route_rules *rules, const moe_runner *runner, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_device *device = runner->device;
    int status = MOE_OK;
    for (uint32_t l = 0; l < c->n_layer && status == MOE_OK; l++) {
        const float *bias = moe_layer_weight(runner, l, MOE_LAYER_ROUTER_SELECTION_BIAS)->data;
        if (bias == NULL) {
            continue;
        }
        float *copy = rules->bias + (size_t)l * c->n_expert;
        status = device->ops->download(device, copy, bias, c->n_expert * sizeof *copy, err);
        rules->mixing[l].selection_bias = copy;
    }
    return status;
}

void moe_route_rules_close(moe_route_rules **rules)
{
    if (*rules != NULL) {
        free((*rules)->mixing);
        free((*rules)->bias);
        free(*rules);
        *rules = NULL;
    }
}

int moe_route_rules_open(moe_route_rules **out, const moe_runner *runner, moe_error *err)
{
    const moe_model_config *c = runner->config;
    *out = NULL;
    moe_route_rules *rules = moe_calloc(1, sizeof *rules);
    if (rules != NULL) {
        rules->mixing = moe_calloc(c->n_layer, sizeof *rules->mixing);
        rules->bias = moe_calloc((size_t)c->n_layer * c->n_expert, sizeof *rules->bias);
    }
    if (rules == NULL || rules->mixing == NULL || rules->bias == NULL) {
        moe_route_rules_close(&rules);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for editing routes");
    }
    for (uint32_t l = 0; l < c->n_layer; l++) {
        /* A softmax over the selected logits is the softmax over all, renormalised. */
        bool renormalise = c->gate_renormalise || c->gate == MOE_GATE_SOFTMAX_SELECTED;
        rules->mixing[l] = (moe_mixing_rule){.renormalise = renormalise, .scale = c->gate_scale};
    }
    int status = load_bias(rules, runner, err);
    if (status != MOE_OK) {
        moe_route_rules_close(&rules);
        return status;
    }
    *out = rules;
    return MOE_OK;
}

moe_route_edit moe_route_edit_of(const moe_route_rules *rules, moe_runner *runner,
                                 const moe_pass *pass, uint32_t layer, const bool *resident)
{
    moe_pass_buffers *b = &runner->buffers;
    return (moe_route_edit){.layer = layer,
                            .n_rows = pass->n_rows,
                            .n_expert = runner->config->n_expert,
                            .n_used = runner->config->n_expert_used,
                            .experts = b->chosen,
                            .weights = b->chosen_weights,
                            .probs = b->router_probs,
                            .resident = resident,
                            .mixing = rules->mixing[layer]};
}
