/* SPDX-License-Identifier: MIT */
#include "runtime/pass/mixers.h"

#include "runtime/base/error.h"
#include "runtime/pass/attention_mixer.h"
#include "runtime/pass/recurrent_mixer.h"

/* The attention block does not call it. */
static int mix_nothing(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    (void)runner;
    (void)pass;
    return moe_fail(err, MOE_ERR_INTERNAL, "layer %u has no mixer", layer);
}

static const moe_mixer mixers[MOE_MIXERS] = {
    [MOE_MIXER_ATTENTION] = {"attention", moe_mix_attention, NULL},
    [MOE_MIXER_LATENT] = {"latent attention", moe_mix_latent, NULL},
    [MOE_MIXER_RECURRENT] = {"recurrent", moe_mix_recurrent, moe_advance_recurrent},
    [MOE_MIXER_NONE] = {"none", mix_nothing, NULL},
};

const moe_mixer *moe_mixer_of(moe_mixer_kind kind)
{
    return &mixers[kind];
}
