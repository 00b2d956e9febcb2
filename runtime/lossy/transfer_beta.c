/* SPDX-License-Identifier: MIT */
#include "runtime/lossy/transfer_beta.h"

#include "runtime/base/moe_assert.h"

#define LONGEST_MEAN 32u /* passes */

void moe_transfer_beta_init(moe_transfer_beta *t, uint64_t budget)
{
    *t = (moe_transfer_beta){.budget = budget, .last_layer = UINT32_MAX};
}

static void end_pass(moe_transfer_beta *t)
{
    t->n_passes += t->n_passes < LONGEST_MEAN;
    for (uint32_t i = 0; i < MOE_TRANSFER_CLASSES; i++) {
        t->mean[i] += (t->now[i] - t->mean[i]) / t->n_passes;
        t->now[i] = 0.0;
    }
}

void moe_transfer_beta_note(moe_transfer_beta *t, uint32_t layer, uint32_t n_missing,
                            uint32_t n_requested, uint64_t expert_bytes)
{
    MOE_ASSERT(n_requested > 0 && n_missing <= n_requested);
    if (t->last_layer != UINT32_MAX && layer <= t->last_layer) {
        end_pass(t);
    }
    t->last_layer = layer;
    uint32_t class = (uint32_t)((uint64_t)n_missing * MOE_TRANSFER_CLASSES / n_requested);
    class = class < MOE_TRANSFER_CLASSES ? class : MOE_TRANSFER_CLASSES - 1;
    t->now[class] += (double)n_missing * (double)expert_bytes;
}

float moe_transfer_beta_get(const moe_transfer_beta *t)
{
    uint32_t least = MOE_TRANSFER_CLASSES;
    double bytes = 0.0;
    while (t->n_passes > 0 && least > 0 && bytes + t->mean[least - 1] <= (double)t->budget) {
        bytes += t->mean[--least];
    }
    return (float)least / MOE_TRANSFER_CLASSES;
}
