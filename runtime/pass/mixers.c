/* SPDX-License-Identifier: MIT */
#include "runtime/pass/mixers.h"

#include "runtime/base/error.h"
#include "runtime/pass/attention_mixer.h"

static int refuse(moe_error *err)
{
    return moe_fail(err, MOE_ERR_UNSUPPORTED, "recurrent layers are not supported");
}

static int refuse_run(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    (void)runner;
    (void)pass;
    (void)layer;
    return refuse(err);
}

static int refuse_advance(moe_runner *runner, const moe_state_run *run, uint32_t layer,
                          moe_error *err)
{
    (void)runner;
    (void)run;
    (void)layer;
    return refuse(err);
}

static const moe_mixer mixers[MOE_MIXERS] = {
    [MOE_MIXER_ATTENTION] = {"attention", moe_mix_attention, NULL},
    [MOE_MIXER_LATENT] = {"latent attention", moe_mix_latent, NULL},
    [MOE_MIXER_RECURRENT] = {"recurrent", refuse_run, refuse_advance},
};

const moe_mixer *moe_mixer_of(moe_mixer_kind kind)
{
    return &mixers[kind];
}
