/* SPDX-License-Identifier: MIT */
/* Whether experts that leave the upper tier are worth a copy to the tier below: judged by how often
 * such copies were hit. Engine and simulator use the same judgement. Counts hits and measures no
 * time, so that runs are repeatable. */
#ifndef MOE_CACHE_TIER_SAVES_H
#define MOE_CACHE_TIER_SAVES_H

#include <stdbool.h>
#include <stdint.h>

/* A read from the disk takes at least as long as this many copies over the link. */
#define MOE_COPIES_PER_READ 4u
/* Fewer saves than this are not judged yet. From twice as many on, older saves count less. */
#define MOE_FIRST_SAVES 64u
/* While saves do not pay, one in this many is still made, to see whether that changes. */
#define MOE_TRY_SAVE_EVERY 16u
/* Saves may fill one in this many of a size class's slots at once; reads need the others. */
#define MOE_SAVING_DIVISOR 4u

/* New: all zero. */
typedef struct moe_tier_saves {
    uint32_t n_recent, n_recent_hits; /* saves, and hits on them; older ones count less */
    uint32_t n_doubted;               /* saves that were asked for while they did not pay */
} moe_tier_saves;

static inline void moe_tier_saves_note(moe_tier_saves *saves)
{
    if (++saves->n_recent == 2 * MOE_FIRST_SAVES) {
        saves->n_recent /= 2;
        saves->n_recent_hits /= 2;
    }
}

/* Each hit on a saved expert spares a read from the disk. */
static inline bool moe_tier_saves_pay(moe_tier_saves *saves)
{
    return saves->n_recent < MOE_FIRST_SAVES ||
           saves->n_recent_hits * MOE_COPIES_PER_READ >= saves->n_recent ||
           saves->n_doubted++ % MOE_TRY_SAVE_EVERY == 0;
}

#endif
