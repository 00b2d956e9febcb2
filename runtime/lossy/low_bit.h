/* SPDX-License-Identifier: MIT */
/* Lossy: the low-bit copy of an expert replaces the expert while the expert is not in memory
 * (runtime/sidecar/low_bit_file.h describes the copies). Copies have their own slots, in an expert
 * store over their file. If every copy has a slot, no pass waits for the disk. */
#ifndef MOE_LOSSY_LOW_BIT_H
#define MOE_LOSSY_LOW_BIT_H

#include "offload/expert_store.h"
#include "offload/layer_plan.h"
#include "runtime/pass/pass_hooks.h"

typedef struct moe_low_bit_stats {
    uint64_t n_picks;        /* (row, rank) seen */
    uint64_t n_stood;        /* ... that a copy computed */
    uint64_t n_experts;      /* (pass, layer, distinct expert) that a copy computed */
    double mass, mass_stood; /* the weights of the picks, and of those that a copy computed */
} moe_low_bit_stats;

typedef struct moe_low_bit moe_low_bit;

/* Creates the mode. A copy replaces a missing expert if the expert's share of the mixing weights is
 * less than `below` in every row of the pass that chose it; with `below` of 1 or more, for every
 * missing expert. `copies` must outlive it. */
int moe_low_bit_create(moe_low_bit **out, moe_runner *runner, moe_expert_store *copies, float below,
                       moe_error *err);
/* Adds the hook to the runner, which must be complete. */
int moe_low_bit_attach(moe_low_bit *low_bit, moe_error *err);
/* Closes the mode. No pass may be running. */
void moe_low_bit_free(moe_low_bit **low_bit);
const moe_low_bit_stats *moe_low_bit_get_stats(const moe_low_bit *low_bit);

#endif
