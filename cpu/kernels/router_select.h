/* SPDX-License-Identifier: MIT */
/* Finds the experts that a token uses, and their weights, from a router's logits.
 *
 * Definition, for one row of n_expert logits:
 *  p        the probabilities: softmax of the logits over all experts, or their sigmoids; for
 *           SQRT_SOFTPLUS sqrtf(moe_softplus(logit))
 *  r        the values by which experts are ranked: p (the logits for SOFTMAX_SELECTED), plus the
 *           bias if there is one; a NaN counts as -infinity
 *  groups   with n_group > 1 the experts form n_group runs of n_expert / n_group. A group's score
 *           is its greatest r, or the sum of its two greatest (a group of one expert: its r). Only
 *           experts of the n_group_used best groups can be selected.
 *  ids      the experts with the n_expert_used greatest r, in descending order; of equal r the
 *           lower id comes first (and of groups with equal scores the lower group)
 *  weights  p of the selected experts, without bias, in the order of ids. renormalise: divided by
 *           (their sum, added in this order, + 1e-20f). DeepSeek-V3 adds this guard; it does not
 *           change a softmax. SOFTMAX_SELECTED: softmax over the selected logits instead, and
 *           renormalise is ignored. At the end each weight is multiplied by scale, and by the
 *           expert's own scale if there are such scales.
 * given: the caller gives the ids, in any order, instead of having them selected.
 * SPARSE_MIXER (Phi-3.5-MoE) ranks logits, too, without bias and groups. The weight of a rank is a
 * softmax: of its logit s, over the logits t that no earlier rank has taken and that are near s, as
 * long as not (s - t) / max(|t|, s) > 0.02. Terms exp(t - s) are added in order of their ids;
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

/* Opening the model checks these conditions, and nothing checks them again: n_expert_used <=
 * n_expert / n_group * n_group_used; n_expert is a multiple of n_group; the limits above hold. */
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

/* The second half of moe_router_select: computes ids and weights from p. SOFTMAX_SELECTED does not
 * read p. */
void moe_router_pick(const moe_router_gate *gate, const float *logits, const float *bias,
                     const float *p, uint32_t *ids, float *weights);

#endif
