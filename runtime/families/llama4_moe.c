/* SPDX-License-Identifier: MIT */
/* Llama-4. Heads are normed after their rotary embedding, without a weight. The router's weight of
 * an expert multiplies the expert's input. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_layer(moe_program_builder *b)
{
    /* Files with 128 experts have no norms of heads; no key says so. */
    const bool maverick = b->config->n_expert == 128;
    const moe_attention_form attention = {.qk_norm = maverick ? MOE_QK_NORM_NONE : MOE_QK_NORM_UNIT,
                                          .norm_after_rope = true};
    moe_write_layer(b, &(moe_layer_form){.attention = attention, .networks.scales_inputs = true});
}

const moe_family moe_family_llama4 = {
    .architecture = "llama4",
    .name = "Llama-4",
    .window_default = 8192,
    .window_chunks = true,
    .rope_in_windows = true,
    .window_period = 4,
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SIGMOID,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_EVERY | MOE_KEY_TEMPERATURE,
    .layer = write_layer,
};
