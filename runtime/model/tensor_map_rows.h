/* SPDX-License-Identifier: MIT */
/* Each tensor of a layer as data: its name, when it is present, and its shape. */
#ifndef MOE_MODEL_TENSOR_MAP_ROWS_H
#define MOE_MODEL_TENSOR_MAP_ROWS_H

#include "runtime/model/tensor_map.h"

/* Sizes that shapes are made of; NONE, as rows, marks a vector. */
typedef enum moe_dim {
    MOE_DIM_NONE,
    MOE_DIM_ONE,
    MOE_DIM_EMBD,
    MOE_DIM_QUERIES, /* n_head * head_dim_k, twice with a joined gate; MLA: n_head * (nope + rot) */
    MOE_DIM_KEYS,
    MOE_DIM_VALUES,
    MOE_DIM_ATTENDED, /* what attn_output multiplies: n_head * head_dim_v; MLA: * v_head_dim */
    MOE_DIM_Q_NORM,
    MOE_DIM_K_NORM,
    MOE_DIM_Q_RANK,
    MOE_DIM_KV_RANK,
    MOE_DIM_KV_RANK_ROT,
    MOE_DIM_NOPE,
    MOE_DIM_HEADS_NOPE_V,
    MOE_DIM_HEADS_RANK,
    MOE_DIM_HEADS_V,
    MOE_DIM_FF_DENSE,
    MOE_DIM_FF_SHARED,
    MOE_DIM_EXPERTS,
    MOE_DIM_HEADS,
    MOE_DIM_FF_EXPERT,
    MOE_DIM_EXPERT_IN,
    MOE_DIM_INDEX,
    MOE_DIM_INDEX_HEADS,
    MOE_DIM_INDEX_QUERIES,
    MOE_DIM_GATES,
    MOE_DIM_DELTA_CHANNELS,
    MOE_DIM_DELTA_INNER, /* values of all recurrent heads */
    MOE_DIM_DELTA_PROJECTED,
    MOE_DIM_DELTA_GATES,
    MOE_DIM_DELTA_HEADS,
    MOE_DIM_DELTA_VALUE,
    MOE_DIM_DELTA_KERNEL,
    MOE_DIM_CONV_PROJECTED, /* of a layer that is a short convolution */
    MOE_DIM_SPACE_PROJECTED,
    MOE_DIM_SPACE_GROUPS,
    MOE_DIM_SPACE_GROUP, /* values of a group's heads */
    MOE_DIM_SCAN_PROJECTED,
    MOE_DIM_SCAN_RANK,
    MOE_DIM_SCAN_STATE,
    MOE_DIM_SCAN_PARTS, /* rank of the step and twice the state, which a scan projects */
    MOE_DIM_COUNT
} moe_dim;

/* Properties of a layer. A tensor is present if the layer has all traits in the tensor's row. */
typedef enum moe_layer_trait {
    MOE_TRAIT_GQA = 1 << 0,
    MOE_TRAIT_MLA = 1 << 1,
    MOE_TRAIT_Q_DIRECT = 1 << 2, /* queries are projected in one step */
    MOE_TRAIT_Q_RANK = 1 << 3,
    MOE_TRAIT_QK_NORM = 1 << 4,
    MOE_TRAIT_KV_JOINED = 1 << 5, /* the file has attn_kv_b, not attn_k_b and attn_v_b */
    MOE_TRAIT_KV_SPLIT = 1 << 6,
    MOE_TRAIT_DENSE = 1 << 7,
    MOE_TRAIT_EXPERTS = 1 << 8,
    MOE_TRAIT_SHARED = 1 << 9,
    MOE_TRAIT_SHARED_GATED = 1 << 10,
    MOE_TRAIT_SELECTION_BIAS = 1 << 11,
    MOE_TRAIT_SINKS = 1 << 12,
    MOE_TRAIT_EXPERT_BIASES = 1 << 13,
    MOE_TRAIT_OPTIONAL = 1 << 14, /* of a row: the tensor may be absent */
    MOE_TRAIT_F32 = 1 << 15,      /* of a row: a matrix that must be F32 */
    MOE_TRAIT_GATE = 1 << 16,     /* attention's output has a gate of its own matrix */
    MOE_TRAIT_ATTN_POST_NORM = 1 << 17,
    MOE_TRAIT_MEAN_NORM = 1 << 18,
    MOE_TRAIT_FFN_NORM = 1 << 19,
    MOE_TRAIT_FFN_POST_NORM = 1 << 20,
    MOE_TRAIT_EXPERTS_NORM = 1 << 21,
    MOE_TRAIT_BRANCH_NORMS = 1 << 22,
    MOE_TRAIT_LAYER_SCALE = 1 << 23,
    MOE_TRAIT_ROUTER_NORM = 1 << 24,
    MOE_TRAIT_EXPERT_SCALES = 1 << 25,
    MOE_TRAIT_ATTENTION = 1 << 26,
    MOE_TRAIT_DELTA = 1 << 27,
    MOE_TRAIT_DELTA_SPLIT = 1 << 28, /* the output's gate has a matrix of its own */
    MOE_TRAIT_DELTA_TILED = 1 << 29,
    MOE_TRAIT_DELTA_GROUPED = 1 << 30
} moe_layer_trait;

#define MOE_TRAIT_CONVOLUTION (UINT64_C(1) << 31)
#define MOE_TRAIT_SPACE       (UINT64_C(1) << 32)
#define MOE_TRAIT_CHANNELS    (UINT64_C(1) << 34)
#define MOE_TRAIT_HEADS       (UINT64_C(1) << 33) /* recurrent layers with heads */
#define MOE_TRAIT_MIXER       (UINT64_C(1) << 35)
#define MOE_TRAIT_GATE_MATRIX (UINT64_C(1) << 36) /* of feed-forward networks */
#define MOE_TRAIT_INDEXER     (UINT64_C(1) << 38)
#define MOE_TRAIT_SCAN        (UINT64_C(1) << 39)
#define MOE_TRAIT_LATENT      (UINT64_C(1) << 37) /* the routed experts work on a narrower vector */

typedef struct moe_tensor_row {
    const char *name; /* after "blk.N." */
    moe_dim n_in;
    moe_dim n_out; /* NONE: a vector, which must be F32 */
    uint64_t traits;
} moe_tensor_row;

/* Indexed by moe_layer_tensor. */
extern const moe_tensor_row moe_tensor_rows[MOE_LAYER_TENSOR_COUNT];

void moe_tensor_dims(const moe_model_config *config, uint32_t layer, uint64_t dims[MOE_DIM_COUNT]);
/* A tensor's name after "blk.N.": for some, families have their own. */
const char *moe_tensor_name(const moe_model_config *config, moe_layer_tensor tensor);
/* Whether the tensor may be absent in this model. */
bool moe_tensor_is_optional(const moe_model_config *config, moe_layer_tensor tensor);

/* Traits that follow from the config; only the file says whether attn_kv_b is present. */
uint64_t moe_layer_traits(const moe_model_config *config, uint32_t layer);

/* Whether NAME.scale may stand beside NAME.weight and scale the products of that matrix. */
bool moe_tensor_may_be_scaled(const char *name);

#endif
