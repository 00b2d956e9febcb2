/* SPDX-License-Identifier: MIT */
/* Finds a model's tensors in its files, one after the other, and notes where their bytes are. The
 * operation that uses a tensor claims it and says its shape (runtime/program/). In the end, tensors
 * that nothing has claimed are refused: the model would run without some of its weights. */
#ifndef MOE_MODEL_TENSOR_CLAIMS_H
#define MOE_MODEL_TENSOR_CLAIMS_H

#include "runtime/model/tensor_map.h"

typedef struct moe_tensor_claims {
    moe_tensor_map *map;
    const moe_model_config *config;
    const moe_gguf *gguf;
    moe_error *err;
    bool *claimed;        /* of each of the file's tensors */
    uint32_t first_layer; /* the number that the map's first layer has in the files' names */
    uint64_t n_expert_elems;
} moe_tensor_claims;

typedef enum moe_tensor_form {
    MOE_TENSOR_MATRIX,     /* of any type */
    MOE_TENSOR_MATRIX_F32, /* rows of F32 */
    MOE_TENSOR_VECTOR,     /* one-dimensional, and F32 */
    MOE_TENSOR_TABLE       /* rows of I32 */
} moe_tensor_form;

/* n_out rows of n_in elements; a vector has one. */
typedef struct moe_tensor_shape {
    uint64_t n_in, n_out;
    moe_tensor_form form;
} moe_tensor_shape;

/* If the file has no such tensor, moe_claim_tensor() and moe_claim_layer_tensor() leave *ref as it
 * is, and fail unless the tensor is optional. A wrong shape or type is always an error. Errors name
 * the tensor. */
int moe_claim_tensor(moe_tensor_claims *c, const char *name, moe_tensor_shape shape, bool optional,
                     moe_tensor_ref *ref);
/* Claims a tensor of a layer of the map, by its usual name or by the family's name for it. */
int moe_claim_layer_tensor(moe_tensor_claims *c, uint32_t layer, moe_layer_tensor tensor,
                           moe_tensor_shape shape, bool optional);
/* Claims the table of n-grams, which may have more rows than are used. The table is not
 * resident. */
int moe_claim_ngrams(moe_tensor_claims *c);
/* Claims the tensor attn_qkv, weight or bias, and divides its rows into queries, keys and values.
 * Does nothing if the file has none. */
int moe_claim_joined_qkv(moe_tensor_claims *c, uint32_t layer, const uint64_t n_rows[3], bool bias);
/* Claims all experts of a layer, with n_in inputs and outputs. In models without gates, the part
 * `up` stands where the gate part would. */
int moe_claim_experts(moe_tensor_claims *c, uint32_t layer, uint64_t n_in, uint64_t n_inner,
                      bool gated);
/* NULL if the file has none. */
const moe_gguf_tensor *moe_claims_find(const moe_tensor_claims *c, uint32_t layer,
                                       moe_layer_tensor tensor);
/* Marks a tensor as known but not used. */
void moe_claims_ignore(moe_tensor_claims *c, const char *name);

/* Returns a tensor's name after "blk.N.". Some families name some tensors differently. */
const char *moe_tensor_name(const moe_model_config *config, moe_layer_tensor tensor);

/* An empty map of the config's layers. */
int moe_claims_begin(moe_tensor_claims *c, moe_tensor_map *map, const moe_model_config *config,
                     const moe_gguf *gguf, moe_error *err);
/* Counts parameters, and refuses unclaimed tensors; for a drafting layer (first_layer > 0), only
 * that layer's tensors. status: the result of the claims. If it is an error, or this function
 * fails, the map is freed. */
int moe_claims_end(moe_tensor_claims *c, int status);

#endif
