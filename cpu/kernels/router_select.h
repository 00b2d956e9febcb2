/* SPDX-License-Identifier: MIT */
/* From a router's logits to the experts that a token uses and their weights.
 *
 * Definition, for one row of n_expert logits:
 *  p        the probabilities: softmax of the logits over all experts, or their sigmoids; for
 *           SQRT_SOFTPLUS sqrtf(moe_softplus(logit))
 *  r        what is ranked: p (the logits for SOFTMAX_SELECTED), plus the bias if there is one;
 *           a NaN counts as -infinity
 *  groups   with n_group > 1 the experts form n_group runs of n_expert / n_group. A group's score
 *           is its greatest r, or the sum of its two greatest (of its one, if it has one). Only
 *           experts of the n_group_used best groups can be selected.
 *  ids      the n_expert_used greatest r, in descending order; of equals the lower id comes first
 *           (and of groups the lower group)
 *  weights  p of the selected, without bias, in that order. renormalise: divided by (their sum,
 *           added in that order, + 1e-20f). DeepSeek-V3 adds this guard; it does not change a
 *           softmax. SOFTMAX_SELECTED: softmax over the selected logits instead, and renormalise
 *           is ignored. At the end each weight is multiplied by scale, and by the expert's own
 *           scale if there are any.
 * given: the ids are not selected but given, in any order.
 * SPARSE_MIXER (Phi-3.5-MoE) ranks logits, too, without bias and groups. The weight of a rank is
 * the softmax of its logit s over those logits t that no earlier rank has taken and that are near
 * it: not (s - t) / max(|t|, s) > 0.02. Terms exp(t - s) are added in order of their ids;
 * renormalise is ignored.
 * Softmax, sigmoid and exponential are those of vector_ops.h, so every table of kernels gives the
 * same bits. */
#ifndef MOE_CPU_ROUTER_SELECT_H
#define MOE_CPU_ROUTER_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#define MOE_ROUTER_MAX_EXPERTS 1024
#define MOE_ROUTER_MAX_USED    64

/* The numbers of moe_gate_kind and moe_group_score_kind in model_config.h. */
typedef enum moe_router_kind {
    MOE_ROUTER_SOFTMAX = 1,
    MOE_ROUTER_SIGMOID = 2,
    MOE_ROUTER_SOFTMAX_SELECTED = 3,
    MOE_ROUTER_SQRT_SOFTPLUS = 4,
    MOE_ROUTER_SPARSE_MIXER = 5
} moe_router_kind;

typedef enum moe_router_group_score {
    MOE_ROUTER_GROUP_MAX = 0,
    MOE_ROUTER_GROUP_TOP2_SUM = 1
} moe_router_group_score;

/* Validated when the model is opened and not checked again: n_expert_used <= n_expert / n_group *
 * n_group_used, n_expert is a multiple of n_group, and the limits above hold. */
typedef struct moe_router_gate {
    moe_router_kind kind;
    uint32_t n_expert;
    uint32_t n_expert_used;
    uint32_t n_group; /* 0 or 1: no groups */
    uint32_t n_group_used;
    moe_router_group_score group_score;
    bool renormalise;
    bool given;                 /* `ids` are read, and not written */
    float scale;                /* 1: none */
    const float *expert_scales; /* [n_expert] or NULL */
} moe_router_gate;

/* logits, bias: [n_expert], bias may be NULL. ids, weights: [n_expert_used].
 * probs: [n_expert] out, p over all experts (a softmax unless the kind is SIGMOID or
 * SQRT_SOFTPLUS), or NULL.
 */
typedef void (*moe_router_select_fn)(const moe_router_gate *gate, const float *logits,
                                     const float *bias, uint32_t *ids, float *weights,
                                     float *probs);

/* The reference. */
void moe_router_select_c(const moe_router_gate *gate, const float *logits, const float *bias,
                         uint32_t *ids, float *weights, float *probs);

/* In place: x = sqrtf(moe_softplus(x)). */
void moe_sqrt_softplus_c(float *x, uint32_t n);

/* The second half: computes ids and weights from p (any p for SOFTMAX_SELECTED). */
void moe_router_pick(const moe_router_gate *gate, const float *logits, const float *bias,
                     const float *p, uint32_t *ids, float *weights);

#endif
