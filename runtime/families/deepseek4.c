/* SPDX-License-Identifier: MIT */
/* DeepSeek-V4: several residual streams that are mixed; keys that are also the values, both those
 * of a window and compressed ones of 4 or 128 positions; in the first layers the token's number
 * determines the experts. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_layer(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.networks.limits_gate = true});
}

const moe_family moe_family_deepseek4 = {
    .architecture = "deepseek4",
    .name = "DeepSeek-V4",
    .attention = MOE_ATTENTION_SHARED,
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SQRT_SOFTPLUS,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .one_limit = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_LIMITS | MOE_KEY_INDEXER | MOE_KEY_MIXED_STREAMS,
    .aliases = {{MOE_LAYER_ATTN_KV_A, "attn_kv.weight"}},
    .layer = write_layer,
};
