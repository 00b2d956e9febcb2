/* SPDX-License-Identifier: MIT */
/* The highest of many scores. */
#ifndef MOE_PASS_INDEX_CHOICE_H
#define MOE_PASS_INDEX_CHOICE_H

#include <stdint.h>

/* The n_chosen highest of n scores, ascending by position; of equal scores the lowest positions.
 * scratch: [n]. */
void moe_choose_positions(const float *scores, uint32_t n, uint32_t n_chosen, uint32_t *scratch,
                          uint32_t *chosen);

#endif
