/* SPDX-License-Identifier: MIT */
/* Functions of controllers that fix K for an iteration and look at no costs while drafting. */
#ifndef MOE_DRAFT_LENGTH_FIXED_H
#define MOE_DRAFT_LENGTH_FIXED_H

#include "runtime/draft/length_controller.h"

/* The confidence, unchanged. */
double moe_length_fixed_survival(const moe_length_control *control, uint32_t depth,
                                 float confidence);
bool moe_length_fixed_continues(const moe_length_control *control, uint32_t depth,
                                double path_survival, uint32_t n_sharing);
uint32_t moe_length_fixed_cut(const moe_length_control *control, const double *survival,
                              const double *fetch_cost, uint32_t n, uint32_t n_sharing);
void moe_length_fixed_note(moe_length_control *control, uint32_t depth, float confidence,
                           bool accepted);

#endif
