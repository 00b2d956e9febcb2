/* SPDX-License-Identifier: MIT */
/* Grok. The outputs of attention and network are normed before they are added; experts use GELU.
 * The sum of the experts and the dense network beside them is divided by sqrt(2). */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_layer(moe_program_builder *b)
{
    bool older = moe_build_first_rows(b, MOE_LAYER_FFN_POST_NORM_OLDER) > 0;
    int post_norm = older ? MOE_LAYER_FFN_POST_NORM_OLDER : MOE_LAYER_FFN_POST_NORM;
    moe_write_layer(b, &(moe_layer_form){.attention.post_norm = true,
                                         .networks.activation.kind = MOE_ACTIVATION_GELU,
                                         .branch_scale = 0.70710678f,
                                         .post_norm = post_norm});
}

const moe_family moe_family_grok = {
    .architecture = "grok",
    .name = "Grok",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    /* This and the next four: of Grok-1, whose files do not state them. */
    .embedding_scale = 78.38367176906169f,
    .logit_scale = 0.5773502691896257f,
    .attention_scale = 0.08838834764831845f,
    .attention_cap = 30,
    .router_cap = 30,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .shared = MOE_SHARED_DENSE,
    .keys = MOE_KEY_SCALES | MOE_KEY_CAPS | MOE_KEY_OUTPUT_SCALE,
    .aliases = {{MOE_LAYER_ATTN_POST_NORM, "attn_output_norm.weight"}},
    .layer = write_layer,
};
