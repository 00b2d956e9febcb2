/* SPDX-License-Identifier: MIT */
#include "cache/simulated_draft.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache/forecast_table.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/random.h"

/* One drafted pass. */
typedef struct drafted_pass {
    bool right;
    uint32_t n;
    uint32_t *keys; /* [most] the keys that it names */
} drafted_pass;

struct moe_simulated_draft {
    moe_simulated_draft_options options;
    const moe_access_list *list;
    uint32_t n_expert;
    /* [n_layer * n_expert] uses, summed up from the first expert of a layer to each one */
    uint64_t *uses;
    drafted_pass *passes; /* [n_ahead + 1] the current pass, then later ones */
    uint32_t n_passes;
    uint64_t first_pass;            /* the number of the pass in passes[0] */
    moe_policy_forecast *forecasts; /* [(n_ahead + 1) * most] */
    moe_random random;
};

/* ---- Creation ---- */

static size_t most_accesses(const moe_access_list *list)
{
    size_t most = 1;
    for (uint64_t pass = 0; pass < list->n_passes; pass++) {
        const size_t *start = list->start + pass * list->n_layer;
        size_t n = start[list->n_layer] - start[0];
        most = n > most ? n : most;
    }
    return most;
}

static void count_uses(moe_simulated_draft *draft)
{
    const moe_access_list *list = draft->list;
    size_t n_keys = (size_t)list->n_layer * draft->n_expert;
    for (size_t i = 0; i < list->start[list->n_passes * list->n_layer]; i++) {
        draft->uses[list->keys[i]]++;
    }
    for (size_t key = 0; key < n_keys; key++) {
        draft->uses[key] += key % draft->n_expert == 0 ? 0 : draft->uses[key - 1];
    }
}

static bool allocate(moe_simulated_draft *draft)
{
    size_t most = most_accesses(draft->list);
    size_t n_passes = draft->options.n_ahead + 1;
    draft->uses = moe_calloc((size_t)draft->list->n_layer * draft->n_expert, sizeof *draft->uses);
    draft->passes = moe_calloc(n_passes, sizeof *draft->passes);
    draft->forecasts = moe_calloc(n_passes * most, sizeof *draft->forecasts);
    if (draft->uses == NULL || draft->passes == NULL || draft->forecasts == NULL) {
        return false;
    }
    for (size_t i = 0; i < n_passes; i++) {
        draft->passes[i].keys = moe_calloc(most, sizeof *draft->passes[i].keys);
        if (draft->passes[i].keys == NULL) {
            return false;
        }
    }
    return true;
}

static bool is_share(double x)
{
    return x >= 0 && x <= 1;
}

int moe_simulated_draft_create(moe_simulated_draft **out, const moe_access_list *list,
                               uint32_t n_expert, const moe_simulated_draft_options *options,
                               moe_error *err)
{
    *out = NULL;
    if (options->n_ahead >= MOE_FORECAST_PASSES || !is_share(options->stands) ||
        !is_share(options->recall) || !is_share(options->recall_wrong)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "simulation: lookahead is at most %u passes, and its rates are in [0, 1]",
                        MOE_FORECAST_PASSES - 1);
    }
    moe_simulated_draft *draft = moe_calloc(1, sizeof *draft);
    if (draft != NULL) {
        *draft = (moe_simulated_draft){.options = *options, .list = list, .n_expert = n_expert};
        moe_random_seed(&draft->random, options->seed);
    }
    if (draft == NULL || !allocate(draft)) {
        moe_simulated_draft_destroy(&draft);
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the simulated draft");
    }
    count_uses(draft);
    *out = draft;
    return MOE_OK;
}

void moe_simulated_draft_destroy(moe_simulated_draft **draft)
{
    moe_simulated_draft *d = *draft;
    if (d == NULL) {
        return;
    }
    for (uint32_t i = 0; d->passes != NULL && i <= d->options.n_ahead; i++) {
        free(d->passes[i].keys);
    }
    free(d->passes);
    free(d->uses);
    free(d->forecasts);
    free(d);
    *draft = NULL;
}

/* ---- Drafting ---- */

static bool is_among(const uint32_t *keys, uint32_t n, uint32_t key)
{
    for (uint32_t i = 0; i < n; i++) {
        if (keys[i] == key) {
            return true;
        }
    }
    return false;
}

/* Draws an expert of the layer at random, by how often the layer uses it. */
static uint32_t draw(moe_simulated_draft *draft, uint32_t first_key)
{
    const uint64_t *sums = draft->uses + first_key;
    uint64_t at =
        (uint64_t)(moe_random_uniform(&draft->random) * (double)sums[draft->n_expert - 1]);
    uint32_t low = 0;
    uint32_t high = draft->n_expert - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (sums[middle] > at) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return first_key + low;
}

/* Names the draft's experts for a layer: as many as the layer really uses, unless the trace never
 * uses enough others. */
static uint32_t name_layer(moe_simulated_draft *draft, const uint32_t *keys, uint32_t n,
                           double recall, uint32_t *named)
{
    uint32_t n_named = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (moe_random_uniform(&draft->random) < recall) {
            named[n_named++] = keys[i];
        }
    }
    uint32_t first_key = n == 0 ? 0 : keys[0] / draft->n_expert * draft->n_expert;
    for (uint32_t tries = 0; n_named < n && tries < 64 * n; tries++) {
        uint32_t key = draw(draft, first_key);
        if (!is_among(keys, n, key) && !is_among(named, n_named, key)) {
            named[n_named++] = key;
        }
    }
    return n_named;
}

static void draft_pass(moe_simulated_draft *draft, uint32_t index, bool right)
{
    drafted_pass *drafted = &draft->passes[index];
    const moe_access_list *list = draft->list;
    const size_t *start = list->start + (draft->first_pass + index) * list->n_layer;
    double recall = right ? draft->options.recall : draft->options.recall_wrong;
    drafted->right = right;
    drafted->n = 0;
    for (uint32_t layer = 0; layer < list->n_layer; layer++) {
        drafted->n += name_layer(draft, list->keys + start[layer],
                                 (uint32_t)(start[layer + 1] - start[layer]), recall,
                                 drafted->keys + drafted->n);
    }
}

/* Moves on to the next pass, which becomes passes[0]. Keeps the draft of this pass if it was right;
 * otherwise drafts again. */
static void advance(moe_simulated_draft *draft, uint64_t pass)
{
    bool follows = draft->n_passes > 1 && pass == draft->first_pass + 1;
    draft->first_pass = pass;
    if (follows && draft->passes[1].right) {
        drafted_pass done = draft->passes[0];
        draft->n_passes--;
        memmove(draft->passes, draft->passes + 1, draft->n_passes * sizeof *draft->passes);
        draft->passes[draft->n_passes] = done;
        return;
    }
    draft->n_passes = 1;
    draft_pass(draft, 0, true);
}

const moe_policy_forecast *moe_simulated_draft_look(moe_simulated_draft *draft, uint64_t pass,
                                                    size_t *n)
{
    const moe_simulated_draft_options *o = &draft->options;
    advance(draft, pass);
    while (draft->n_passes <= o->n_ahead && pass + draft->n_passes < draft->list->n_passes) {
        bool right = draft->passes[draft->n_passes - 1].right &&
                     moe_random_uniform(&draft->random) < o->stands;
        draft_pass(draft, draft->n_passes++, right);
    }
    size_t n_made = 0;
    for (uint32_t i = 0; i < draft->n_passes; i++) {
        double stands = pow(o->stands, i);
        double chance = stands * o->recall + (1 - stands) * o->recall_wrong;
        for (uint32_t k = 0; k < draft->passes[i].n && chance > 0; k++) {
            draft->forecasts[n_made++] = (moe_policy_forecast){
                .key = draft->passes[i].keys[k], .chance = (float)chance, .pass = pass + i};
        }
    }
    *n = n_made;
    return draft->forecasts;
}
