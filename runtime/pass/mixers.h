/* SPDX-License-Identifier: MIT */
/* The code of each kind of mixer. */
#ifndef MOE_PASS_MIXERS_H
#define MOE_PASS_MIXERS_H

#include "runtime/model/layer_kinds.h"
#include "runtime/pass/pass.h"

typedef struct moe_mixer {
    const char *name;
    /* From buffers->norm to buffers->branch, for all rows of the pass. */
    int (*run)(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
    /* For a mixer with a state, else NULL: advances the state from run->from over the first n_rows
     * rows of run->log to run->to (moe_state_run in pass.h). */
    int (*advance)(moe_runner *runner, const moe_state_run *run, uint32_t layer, moe_error *err);
} moe_mixer;

/* Never NULL. */
const moe_mixer *moe_mixer_of(moe_mixer_kind kind);

#endif
