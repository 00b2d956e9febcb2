/* SPDX-License-Identifier: MIT */
/* Where the model's weights are in the files: for every layer the resident tensors, and for every
 * (layer, expert) the three byte ranges that move between the tiers. The map is filled while the
 * model's program is made (runtime/program/). */
#ifndef MOE_MODEL_TENSOR_MAP_H
#define MOE_MODEL_TENSOR_MAP_H

#include "runtime/base/dtype.h"
#include "runtime/model/model_config.h"

/* A matrix or vector in a file. size 0: the file has none. */
typedef struct moe_tensor_ref {
    moe_dtype type;
    uint32_t file_index;
    uint64_t offset;
    uint64_t size;  /* bytes */
    uint64_t n_in;  /* row length, in elements */
    uint64_t n_out; /* rows; for the per-head MLA tensors, heads x rows */
    /* Scales[scale - 1] of the map multiplies the matrix's products; 0: nothing does. */
    uint32_t scale;
} moe_tensor_ref;

/* Scales in a file: `n` floats that become scales[first] .. scales[first + n - 1] of the map. */
typedef struct moe_scale_range {
    uint32_t file_index;
    uint32_t first, n;
    uint64_t offset;
    const char *name; /* of the tensor, in the gguf */
    size_t name_size;
} moe_scale_range;

typedef enum moe_layer_tensor {
    MOE_LAYER_ATTN_STREAMS,       /* before attention: [moe_stream_weights()][n_streams * n_embd] */
    MOE_LAYER_ATTN_STREAMS_BASE,  /* [moe_stream_weights()] F32 */
    MOE_LAYER_ATTN_STREAMS_SCALE, /* [2] F32, or [3] if streams are mixed */
    MOE_LAYER_FFN_STREAMS,        /* the same three before the network */
    MOE_LAYER_FFN_STREAMS_BASE,
    MOE_LAYER_FFN_STREAMS_SCALE,
    MOE_LAYER_ATTN_STREAMS_NORM,   /* gates of elements: [n_streams * n_embd] F32 */
    MOE_LAYER_ATTN_STREAMS_DOWN,   /* [stream_rank][n_streams * n_embd] */
    MOE_LAYER_ATTN_STREAMS_UP,     /* [n_streams * n_embd][stream_rank] */
    MOE_LAYER_ATTN_STREAMS_INJECT, /* [n_streams][n_streams * n_embd] */
    MOE_LAYER_FFN_STREAMS_NORM,
    MOE_LAYER_FFN_STREAMS_DOWN,
    MOE_LAYER_FFN_STREAMS_UP,
    MOE_LAYER_FFN_STREAMS_INJECT,
    /* Streams that begin anew: [n_embd] F32, by which a branch scores them. */
    MOE_LAYER_ATTN_RECALL,
    MOE_LAYER_FFN_RECALL,
    /* of the rows read from the table: [n_streams * n_embd][floats read]. */
    MOE_LAYER_NGRAM_KEY,
    MOE_LAYER_NGRAM_VALUE,    /* [n_embd][floats read] */
    MOE_LAYER_NGRAM_KEY_NORM, /* [n_streams * n_embd] F32 each */
    MOE_LAYER_NGRAM_QUERY_NORM,
    MOE_LAYER_NGRAM_CONV_NORM,
    MOE_LAYER_NGRAM_CONV, /* [n_streams * n_embd][conv_kernel] F32 */
    MOE_LAYER_ATTN_NORM,  /* [n_embd] F32 */
    MOE_LAYER_ATTN_NORM_BIAS,
    MOE_LAYER_ATTN_POST_NORM, /* [n_embd] F32 */
    MOE_LAYER_ATTN_Q, /* [n_head * head_dim_k][n_embd], with a joined gate twice as many rows; MLA:
                       * [n_head * (nope + rot)][..] */
    MOE_LAYER_ATTN_K,
    MOE_LAYER_ATTN_V,
    MOE_LAYER_ATTN_Q_BIAS,
    MOE_LAYER_ATTN_K_BIAS,
    MOE_LAYER_ATTN_V_BIAS,
    MOE_LAYER_ATTN_OUT, /* [n_embd][n_head * head_dim_v] */
    MOE_LAYER_ATTN_OUT_BIAS,
    /* For output in groups: [out_groups * out_rank][n_head * head_dim / out_groups]. */
    MOE_LAYER_ATTN_OUT_A,
    MOE_LAYER_ATTN_OUT_B, /* [n_embd][out_groups * out_rank] */
    MOE_LAYER_ATTN_GATE,  /* [n_head * head_dim_v][n_embd], or [n_head][n_embd] */
    MOE_LAYER_ATTN_SINKS, /* [n_head] F32 */
    MOE_LAYER_ATTN_Q_NORM,
    MOE_LAYER_ATTN_K_NORM,
    MOE_LAYER_ATTN_Q_A, /* MLA with q_lora: [q_lora_rank][n_embd] */
    MOE_LAYER_ATTN_Q_A_NORM,
    MOE_LAYER_ATTN_Q_B,  /* [n_head * (nope + rot)][q_lora_rank] */
    MOE_LAYER_ATTN_KV_A, /* [kv_lora_rank + n_rot][n_embd] */
    MOE_LAYER_ATTN_KV_A_NORM,
    MOE_LAYER_ATTN_KV_B,    /* older files: [n_head * (nope + v_head_dim)][kv_lora_rank] */
    MOE_LAYER_ATTN_K_B,     /* newer files: [n_head * kv_lora_rank][nope] */
    MOE_LAYER_ATTN_V_B,     /* newer files: [n_head * v_head_dim][kv_lora_rank] */
    MOE_LAYER_INDEX_Q,      /* indexer: [index_heads * index_dim][q_lora_rank, or n_embd] */
    MOE_LAYER_INDEX_Q_NORM, /* [index_dim] F32 */
    MOE_LAYER_INDEX_K,      /* [index_dim][n_embd] */
    MOE_LAYER_INDEX_K_NORM, /* [index_dim] F32 */
    MOE_LAYER_INDEX_K_NORM_BIAS,
    MOE_LAYER_INDEX_POOL_GATE,  /* for pooled keys: [index_dim][n_embd] */
    MOE_LAYER_INDEX_POOL_PLACE, /* added by place in the pool: [index_pool][index_dim] F32 */
    MOE_LAYER_INDEX_WEIGHTS,    /* of the heads' scores: [index_heads][n_embd] */
    /* Compressed keys (moe_layer_kind.rate), with moe_key_series() series beside each other: */
    MOE_LAYER_COMPRESS_K,       /* [series * head_dim][n_embd] */
    MOE_LAYER_COMPRESS_GATE,    /* [series * head_dim][n_embd] */
    MOE_LAYER_COMPRESS_PLACE,   /* added by place in the block: [rate][series * head_dim] F32 */
    MOE_LAYER_COMPRESS_NORM,    /* [head_dim] F32 */
    MOE_LAYER_INDEX_COMPRESS_K, /* the same for the indexer's keys, index_dim wide */
    MOE_LAYER_INDEX_COMPRESS_GATE,
    MOE_LAYER_INDEX_COMPRESS_PLACE,
    MOE_LAYER_INDEX_COMPRESS_NORM,
    MOE_LAYER_DELTA_QKV, /* recurrent: [conv_channels][n_embd] */
    MOE_LAYER_DELTA_Z,   /* the output's gate: [n_head * value_dim][n_embd] */
    /* [2 * n_head][n_embd]: for each key head, beta of its heads, then their decay */
    MOE_LAYER_DELTA_BA,
    MOE_LAYER_DELTA_BETA, /* in place of DELTA_BA: [n_head][n_embd] each */
    MOE_LAYER_DELTA_ALPHA,
    MOE_LAYER_DELTA_CONV,      /* [conv_channels][conv_kernel] F32 */
    MOE_LAYER_DELTA_DECAY,     /* [n_head] F32 */
    MOE_LAYER_DELTA_DT_BIAS,   /* [n_head] F32 */
    MOE_LAYER_DELTA_NORM,      /* [value_dim] F32 */
    MOE_LAYER_DELTA_OUT,       /* [n_embd][n_head * value_dim] */
    MOE_LAYER_SPACE_IN,        /* Mamba-2: [n_head * value_dim + conv_channels + n_head][n_embd] */
    MOE_LAYER_SPACE_CONV_BIAS, /* [conv_channels] F32, optional */
    MOE_LAYER_SPACE_DECAY,     /* [n_head] F32 */
    MOE_LAYER_SPACE_SKIP,      /* [n_head] F32 */
    MOE_LAYER_SPACE_NORM,      /* [n_key_head][n_head * value_dim / n_key_head] F32 */
    MOE_LAYER_CHANNEL_Q,       /* KDA: [n_head * value_dim][n_embd], and the two that follow */
    MOE_LAYER_CHANNEL_K,
    MOE_LAYER_CHANNEL_V,
    MOE_LAYER_CHANNEL_CONV_Q, /* [n_head * value_dim][conv_kernel] F32 each */
    MOE_LAYER_CHANNEL_CONV_K,
    MOE_LAYER_CHANNEL_CONV_V,
    MOE_LAYER_CHANNEL_F_A, /* decays, first step: [value_dim][n_embd] */
    MOE_LAYER_CHANNEL_F_B, /* [n_head * value_dim][value_dim] */
    MOE_LAYER_CHANNEL_G_A, /* gate of the output, likewise */
    MOE_LAYER_CHANNEL_G_B,
    MOE_LAYER_CHANNEL_BETA,    /* [n_head][n_embd] */
    MOE_LAYER_CHANNEL_DECAY,   /* [n_head] F32 */
    MOE_LAYER_CHANNEL_DT_BIAS, /* [n_head * value_dim] F32 */
    MOE_LAYER_CHANNEL_NORM,    /* [value_dim] F32 */
    MOE_LAYER_CHANNEL_OUT,     /* [n_embd][n_head * value_dim] */
    MOE_LAYER_SCAN_IN,        /* Mamba-1: [2 * conv_channels][n_embd]: values, gate of the output */
    MOE_LAYER_SCAN_CONV,      /* [conv_channels][conv_kernel] F32 */
    MOE_LAYER_SCAN_CONV_BIAS, /* [conv_channels] F32, optional */
    MOE_LAYER_SCAN_X,         /* [step_rank + 2 * key_dim][conv_channels] */
    MOE_LAYER_SCAN_STEP,      /* [conv_channels][step_rank] */
    MOE_LAYER_SCAN_STEP_BIAS, /* [conv_channels] F32 */
    MOE_LAYER_SCAN_STEP_NORM, /* [step_rank] F32 */
    MOE_LAYER_SCAN_K_NORM,    /* [key_dim] F32 */
    MOE_LAYER_SCAN_Q_NORM,    /* [key_dim] F32 */
    MOE_LAYER_SCAN_DECAY,     /* [conv_channels][key_dim] F32 */
    MOE_LAYER_SCAN_SKIP,      /* [conv_channels] F32 */
    MOE_LAYER_SCAN_OUT,       /* [n_embd][conv_channels] */
    MOE_LAYER_CONV_IN,        /* recurrent, a short convolution alone: [3 * n_embd][n_embd] */
    MOE_LAYER_CONV_TAPS,      /* [n_embd][conv_kernel] F32 */
    MOE_LAYER_CONV_OUT,       /* [n_embd][n_embd] */
    MOE_LAYER_FFN_NORM,
    MOE_LAYER_FFN_NORM_BIAS,
    MOE_LAYER_FFN_POST_NORM,
    MOE_LAYER_FFN_POST_NORM_OLDER, /* the same tensor under its name in older files */
    /* Norm of the routed experts' input, if they have a norm of their own. */
    MOE_LAYER_EXPERTS_NORM,
    MOE_LAYER_EXPERTS_POST_NORM, /* norm of the routed experts' output */
    MOE_LAYER_SHARED_POST_NORM,  /* norm of the shared expert's output */
    MOE_LAYER_OUT_SCALE,         /* [1] F32: factor of the residual stream behind the layer */
    MOE_LAYER_FFN_GATE,          /* dense layers: [n_ff_dense][n_embd] */
    MOE_LAYER_FFN_UP,
    MOE_LAYER_FFN_DOWN,              /* [n_embd][n_ff_dense] */
    MOE_LAYER_ROUTER,                /* [n_expert][n_embd] */
    MOE_LAYER_ROUTER_BIAS,           /* [n_expert] F32 */
    MOE_LAYER_ROUTER_NORM,           /* [n_embd] F32: the weight of the router's own norm */
    MOE_LAYER_EXPERTS_SCALE,         /* [n_expert] F32: factors of the router's weights */
    MOE_LAYER_ROUTER_SELECTION_BIAS, /* exp_probs_b [n_expert] F32 */
    MOE_LAYER_ROUTER_TABLE,          /* [n_vocab][n_expert_used] I32: the experts of each token */
    /* Narrows the input of latent experts: [n_expert_in][n_embd]. */
    MOE_LAYER_LATENT_IN,
    MOE_LAYER_LATENT_NORM,       /* [n_expert_in] F32, in files that have it */
    MOE_LAYER_LATENT_OUT,        /* widens the sum of their outputs: [n_embd][n_expert_in] */
    MOE_LAYER_EXPERTS_GATE_BIAS, /* [n_expert][n_ff_expert] F32 */
    MOE_LAYER_EXPERTS_UP_BIAS,
    MOE_LAYER_EXPERTS_DOWN_BIAS, /* [n_expert][n_embd] F32 */
    MOE_LAYER_SHARED_GATE,       /* shared expert: [n_ff_shared][n_embd] */
    MOE_LAYER_SHARED_UP,
    MOE_LAYER_SHARED_DOWN,
    MOE_LAYER_SHARED_ROUTER, /* [1][n_embd]: gate of the shared expert */
    MOE_LAYER_TENSOR_COUNT
} moe_layer_tensor;

typedef enum moe_expert_part {
    MOE_EXPERT_GATE,
    MOE_EXPERT_UP,
    MOE_EXPERT_DOWN,
    MOE_EXPERT_PARTS
} moe_expert_part;

/* Without a gate matrix, the part `gate` has no bytes, and stands at the same place as `up`. */
typedef struct moe_expert_ref {
    moe_tensor_ref parts[MOE_EXPERT_PARTS];
} moe_expert_ref;

typedef struct moe_layer_map {
    moe_tensor_ref tensors[MOE_LAYER_TENSOR_COUNT];
    moe_expert_ref *experts; /* [n_expert], NULL in a layer without experts */
} moe_layer_map;

/* The tensors that join a hidden state and a token to the input of a drafting layer. */
typedef enum moe_draft_tensor {
    /* [n_embd][2 * n_embd]: joins the normed embedding and hidden state. EAGLE-3: [n_embd][3 *
     * the model's n_embd], joins the features. */
    MOE_DRAFT_JOIN,
    MOE_DRAFT_TOKEN_NORM,    /* [n_embd] F32: of the embedding */
    MOE_DRAFT_HIDDEN_NORM,   /* [n_embd] F32 */
    MOE_DRAFT_FEATURES_NORM, /* EAGLE-3: [3 * the model's n_embd] F32, optional */
    MOE_DRAFT_TENSORS
} moe_draft_tensor;

/* The tensors that read the streams behind the last layer. They are those before a layer's branch,
 * without the ones for writing. */
typedef enum moe_streams_tensor {
    MOE_STREAMS_HEAD,       /* [n_streams][n_streams * n_embd] */
    MOE_STREAMS_HEAD_BASE,  /* [n_streams] F32 */
    MOE_STREAMS_HEAD_SCALE, /* [1] F32 */
    MOE_STREAMS_HEAD_NORM,  /* gates of elements: this and the next as before a branch */
    MOE_STREAMS_HEAD_DOWN,
    MOE_STREAMS_HEAD_UP,
    MOE_STREAMS_HEAD_RECALL, /* [n_embd] F32 */
    MOE_STREAMS_TENSORS
} moe_streams_tensor;

typedef struct moe_tensor_map {
    moe_tensor_ref token_embedding; /* [n_vocab][n_embd] */
    moe_tensor_ref output_norm;
    moe_tensor_ref output_norm_bias; /* [n_embd] F32, optional */
    moe_tensor_ref output;           /* the same range as the embedding when tied */
    moe_tensor_ref output_bias;      /* [n_vocab] F32, optional */
    moe_tensor_ref rope_freqs;       /* optional, [n_rot / 2] F32 */
    moe_tensor_ref rope_freqs_long;  /* the same for contexts beyond the original one; optional */
    /* In the map of a drafting layer; otherwise absent. */
    moe_tensor_ref draft[MOE_DRAFT_TENSORS];
    moe_tensor_ref streams[MOE_STREAMS_TENSORS]; /* in models with several streams */
    /* The table of moe_ngram_table; its rows are read when they are needed. */
    moe_tensor_ref ngrams;
    uint32_t n_layer;
    uint32_t n_expert;
    moe_layer_map *layers;
    /* Scales of matrices beside which the file has a tensor of scales. */
    moe_scale_range *scale_ranges;
    uint32_t n_scale_ranges, n_scales;
    float *scales; /* [n_scales]; NULL until moe_tensor_scales_read() */
    /* of all tensors except experts and ngrams; a tied tensor counts once. */
    uint64_t resident_bytes;
    uint64_t expert_bytes; /* of all experts */
    uint64_t n_parameters;
    uint64_t n_parameters_active; /* per token */
} moe_tensor_map;

void moe_tensor_map_free(moe_tensor_map *map);

/* The scale that multiplies the products of a matrix; 0: there is none. */
static inline float moe_tensor_scale_of(const moe_tensor_map *map, const moe_tensor_ref *ref)
{
    return ref->scale != 0 && map->scales != NULL ? map->scales[ref->scale - 1] : 0.0f;
}

/* Bytes of one expert: its three parts. */
static inline uint64_t moe_expert_ref_bytes(const moe_expert_ref *expert)
{
    return expert->parts[MOE_EXPERT_GATE].size + expert->parts[MOE_EXPERT_UP].size +
           expert->parts[MOE_EXPERT_DOWN].size;
}

#endif
