/* SPDX-License-Identifier: MIT */
#include "cache/forecast_table.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"

void moe_forecast_table_init(moe_forecast_table *table, uint32_t n_layer, uint32_t n_expert)
{
    *table = (moe_forecast_table){.n_layer = n_layer, .n_expert = n_expert};
}

void moe_forecast_table_release(moe_forecast_table *table)
{
    free(table->chance);
    free(table->named);
    moe_forecast_table_init(table, table->n_layer, table->n_expert);
}

static size_t n_keys_of(const moe_forecast_table *table)
{
    return (size_t)table->n_layer * table->n_expert;
}

static bool reserve(moe_forecast_table *table, uint32_t n_passes)
{
    if (n_passes <= table->capacity) {
        return true;
    }
    moe_forecast_table_release(table);
    table->chance = moe_calloc(n_passes * n_keys_of(table), sizeof *table->chance);
    table->named = moe_calloc((size_t)n_passes * table->n_layer, sizeof *table->named);
    if (table->chance == NULL || table->named == NULL) {
        moe_forecast_table_release(table);
        return false;
    }
    table->capacity = n_passes;
    return true;
}

/* Turns the sum of each layer's forecasts into their mean. */
static void average(moe_forecast_table *table, uint32_t pass)
{
    const float *chance = table->chance + pass * n_keys_of(table);
    for (uint32_t layer = 0; layer < table->n_layer; layer++) {
        float sum = 0;
        uint32_t n = 0;
        for (uint32_t e = 0; e < table->n_expert; e++) {
            float of_key = chance[layer * table->n_expert + e];
            sum += of_key;
            n += of_key > 0;
        }
        table->named[pass * table->n_layer + layer] = n == 0 ? 0 : sum / (float)n;
    }
}

void moe_forecast_table_set(moe_forecast_table *table, uint64_t first_pass,
                            const moe_policy_forecast *uses, size_t n)
{
    uint32_t n_passes = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t index = uses[i].pass - first_pass;
        if (uses[i].pass >= first_pass && index < MOE_FORECAST_PASSES && index >= n_passes) {
            n_passes = (uint32_t)index + 1;
        }
    }
    if (!reserve(table, n_passes)) {
        return;
    }
    table->n_passes = n_passes;
    table->first_pass = first_pass;
    if (n_passes == 0) {
        return;
    }
    memset(table->chance, 0, n_passes * n_keys_of(table) * sizeof *table->chance);
    for (size_t i = 0; i < n; i++) {
        uint64_t index = uses[i].pass - first_pass;
        if (uses[i].pass >= first_pass && index < n_passes && uses[i].key < n_keys_of(table)) {
            float chance = uses[i].chance;
            table->chance[index * n_keys_of(table) + uses[i].key] =
                chance >= 0 && chance <= 1 ? chance : 1;
        }
    }
    for (uint32_t pass = 0; pass < n_passes; pass++) {
        average(table, pass);
    }
}

double moe_forecast_table_wait(const moe_forecast_table *table, uint32_t key, uint64_t from,
                               double p)
{
    double wait = 0;
    double unused = 1; /* the probability that no pass so far has used the key */
    uint64_t first = from > table->first_pass ? from - table->first_pass : 0;
    uint32_t layer = key / table->n_expert;
    uint64_t away = 0;
    for (uint64_t pass = first; pass < table->n_passes; pass++, away++) {
        double chance = table->chance[pass * n_keys_of(table) + key];
        if (chance <= 0) {
            chance = p * (1 - table->named[pass * table->n_layer + layer]);
        }
        wait += unused * chance * (double)away;
        unused *= 1 - chance;
    }
    return wait + unused * ((double)away + 1 / p - 1);
}
