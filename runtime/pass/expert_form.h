/* SPDX-License-Identifier: MIT */
/* The parts of a routed expert besides its three matrices: biases, which are resident, and the
 * activation that joins gate and up. Also a layer plan's requests and work. */
#ifndef MOE_PASS_EXPERT_FORM_H
#define MOE_PASS_EXPERT_FORM_H

#include "runtime/base/moe_assert.h"
#include "runtime/pass/runner.h"

/* The expert's row of a tensor [n_expert][..]; NULL if the model has none. */
static inline const float *moe_expert_bias(const moe_runner *runner, uint32_t layer, int tensor,
                                           uint32_t expert)
{
    const moe_weight *biases = moe_layer_weight(runner, layer, tensor);
    return biases->data != NULL
               ? (const float *)((const uint8_t *)biases->data + expert * biases->row_bytes)
               : NULL;
}

/* The layer's operation that computes its routed experts; it stands behind the routing. */
static inline const moe_op *moe_experts_op(const moe_runner *runner, uint32_t layer)
{
    const moe_op *op = &runner->program->ops[runner->program->layers[layer].rest + 1];
    MOE_ASSERT(op->kind == MOE_OP_EXPERTS);
    return op;
}

/* The input of the routed experts. */
static inline float *moe_experts_x(const moe_runner *runner, uint32_t layer)
{
    return runner->buffers.values[moe_experts_op(runner, layer)->x.value];
}

/* The work of an expert of a layer, without its rows. */
static inline moe_expert_work moe_expert_work_of(const moe_runner *runner, uint32_t layer,
                                                 uint32_t expert, const moe_expert_view *view)
{
    return (moe_expert_work){
        .gate = view->parts[MOE_EXPERT_GATE],
        .up = view->parts[MOE_EXPERT_UP],
        .down = view->parts[MOE_EXPERT_DOWN],
        .gate_bias = moe_expert_bias(runner, layer, MOE_LAYER_EXPERTS_GATE_BIAS, expert),
        .up_bias = moe_expert_bias(runner, layer, MOE_LAYER_EXPERTS_UP_BIAS, expert),
        .down_bias = moe_expert_bias(runner, layer, MOE_LAYER_EXPERTS_DOWN_BIAS, expert),
        .activation = moe_experts_op(runner, layer)->u.experts.activation};
}

/* The work of a plan's entry. Outputs go to the places of the expert's ranks. scales: the inputs'
 * factors, in the plan's order; only read for families whose router weights multiply inputs. */
static inline moe_expert_work moe_plan_work(const moe_runner *runner, uint32_t layer,
                                            const moe_layer_plan *plan, uint32_t entry,
                                            const float *scales, const moe_expert_view *view)
{
    uint32_t begin = plan->first[entry];
    moe_expert_work work = moe_expert_work_of(runner, layer, plan->experts[entry], view);
    work.x_scales = moe_experts_op(runner, layer)->u.experts.scales_inputs ? scales + begin : NULL;
    work.x_index = plan->rows + begin;
    work.out_index = plan->ranked_slots + begin;
    work.n_rows = plan->first[entry + 1] - begin;
    return work;
}

/* Makes the request of a plan to the store. Writes to n_rows and gates ([n_expert]) how many
 * rows each entry has, and the sum of these rows' weights. Both arrays must live as long as the
 * request. */
static inline moe_layer_request moe_plan_request(const moe_runner *runner, const moe_pass *pass,
                                                 uint32_t layer, const moe_layer_plan *plan,
                                                 uint32_t *n_rows, float *gates)
{
    const float *weights = runner->buffers.chosen_weights;
    for (uint32_t i = 0; i < plan->n_experts; i++) {
        n_rows[i] = plan->first[i + 1] - plan->first[i];
        gates[i] = 0.0f;
        for (uint32_t s = plan->first[i]; s < plan->first[i + 1]; s++) {
            gates[i] += weights[plan->ranked_slots[s]];
        }
    }
    return (moe_layer_request){.layer = layer,
                               .pass = runner->n_passes,
                               .experts = plan->experts,
                               .n_rows = n_rows,
                               .gates = gates,
                               .n = plan->n_experts,
                               .cancel = {pass->is_cancelled, pass->cancel_user}};
}

#endif
