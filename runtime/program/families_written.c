/* SPDX-License-Identifier: MIT */
/* How each family's layers are written. Those that differ from the usual in a detail stand here,
 * the others in a file each. */
#include <string.h>

#include "runtime/program/program_builder.h"

static void write_ahead(moe_program_builder *b)
{
    moe_build_row_norm(b, MOE_LAYER_FFN_NORM, MOE_VALUE_X, MOE_VALUE_BRANCH);
    moe_build_router(b, MOE_VALUE_BRANCH, MOE_VALUE_NEXT_LOGITS);
}

static void write_usual(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){0});
}

/* ---- Families that differ in a detail ---- */

/* Heads are normed behind their rotary embedding. */
static void write_hunyuan(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention.norm_after_rope = true});
}

/* Likewise; and the router's weight of an expert multiplies what the expert reads. */
static void write_llama4(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention.norm_after_rope = true, .scales_inputs = true});
}

/* Attention's output is gated by a softplus. */
static void write_laguna(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention.softplus = true});
}

/* GPT-OSS and MiniMax-M3: the same numbers in all models of this kind; no key has them. */
static void write_clamped(moe_program_builder *b)
{
    b->activation = (moe_activation){MOE_ACTIVATION_SWIGLU_CLAMPED, 1.702f, 7.0f};
    write_usual(b);
}

/* Networks without a gate's matrix: the square of ReLU. */
static void write_nemotron(moe_program_builder *b)
{
    b->activation.kind = MOE_ACTIVATION_RELU;
    write_usual(b);
}

/* The experts' sum and the dense network's, divided by sqrt(2). */
static void write_grok(moe_program_builder *b)
{
    b->activation.kind = MOE_ACTIVATION_GELU;
    moe_write_layer(b, &(moe_layer_form){.branch_scale = 0.70710678f});
}

const moe_written_family *moe_written_family_find(const char *architecture)
{
    static const moe_written_family families[] = {
        {"arctic", moe_write_arctic, moe_write_arctic_ahead},
        {"cohere2moe", moe_write_cohere2, moe_write_cohere2_ahead},
        {"gemma4", moe_write_gemma4, moe_write_gemma4_ahead},
        {"gpt-oss", write_clamped, write_ahead},
        {"grok", write_grok, write_ahead},
        {"hunyuan-moe", write_hunyuan, write_ahead},
        {"laguna", write_laguna, write_ahead},
        {"llama4", write_llama4, write_ahead},
        {"minimax-m3", write_clamped, write_ahead},
        {"nemotron_h_moe", write_nemotron, write_ahead},
        {"smallthinker", moe_write_smallthinker, moe_write_smallthinker_ahead},
    };
    static const moe_written_family usual = {"", write_usual, write_ahead};
    const moe_written_family *found = &usual;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        found = strcmp(families[i].architecture, architecture) == 0 ? &families[i] : found;
    }
    return found;
}
