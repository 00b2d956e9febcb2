/* SPDX-License-Identifier: MIT */
/* Edits the router's choice before it becomes the layer's plan: for drafts that may use only
 * resident experts, and for the lossy modes. Every editor sees one layer of one pass. */
#ifndef MOE_PASS_ROUTE_EDIT_H
#define MOE_PASS_ROUTE_EDIT_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/status.h>

#define MOE_EXPERT_NONE UINT32_MAX /* marks a dropped rank; its weight is 0 */

/* How the model computes mixing weights from the probabilities of the chosen experts. */
typedef struct moe_mixing_rule {
    bool renormalise; /* divided by (their sum in rank order + 1e-20f) */
    float scale;
    const float *selection_bias; /* [n_expert] added to p for the choice only, or NULL */
    const float *expert_scales;  /* [n_expert] factors of the weights, or NULL */
} moe_mixing_rule;

typedef struct moe_route_edit {
    uint32_t layer;
    uint32_t n_rows;
    uint32_t n_expert;
    uint32_t n_used;
    uint32_t *experts;    /* in and out: [n_rows][n_used], best first, distinct within a row */
    float *weights;       /* in and out: [n_rows][n_used] */
    const float *probs;   /* [n_rows][n_expert] of the router, over all experts */
    const bool *resident; /* [n_expert]: in the device's memory, or on its way there */
    moe_mixing_rule mixing;
} moe_route_edit;

/* In every editor, an id of n_expert or more is a dropped rank, which stays as it is. */

/* Whether the expert is among these n. */
static inline bool moe_row_uses(const uint32_t *experts, uint32_t n, uint32_t expert)
{
    for (uint32_t i = 0; i < n; i++) {
        if (experts[i] == expert) {
            return true;
        }
    }
    return false;
}

/* Computes a row's weights by the model's rule over the row's experts. With p the router's
 * probability, a weight is p, or p over (the sum in rank order + 1e-20f), times the scale; 0 for
 * dropped ranks. */
void moe_route_edit_weigh(const moe_route_edit *edit, uint32_t row);
/* Replaces those of a row's experts that are not allowed ([n_expert]), and computes the weights.
 * Allowed experts stay; the best other allowed experts (by p plus the selection bias, ties to the
 * lower id) fill the row, all in the router's order. Ranks for which no expert is left come last
 * and are dropped. */
void moe_route_edit_reselect(const moe_route_edit *edit, uint32_t row, const bool *allowed);

#endif
