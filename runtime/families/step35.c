/* SPDX-License-Identifier: MIT */
/* Step-3.5: layers that have the gate's tensor gate each head's output. Experts clamp gate and up
 * before they multiply them. Heads are normed if the file has the norms. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

/* In layers without a window, rotary embedding turns half as many elements as in layers with one.
 * The keys state the larger number, and the file has factors for it. */
static void adjust(moe_model_config *config)
{
    const uint32_t most =
        config->n_rot > config->window_n_rot ? config->n_rot : config->window_n_rot;
    config->n_rope_factors = most / 2;
    config->n_rot /= 2;
}

static void write_layer(moe_program_builder *b)
{
    bool has_norm = moe_build_first_rows(b, MOE_LAYER_ATTN_Q_NORM) > 0;
    const moe_attention_form attention = {.qk_norm = has_norm ? MOE_QK_NORM_HEAD : MOE_QK_NORM_NONE,
                                          .gate = MOE_ATTENTION_GATE_HEADS};
    moe_write_layer(b, &(moe_layer_form){.attention = attention});
}

const moe_family moe_family_step35 = {
    .architecture = "step35",
    .name = "Step-3.5",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_WINDOW_HEADS | MOE_KEY_LIMITS,
    .adjust = adjust,
    .layer = write_layer,
};
