/* SPDX-License-Identifier: MIT */
/* Architectures with experts that run in llama.cpp or ik_llama.cpp but not here, and what each
 * would need. The error that refuses such a model says so. */
#include "runtime/families/families_missing.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static const moe_missing_family missing[] = {
    {"deepseek41", "DeepSeek-V4.1",
     "rows of tables of n-grams in several layers (Engram), and indexers of two levels that layers "
     "share"},
    {"inkling", "Inkling",
     "biases of attention that each query mixes by distance, and convolutions of keys, values and "
     "what a layer adds"},
    {"k2-horizon", "K2-Horizon",
     "values that routed experts compute, norms in groups, and norms of heads that have each its "
     "own weights"},
    {"solar-open2", "Solar-Open-2", "delta rules that write with up to twice the difference"},
    {"longcat-flash", "LongCat-Flash",
     "experts that return their input, and experts whose sum a later layer adds"},
    {"longcat-flash-ngram", "LongCat-Flash-Lite",
     "experts that return their input, experts whose sum a later layer adds, and embeddings of "
     "n-grams"},
    {"longcat-flash-sparse", "LongCat-2.0",
     "experts that return their input, and experts whose sum a later layer adds"},
    {"mistral-large4", "Mistral-Large-4",
     "queries scaled by the logarithm of their position for each head, and layers that share keys "
     "and values"},
    {"muse-spark", "Muse-Spark-Open",
     "gates of the residual stream, norms of attention's output, experts that are normed and "
     "whose input is narrower"},
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

/* Whether two names differ only in capitals and in how their words are joined. */
static bool is_alike(const char *a, const char *b)
{
    static const char joints[] = "-_. ";
    do {
        a += strspn(a, joints);
        b += strspn(b, joints);
    } while (*a != '\0' && tolower((unsigned char)*a) == tolower((unsigned char)*b) && (a++, b++));
    return *a == '\0' && *b == '\0';
}

/* None of these models has a settled name yet, so files may spell a name in several ways. */
const moe_missing_family *moe_missing_family_find(const char *architecture)
{
    for (size_t i = 0; i < N_MISSING; i++) {
        if (is_alike(missing[i].architecture, architecture)) {
            return &missing[i];
        }
    }
    return NULL;
}
