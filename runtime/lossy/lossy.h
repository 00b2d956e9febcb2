/* SPDX-License-Identifier: MIT */
/* The lossy modes of an engine: expert budget, buddies and low-bit copies, their tables by layer,
 * and the meter that compares them with the exact pass. They are off by default; every report says
 * that they were on. */
#ifndef MOE_LOSSY_LOSSY_H
#define MOE_LOSSY_LOSSY_H

#include <moe/lossy_modes.h>
#include <moe/statistics.h>
#include <moe/status.h>
#include <moe/types.h>

#include "runtime/lossy/buddy.h"
#include "runtime/lossy/expert_budget.h"
#include "runtime/lossy/low_bit.h"
#include "runtime/lossy/quality_meter.h"
#include "runtime/pass/pass_hooks.h"
#include "runtime/pass/route_rules.h"
#include "runtime/sidecar/calibration.h"

/* The parts of the engine that the modes use; all of them must outlive the modes. */
typedef struct moe_lossy_parts {
    moe_runner *runner; /* with its config at open, complete at moe_lossy_attach() */
    const moe_tensor_map *map;
    const moe_calibration *calibration; /* or NULL */
    moe_expert_store *copies;           /* the store of low-bit copies, or NULL */
} moe_lossy_parts;

typedef struct moe_lossy moe_lossy;
struct moe_lossy {
    /* Set at open, never changed. */
    moe_lossy_parts parts;
    const moe_route_rules *rules;
    moe_pass_hook hook;
    uint32_t n_layer, n_expert;
    /* True if the oracle ranks experts, or if the budget's error is measured. Whoever opened the
     * modes must then add the hook that computes layers exactly (runtime/lab/budget_exact.h). */
    bool measured;
    bool has_budget;
    moe_expert_budget budget;
    const uint64_t *calibration_counts; /* [n_layer][n_expert] or NULL */
    moe_buddies *buddies;               /* or NULL */
    moe_low_bit *low_bit;               /* or NULL */
    /* Changed by passes. */
    float *counts;  /* [n_expert] */
    float *scratch; /* [2 * n_expert] */
    bool *resident; /* [n_expert] of the current layer */
    moe_quality_meter meter;
    float *kept; /* [rows][n_vocab]: logits of a metered pass */
    size_t kept_capacity;
    moe_budget_stats budget_stats;
};

/* Opens the lossy modes. *out stays NULL if the options ask for none. */
int moe_lossy_open(moe_lossy **out, const moe_lossy_parts *parts, const moe_engine_options *options,
                   moe_error *err);
/* Adds the modes' hook to the runner, which must be complete. rules must outlive the modes. */
int moe_lossy_attach(moe_lossy *lossy, const moe_route_rules *rules, moe_error *err);
/* Closes the modes. No pass may be running. */
void moe_lossy_close(moe_lossy **lossy);
/* The defaults of the options, and the check of options. */
extern const moe_lossy_options moe_lossy_defaults;
int moe_lossy_check(const moe_engine_options *options, moe_error *err);
/* Whether the modes act now: they were requested, and the quality limit is not exceeded. */
static inline bool moe_lossy_acts(const moe_lossy *lossy)
{
    return lossy != NULL && !lossy->meter.exceeded;
}
/* Edits the routes as the hook does after routing, with these experts resident ([n_expert]); NULL:
 * those that are resident now. */
void moe_lossy_edit_routes(moe_lossy *lossy, const moe_pass *pass, uint32_t layer,
                           const bool *resident);
/* Whether a device can edit the routes by itself. It can if the modes only substitute experts by
 * lists. lossy may be NULL. */
bool moe_lossy_is_recordable(const moe_lossy *lossy);
/* Returns the layer's rules for a device that edits the routes by itself, with lists in host
 * memory. */
moe_substitution moe_lossy_substitution(const moe_lossy *lossy, uint32_t layer);
/* moe_lossy_keep_counts() remembers the counts of edits; the second function returns to the
 * remembered counts. */
void moe_lossy_keep_counts(moe_lossy *lossy);
void moe_lossy_forget_counts(moe_lossy *lossy);
/* Whether the options ask for any mode. */
bool moe_lossy_is_asked(const moe_engine_options *options);
/* Returns the longest list of substitutes that these options allow; 0: there are no lists. */
uint32_t moe_lossy_longest_list(const moe_engine_options *options);
/* Runs the lossy pass. If must_compare is set, and for the share of passes that the meter picks,
 * then runs the exact pass and compares the logits of their first 64 rows, row by row. (If the
 * exact pass ran first, it would load experts that the lossy one should miss.) The exact pass keeps
 * its keys and values beside the lossy ones, so every timeline needs one more position for each of
 * its rows in the pass. */
int moe_lossy_run(moe_lossy *lossy, const moe_pass *pass, bool must_compare, moe_error *err);
/* If lossy is NULL, leaves *stats unchanged. Sets output_error to 0; the code that measures it
 * fills it in. */
void moe_lossy_get_stats(const moe_lossy *lossy, moe_lossy_stats *stats);

#endif
