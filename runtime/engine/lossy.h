/* SPDX-License-Identifier: MIT */
/* The lossy modes of an engine: expert budget and buddies, their tables by layer, and the meter
 * that compares them with the exact pass. Off unless asked for; every report says that they were
 * on. */
#ifndef MOE_ENGINE_LOSSY_H
#define MOE_ENGINE_LOSSY_H

#include <moe/moe.h>

#include "runtime/lab/budget_exact.h"
#include "runtime/sidecar/calibration.h"
#include "runtime/lossy/buddy.h"
#include "runtime/lossy/expert_budget.h"
#include "runtime/lossy/quality_meter.h"

typedef struct moe_lossy {
    /* Set at open, never changed. */
    uint32_t n_layer, n_expert;
    bool has_budget, has_buddies;
    moe_expert_budget budget;
    const uint64_t *calibration_counts; /* [n_layer][n_expert] or NULL */
    moe_buddy_options buddy;
    moe_buddy_list *lists;   /* [n_layer] or NULL */
    const float *tae;        /* [n_layer][MOE_PERCENTILES] or NULL */
    uint32_t tae_percentile; /* 0: no gate */
    /* Changed by passes. */
    float *counts;  /* [n_expert] */
    float *scratch; /* [2 * n_expert] */
    moe_random random;
    moe_quality_meter meter;
    float *kept; /* [rows][n_vocab]: logits of a metered pass */
    size_t kept_capacity;
    moe_budget_stats budget_stats;
    moe_buddy_stats buddy_stats;
    moe_budget_exact *exact; /* NULL unless ranked by the oracle, or the error is to be told */
} moe_lossy;

int moe_lossy_open(moe_lossy **out, const moe_engine *engine, const moe_engine_options *options,
                   moe_error *err);
void moe_lossy_close(moe_lossy **lossy);
int moe_lossy_check(const moe_engine_options *options, moe_error *err);
/* True while the modes act: asked for, and within the quality limit. */
bool moe_lossy_acts(const moe_lossy *lossy);
void moe_lossy_edit(moe_lossy *lossy, moe_route_edit *edit);
/* Whether a device can do it by itself: buddies alone, by rules that it knows (moe_resident_buddies
 * of device.h). NULL is allowed. */
bool moe_lossy_is_recordable(const moe_lossy *lossy);
/* The most buddies that an expert may have by these options; 0: none are asked for. */
uint32_t moe_lossy_most_buddies(const moe_engine_options *options);
float moe_lossy_tae_threshold(const moe_lossy *lossy, uint32_t layer);
struct moe_pass;
/* The pass, and, where must_compare is set and for the share of passes that the meter picks, the
 * exact one after it (before it, it would bring in what the lossy one then does not miss). The
 * logits of their first 64 rows are compared row by row.
 * The exact pass keeps its keys and values beside the lossy ones: every timeline needs as many
 * positions again as it has rows in the pass. */
int moe_metered_pass(moe_engine *engine, const struct moe_pass *pass, bool must_compare,
                     moe_error *err);
/* lossy NULL: *stats stays. */
void moe_lossy_get_stats(const moe_lossy *lossy, moe_lossy_stats *stats);

#endif
