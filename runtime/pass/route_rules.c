/* SPDX-License-Identifier: MIT */
#include "runtime/pass/route_rules.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/runner.h"

/* Copies [n_expert] numbers of a layer to the host; *to is NULL if the layer has none. */
static int load_floats(const moe_runner *runner, uint32_t layer, int tensor, float *all,
                       const float **to, moe_error *err)
{
    moe_device *device = runner->device;
    uint32_t n = runner->config->n_expert;
    const float *values = moe_layer_weight(runner, layer, tensor)->data;
    float *copy = all + (size_t)layer * n;
    *to = values != NULL ? copy : NULL;
    return values != NULL ? device->ops->download(device, copy, values, n * sizeof *copy, err)
                          : MOE_OK;
}

static int load_layers(moe_route_rules *rules, const moe_runner *runner, moe_error *err)
{
    for (uint32_t l = 0; l < runner->config->n_layer; l++) {
        moe_mixing_rule *rule = &rules->mixing[l];
        MOE_TRY(load_floats(runner, l, MOE_LAYER_ROUTER_SELECTION_BIAS, rules->bias,
                            &rule->selection_bias, err));
        MOE_TRY(load_floats(runner, l, MOE_LAYER_EXPERTS_SCALE, rules->scales, &rule->expert_scales,
                            err));
    }
    return MOE_OK;
}

void moe_route_rules_close(moe_route_rules **rules)
{
    if (*rules != NULL) {
        free((*rules)->mixing);
        free((*rules)->bias);
        free((*rules)->scales);
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
        rules->scales = moe_calloc((size_t)c->n_layer * c->n_expert, sizeof *rules->scales);
    }
    if (rules == NULL || rules->mixing == NULL || rules->bias == NULL || rules->scales == NULL) {
        moe_route_rules_close(&rules);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for editing routes");
    }
    for (uint32_t l = 0; l < c->n_layer; l++) {
        /* A softmax over the selected logits is the softmax over all, renormalised. */
        bool renormalise = c->gate_renormalise || c->gate == MOE_GATE_SOFTMAX_SELECTED;
        rules->mixing[l] = (moe_mixing_rule){.renormalise = renormalise, .scale = c->gate_scale};
    }
    int status = load_layers(rules, runner, err);
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
