/* SPDX-License-Identifier: MIT */
/* Writes programs. Functions append a layer's operations. Each append checks the operation against
 * its tensors and the operations before it, and widens the values that it needs. A mistake, or a
 * lack of memory, is kept in `status`: later calls then do nothing, so callers check once, at the
 * end. */
#ifndef MOE_PROGRAM_PROGRAM_BUILDER_H
#define MOE_PROGRAM_PROGRAM_BUILDER_H

#include "runtime/model/tensor_claims.h"
#include "runtime/program/program.h"

/* The names of tensors outside of layers, by number from MOE_TENSOR_TOKEN_EMBEDDING; NULL: it has
 * none. */
typedef struct moe_global_tensor {
    const char *name;
    bool optional;
} moe_global_tensor;

#define MOE_GLOBAL_TENSORS (MOE_TENSOR_DRAFT + MOE_DRAFT_TENSORS - MOE_TENSOR_TOKEN_EMBEDDING)

typedef enum moe_qk_norm_kind {
    MOE_QK_NORM_NONE,
    MOE_QK_NORM_HEAD,  /* RMS norm of each head, weight [head_dim] (Qwen3) */
    MOE_QK_NORM_UNIT,  /* of each head, without a weight, in layers with rotary embedding (Llama-4)
                        */
    MOE_QK_NORM_FULL,  /* RMS norm of the whole projection (OLMoE) */
    MOE_QK_NORM_TURNED /* MLA: RMS norm of the part of the key that turns (dots.3) */
} moe_qk_norm_kind;

/* A gate on attention's output. */
typedef enum moe_attention_gate {
    MOE_ATTENTION_GATE_NONE,
    MOE_ATTENTION_GATE_JOINED, /* rows of attn_q: of each head first the query, then the gate */
    MOE_ATTENTION_GATE_OWN,    /* attn_gate, by element */
    MOE_ATTENTION_GATE_HEADS   /* attn_gate, one for each head; in layers that have it */
} moe_attention_gate;

typedef enum moe_sinks_kind {
    MOE_SINKS_NONE,
    MOE_SINKS_ALL, /* a learnt score beside those of the positions, for each head */
    MOE_SINKS_SOME /* ... in layers that have the tensor */
} moe_sinks_kind;

/* A family's attention; zeros are the usual. */
typedef struct moe_attention_form {
    moe_value from; /* what it reads; NONE: NORM */
    moe_qk_norm_kind qk_norm;
    bool norm_after_rope; /* queries' and keys' norms stand behind their rotary embedding */
    bool values_normed;   /* RMS norm of each head's value, without a weight */
    bool values_optional; /* layers without attn_v take the keys, before their norm, as values */
    moe_sinks_kind sinks;
    moe_attention_gate gate;  /* of its output */
    moe_rope_kind index_rope; /* of indexers' queries and keys */
    bool index_as_heads; /* their last elements turn, and their norm has the model's constant */
    bool softplus;       /* the gate is a softplus, not a sigmoid */
    bool post_norm;      /* attention's output is normed */
} moe_attention_form;

/* A family's feed-forward networks and experts; zeros are the usual. */
typedef struct moe_network_form {
    moe_activation activation; /* SiLU has the layer's limits: of its result, ... */
    bool limits_gate;          /* ... or of what it is applied to */
    bool no_gate;              /* up takes the place of the gate's matrix, too */
    bool biases;               /* of the router and of the experts' products */
    bool scales_inputs;        /* the router's weights multiply what experts read */
    bool weight_scales;        /* factors of the experts' weights, in files that have them */
} moe_network_form;

typedef struct moe_program_builder {
    moe_program *program;
    const moe_model_config *config;
    moe_tensor_map *map;
    moe_tensor_claims *claims; /* NULL: the map has all tensors */
    const moe_global_tensor *globals;
    uint32_t n_embeddings; /* rows of the token embedding */
    uint32_t layer;        /* n_layer: outside of them */
    bool borrows;          /* a drafting layer: tensors outside of layers may be its model's */
    uint32_t capacity;
    moe_network_form networks; /* of the family; set by its first layer */
    bool written[MOE_VALUES];  /* by the layer, or before it */
    int status;
    moe_error *err;
} moe_program_builder;

/* A value whose rows have `stride` floats; one of its parts. */
static inline moe_operand moe_all_of(moe_value value, size_t stride)
{
    return (moe_operand){.value = value, .stride = (uint32_t)stride};
}

static inline moe_operand moe_part_of(moe_value value, size_t at, size_t stride)
{
    return (moe_operand){.value = value, .at = (uint32_t)at, .stride = (uint32_t)stride};
}

static inline const moe_layer_kind *moe_built_kind(const moe_program_builder *b)
{
    return &b->config->layers[b->layer];
}

/* has(): whether the files have the tensor. first_rows(): the rows of the first layer's tensor, 0
 * if it has none. */
bool moe_build_has(const moe_program_builder *b, int tensor);
uint64_t moe_build_first_rows(const moe_program_builder *b, moe_layer_tensor tensor);

/* Appends the operation, and claims the tensors that it uses; their shapes follow from it. Leaves
 * out a bias that the files do not have. An `each` of 0 counts as 1. */
void moe_build(moe_program_builder *b, moe_op op);
/* Claims a tensor that the last operation uses besides those that it names. */
void moe_build_claim(moe_program_builder *b, int tensor, uint64_t n_in, uint64_t n_out,
                     moe_tensor_form form);

/* The usual ones. */
/* RMS norm of `each` vectors of n floats, stride apart, in place. */
void moe_build_norm(moe_program_builder *b, int tensor, moe_operand x, uint32_t n, uint32_t each);
/* The model's norm of rows as wide as the stream. */
void moe_build_row_norm(moe_program_builder *b, int tensor, moe_value from, moe_value to);
/* to = the product of a tensor of n_out rows with n floats of `from`. */
void moe_build_linear(moe_program_builder *b, moe_value from, uint32_t n, int tensor,
                      uint32_t n_out, int bias, moe_value to);
/* One output of a product of several: n rows of a tensor. All rows of a tensor are outputs of one
 * operation. */
moe_op_output moe_build_output(int tensor, uint32_t first, uint32_t n, moe_value to);
void moe_build_linears(moe_program_builder *b, moe_value from, uint32_t n,
                       const moe_op_output *outputs, uint32_t n_outputs);
/* Does nothing if the factor is 1. */
void moe_build_scale(moe_program_builder *b, moe_value value, uint32_t n, float factor);
void moe_build_cap(moe_program_builder *b, moe_value value, uint32_t n, float cap);
void moe_build_copy(moe_program_builder *b, moe_operand from, moe_operand to, uint32_t n,
                    uint32_t each);
void moe_build_add(moe_program_builder *b, moe_value a, moe_value other, moe_value to, uint32_t n);

/* What a branch reads of x: x itself, or, if it is several streams, their weighted sum, `to`.
 * tensor: the first of three; mix: what becomes its weights, and those by which the branch is added
 * (moe_build_residual() takes MOE_VALUE_STREAM_MIX). */
moe_value moe_build_read(moe_program_builder *b, moe_value x, int tensor, moe_value mix,
                         moe_value to);

/* The norm of each of several streams, or of vectors as wide, each by its part of a weight. */
void moe_build_streams_norm(moe_program_builder *b, int tensor, moe_value from, moe_value to);
/* What moe_build_read() does where elements have gates (program_streams.c). */
void moe_build_gated_read(moe_program_builder *b, moe_value x, int tensor, moe_value mix,
                          moe_value to);
/* What moe_build_read() does where a branch attends to the streams of earlier layers; and what adds
 * BRANCH to the layers' stream, which begins anew with the mixers of some layers. */
void moe_build_recall(moe_program_builder *b, moe_value x, int tensor, moe_value mix, moe_value to);
void moe_build_recalled(moe_program_builder *b);
/* In the layer before which it stands, adds what tokens read of a table of n-grams to the streams.
 * Does nothing in others. */
void moe_build_ngrams(moe_program_builder *b);

/* ---- Once all operations are there ---- */

/* Marks neighbours that a device may carry out in one call (program_fuse.c). */
void moe_program_fuse(moe_program *program);

/* ---- The parts of a layer ---- */

/* Attention from NORM to BRANCH. */
void moe_build_attention(moe_program_builder *b, const moe_attention_form *form);
/* Of the form the indexers' part, the sinks and the gate, which is not MOE_ATTENTION_GATE_JOINED.
 */
void moe_build_latent_attention(moe_program_builder *b, const moe_attention_form *form);
/* DeepSeek-V4's (program_shared.c). */
void moe_build_shared_attention(moe_program_builder *b);
/* The indexer's choice, from Q_A and NORM, once the keys of the pass are stored. */
void moe_build_choose(moe_program_builder *b, const moe_attention_form *form);
void moe_build_recurrent(moe_program_builder *b);
/* The layer's mixer: norm, one of the three, the norm behind it if there is one, x += BRANCH. Ends
 * the first part of the layer. Does nothing in a layer that is a network alone. */
void moe_build_mixer(moe_program_builder *b, const moe_attention_form *form);
/* x += BRANCH, which is scaled where the model says so; each of several streams by its weight. */
void moe_build_residual(moe_program_builder *b);
/* Notes that the first part of the layer ends here. */
void moe_build_mixed(moe_program_builder *b);

/* The router's logits, from a value as wide as the stream. */
void moe_build_router(moe_program_builder *b, moe_value from, moe_value to);
/* Computes the experts chosen by ROUTER_LOGITS on `from`, and their sum into BRANCH. The host needs
 * a result here: the router's logits. */
void moe_build_experts(moe_program_builder *b, moe_value from);
/* A network that every row passes through, from NORM: a dense layer's, into BRANCH; and, if the
 * layer has one, the expert beside the routed ones, into SHARED. */
void moe_build_dense(moe_program_builder *b);
void moe_build_shared(moe_program_builder *b);

/* ---- Layers ---- */

/* How a layer differs from the usual, which is zeros. */
typedef struct moe_layer_form {
    moe_attention_form attention;
    moe_network_form networks;
    bool parallel;      /* the network reads what attention reads */
    float branch_scale; /* of the sum of routed and shared experts; 0: 1 */
    int post_norm;      /* the tensor of the norm of the network's output; 0: none */
} moe_layer_form;

/* A layer as most families have it: x += attention(norm(x)), x += network(norm(x)). */
void moe_write_layer(moe_program_builder *b, const moe_layer_form *form);
/* Only the layer's network. */
void moe_write_network(moe_program_builder *b, const moe_layer_form *form);
/* The router on the norm of the stream of the layer before, into NEXT_LOGITS. */
void moe_write_ahead(moe_program_builder *b, int norm);

/* Whole layers that several families have: the usual one; one with norms of each head's queries and
 * keys; one with norms of all queries and of all keys together. */
void moe_write_usual(moe_program_builder *b);
void moe_write_head_normed(moe_program_builder *b);
void moe_write_full_normed(moe_program_builder *b);

#endif
