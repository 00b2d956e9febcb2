/* SPDX-License-Identifier: MIT */
#include "cache/forecast_source.h"

#include <stdlib.h>

#include "cache/expert_cache.h"
#include "cache/simulated_draft.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

struct moe_forecast_source {
    const moe_trace *trace;
    moe_simulated_draft *draft;    /* one of the two is used */
    moe_policy_forecast *recorded; /* room for all forecasts of the trace */
    size_t next;                   /* index of the next of the trace's forecasts */
};

static int open_recorded(moe_forecast_source *source, moe_error *err)
{
    if (source->trace->n_forecasts == 0) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "simulation: the trace has no recorded forecasts; record it with lookahead "
                        "on, or name a number of tokens");
    }
    source->recorded = moe_calloc(source->trace->n_forecasts, sizeof *source->recorded);
    return source->recorded != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "out of memory for recorded forecasts");
}

static int open_draft(moe_forecast_source *source, const moe_simulation *o,
                      const moe_access_list *list, moe_error *err)
{
    moe_simulated_draft_options options = {.n_ahead = (uint32_t)o->lookahead,
                                           .stands = o->lookahead_stands,
                                           .recall = o->lookahead_recall,
                                           .recall_wrong = o->lookahead_recall_wrong,
                                           .seed = o->seed};
    return moe_simulated_draft_create(&source->draft, list, source->trace->n_expert, &options, err);
}

int moe_forecast_source_create(moe_forecast_source **out, const moe_simulation *o,
                               const moe_policy *policy, const moe_trace *trace,
                               const moe_access_list *list, moe_error *err)
{
    *out = NULL;
    if (o->lookahead == MOE_LOOKAHEAD_NONE) {
        return MOE_OK;
    }
    if (!moe_policy_looks_ahead(policy)) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "simulation: the policy '%.100s' looks at the past alone: lookahead needs "
                        "one that takes forecasts, like " MOE_POLICY_DEFAULT,
                        policy->name);
    }
    moe_forecast_source *source = moe_calloc(1, sizeof *source);
    if (source == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for lookahead");
    }
    source->trace = trace;
    int status = o->lookahead == MOE_LOOKAHEAD_RECORDED ? open_recorded(source, err)
                                                        : open_draft(source, o, list, err);
    if (status != MOE_OK) {
        moe_forecast_source_destroy(&source);
    }
    *out = source;
    return status;
}

void moe_forecast_source_destroy(moe_forecast_source **source)
{
    if (*source != NULL) {
        moe_simulated_draft_destroy(&(*source)->draft);
        free((*source)->recorded);
        free(*source);
        *source = NULL;
    }
}

/* Takes the trace's forecasts of this pass, in the order in which they were recorded. */
static size_t take_recorded(moe_forecast_source *source, uint64_t pass)
{
    const moe_trace *trace = source->trace;
    size_t n = 0;
    size_t i = source->next;
    for (; i < trace->n_forecasts && trace->forecast_pass[i] <= pass; i++) {
        const moe_trace_forecast *f = &trace->forecasts[i];
        if (trace->forecast_pass[i] == pass) {
            source->recorded[n++] =
                (moe_policy_forecast){.key = f->layer * trace->n_expert + f->expert,
                                      .chance = f->chance,
                                      .pass = pass + f->passes_ahead};
        }
    }
    source->next = i;
    return n;
}

const moe_policy_forecast *moe_forecast_source_look(moe_forecast_source *source, uint64_t pass,
                                                    size_t *n)
{
    if (source->draft != NULL) {
        return moe_simulated_draft_look(source->draft, pass, n);
    }
    *n = take_recorded(source, pass);
    return source->recorded;
}
