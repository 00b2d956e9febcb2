/* SPDX-License-Identifier: MIT */
/* Qwen3.8-Flash-Next: several residual streams whose elements have gates. Most layers have delta
 * rules; the others attend to chosen pools of positions. A table of n-grams adds to the streams. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_layer(moe_program_builder *b)
{
    moe_build_ngrams(b);
    moe_write_layer(b, &(moe_layer_form){.attention = {.qk_norm = MOE_QK_NORM_HEAD,
                                                       .gate = MOE_ATTENTION_GATE_JOINED}});
}

/* Head h has the keys of key head h % n_key_head. */
static void adjust(moe_model_config *config)
{
    config->recurrence.tiled = true;
    config->recurrence.sigmoid = true;
}

const moe_family moe_family_qwen4exp = {
    .architecture = "qwen4exp",
    .name = "Qwen3.8-Flash-Next",
    .recurrence = MOE_RECURRENCE_DELTA,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_SHARE,
    .shared = MOE_SHARED_GATED,
    .keys = MOE_KEY_SECTIONS | MOE_KEY_INDEXER | MOE_KEY_MEAN_INDEX | MOE_KEY_GATED_STREAMS |
            MOE_KEY_NGRAMS,
    .aliases = {{MOE_LAYER_INDEX_Q, "indexer.q_proj.weight"},
                {MOE_LAYER_INDEX_K, "indexer.k_proj.weight"}},
    .adjust = adjust,
    .layer = write_layer,
};
