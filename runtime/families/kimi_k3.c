/* SPDX-License-Identifier: MIT */
/* Kimi-K3: the layers of Kimi-Linear, with bounded decays and with gates. Their branches attend to
 * the streams of earlier layers. Experts read a narrower vector, and use SiTU. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_layer(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention.gate = MOE_ATTENTION_GATE_OWN,
                                         .networks.activation.kind = MOE_ACTIVATION_SITU});
}

const moe_family moe_family_kimi_k3 = {
    .architecture = "kimi-k3",
    .name = "Kimi-K3",
    .attention = MOE_ATTENTION_MLA,
    .recurrence = MOE_RECURRENCE_CHANNELS,
    .rope = MOE_ROPE_INTERLEAVED,
    .no_rope = true,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_DECAY_BOUND | MOE_KEY_LATENT |
            MOE_KEY_STREAM_BLOCKS | MOE_KEY_SITU,
    .aliases = {{MOE_LAYER_LATENT_IN, "ffn_routed_down.weight"},
                {MOE_LAYER_LATENT_OUT, "ffn_routed_up.weight"},
                {MOE_LAYER_CHANNEL_G_A, "ssm_g.weight"}},
    .layer = write_layer,
};
