/* SPDX-License-Identifier: MIT */
/* A model family: how its metadata sets the numbers of model_config.h, and how its layers are
 * written. The families are in runtime/families/; no other code asks for a family's name. */
#ifndef MOE_MODEL_FAMILY_H
#define MOE_MODEL_FAMILY_H

#include "runtime/model/model_config.h"
#include "runtime/model/tensor_map.h"

/* Where the width of an expert comes from if expert_feed_forward_length is absent. */
typedef enum moe_expert_width_rule {
    MOE_EXPERT_WIDTH_STATED,       /* nowhere: the key is required */
    MOE_EXPERT_WIDTH_FEED_FORWARD, /* feed_forward_length */
    MOE_EXPERT_WIDTH_SHARE         /* feed_forward_length / expert_used_count */
} moe_expert_width_rule;

typedef enum moe_shared_rule {
    MOE_SHARED_NONE,
    MOE_SHARED_COUNT,   /* expert_shared_count experts of the routed experts' width */
    MOE_SHARED_TENSORS, /* as wide as the file's tensors for them, if there are any; no gate */
    MOE_SHARED_DENSE,   /* likewise, but the tensors have the names of a dense layer's */
    MOE_SHARED_GATED    /* one expert of expert_shared_feed_forward_length, behind a sigmoid gate */
} moe_shared_rule;

/* Metadata that some families use. In a file of a family without the flag, a value that would
 * change the result is refused. */
typedef enum moe_family_keys {
    MOE_KEY_CLAMP_KQV = 1 << 0,  /* attention.clamp_kqv */
    MOE_KEY_DENSE_LEAD = 1 << 1, /* leading_dense_block_count; absent: layers without a router */
    MOE_KEY_GROUPS = 1 << 2,     /* expert_group_count, expert_group_used_count */
    MOE_KEY_YARN_LOG = 1 << 3,   /* rope.scaling.yarn_log_multiplier, 0.1 * mscale_all_dim */
    MOE_KEY_SCALES = 1 << 4,     /* embedding_scale, residual_scale, logit_scale */
    MOE_KEY_EVERY = 1 << 5,      /* interleave_moe_layer_step */
    /* rope.dimension_sections: in text all sections have the same position. */
    MOE_KEY_SECTIONS = 1 << 6,
    MOE_KEY_TEMPERATURE = 1 << 8, /* attention.temperature_scale, _length */
    MOE_KEY_INDEXER = 1 << 7,     /* attention.indexer.* */
    MOE_KEY_CAPS = 1 << 9,        /* {attn,final,router}_logit_softcapping */
    /* rope.freq_base_swa, rope.dimension_count_swa, and, in layers with a window, other numbers and
     * lengths of heads: lists of head counts, attention.{key,value}_length_swa */
    MOE_KEY_WINDOW_HEADS = 1 << 10,
    MOE_KEY_VALUE_SCALE = 1 << 11,  /* attention.value_scale */
    MOE_KEY_OUTPUT_SCALE = 1 << 12, /* attention.output_scale: the factor of q.k */
    MOE_KEY_LIMITS = 1 << 13,       /* swiglu_clamp_exp, swiglu_clamp_shexp */
    MOE_KEY_ROPE_LIST = 1 << 14,    /* attention.rope_pattern: the layers with rotary embedding */
    MOE_KEY_LATENT = 1 << 15,       /* moe_latent_size, expert_latent_length */
    MOE_KEY_DECAY_BOUND = 1 << 16,  /* kda.gate_lower_bound, kda.safe_gate */
    /* Streams with a gate for each element (hyper_connection.{count,low_rank}), pools of positions
     * whose key is the mean of theirs (attention.compress_ratios), a table of n-grams (ple.*). */
    MOE_KEY_GATED_STREAMS = 1 << 17,
    MOE_KEY_MEAN_INDEX = 1 << 18,
    MOE_KEY_NGRAMS = 1 << 19,
    MOE_KEY_STREAM_BLOCKS = 1 << 20, /* attn_res.block_size */
    MOE_KEY_SITU = 1 << 21,          /* activation.{situ_beta,situ_linear_beta} */
    MOE_KEY_BLOCK_INDEX = 1 << 27,   /* attention.indexer.{block_size,local_blocks} */
    MOE_KEY_STREAMS = 1 << 28,       /* hyper_connection.{count,epsilon,magnitude} */
    MOE_KEY_MIXED_STREAMS = 1 << 29, /* hyper_connection.{count,epsilon,sinkhorn_iterations} */
    MOE_KEY_POOLED_INDEX = 1 << 30   /* attention.indexer.kpool and related keys */
} moe_family_keys;

/* A layer's tensor that has an unusual name after "blk.N.". */
typedef struct moe_tensor_alias {
    moe_layer_tensor tensor;
    const char *name;
} moe_tensor_alias;

#define MOE_MOST_ALIASES 3

struct moe_program_builder;

typedef struct moe_family {
    const char *architecture; /* general.architecture */
    const char *name;         /* for people */
    moe_norm_kind norm;
    bool norm_by_key;       /* the norm is MOE_NORM_RMS if the file has that norm's constant */
    bool norm_key_of_means; /* files may have this constant under the key of LayerNorm's */
    /* A layer is a mixer or a network, not both: feed_forward_length is a list of the networks'
     * widths, with 0 for the mixers. */
    bool single_parts;
    moe_attention_kind attention;
    float attention_scale;   /* if attention.scale is absent; 0: 1 / sqrt(key length) */
    uint32_t window_default; /* if attention.sliding_window is absent */
    /* The window is a chunk; layers without it may scale their queries by position. */
    bool window_chunks;
    bool rope_in_windows; /* only layers with a window have a rotary embedding */
    /* All but the last layer of each period have a window; 0: all layers have it. */
    uint32_t window_period;
    bool window_last; /* the first layer of a period has none, instead of the last */
    moe_recurrence_kind recurrence;
    moe_rope_kind rope;
    bool no_rope;           /* no rotary embedding: only states tell the order of tokens */
    bool rope_if_finetuned; /* the same, if rope.scaling.finetuned is false */
    /* With rope_in_windows: leading dense layers have a rotary embedding, too. */
    bool rope_in_dense_lead;
    const char *output_norm; /* name of the norm before the head; NULL: output_norm.weight */
    moe_gate_kind gate;      /* if expert_gating_func is absent */
    bool gate_takes_bias;    /* `gate` also holds for files with selection biases */
    bool gate_renormalise;   /* if expert_weights_norm is absent */
    float embedding_scale, logit_scale; /* if the keys are absent; 0 stands for 1 */
    float attention_cap, router_cap;    /* if the keys are absent; 0: none */
    float expert_limit;                 /* if swiglu_clamp_exp is absent; 0: none */
    /* swiglu_clamp_exp also holds for shared experts if swiglu_clamp_shexp is absent. */
    bool one_limit;
    bool streams_mean; /* the head reads the mean of several streams */
    /* Layers with a router's tensor have experts; no key says which layers do. */
    bool experts_by_tensors;
    moe_expert_width_rule expert_width;
    moe_shared_rule shared;
    unsigned keys;                              /* moe_family_keys */
    moe_tensor_alias aliases[MOE_MOST_ALIASES]; /* those behind the last have NULL */
    /* Changes the numbers that were read, before they are checked; NULL: changes nothing. */
    void (*adjust)(moe_model_config *config);
    /* layer() appends a layer's operations to its program (runtime/program/program_builder.h).
     * ahead() appends those that guess the layer's routing from the stream of the layer before it,
     * and write it to NEXT_LOGITS. NULL: as in most families. */
    void (*layer)(struct moe_program_builder *b);
    void (*ahead)(struct moe_program_builder *b);
    /* Older files have no expert_gating_func. A file whose gate is a sigmoid with normalised
     * weights is then recognised by its biases for the choice of experts, or by this number of
     * layers and the sizes below; 0: no such files. */
    uint32_t sigmoid_n_layer;
    uint32_t sigmoid_n_expert;
} moe_family;

/* Whether the family lists the number of key heads of each layer, and layers with 0 key heads have
 * a state. */
static inline bool moe_family_lists_states(const moe_family *family)
{
    return family->recurrence > MOE_RECURRENCE_DELTA;
}

#endif
