/* SPDX-License-Identifier: MIT */
/* dots: the router of DeepSeek-V3. dots.llm1 norms attention's heads. dots.3 has latent attention
 * with gates. Most of its layers have a window, larger latents and other heads; the others have
 * indexers. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_dots1 = {
    .architecture = "dots1",
    .name = "dots.llm1",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS,
    .layer = moe_write_head_normed,
};

/* Indexers rotate pairs of elements, like heads: so does transformers 5.24, whose code is the
 * authors'. The converter of GGUF files (conversion/dots3.py of llama.cpp) leaves the order of the
 * indexers' rows as it is, so files need pairs, too. llama.cpp's graph rotates halves. */
static void write_latent(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention = {.qk_norm = MOE_QK_NORM_TURNED,
                                                       .gate = MOE_ATTENTION_GATE_HEADS}});
}

const moe_family moe_family_dots3note = {
    .architecture = "dots3note",
    .name = "dots.3",
    .attention = MOE_ATTENTION_MLA,
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_INDEXER | MOE_KEY_WINDOW_HEADS,
    .layer = write_latent,
};
