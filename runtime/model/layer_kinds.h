/* SPDX-License-Identifier: MIT */
/* The parts of a layer, as data: how it mixes positions (its mixer), and its feed-forward network.
 * The config has one moe_layer_kind for each layer, from which its program is made
 * (runtime/program/). */
#ifndef MOE_MODEL_LAYER_KINDS_H
#define MOE_MODEL_LAYER_KINDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum moe_mixer_kind {
    MOE_MIXER_ATTENTION, /* keys and values of grouped heads */
    MOE_MIXER_LATENT,    /* one latent per position (DeepSeek-V2), in its absorbed form */
    /* One head, whose keys are also its values (DeepSeek-V4); some keys are compressed. */
    MOE_MIXER_SHARED,
    MOE_MIXER_RECURRENT, /* a state of fixed size in place of keys and values */
    MOE_MIXER_NONE,      /* the layer is a feed-forward network alone */
    MOE_MIXERS
} moe_mixer_kind;

/* Whether the mixer keeps keys and values. */
static inline bool moe_mixer_has_heads(moe_mixer_kind mixer)
{
    return mixer == MOE_MIXER_ATTENTION || mixer == MOE_MIXER_LATENT || mixer == MOE_MIXER_SHARED;
}

typedef enum moe_feed_forward_kind {
    MOE_FEED_FORWARD_DENSE,
    MOE_FEED_FORWARD_ROUTED,
    /* Routed experts, and beside them a dense network that every row passes through. */
    MOE_FEED_FORWARD_BOTH,
    MOE_FEED_FORWARD_NONE, /* the layer is a mixer alone */
    MOE_FEED_FORWARDS
} moe_feed_forward_kind;

/* The heads of an attention layer, as the KV cache holds them. k_dim also counts an indexer's key,
 * and the numbers that a position stores for compressed keys. */
typedef struct moe_heads {
    uint32_t n;
    uint32_t n_kv;
    uint32_t k_dim;
    uint32_t v_dim;
} moe_heads;

/* MLA: the latent of a layer, from which each head's key and value are computed. */
typedef struct moe_latent {
    uint32_t rank;
    uint32_t nope;  /* the part of a head's key without position */
    uint32_t v_dim; /* a head's value after decompression */
    float scale;    /* a factor of q.k */
} moe_latent;

/* What chooses the positions that a layer attends to. */
typedef enum moe_indexer_kind {
    MOE_INDEXER_NONE, /* the layer attends to all positions */
    MOE_INDEXER_OWN,
    MOE_INDEXER_BEFORE /* the indexer of an earlier layer: the last one that has its own */
} moe_indexer_kind;

typedef struct moe_layer_kind {
    moe_mixer_kind mixer;
    moe_indexer_kind indexer;
    moe_feed_forward_kind feed_forward;
    moe_heads heads;
    moe_latent latent;
    bool window_rope;   /* the rotary embedding is moe_model_config.window_rope */
    float expert_limit; /* bound in the experts' activation, MOE_ACTIVATION_SILU_LIMITED; 0: none */
    /* Bound in the shared expert's activation and in a dense layer's; 0: none. */
    float shared_limit;
    /* A token attends to this many of the last tokens, itself included; 0: to all. */
    uint32_t window;
    /* A token attends only to its own chunk of this many positions; 0: no chunks. */
    uint32_t chunk;
    bool no_rope; /* no rotary embedding of queries and keys */
    uint32_t
        side_dim; /* floats of a position's index key, which is stored beside keys and values */
    bool keeps_tokens; /* the layer stores each position's token */
    /* Besides the positions of its window, a row sees compressed keys, each of a block of `rate`
     * positions that ends at or before the row's own position; 0: none. `window` is then no shorter
     * than a block. */
    uint32_t rate;
    bool by_table;       /* a table says which experts a token has */
    bool scales_queries; /* queries are scaled by position (moe_model_config.temperature_scale) */
} moe_layer_kind;

/* The rate at which an indexer chooses among compressed keys. At this rate a key is made of two
 * blocks. So a position stores two series of numbers: the first for the key of the next block, the
 * second for the key of its own block. */
#define MOE_INDEXED_RATE 4u

static inline uint32_t moe_key_series(uint32_t rate)
{
    return rate == MOE_INDEXED_RATE ? 2 : 1;
}

/* What a recurrent layer's state is. A model has one kind. */
typedef enum moe_recurrence_kind {
    MOE_RECURRENCE_NONE,
    MOE_RECURRENCE_DELTA,       /* gated delta rule */
    MOE_RECURRENCE_CONVOLUTION, /* a short convolution between two gates, and nothing else */
    MOE_RECURRENCE_SPACE,       /* state space (Mamba-2) */
    MOE_RECURRENCE_CHANNELS,    /* delta rule with a decay for each row of a state (KDA) */
    MOE_RECURRENCE_SCAN,        /* selective scan (Mamba-1) */
    MOE_RECURRENCES
} moe_recurrence_kind;

/* Sizes of a recurrent layer. For each such layer a sequence has
 *
 *    state [n_head][key_dim][value_dim] | tail [conv_kernel - 1][conv_channels]     floats
 *
 * where the tail holds what the short convolution needs of the last tokens. For each token a
 * sequence gets conv_channels + n_gates floats; they suffice to advance state and tail without the
 * rest of the model.
 *
 * Gated delta rule: key_dim and value_dim are the sizes of a value head, conv_channels is the width
 * of queries, keys and values together, and n_gates is 2 * n_head (decay and beta).
 *
 * State space: the same, but key_dim is the size of a state, n_key_head is the number of groups,
 * and n_gates is n_head (the time step).
 *
 * Decays of channels: each head has a key of its own, as wide as its value, and n_gates is n_head *
 * (1 + key_dim) (beta, then decays).
 *
 * Selective scan: one head, whose values are the conv_channels channels. key_dim is the size of a
 * channel's state. There are no gates: the convolution's output determines how a state advances.
 *
 * Short convolution: there are no heads and no gates, and conv_channels is n_embd. */
typedef struct moe_recurrence {
    moe_recurrence_kind kind;
    uint32_t n_head;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t conv_kernel;
    uint32_t conv_channels;
    uint32_t n_gates;
    uint32_t step_rank;  /* selective scan: the width that time steps are projected from */
    float decay_bound;   /* decays of channels: a negative bound of their logarithms; 0: none */
    uint32_t n_key_head; /* head h has key head h / (n_head / n_key_head) */
    bool tiled;          /* instead, head h has key head h % n_key_head */
    bool sigmoid;        /* delta rule: the output's gate is a sigmoid, not SiLU */
    bool in_groups; /* older files: one projection, in an order of its own (MOE_LAYER_DELTA_QKV) */
} moe_recurrence;

/* The largest sizes that devices support. */
/* Of key_dim, and of value_dim except in a scan. */
#define MOE_RECURRENCE_MAX_DIM    256u
#define MOE_RECURRENCE_MAX_KERNEL 8u

static inline size_t moe_recurrence_state_floats(const moe_recurrence *r)
{
    size_t tail = r->conv_kernel > 0 ? (size_t)(r->conv_kernel - 1) * r->conv_channels : 0;
    return (size_t)r->n_head * r->key_dim * r->value_dim + tail;
}

/* Floats of a token's output, before it is projected. */
static inline size_t moe_recurrence_out_floats(const moe_recurrence *r)
{
    return r->kind == MOE_RECURRENCE_CONVOLUTION ? r->conv_channels
                                                 : (size_t)r->n_head * r->value_dim;
}

static inline size_t moe_recurrence_input_floats(const moe_recurrence *r)
{
    return (size_t)r->conv_channels + r->n_gates;
}

#endif
