/* SPDX-License-Identifier: MIT */
/* Estimates the memory of a model that cannot run from its header: sizes of tensors. */
#include "runtime/engine/summary_missing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/families/families_missing.h"

#define MOST (1u << 20) /* the largest size accepted, so that products of three fit in 64 bits */

/* Reads the key "{architecture}.{suffix}", up to MOST; 0: there is no such key. */
static uint64_t read_size(const moe_gguf *gguf, const char *architecture, const char *suffix)
{
    char key[128];
    uint32_t value = 0;
    snprintf(key, sizeof key, "%s.%s", architecture, suffix);
    return moe_gguf_get_u32(gguf, key, &value, NULL) == MOE_OK && value <= MOST ? value : 0;
}

/* Returns N for a tensor named "blk.N.*", otherwise 0. */
static uint64_t layer_of(const char *name)
{
    return strncmp(name, "blk.", 4) == 0 ? strtoull(name + 4, NULL, 10) : 0;
}

/* Counts the bytes of one expert in a stacked tensor of all experts. */
static void count_experts(moe_file_summary *s, const moe_gguf_tensor *t)
{
    s->expert_bytes += t->size;
    s->largest_expert_bytes += t->dims[t->n_dims - 1] > 0 ? t->size / t->dims[t->n_dims - 1] : 0;
}

static void count_tensors(moe_file_summary *s, const moe_gguf *gguf, char *const *names,
                          moe_tensor_kind (*kind_of)(const char *name))
{
    uint64_t layer = UINT64_MAX;
    uint64_t largest = 0;
    for (size_t i = 0; i < moe_gguf_n_tensors(gguf); i++) {
        const moe_gguf_tensor *t = moe_gguf_tensor_at(gguf, i);
        if (layer_of(names[i]) >= s->n_layer) {
            continue; /* a drafting layer */
        }
        if (kind_of(names[i]) != MOE_KIND_EXPERT) {
            s->resident_bytes += t->size;
            continue;
        }
        if (layer_of(names[i]) != layer) { /* a layer's tensors are adjacent in the list */
            layer = layer_of(names[i]);
            largest = s->largest_expert_bytes > largest ? s->largest_expert_bytes : largest;
            s->largest_expert_bytes = 0;
            s->n_layer_moe++;
        }
        count_experts(s, t);
    }
    largest = s->largest_expert_bytes > largest ? s->largest_expert_bytes : largest;
    s->largest_expert_bytes = largest;
}

void moe_summarize_missing(moe_file_summary *s, const moe_gguf *gguf, char *const *names,
                           moe_tensor_kind (*kind_of)(const char *name))
{
    const char *a = s->architecture;
    if (moe_missing_family_find(a) == NULL) {
        return;
    }
    uint64_t drafting = read_size(gguf, a, "nextn_predict_layers");
    uint64_t layers = read_size(gguf, a, "block_count");
    s->n_layer = (uint32_t)(layers > drafting ? layers - drafting : 0);
    s->n_embd = (uint32_t)read_size(gguf, a, "embedding_length");
    s->n_head = (uint32_t)read_size(gguf, a, "attention.head_count");
    s->context_train = (uint32_t)read_size(gguf, a, "context_length");
    s->n_expert = (uint32_t)read_size(gguf, a, "expert_count");
    s->n_expert_used = (uint32_t)read_size(gguf, a, "expert_used_count");
    count_tensors(s, gguf, names, kind_of);
    s->smallest_expert_bytes = s->largest_expert_bytes;
}
