/* SPDX-License-Identifier: MIT */
/* Architectures with experts that run in llama.cpp or ik_llama.cpp and not here, and what they
 * would need; the error that refuses them names it. */
#include "runtime/families/families_missing.h"

#include <string.h>

static const moe_missing_family missing[] = {
    {"kimi-k3", "Kimi-K3",
     "attention to the residual streams of earlier layers, experts on a narrower vector, and the "
     "activation SiTU"},
    {"minimax-01", "MiniMax-01", "linear attention with a fixed decay"},
    {"openpangu", "openPangu-2.0",
     "several residual streams, and convolutions inside latent attention"},
    {"grovemoe", "GroveMoE", "small experts that groups of experts share"},
    {"mistral3", "Mistral-3", "YaRN without its factor; no such model with experts is published"},
    {"minicpm", "MiniCPM-MoE", "scales that its files leave out"},
    {"deepseek2-ocr", "DeepSeek-OCR", "images: without them its text part answers nothing"},
    {"llada-moe", "LLaDA-MoE", "diffusion: it fills in a text's gaps and writes no next token"},
    {"rnd1", "RND1", "diffusion: it fills in a text's gaps and writes no next token"},
    {"nomic-bert-moe", "Nomic Embed", "embeddings: it encodes texts and writes no next token"},
};

#define N_MISSING (sizeof missing / sizeof missing[0])

size_t moe_missing_family_count(void)
{
    return N_MISSING;
}

const moe_missing_family *moe_missing_family_at(size_t index)
{
    return index < N_MISSING ? &missing[index] : NULL;
}

const moe_missing_family *moe_missing_family_find(const char *architecture)
{
    for (size_t i = 0; i < N_MISSING; i++) {
        if (strcmp(missing[i].architecture, architecture) == 0) {
            return &missing[i];
        }
    }
    return NULL;
}
