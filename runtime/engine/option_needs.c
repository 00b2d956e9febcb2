/* SPDX-License-Identifier: MIT */
#include "runtime/engine/option_needs.h"

#include <string.h>

#include "runtime/base/error.h"

typedef struct option_need {
    const char *field;
    bool is_set;
    const char *needs;
    bool has;
} option_need;

static bool is(const char *text, const char *word)
{
    return text != NULL && strcmp(text, word) == 0;
}

int moe_option_needs_check(const moe_engine_options *o, moe_error *err)
{
    bool speculates = o->speculate != NULL && !is(o->speculate, "off");
    bool self = !speculates || is(o->speculate, "auto") || is(o->speculate, "self");
    const char *the_self_draft = "options.speculate to be \"self\" or \"auto\"";
    const option_need needs[] = {
        {"trace_gates", o->trace_gates, "options.trace_path", o->trace_path != NULL},
        {"io_depth", o->io_depth != 0, "options.io that is not \"sync\": it reads one piece a time",
         !is(o->io, "sync") || o->io_depth == 1},
        {"draft_experts", o->draft_experts != 0, the_self_draft, self},
        {"draft_pin", o->draft_pin != NULL, the_self_draft, self},
        {"affinity", o->affinity != NULL, the_self_draft, self},
        {"foresight", o->foresight == MOE_SWITCH_ON, the_self_draft, self},
        {"verify_bytes", o->verify_bytes != 0, the_self_draft, self},
    };
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++) {
        if (needs[i].is_set && !needs[i].has) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "options.%s cannot act: it needs %s",
                            needs[i].field, needs[i].needs);
        }
    }
    return MOE_OK;
}
