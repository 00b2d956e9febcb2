/* SPDX-License-Identifier: MIT */
/* Laguna. Attention's output has a softplus gate: one for each head or one for each element, as the
 * number of rows of the gate's matrix shows. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_layer(moe_program_builder *b)
{
    bool by_element = moe_build_first_rows(b, MOE_LAYER_ATTN_GATE) > b->config->n_head;
    const moe_attention_form attention = {.qk_norm = MOE_QK_NORM_HEAD,
                                          .gate = by_element ? MOE_ATTENTION_GATE_OWN
                                                             : MOE_ATTENTION_GATE_HEADS,
                                          .softplus = true};
    moe_write_layer(b, &(moe_layer_form){.attention = attention});
}

const moe_family moe_family_laguna = {
    .architecture = "laguna",
    .name = "Laguna",
    .window_period = 4,
    .window_last = true,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_WINDOW_HEADS,
    .layer = write_layer,
};
