/* SPDX-License-Identifier: MIT */
/* Estimates the memory of a model that cannot run from its header: sizes of tensors, and keys and
 * values where the family's format fixes them. */
#include "runtime/engine/summary_missing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/families/families_missing.h"

#define F16_BYTES UINT64_C(2)
#define MOST      (1u << 20) /* of sizes that are read; products of three fit in 64 bits */

/* A key "{architecture}.{suffix}" up to MOST; 0: there is none. */
static uint64_t read_size(const moe_gguf *gguf, const char *architecture, const char *suffix)
{
    char key[128];
    uint32_t value = 0;
    snprintf(key, sizeof key, "%s.%s", architecture, suffix);
    return moe_gguf_get_u32(gguf, key, &value, NULL) == MOE_OK && value <= MOST ? value : 0;
}

/* The N of a tensor "blk.N.*"; 0 for others. */
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
            continue; /* a layer for drafting */
        }
        if (kind_of(names[i]) != MOE_KIND_EXPERT) {
            s->resident_bytes += t->size;
            continue;
        }
        if (layer_of(names[i]) != layer) { /* tensors of a layer stand together */
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

/* DeepSeek-V4: each layer keeps one row, which is key and value, for each position of a window. A
 * layer with a ratio also keeps one row for every `ratio` positions; with a ratio of 4, an
 * indexer's key beside it. Positions that are compressed next are summed up in floats: values and
 * weights of one block, or in layers with ratio 4 of two blocks with two halves each. */
static void summarize_compressed(moe_file_summary *s, const moe_gguf *gguf, const char *a)
{
    char name[128];
    snprintf(name, sizeof name, "%s.attention.compress_ratios", a);
    const moe_gguf_kv *ratios = moe_gguf_find(gguf, name);
    uint64_t head = read_size(gguf, a, "attention.key_length");
    uint64_t index = read_size(gguf, a, "attention.indexer.key_length");
    uint64_t compressed_128 = 0; /* bytes for 128 positions, which every ratio divides */
    s->attention_window = read_size(gguf, a, "attention.sliding_window");
    s->kv_windowed_per_token_f16 = s->n_layer * head * F16_BYTES;
    for (uint64_t l = 0; ratios != NULL && l < s->n_layer; l++) {
        int64_t ratio = 0;
        if (moe_gguf_array_i64(ratios, l, &ratio) != MOE_OK || (ratio != 4 && ratio != 128)) {
            continue;
        }
        uint64_t row = ratio == 4 ? head + index : head;
        uint64_t kept = ratio == 4 ? UINT64_C(4) * 4 * 2 : 128 * 2;
        compressed_128 += 128 * row * F16_BYTES / (uint64_t)ratio;
        s->state_bytes += kept * row * sizeof(float);
    }
    s->kv_bytes_per_token_f16 = s->kv_windowed_per_token_f16 + (compressed_128 + 127) / 128;
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
    if (strcmp(a, "deepseek4") == 0) {
        summarize_compressed(s, gguf, a);
    }
}
