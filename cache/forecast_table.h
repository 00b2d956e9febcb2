/* SPDX-License-Identifier: MIT */
/* Holds forecasts of the next passes, and computes how long a key is expected to wait for its use.
 *
 *    pass:      first_pass   first_pass + 1   ...   first_pass + n_passes - 1 | beyond
 *    chance:    [n_keys]     [n_keys]               [n_keys]                  | p of the past
 *
 * The method is Belady's rule, with estimates in place of the known future (see policy_lfru.c). */
#ifndef MOE_CACHE_FORECAST_TABLE_H
#define MOE_CACHE_FORECAST_TABLE_H

#include <moe/policy.h>

/* Forecasts for passes further ahead than this are ignored. */
#define MOE_FORECAST_PASSES 32u

typedef struct moe_forecast_table {
    uint32_t n_layer;
    uint32_t n_expert;
    uint32_t n_passes; /* 0: there are no forecasts */
    uint64_t first_pass;
    uint32_t capacity; /* passes that the arrays have room for */
    /* [capacity][n_layer * n_expert] the forecasts' probabilities; 0: not in a forecast */
    float *chance;
    /* [capacity][n_layer] mean probability of the keys in forecasts; 0: no forecasts */
    float *named;
} moe_forecast_table;

void moe_forecast_table_init(moe_forecast_table *table, uint32_t n_layer, uint32_t n_expert);
void moe_forecast_table_release(moe_forecast_table *table);

/* Replaces all forecasts. If memory is short, the table is empty afterwards. */
void moe_forecast_table_set(moe_forecast_table *table, uint64_t first_pass,
                            const moe_policy_forecast *uses, size_t n);

/* Returns in how many passes the key is expected to be used, counted from the pass `from` (0: in
 * that pass). p, in (0, 1]: the probability that a pass uses the key, as estimated from past uses.
 * Without forecasts the result is 1 / p - 1. */
double moe_forecast_table_wait(const moe_forecast_table *table, uint32_t key, uint64_t from,
                               double p);

#endif
