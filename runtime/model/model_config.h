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
    MOE_ATTENTION_SHARED /* one head, whose keys are also its values (DeepSeek-V4) */
} moe_attention_kind;

typedef enum moe_norm_kind {
    MOE_NORM_RMS,
    MOE_NORM_MEAN /* LayerNorm: the mean is subtracted first; there may be biases */
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
    MOE_GROUP_SCORE_TOP2_SUM /* a group's score is the sum of its two best (DeepSeek-V3) */
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
    float residual_scale;  /* factor of the outputs of attention and feed-forward; default 1 */
    float logit_scale;     /* default 1 */
    float logit_cap;       /* soft cap of the scaled logits; 0: none */
    bool tied_output;      /* the head is the token embedding */
    /* The number of residual streams, which stand beside each other in x; 1: the usual single
     * stream.
     *
     * With several streams, a branch (a mixer or a network) reads their weighted sum. The weights
     * are sigmoids (plus stream_eps) of a product of a matrix with all streams. The branch's output
     * is added to each stream, times stream_magnitude times further sigmoids of this kind (plus
     * stream_write_eps).
     *
     * If streams are mixed, each stream then becomes a weighted sum of all. These weights are a
     * softmax of the product, which is normalised stream_mixings times by columns and rows
     * (Sinkhorn).
     *
     * If stream_rank is not 0, the streams are normed, and each element has a gate of its own.
     * Gates are projected in two steps, with stream_rank numbers between them. A branch reads the
     * mean of the gated streams. */
    uint32_t n_streams;
    /* Not 0: the first stream is the one that layers add to. Every stream_block layers it is
     * kept as one more stream, and begins anew. Branches attend to all streams. */
    uint32_t stream_block;
    uint32_t stream_mixings; /* 0: streams are not mixed */
    uint32_t stream_rank;    /* 0: weights hold for whole streams, not for elements */
    float stream_eps;
    float stream_write_eps;
    float stream_magnitude;

    /* Attention. Layers may have fewer or shorter heads (moe_layer_kind.heads); these numbers are
     * the greatest of any layer. With MLA they describe what the cache holds: head_dim_k =
     * kv_lora_rank + n_rot, head_dim_v = kv_lora_rank and n_head_kv = 1. */
    moe_attention_kind attention;
    uint32_t n_head;
    uint32_t n_head_kv;
    uint32_t head_dim_k;
    uint32_t head_dim_v;
    float clip_qkv;            /* 0: none */
    float attention_scale;     /* factor of q.k; includes YaRN's mscale if it applies */
    uint32_t attention_window; /* of layers that have a window (moe_layer_kind.window) */
    float attention_cap;       /* soft cap of scores; 0: none */
    float attention_out_scale; /* factor of attention's output; default 1 */
    /* In layers with scales_queries the query at position p is multiplied by
     * 1 + temperature_scale * log(1 + floor((p + temperature_offset) / temperature_length)). */
    float temperature_scale; /* 0: none */
    uint32_t temperature_length;
    uint32_t temperature_offset;
    uint32_t q_lora_rank;  /* MLA; 0: queries are projected directly */
    uint32_t kv_lora_rank; /* MLA */
    uint32_t qk_nope_dim;  /* MLA: the part of a head's key without position */
    uint32_t v_head_dim;   /* MLA: a head's value after decompression */
    /* SHARED: the output is projected in two steps; the first is by groups of heads, ... */
    uint32_t out_groups;
    uint32_t out_rank; /* ... each of which gives this many elements */
    /* Indexers (moe_indexer_kind) choose the index_top_k positions that a row attends to; 0: the
     * model has no indexer. An indexer's key has index_dim elements and is stored behind the
     * layer's own key. */
    uint32_t index_top_k;
    /* Indexers choose pools of this many positions. The keys of a pool are pooled into one,
     * weighted by gates that are stored behind them; 1: they choose single positions. */
    uint32_t index_pool;
    /* A pool's key is the mean of its positions' keys, with norm and rope. It is stored beside
     * keys and values. */
    bool index_means;
    uint32_t index_rate; /* not 0: the indexer chooses among compressed keys of this rate */
    /* Not 0: each head of an indexer chooses blocks of this many positions for a group of the
     * layer's heads. It always chooses the row's last index_local blocks; the others rank by their
     * highest score. */
    uint32_t index_block;
    uint32_t index_local;
    /* Not 0: the file lacks the model's indexers, which would choose this many positions; the
     * model attends to all. */
    uint32_t index_missing;
    uint32_t index_heads;
    uint32_t index_dim;

    /* Rotary embedding. It turns the last n_rot elements of a key with MLA, otherwise the first
     * n_rot of each head. */
    moe_rope_kind rope;
    uint32_t n_rot;
    uint32_t n_rope_factors; /* elements of the file's rope_freqs; the first n_rot / 2 are used */
    float rope_freq_base;
    moe_rope_scaling_kind rope_scaling;
    float rope_factor; /* >= 1; positions are divided by it */
    uint32_t rope_original_context;
    float yarn_beta_fast;
    float yarn_beta_slow;
    float yarn_magnitude; /* factor of cos and sin; default 1, or YaRN's */
    bool yarn_fractions;  /* the bounds of YaRN's blend are not rounded to whole pairs */
    /* True: layers with a window use the following two numbers instead, without scaling and without
     * the file's factors. */
    bool window_rope;
    uint32_t window_n_rot;
    float window_freq_base;

    /* Feed-forward */
    uint32_t n_dense_lead; /* leading layers without experts */
    /* Leading layers whose experts are in a table (moe_layer_kind.by_table). */
    uint32_t n_table_lead;
    /* Behind the leading layers, those whose number (from 1) is divisible by this have experts. */
    uint32_t moe_every;
    uint32_t n_ff_dense;
    uint32_t n_expert;
    uint32_t n_expert_used;
    uint32_t n_ff_expert;
    /* Width of the routed experts' input and output: n_embd, or less if the layer has matrices
     * that narrow the input and widen the output (latent experts). */
    uint32_t n_expert_in;
    uint32_t n_ff_shared; /* width of all shared experts together; 0: none */
    bool shared_gated;    /* the shared expert's output is multiplied by sigmoid(gate . x) */
    /* For MOE_ACTIVATION_SITU; situ_linear_beta 0: `up` has no limit. */
    float situ_beta, situ_linear_beta;
    float router_cap; /* soft cap of the router's logits; 0: none */
    moe_gate_kind gate;
    bool gate_renormalise;        /* selected weights are divided by their sum */
    float gate_scale;             /* factor of the selected weights; 1: none */
    bool gate_selection_bias;     /* a bias is added for the selection only (exp_probs_b) */
    const char *gate_bias_tensor; /* that bias's name after "blk.N."; a constant string */
    /* The file does not name the gate; it was inferred from the rest. */
    bool gate_assumed;
    uint32_t n_group; /* 1: no groups */
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

/* Turns a model's config into the config of its drafting layer, as a model of one layer. This is
 * the first layer behind the model's last, and predicts further tokens (keys "nextn"). Its tensors
 * are in the model's files or in a separate one. */
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

/* Whether the row at a position sees more positions, or more compressed keys, than it attends to.
 * If keys are pooled, the row attends to pools of index_top_k positions in all, and to the
 * positions behind the last whole pool. */
static inline bool moe_position_chooses(const moe_model_config *config, uint32_t position)
{
    return config->index_rate > 0 ? (position + 1) / config->index_rate > config->index_top_k
                                  : config->index_top_k > 0 &&
                                        position + 1 >= config->index_top_k + config->index_pool;
}

/* The number of groups of a layer's heads; each group chooses positions of its own. */
static inline uint32_t moe_choosing_groups(const moe_model_config *config)
{
    return config->index_block > 0 ? config->index_heads : 1;
}

/* The most positions that a row which chooses, or a group of its heads, attends to. */
static inline uint32_t moe_most_chosen(const moe_model_config *config)
{
    return config->index_top_k > 0 ? config->index_top_k + config->index_pool - 1 : 0;
}

/* Floats that a position stores behind its layer's key: an index key and, if keys are pooled, a
 * gate. */
static inline uint32_t moe_index_floats(const moe_model_config *config)
{
    return config->index_dim * (config->index_pool > 1 ? 2 : 1);
}

/* How many weights a branch has for the streams: for what it reads, for where its output is added,
 * and for mixing the streams. With gates for elements, only for where its output is added. */
static inline uint32_t moe_stream_weights(const moe_model_config *config)
{
    const uint32_t n = config->n_streams;
    return config->stream_rank > 0 ? n : 2 * n + (config->stream_mixings > 0 ? n * n : 0);
}

/* For streams that begin anew (stream_block): how many streams there are before a layer's mixer.
 * layer n_layer: behind the last layer. */
static inline uint32_t moe_streams_before(const moe_model_config *config, uint32_t layer)
{
    return 1 + (layer + config->stream_block - 1) / config->stream_block;
}

/* Whether the routed experts read a vector narrower than the stream. */
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
