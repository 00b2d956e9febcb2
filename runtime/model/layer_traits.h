/* SPDX-License-Identifier: MIT */
/* Which tensors a layer has, as properties of it. */
#ifndef MOE_MODEL_LAYER_TRAITS_H
#define MOE_MODEL_LAYER_TRAITS_H

#include <stdint.h>

/* Properties of a layer. A tensor is present if the layer has all traits in the
 * tensor's row (tensor_map_rows.h). */
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
#define MOE_TRAIT_PARALLEL    (UINT64_C(1) << 40) /* the network reads attention's norm */
#define MOE_TRAIT_LATENT      (UINT64_C(1) << 37) /* the routed experts work on a narrower vector */

#endif
