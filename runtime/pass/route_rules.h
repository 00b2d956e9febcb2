/* SPDX-License-Identifier: MIT */
/* The rules that editors of routing follow, layer by layer: how the model mixes its experts. */
#ifndef MOE_PASS_ROUTE_RULES_H
#define MOE_PASS_ROUTE_RULES_H

#include "runtime/pass/pass.h"
#include "runtime/pass/route_edit.h"

typedef struct moe_route_rules {
    moe_mixing_rule *mixing; /* [n_layer] */
    float *bias;             /* memory for the selection_bias of all layers, [n_layer][n_expert] */
    float *scales;           /* memory for their expert_scales, [n_layer][n_expert] */
} moe_route_rules;

/* The runner's weights must be loaded. */
int moe_route_rules_open(moe_route_rules **out, const moe_runner *runner, moe_error *err);
void moe_route_rules_close(moe_route_rules **rules);

/* The choices in the runner's buffers, for editing. resident: [n_expert]. */
moe_route_edit moe_route_edit_of(const moe_route_rules *rules, moe_runner *runner,
                                 const moe_pass *pass, uint32_t layer, const bool *resident);

#endif
