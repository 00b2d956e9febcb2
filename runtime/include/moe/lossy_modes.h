/* SPDX-License-Identifier: MIT */
/* Lossy modes: they change the text, in decoding and verification (never in prompts), and every
 * report says so. All are off by default. Sizes of structs are as in moe.h.
 *
 *     moe_lossy_options lossy;
 *     moe_lossy_options_init(&lossy);
 *     lossy.expert_budget = 24;
 *     options.lossy = &lossy;
 *
 * moe_engine_open() copies the struct, which may be freed afterwards.
 *
 * Threads (the groups are explained in moe.h):
 *   free: moe_lossy_options_init_sized, moe_lossy_options_init */
#ifndef MOE_LOSSY_MODES_H
#define MOE_LOSSY_MODES_H

#include <moe/status.h>
#include <moe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which experts of a layer a budget keeps. */
typedef enum moe_budget_order {
    MOE_BUDGET_BY_ROUTER = 0,     /* those with the greatest router probabilities, over the pass */
    MOE_BUDGET_BY_CALIBRATION = 1 /* those that calibration found hottest */
} moe_budget_order;

/* moe_lossy_options_init() sets the defaults, which are not all 0. */
typedef struct moe_lossy_options {
    size_t struct_size; /* set by moe_lossy_options_init() */

    /* Expert budget (MoE-Spec): the most experts of a layer that a pass uses, from the number that
     * a token uses to all of the layer; 0: off. Default 0 */
    uint32_t expert_budget;
    moe_budget_order budget_order; /* default MOE_BUDGET_BY_ROUTER */
    /* True: an expert that a token chose and the budget does not keep is dropped. Default false:
     * the kept expert that the router ranks next takes its place. */
    bool budget_truncates;
    bool budget_free_resident; /* experts in memory do not count; default false */

    /* Buddies replace missing experts (BuddyMoE). They need a calibration. */
    bool buddies;            /* default false, and then the other fields of buddies are not
                              * used */
    bool buddies_random;     /* a baseline: any expert in memory; default false */
    bool buddies_own_weight; /* a buddy has the router's weight for the buddy; default true; false:
                              * that of the missing expert, as in the paper */
    bool buddies_drop;       /* a missing expert without a buddy is dropped; default false:
                                it is fetched */
    /* A token that chose experts i and j adds min(p_i, p_j) to their co-activation, with p
     * normalised over its experts; default false: it adds 1. */
    bool buddies_weighted;
    uint32_t buddies_max_replaced; /* rho: most replacements of a token in a layer, 0..64; default
                                    * 3 */
    uint32_t buddies_max;          /* K_max: buddies of an expert, 1..1024; default 4 */
    uint32_t buddies_search;       /* how many buddies are tried, 0..1024; 0: all; default 0 */
    /* TAE: no replacement if a token's routing is among this percentage of the layer's most
     * certain, 0..99; 0: everywhere; default 15. */
    uint32_t buddies_tae_percentile;
    float buddies_alpha;  /* share of the co-activations that an expert's buddies cover, (0, 1];
                             default 0.95 */
    float buddies_margin; /* no replacement if the best two probabilities differ by this much or
                           * more, 0..2; above 1: everywhere; default 2 */
    float buddies_beta;   /* no replacement in a layer if this share of the requested experts is
                           * missing, 0..1; default 1: everywhere */
    /* Bytes that a pass may fetch for layers in which beta forbids replacement. beta then follows
     * from the misses of the latest passes, and is at most buddies_beta; 0: beta is buddies_beta.
     * Default 0 */
    uint64_t buddies_transfer;
    float buddies_eta; /* weight of novelty in the choice of a buddy, 0..10; default 0 */
    /* On a device with its own memory: the score of a buddy that is in host memory is multiplied by
     * 1 minus this, 0..1; default 1: only buddies in the device's memory. Only experts that are in
     * no memory are replaced by buddies in host memory. */
    float buddies_kappa;
    float buddies_epsilon; /* is added to each co-activation, 0..10^6; default 1 */
    /* TAE: the probabilities' temperature, 0.1..10; default 1. The percentiles stay those of
     * temperature 1, so above 1 fewer tokens are among the most certain, and below 1 more. */
    float buddies_temperature;
    /* The score of a buddy that the token already uses is multiplied by this, 0..1; default 0: such
     * a buddy is excluded. If it is taken, it computes once, with the sum of both weights. */
    float buddies_reuse;

    /* Low-bit copies replace experts that are not in memory. They need the file that
     * moe_calibrate() makes with low_bit_type, and the CPU as the device. */
    bool low_bit; /* default false, and then the other fields of low_bit are not used */
    /* A copy is used only if the expert's share of a token's router weight is below this, (0, 1];
     * other experts are fetched. Default 1: for every missing expert */
    float low_bit_below;
    double low_bit_share; /* of the memory for experts, what the copies get, (0, 1); default 0.5.
                           * Never more than all of them take */

    /* Quality limits of the modes above. At least one of these modes must be on. */
    double quality_limit; /* if the mean KL (nats) to exact passes exceeds this, lossy modes are
                           * turned off; 0: no limit */
    /* The share of passes that are compared with the exact one, (0, 1]; 0: 0.02. The first 8
     * positions that a session evaluates under lossy modes are always compared. */
    double quality_share;
} moe_lossy_options;

MOE_API void moe_lossy_options_init_sized(moe_lossy_options *options, size_t struct_size);
static inline void moe_lossy_options_init(moe_lossy_options *options)
{
    moe_lossy_options_init_sized(options, sizeof *options);
}

#ifdef __cplusplus
}
#endif
#endif
