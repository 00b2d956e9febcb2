/* SPDX-License-Identifier: MIT */
/* Layers with a state of fixed size in place of keys and values. */
#ifndef MOE_PASS_RECURRENT_MIXER_H
#define MOE_PASS_RECURRENT_MIXER_H

#include "runtime/pass/pass.h"

/* Of moe_mixer (mixers.h). */
int moe_mix_recurrent(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
int moe_advance_recurrent(moe_runner *runner, const moe_state_run *run, uint32_t layer,
                          moe_error *err);

#endif
