/* SPDX-License-Identifier: MIT */
/* The mixers that keep keys and values in pages (moe_mixer.run). */
#ifndef MOE_PASS_ATTENTION_MIXER_H
#define MOE_PASS_ATTENTION_MIXER_H

#include "runtime/pass/pass.h"

int moe_mix_attention(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
int moe_mix_latent(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);

#endif
