/* SPDX-License-Identifier: MIT */
#include "runtime/draft/foresight.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

int moe_foresight_init(moe_foresight *f, uint32_t n_layer, uint32_t n_expert, moe_error *err)
{
    *f = (moe_foresight){.n_layer = n_layer, .n_expert = n_expert};
    f->depth = moe_calloc((size_t)n_layer * n_expert, sizeof *f->depth);
    f->asked_of_layer = moe_calloc(n_layer, sizeof *f->asked_of_layer);
    f->foreseen_of_layer = moe_calloc(n_layer, sizeof *f->foreseen_of_layer);
    if (f->depth == NULL || f->asked_of_layer == NULL || f->foreseen_of_layer == NULL) {
        moe_foresight_free(f);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a draft's foresight");
    }
    return MOE_OK;
}

void moe_foresight_free(moe_foresight *f)
{
    free(f->depth);
    free(f->asked_of_layer);
    free(f->foreseen_of_layer);
    *f = (moe_foresight){0};
}

void moe_foresight_reset(moe_foresight *f)
{
    if (f->any) {
        memset(f->depth, 0, (size_t)f->n_layer * f->n_expert * sizeof *f->depth);
        f->any = false;
    }
}

void moe_foresight_add(moe_foresight *f, uint32_t layer, uint32_t depth, const uint32_t *experts,
                       uint32_t n)
{
    uint16_t *first = f->depth + (size_t)layer * f->n_expert;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t *at = &first[experts[i]];
        if (*at == 0 || *at > depth + 1) {
            *at = (uint16_t)(depth + 1);
        }
    }
    f->any = true;
}

bool moe_foresight_has(const moe_foresight *f, uint32_t layer, uint32_t expert, uint32_t max_depth)
{
    uint16_t first = f->depth[(size_t)layer * f->n_expert + expert];
    return first != 0 && first <= max_depth + 1;
}

void moe_foresight_score(moe_foresight *f, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    if (!f->any) {
        return;
    }
    const uint16_t *first = f->depth + (size_t)layer * f->n_expert;
    for (uint32_t i = 0; i < n; i++) {
        f->n_asked_foreseen += first[experts[i]] != 0;
        f->foreseen_of_layer[layer] += first[experts[i]] != 0;
    }
    f->n_asked += n;
    f->asked_of_layer[layer] += n;
    for (uint32_t e = 0; e < f->n_expert; e++) {
        f->n_foreseen += first[e] != 0;
    }
}

void moe_foresight_score_row(moe_foresight *f, uint32_t layer, uint32_t depth,
                             const uint32_t *experts, uint32_t n)
{
    if (!f->any) {
        return;
    }
    const uint16_t *first = f->depth + (size_t)layer * f->n_expert;
    uint32_t d = depth < MOE_FORESIGHT_DEPTHS ? depth : MOE_FORESIGHT_DEPTHS - 1;
    for (uint32_t i = 0; i < n; i++) {
        f->n_row_picks_foreseen[d] += first[experts[i]] != 0;
    }
    f->n_row_picks[d] += n;
}

void moe_foresight_get_stats(const moe_foresight *f, moe_speculation_stats *stats)
{
    stats->foresight_asked = f->n_asked;
    stats->foresight_right = f->n_asked_foreseen;
    stats->foresight_all = f->n_foreseen;
    for (uint32_t l = 0; l < f->n_layer; l++) {
        uint32_t at = l < MOE_FORESIGHT_LAYERS ? l : MOE_FORESIGHT_LAYERS - 1;
        stats->foresight_asked_of[at] += f->asked_of_layer[l];
        stats->foresight_right_of[at] += f->foreseen_of_layer[l];
    }
    memcpy(stats->foresight_picks_at, f->n_row_picks, sizeof stats->foresight_picks_at);
    memcpy(stats->foresight_right_at, f->n_row_picks_foreseen, sizeof stats->foresight_right_at);
}
