/* SPDX-License-Identifier: MIT */
#include "runtime/pass/mixers.h"

#include "runtime/pass/attention_mixer.h"
#include "runtime/pass/recurrent_mixer.h"

static const moe_mixer mixers[MOE_MIXERS] = {
    [MOE_MIXER_ATTENTION] = {"attention", moe_mix_attention, NULL},
    [MOE_MIXER_LATENT] = {"latent attention", moe_mix_latent, NULL},
    [MOE_MIXER_RECURRENT] = {"recurrent", moe_mix_recurrent, moe_advance_recurrent},
};

const moe_mixer *moe_mixer_of(moe_mixer_kind kind)
{
    return &mixers[kind];
}
