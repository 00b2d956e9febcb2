/* SPDX-License-Identifier: MIT */
#include "runtime/pass/index_choice.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "runtime/base/moe_assert.h"

/* A number that orders like the score: both zeros are equal, NaNs are lowest. */
static uint32_t order_of(float score)
{
    uint32_t bits;
    float x = score + 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return isnan(score) ? 0 : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

void moe_choose_positions(const float *scores, uint32_t n, uint32_t n_chosen, uint32_t *scratch,
                          uint32_t *chosen)
{
    MOE_ASSERT(n_chosen > 0 && n_chosen <= n);
    for (uint32_t i = 0; i < n; i++) {
        scratch[i] = order_of(scores[i]);
    }
    /* Finds the lowest chosen score byte by byte, from the highest byte down. */
    uint32_t lowest = 0;
    /* How many to take of the scores that begin with the bytes of `lowest`. */
    uint32_t n_left = n_chosen;
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t counts[256] = {0};
        uint32_t mask = shift == 24 ? 0 : UINT32_MAX << (shift + 8);
        for (uint32_t i = 0; i < n; i++) {
            counts[scratch[i] >> shift & 255] += (scratch[i] & mask) == lowest;
        }
        uint32_t byte = 255;
        while (counts[byte] < n_left) {
            n_left -= counts[byte--];
        }
        lowest |= byte << shift;
    }
    uint32_t n_taken = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool equal = scratch[i] == lowest && n_left > 0;
        if (scratch[i] > lowest || equal) {
            chosen[n_taken++] = i;
            n_left -= equal;
        }
    }
    MOE_ASSERT(n_taken == n_chosen);
}
