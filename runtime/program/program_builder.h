/* SPDX-License-Identifier: MIT */
/* Writes programs. Functions append a layer's operations. Each append checks the operation against
 * its tensors and the operations before it, and widens the values that it needs. A mistake, or a
 * lack of memory, is kept in `status`: later calls then do nothing, so callers check once, at the
 * end. */
#ifndef MOE_PROGRAM_PROGRAM_BUILDER_H
#define MOE_PROGRAM_PROGRAM_BUILDER_H

#include "runtime/model/tensor_claims.h"
#include "runtime/program/program.h"

/* The names of tensors that belong to no layer, by number from MOE_TENSOR_TOKEN_EMBEDDING on. name
 * NULL: the program has no such tensor. */
typedef struct moe_global_tensor {
    const char *name;
    bool optional;
} moe_global_tensor;

#define MOE_GLOBAL_TENSORS (MOE_TENSOR_DRAFT + MOE_DRAFT_TENSORS - MOE_TENSOR_TOKEN_EMBEDDING)

typedef enum moe_qk_norm_kind {
    MOE_QK_NORM_NONE,
    MOE_QK_NORM_HEAD, /* RMS norm of each head, weight [head_dim] (Qwen3) */
    /* Of each head, without a weight; only in layers with rotary embedding (Llama-4). */
    MOE_QK_NORM_UNIT,
    MOE_QK_NORM_FULL,  /* RMS norm of the whole projection (OLMoE) */
    MOE_QK_NORM_TURNED /* MLA: RMS norm of the part of the key that has rotary embedding (dots.3) */
} moe_qk_norm_kind;

/* A gate on attention's output. */
typedef enum moe_attention_gate {
    MOE_ATTENTION_GATE_NONE,
    MOE_ATTENTION_GATE_JOINED, /* in the rows of attn_q: for each head the query, then the gate */
    MOE_ATTENTION_GATE_OWN,    /* attn_gate, a gate for each element */
    MOE_ATTENTION_GATE_HEADS   /* attn_gate, a gate for each head; in layers that have the tensor */
} moe_attention_gate;

typedef enum moe_sinks_kind {
    MOE_SINKS_NONE,
    MOE_SINKS_ALL, /* each head has a learnt score beside those of the positions */
    MOE_SINKS_SOME /* the same, in layers that have the tensor */
} moe_sinks_kind;

/* A family's attention. Zeros stand for the usual form. */
typedef struct moe_attention_form {
    moe_value from; /* what attention reads; NONE: NORM */
    moe_qk_norm_kind qk_norm;
    bool norm_after_rope; /* queries and keys are normed after their rotary embedding */
    bool values_normed;   /* RMS norm of each head's value, without a weight */
    bool values_optional; /* layers without attn_v take the keys, before their norm, as values */
    moe_sinks_kind sinks;
    moe_attention_gate gate;  /* of attention's output */
    moe_rope_kind index_rope; /* of indexers' queries and keys */
    /* Their last elements have rotary embedding; their norm uses the model's constant. */
    bool index_as_heads;
    bool softplus;  /* gates are softplus instead of sigmoids */
    bool post_norm; /* attention's output is normed */
} moe_attention_form;

/* A family's feed-forward networks and experts. Zeros stand for the usual form. */
typedef struct moe_network_form {
    moe_activation activation; /* if it is a limited SiLU: the limit is of the SiLU's result, ... */
    bool limits_gate;          /* ... or of its argument */
    bool no_gate;              /* there is no gate matrix; `up` stands in its place, too */
    bool biases;               /* of the router's logits and of the experts' products */
    bool scales_inputs;        /* the router's weights multiply the experts' inputs */
    /* Experts have factors of their weights, in files that have the tensor. */
    bool weight_scales;
} moe_network_form;

typedef struct moe_program_builder {
    moe_program *program;
    const moe_model_config *config;
    moe_tensor_map *map;
    moe_tensor_claims *claims; /* NULL: the map has all tensors */
    const moe_global_tensor *globals;
    uint32_t n_embeddings; /* rows of the token embedding */
    uint32_t layer;        /* the layer being built; n_layer: outside of layers */
    /* A drafting layer: may use its model's tensors that belong to no layer. */
    bool borrows;
    uint32_t capacity;
    moe_network_form networks; /* of the family; set by its first layer */
    bool written[MOE_VALUES];  /* values that the layer, or something before it, has written */
    int status;
    moe_error *err;
} moe_program_builder;

/* An operand: a whole value whose rows have `stride` floats, or a part of it. */
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

/* has: whether the files have the tensor. first_rows: how many rows the first layer's tensor has;
 * 0: it has none. */
bool moe_build_has(const moe_program_builder *b, int tensor);
uint64_t moe_build_first_rows(const moe_program_builder *b, moe_layer_tensor tensor);

/* Appends an operation, and claims its tensors, whose shapes follow from the operation. Leaves out
 * a bias that the files do not have. An `each` of 0 counts as 1. */
void moe_build(moe_program_builder *b, moe_op op);
/* Claims one more tensor for the last operation, which does not name it. */
void moe_build_claim(moe_program_builder *b, int tensor, uint64_t n_in, uint64_t n_out,
                     moe_tensor_form form);

/* Common operations. */
/* RMS norm of `each` vectors of n floats, stride apart, in place. */
void moe_build_norm(moe_program_builder *b, int tensor, moe_operand x, uint32_t n, uint32_t each);
/* The model's norm, of rows as wide as the stream. */
void moe_build_row_norm(moe_program_builder *b, int tensor, moe_value from, moe_value to);
/* to = the product of a tensor (n_out rows) with the first n floats of `from`. */
void moe_build_linear(moe_program_builder *b, moe_value from, uint32_t n, int tensor,
                      uint32_t n_out, int bias, moe_value to);
/* One of several outputs of a product: n rows of a tensor from `first` on. One operation must have
 * all rows of a tensor as outputs. */
moe_op_output moe_build_output(int tensor, uint32_t first, uint32_t n, moe_value to);
void moe_build_linears(moe_program_builder *b, moe_value from, uint32_t n,
                       const moe_op_output *outputs, uint32_t n_outputs);
/* Appends nothing if the factor is 1. */
void moe_build_scale(moe_program_builder *b, moe_value value, uint32_t n, float factor);
void moe_build_cap(moe_program_builder *b, moe_value value, uint32_t n, float cap);
void moe_build_copy(moe_program_builder *b, moe_operand from, moe_operand to, uint32_t n,
                    uint32_t each);
void moe_build_add(moe_program_builder *b, moe_value a, moe_value other, moe_value to, uint32_t n);

/* Returns what a branch reads: x itself or, if x is several streams, their weighted sum, which is
 * put into `to`. tensor: the first of the three tensors for streams. mix: the value that becomes
 * the weights of the sum, followed by the weights by which the branch will be added.
 * moe_build_residual() takes these from MOE_VALUE_STREAM_MIX. */
moe_value moe_build_read(moe_program_builder *b, moe_value x, int tensor, moe_value mix,
                         moe_value to);

/* The norm of each of several streams, or of vectors as wide; each has its own part of the
 * weight. */
void moe_build_streams_norm(moe_program_builder *b, int tensor, moe_value from, moe_value to);
/* In place of moe_build_read() where elements have gates (program_streams.c). */
void moe_build_gated_read(moe_program_builder *b, moe_value x, int tensor, moe_value mix,
                          moe_value to);
/* recall: in place of moe_build_read() where a branch attends to the streams of earlier layers.
 * recalled: adds BRANCH to the stream that layers add to, which begins anew with the mixers of some
 * layers. */
void moe_build_recall(moe_program_builder *b, moe_value x, int tensor, moe_value mix, moe_value to);
void moe_build_recalled(moe_program_builder *b);
/* In the layer that a table of n-grams stands before, adds what tokens read of the table to the
 * streams. Does nothing in other layers. */
void moe_build_ngrams(moe_program_builder *b);

/* ---- Once all operations are there ---- */

/* Marks neighbours that a device may carry out in one call (program_fuse.c). */
void moe_program_fuse(moe_program *program);

/* ---- The parts of a layer ---- */

/* Appends attention, from NORM to BRANCH. */
void moe_build_attention(moe_program_builder *b, const moe_attention_form *form);
/* MLA. Uses only the form's indexer, sinks and gate; the gate is not MOE_ATTENTION_GATE_JOINED. */
void moe_build_latent_attention(moe_program_builder *b, const moe_attention_form *form);
/* The attention of DeepSeek-V4 (program_shared.c). */
void moe_build_shared_attention(moe_program_builder *b);
/* An indexer's choice, from Q_A and NORM. Append it behind the storing of the pass's keys. */
void moe_build_choose(moe_program_builder *b, const moe_attention_form *form);
void moe_build_recurrent(moe_program_builder *b);
/* Appends the layer's mixer: the norm, one of the three kinds of mixers, the norm of its output if
 * there is one, x += BRANCH. Ends the first part of the layer. Does nothing in a layer that is a
 * network alone. */
void moe_build_mixer(moe_program_builder *b, const moe_attention_form *form);
/* x += BRANCH, which is scaled if the model says so. With several streams: to each, by its
 * weight. */
void moe_build_residual(moe_program_builder *b);
/* Notes that the first part of the layer ends here. */
void moe_build_mixed(moe_program_builder *b);

/* The router's logits, from a value as wide as the stream. */
void moe_build_router(moe_program_builder *b, moe_value from, moe_value to);
/* Computes the experts chosen by ROUTER_LOGITS on `from`, and puts their sum into BRANCH. Before it
 * the host needs a result: the router's logits. */
void moe_build_experts(moe_program_builder *b, moe_value from);
/* A network that every row passes through, from NORM: a dense layer's, into BRANCH; or, in a layer
 * with experts, the shared expert if there is one, into SHARED. */
void moe_build_dense(moe_program_builder *b);
void moe_build_shared(moe_program_builder *b);

/* ---- Layers ---- */

/* How a layer differs from the usual one, which is all zeros. */
typedef struct moe_layer_form {
    moe_attention_form attention;
    moe_network_form networks;
    bool parallel;      /* the network reads what attention reads */
    float branch_scale; /* factor of the sum of routed and shared experts; 0 stands for 1 */
    int post_norm;      /* the tensor of the norm of the network's output; 0: none */
} moe_layer_form;

/* A layer as most families have it: x += attention(norm(x)), x += network(norm(x)). */
void moe_write_layer(moe_program_builder *b, const moe_layer_form *form);
/* Appends only the layer's network. */
void moe_write_network(moe_program_builder *b, const moe_layer_form *form);
/* The router on the norm of the stream as it is before the layer; writes NEXT_LOGITS. */
void moe_write_ahead(moe_program_builder *b, int norm);

/* Whole layers that several families share: the usual one; one with norms of each head's queries
 * and keys; one with a norm of all queries together and one of all keys together. */
void moe_write_usual(moe_program_builder *b);
void moe_write_head_normed(moe_program_builder *b);
void moe_write_full_normed(moe_program_builder *b);

#endif
