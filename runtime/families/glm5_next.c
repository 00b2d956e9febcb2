/* SPDX-License-Identifier: MIT */
/* GLM-5.3-Flash: several residual streams that are mixed. Most layers have delta rules with a decay
 * for each channel. The others have latent attention without rotary embedding, to chosen pools of
 * positions. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_layer(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.networks.limits_gate = true});
}

#define GLM5_NEXT                                                                                  \
    .name = "GLM-5.3-Flash", .attention = MOE_ATTENTION_MLA,                                       \
    .recurrence = MOE_RECURRENCE_CHANNELS, .rope = MOE_ROPE_INTERLEAVED, .no_rope = true,          \
    .gate = MOE_GATE_SIGMOID, .gate_takes_bias = true, .one_limit = true, .streams_mean = true,    \
    .shared = MOE_SHARED_COUNT,                                                                    \
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_LIMITS | MOE_KEY_DECAY_BOUND |           \
            MOE_KEY_INDEXER | MOE_KEY_POOLED_INDEX | MOE_KEY_MIXED_STREAMS,                        \
    .layer = write_layer

const moe_family moe_family_glm5_next = {.architecture = "glm5-next", GLM5_NEXT};

/* The same family under the name that other files use. */
const moe_family moe_family_glm5next = {
    .architecture = "glm5next",
    .aliases = {{MOE_LAYER_INDEX_POOL_GATE, "indexer_compressor_gate.weight"},
                {MOE_LAYER_INDEX_POOL_PLACE, "indexer_compressor_ape.weight"}},
    GLM5_NEXT};
