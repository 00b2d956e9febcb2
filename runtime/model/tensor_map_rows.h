/* SPDX-License-Identifier: MIT */
/* Each tensor of a layer as data: its name, when it is present, and its shape. */
#ifndef MOE_MODEL_TENSOR_MAP_ROWS_H
#define MOE_MODEL_TENSOR_MAP_ROWS_H

#include "runtime/model/layer_traits.h"
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
