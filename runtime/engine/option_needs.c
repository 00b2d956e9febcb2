/* SPDX-License-Identifier: MIT */
#include "runtime/engine/option_needs.h"

#include <moe/lab.h>

#include "runtime/base/error.h"

typedef struct option_need {
    const char *field;
    bool is_set;
    const char *needs;
    bool has;
} option_need;

int moe_option_needs_check(const moe_engine_options *o, moe_error *err)
{
    const moe_lab_options *lab = o->lab;
    bool self = o->speculate == MOE_SPECULATE_OFF || o->speculate == MOE_SPECULATE_AUTO ||
                o->speculate == MOE_SPECULATE_SELF;
    const char *the_self_draft = "options.speculate to be MOE_SPECULATE_SELF or _AUTO";
    bool panels = o->panel > (o->prefill_chunk != 0 ? o->prefill_chunk : 512);
    const option_need needs[] = {
        {"panel", panels, "options.lookahead to be 0", o->lookahead == 0},
        {"worker_compute", o->worker_compute != MOE_SWITCH_AUTO, "options.workers",
         o->n_workers > 0},
        {"worker_timeout", o->worker_timeout != 0.0, "options.workers", o->n_workers > 0},
        {"worker_rebalance", o->worker_rebalance > 0, "options.workers", o->n_workers > 0},
        {"worker_key", o->worker_key_bytes > 0, "options.workers",
         o->n_workers > 0 || o->experts_only},
        {"workers", o->n_workers > 0, "an engine that is no worker itself", !o->experts_only},
        {"panel", panels, "options.lab.trace_path to be NULL: a trace tells passes",
         lab->trace_path == NULL},
        {"panel", panels, "drafts that are not a drafting layer's: that takes the rows of passes",
         o->speculate != MOE_SPECULATE_MTP &&
             (o->speculate != MOE_SPECULATE_AUTO || o->draft_model == NULL)},
        {"draft_model", o->draft_model != NULL,
         "options.speculate to be MOE_SPECULATE_MODEL, _MTP or _AUTO",
         o->speculate == MOE_SPECULATE_MODEL || o->speculate == MOE_SPECULATE_MTP ||
             o->speculate == MOE_SPECULATE_AUTO},
        {"lab.trace_gates", lab->trace_gates, "options.lab.trace_path", lab->trace_path != NULL},
        {"io_depth", o->io_depth != 0,
         "options.io that is not MOE_IO_SYNC: it reads one piece a time",
         o->io != MOE_IO_SYNC || o->io_depth == 1},
        {"lab.draft_experts", lab->draft_experts != 0, the_self_draft, self},
        {"lab.draft_pin", lab->draft_pin != MOE_DRAFT_PIN_HOT_TEMPORAL, the_self_draft, self},
        {"lab.affinity", lab->affinity != MOE_STAND_IN_TOPK, the_self_draft, self},
        {"lab.foresight", lab->foresight == MOE_SWITCH_ON, the_self_draft, self},
        {"lab.verify_bytes", lab->verify_bytes != 0, the_self_draft, self},
    };
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++) {
        if (needs[i].is_set && !needs[i].has) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "options.%s cannot act: it needs %s",
                            needs[i].field, needs[i].needs);
        }
    }
    return MOE_OK;
}
