/* SPDX-License-Identifier: MIT */
/* The numbers of a model, read and validated from its metadata. Its family (family.h) says how the
 * metadata sets them, and which operations its layers consist of; no other code knows a family's
 * name. */
#ifndef MOE_MODEL_CONFIG_H
#define MOE_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/status.h>

#include "runtime/model/gguf.h"
#include "runtime/model/layer_kinds.h"
#include "runtime/model/ngram_table.h"

typedef enum moe_attention_kind {
    MOE_ATTENTION_GQA,   /* separate keys and values; n_head a multiple of n_head_kv */
    MOE_ATTENTION_MLA,   /* one latent per position (DeepSeek-V2), absorbed form */
    MOE_ATTENTION_SHARED /* one head of keys that are values, too (DeepSeek-V4) */
} moe_attention_kind;

typedef enum moe_norm_kind {
    MOE_NORM_RMS,
    MOE_NORM_MEAN /* LayerNorm: the mean is taken off first; there may be biases */
} moe_norm_kind;

typedef enum moe_rope_kind {
    MOE_ROPE_INTERLEAVED, /* pairs (2i, 2i+1): llama, deepseek */
    MOE_ROPE_HALVES       /* pairs (i, i + n_rot/2): "NEOX" */
} moe_rope_kind;

typedef enum moe_rope_scaling_kind {
    MOE_ROPE_SCALING_NONE,
    MOE_ROPE_SCALING_LINEAR,
    MOE_ROPE_SCALING_YARN
} moe_rope_scaling_kind;

typedef enum moe_gate_kind {
    MOE_GATE_SOFTMAX = 1,
    MOE_GATE_SIGMOID = 2,
    MOE_GATE_SOFTMAX_SELECTED = 3, /* softmax over the selected experts' logits */
    MOE_GATE_SQRT_SOFTPLUS = 4,
    MOE_GATE_SPARSE_MIXER = 5 /* Phi-3.5-MoE; no file states it */
} moe_gate_kind;

typedef enum moe_group_score_kind {
    MOE_GROUP_SCORE_MAX,     /* a group's score is its best expert's (DeepSeek-V2) */
    MOE_GROUP_SCORE_TOP2_SUM /* the sum of its two best (DeepSeek-V3) */
} moe_group_score_kind;

#define MOE_MAX_EXPERTS        1024
#define MOE_MAX_EXPERTS_USED   64
#define MOE_MAX_LAYERS         1024
#define MOE_MAX_INDEX_HEADS    256
#define MOE_MAX_INDEX_POOL     64
#define MOE_MAX_INDEX_BLOCK    1024
#define MOE_MAX_INDEX_BLOCKS   4096
#define MOE_MAX_STREAMS        16
#define MOE_MAX_STREAM_MIXINGS 1000

typedef struct moe_model_config {
    char architecture[32]; /* general.architecture */
    const struct moe_family *family;

    uint32_t n_layer;
    uint32_t n_embd;
    uint32_t n_vocab;
    uint32_t n_context_train; /* positions the model was trained for */
    moe_norm_kind norm;
    float norm_eps;
    float embedding_scale; /* 1 unless the file says otherwise */
    float residual_scale;  /* of attention and feed-forward outputs; default 1 */
    float logit_scale;     /* default 1 */
    float logit_cap;       /* soft cap of the scaled logits; 0: none */
    bool tied_output;      /* the head is the token embedding */
    /* The residual streams that stand beside each other in x; 1: the usual one. A branch reads
     * their sum by sigmoids (plus stream_eps) of a product with all of them, and is added to each
     * by     * stream_magnitude times such sigmoids (plus stream_write_eps). If they are mixed,
     * each then is a weighted sum of all: the product, as a softmax, is normalised so many times by
     * columns and rows (Sinkhorn). With a rank, they are normed, each element has a gate of its
     * own, which is projected in two steps with that many numbers between, and a branch reads their
     * mean.
     */
    uint32_t n_streams;
    uint32_t
        stream_block; /* not 0: the first stream is the layers', which begins anew every so many
                       * layers; the others are what it was then. Branches attend to all. */
    uint32_t stream_mixings; /* 0: they are independent */
    uint32_t stream_rank;    /* 0: streams as a whole have weights */
    float stream_eps;
    float stream_write_eps;
    float stream_magnitude;

    /* Attention. Layers may have fewer heads (moe_layer_kind.heads): these are the most and the
     * longest of any layer. With MLA, head_dim_k = kv_lora_rank + n_rot, head_dim_v = kv_lora_rank
     * and n_head_kv = 1: what the cache holds. */
    moe_attention_kind attention;
    uint32_t n_head;
    uint32_t n_head_kv;
    uint32_t head_dim_k;
    uint32_t head_dim_v;
    float clip_qkv;            /* 0: none */
    float attention_scale;     /* for q.k; includes YaRN's mscale if it applies */
    uint32_t attention_window; /* of the layers that have one (moe_layer_kind.window) */
    float attention_cap;       /* of scores, softly; 0: none */
    float attention_out_scale; /* of attention's output; default 1 */
    /* In layers with scales_queries the query at position p is multiplied by
     * 1 + temperature_scale * log(1 + floor((p + temperature_offset) / temperature_length)). */
    float temperature_scale; /* 0: none */
    uint32_t temperature_length;
    uint32_t temperature_offset;
    uint32_t q_lora_rank;  /* MLA; 0: queries are projected directly */
    uint32_t kv_lora_rank; /* MLA */
    uint32_t qk_nope_dim;  /* MLA: the part of a head's key without position */
    uint32_t v_head_dim;   /* MLA: a head's value after decompression */
    uint32_t out_groups;   /* SHARED: the output's projection has a first step for each group of */
    uint32_t out_rank;     /* ... heads, to so many elements */
    /* Indexers (moe_indexer_kind) choose the index_top_k positions that a row attends to. Their
     * keys of index_dim elements stand behind a layer's own; 0: the model has none. */
    uint32_t index_top_k;
    uint32_t index_pool; /* positions are chosen by so many together, whose keys are pooled by gates
                          * behind them; 1: one by one */
    bool index_means; /* a pool's key is the mean of its positions' keys, normed and turned; it is
                       * stored beside keys and values */
    uint32_t index_rate; /* not 0: the indexer chooses among compressed keys of this rate */
    /* Not 0: the head of an indexer chooses among blocks of so many positions for a group of the
     * layer's heads. Its row's last index_local blocks are always chosen, and the best of the
     * others by their highest score. */
    uint32_t index_block;
    uint32_t index_local;
    uint32_t index_missing; /* not 0: the file lacks the model's indexers, which choose so many
                             * positions; it attends to all */
    uint32_t index_heads;
    uint32_t index_dim;

    /* Rotary embedding. It turns the last n_rot elements of a key with MLA, otherwise the first
     * n_rot of each head. */
    moe_rope_kind rope;
    uint32_t n_rot;
    uint32_t n_rope_factors; /* of the file's rope_freqs; the first n_rot / 2 are used */
    float rope_freq_base;
    moe_rope_scaling_kind rope_scaling;
    float rope_factor; /* >= 1; positions are divided by it */
    uint32_t rope_original_context;
    float yarn_beta_fast;
    float yarn_beta_slow;
    float yarn_magnitude; /* factor on cos and sin; default 1, or YaRN's */
    bool yarn_fractions;  /* the bounds of YaRN's blend are not rounded to whole pairs */
    /* True: layers with a window use the following numbers instead, without scaling and the file's
     * factors. */
    bool window_rope;
    uint32_t window_n_rot;
    float window_freq_base;

    /* Feed-forward */
    uint32_t n_dense_lead; /* leading layers without experts */
    uint32_t n_table_lead; /* leading layers whose experts a table says (moe_layer_kind.by_table) */
    uint32_t moe_every;    /* after these, layer numbers (from 1) divisible by this have experts */
    uint32_t n_ff_dense;
    uint32_t n_expert;
    uint32_t n_expert_used;
    uint32_t n_ff_expert;
    uint32_t n_expert_in; /* width of the routed experts' input and output: n_embd, or narrower
                           * between two matrices of the layer (latent experts) */
    uint32_t n_ff_shared; /* all shared experts together; 0: none */
    bool shared_gated;    /* the shared expert's output times sigmoid(gate . x) */
    float situ_beta, situ_linear_beta; /* MOE_ACTIVATION_SITU; the second 0: no limit of up */
    float router_cap;                  /* soft cap of the router's logits; 0: none */
    moe_gate_kind gate;
    bool gate_renormalise;        /* selected weights divided by their sum */
    float gate_scale;             /* of the selected weights; 1: none */
    bool gate_selection_bias;     /* a bias used to select only (exp_probs_b) */
    const char *gate_bias_tensor; /* its name after "blk.N."; constant */
    bool gate_assumed;            /* the file does not name the gate; inferred from the rest */
    uint32_t n_group;             /* 1: no groups */
    uint32_t n_group_used;
    moe_group_score_kind group_score;

    moe_ngram_table ngrams;                /* zeros: there is none */
    moe_recurrence recurrence;             /* of the recurrent layers; zeros: there are none */
    moe_layer_kind layers[MOE_MAX_LAYERS]; /* [n_layer], the rest zeros */
} moe_model_config;

/* Reads, derives and validates the config of a model of this family. Missing or contradictory keys
 * are errors that name the key. (runtime/families/families.h finds the family.) */
int moe_model_config_read_as(moe_model_config *config, const struct moe_family *family,
                             const moe_gguf *gguf, moe_error *err);

/* Turns a model's config into that of its drafting layer, as a model of one layer: the first layer
 * behind the model's last, which predicts further tokens (keys "nextn"), in the model's files or a
 * separate one. */
int moe_model_config_draft(moe_model_config *config, const moe_gguf *gguf, moe_error *err);

/* Rotary frequencies: n_rot / 2 values that multiply a position, with scaling applied. factors: the
 * file's rope_freqs tensor ([n_rope_factors]) or NULL. */
void moe_rope_frequencies(const moe_model_config *config, const float *factors, float *frequencies);
/* The frequencies of window_rope: window_n_rot / 2 values. */
void moe_window_frequencies(const moe_model_config *config, float *frequencies);

static inline bool moe_layer_has_experts(const moe_model_config *config, uint32_t layer)
{
    moe_feed_forward_kind kind = config->layers[layer].feed_forward;
    return kind == MOE_FEED_FORWARD_ROUTED || kind == MOE_FEED_FORWARD_BOTH;
}

/* Whether the row at a position sees more positions, or compressed keys, than it attends to. Of
 * pools it attends to so many as index_top_k has, and to the positions behind the last whole one.
 */
static inline bool moe_position_chooses(const moe_model_config *config, uint32_t position)
{
    return config->index_rate > 0 ? (position + 1) / config->index_rate > config->index_top_k
                                  : config->index_top_k > 0 &&
                                        position + 1 >= config->index_top_k + config->index_pool;
}

/* Groups of a layer's heads that choose positions each for itself. */
static inline uint32_t moe_choosing_groups(const moe_model_config *config)
{
    return config->index_block > 0 ? config->index_heads : 1;
}

/* The most positions that such a row, or a group of its heads, attends to. */
static inline uint32_t moe_most_chosen(const moe_model_config *config)
{
    return config->index_top_k > 0 ? config->index_top_k + config->index_pool - 1 : 0;
}

/* Floats of a position behind its layer's key: an index key, and a gate if keys are pooled. */
static inline uint32_t moe_index_floats(const moe_model_config *config)
{
    return config->index_dim * (config->index_pool > 1 ? 2 : 1);
}

/* Weights of a branch's streams: of what it reads, of where it is added, of their mixing. With
 * gates for elements, only of where it is added. */
static inline uint32_t moe_stream_weights(const moe_model_config *config)
{
    const uint32_t n = config->n_streams;
    return config->stream_rank > 0 ? n : 2 * n + (config->stream_mixings > 0 ? n * n : 0);
}

/* Of streams that begin anew: how many there are before a layer's mixer (n_layer: behind the last
 * layer). */
static inline uint32_t moe_streams_before(const moe_model_config *config, uint32_t layer)
{
    return 1 + (layer + config->stream_block - 1) / config->stream_block;
}

/* Whether the routed experts work on a narrower vector. */
static inline bool moe_experts_are_latent(const moe_model_config *config)
{
    return config->n_expert_in != config->n_embd;
}

/* How many layers have this mixer. */
static inline uint32_t moe_count_mixers(const moe_model_config *config, moe_mixer_kind mixer)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < config->n_layer; l++) {
        n += config->layers[l].mixer == mixer;
    }
    return n;
}

#endif
