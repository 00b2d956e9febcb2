/* SPDX-License-Identifier: MIT */
/* Selection keeps a short sorted list and goes through the candidates in ascending order of their
 * ids. Most candidates fail one comparison with the list's last entry. Equal values keep their
 * order. */
#include "cpu/kernels/router_select.h"
#include "cpu/kernels/delta_rule.h"
#include "cpu/kernels/vector_reference.h"

#include <math.h>
#include <string.h>

/* The greatest values seen so far, descending. */
typedef struct top_list {
    uint32_t limit;
    uint32_t count;
    uint32_t *ids;
    float values[MOE_ROUTER_MAX_EXPERTS];
} top_list;

static void top_list_offer(top_list *list, float value, uint32_t id)
{
    if (list->count == list->limit) {
        if (!(value > list->values[list->limit - 1]))
            return;
    } else {
        list->count++;
    }
    uint32_t at = list->count - 1;
    for (; at > 0 && value > list->values[at - 1]; at--) {
        list->values[at] = list->values[at - 1];
        list->ids[at] = list->ids[at - 1];
    }
    list->values[at] = value;
    list->ids[at] = id;
}

static float group_score(moe_router_group_score kind, const float *ranking, uint32_t n)
{
    float best = -INFINITY;
    float second = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (ranking[i] > best) {
            second = best;
            best = ranking[i];
        } else if (ranking[i] > second) {
            second = ranking[i];
        }
    }
    return kind == MOE_ROUTER_GROUP_TOP2_SUM && n > 1 ? best + second : best;
}

static void select_experts(const moe_router_gate *gate, const float *ranking, uint32_t *ids)
{
    uint32_t n_group = gate->n_group > 1 ? gate->n_group : 1;
    uint32_t group_size = gate->n_expert / n_group;
    uint32_t group_ids[MOE_ROUTER_MAX_EXPERTS];
    bool used[MOE_ROUTER_MAX_EXPERTS] = {n_group == 1};
    if (n_group > 1) {
        top_list groups = {.limit = gate->n_group_used, .ids = group_ids};
        for (uint32_t g = 0; g < n_group; g++) {
            const float *members = ranking + (size_t)g * group_size;
            top_list_offer(&groups, group_score(gate->group_score, members, group_size), g);
        }
        for (uint32_t i = 0; i < groups.count; i++)
            used[group_ids[i]] = true;
    }
    top_list experts = {.limit = gate->n_expert_used, .ids = ids};
    for (uint32_t g = 0; g < n_group; g++)
        for (uint32_t e = g * group_size; used[g] && e < (g + 1) * group_size; e++)
            top_list_offer(&experts, ranking[e], e);
}

#define MIXER_NEAR 0.02f /* twice the jitter that the model was trained with */

/* The weight of rank k for SPARSE_MIXER; earlier ranks have taken ids[0 .. k). */
static float mixer_weight(const moe_router_gate *gate, const float *logits, const uint32_t *ids,
                          uint32_t k)
{
    float best = logits[ids[k]];
    float sum = 0.0f;
    for (uint32_t e = 0; e < gate->n_expert; e++) {
        bool taken = false;
        for (uint32_t i = 0; i < k; i++)
            taken = taken || ids[i] == e;
        float size = fabsf(logits[e]);
        float against = size > best ? size : best;
        if (!taken && !((best - logits[e]) / against > MIXER_NEAR))
            sum += moe_exp(logits[e] - best);
    }
    return moe_exp(best - best) / sum;
}

static void weigh_experts(const moe_router_gate *gate, const float *logits, const float *p,
                          const uint32_t *ids, float *weights)
{
    uint32_t n = gate->n_expert_used;
    bool over_selected = gate->kind == MOE_ROUTER_SOFTMAX_SELECTED;
    bool mixes = gate->kind == MOE_ROUTER_SPARSE_MIXER;
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        weights[i] = mixes           ? mixer_weight(gate, logits, ids, i)
                     : over_selected ? logits[ids[i]]
                                     : p[ids[i]];
        sum += weights[i];
    }
    if (over_selected)
        moe_softmax_c(weights, n);
    float divisor = !over_selected && !mixes && gate->renormalise ? sum + 1e-20f : 1.0f;
    for (uint32_t i = 0; i < n; i++) {
        weights[i] = weights[i] / divisor * gate->scale;
        if (gate->expert_scales != NULL)
            weights[i] *= gate->expert_scales[ids[i]];
    }
}

void moe_router_pick(const moe_router_gate *gate, const float *logits, const float *bias,
                     const float *p, uint32_t *ids, float *weights)
{
    float ranking[MOE_ROUTER_MAX_EXPERTS];
    bool by_logits =
        gate->kind == MOE_ROUTER_SOFTMAX_SELECTED || gate->kind == MOE_ROUTER_SPARSE_MIXER;
    const float *base = by_logits ? logits : p;
    for (uint32_t e = 0; e < gate->n_expert; e++) {
        float value = bias != NULL ? base[e] + bias[e] : base[e];
        ranking[e] = isnan(value) ? -INFINITY : value;
    }
    if (!gate->given)
        select_experts(gate, ranking, ids);
    weigh_experts(gate, logits, p, ids, weights);
}

void moe_sqrt_softplus_c(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = sqrtf(moe_softplus(x[i]));
}

void moe_router_select_c(const moe_router_gate *gate, const float *logits, const float *bias,
                         uint32_t *ids, float *weights, float *probs)
{
    float scratch[MOE_ROUTER_MAX_EXPERTS];
    float *p = probs != NULL ? probs : scratch;
    memcpy(p, logits, gate->n_expert * sizeof(float));
    if (gate->kind == MOE_ROUTER_SIGMOID)
        moe_sigmoid_c(p, gate->n_expert);
    else if (gate->kind == MOE_ROUTER_SQRT_SOFTPLUS)
        moe_sqrt_softplus_c(p, gate->n_expert);
    else
        moe_softmax_c(p, gate->n_expert);
    moe_router_pick(gate, logits, bias, p, ids, weights);
}
