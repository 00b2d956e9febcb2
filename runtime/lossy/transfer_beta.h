/* SPDX-License-Identifier: MIT */
/* Lossy: computes the threshold beta of a residency gate from a budget of transfers (BuddyMoE,
 * section 3.1). beta is chosen so that the missing experts of the layers that the gate leaves
 * unchanged, n_missing times the bytes of an expert, stay within the budget. The meter sorts a
 * pass's layers into 32 classes, by the share of the requested experts that is missing, and keeps
 * the missing bytes of each class. beta is the lower end of the lowest class such that this class
 * and all higher ones together stay within the budget. So the layers that miss most stay exact, as
 * far as the budget goes. Reads no clock. */
#ifndef MOE_LOSSY_TRANSFER_BETA_H
#define MOE_LOSSY_TRANSFER_BETA_H

#include <stdint.h>

#define MOE_TRANSFER_CLASSES 32u

typedef struct moe_transfer_beta {
    uint64_t budget; /* bytes that a pass may fetch; 0: off */
    /* The mean bytes per pass that fall into each class: of all passes at first, later of about
     * the latest 32. */
    double mean[MOE_TRANSFER_CLASSES];
    double now[MOE_TRANSFER_CLASSES]; /* of the current pass */
    uint32_t n_passes, last_layer;
} moe_transfer_beta;

void moe_transfer_beta_init(moe_transfer_beta *t, uint64_t budget);
/* Notes how many of n_requested > 0 distinct experts a layer misses, before any are replaced. A
 * layer that does not come after the last one begins a new pass. */
void moe_transfer_beta_note(moe_transfer_beta *t, uint32_t layer, uint32_t n_missing,
                            uint32_t n_requested, uint64_t expert_bytes);
/* Returns beta in 0..1: layers that miss this share or more are left unchanged; 0: all layers, 1:
 * none. beta is 1 before the second pass. */
float moe_transfer_beta_get(const moe_transfer_beta *t);

#endif
