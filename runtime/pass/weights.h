/* SPDX-License-Identifier: MIT */
/* The weights that are always in the device's memory: all except the routed experts. */
#ifndef MOE_PASS_WEIGHTS_H
#define MOE_PASS_WEIGHTS_H

#include <moe/status.h>
#include <moe/types.h>

#include "offload/model_reader.h"
#include "offload/weight_sums.h"
#include "runtime/device/device.h"
#include "runtime/model/tensor_map.h"

/* A tensor that the model lacks has data NULL. */
typedef struct moe_layer_weights {
    moe_weight tensors[MOE_LAYER_TENSOR_COUNT];
    float out_scale; /* a factor of the residual stream that the layer leaves; 1: none */
} moe_layer_weights;

typedef struct moe_weights {
    moe_weight token_embedding;
    moe_weight output_norm;
    moe_weight output_norm_bias;
    moe_weight output;
    moe_weight output_bias;
    moe_weight draft[MOE_DRAFT_TENSORS]; /* of a drafting layer; else data is NULL */
    moe_weight streams[MOE_STREAMS_TENSORS];
    float *rope_factors; /* host, [n_rot / 2], or NULL */
    /* Host, [n_rot / 2]: for contexts beyond the original one; or NULL. */
    float *rope_factors_long;
    moe_layer_weights *layers; /* [n_layer] */
    uint8_t *arena;            /* device: the memory of all weights above */
    size_t arena_bytes;
} moe_weights;

/* What to load, and how to read it. */
typedef struct moe_weights_source {
    const moe_gguf *gguf;
    const moe_model_config *config;
    const moe_tensor_map *map;
    moe_weight_sums *sums;           /* the gguf's checksums, known and to be made; or NULL */
    moe_model_reader_options reader; /* except its fields gguf, is_cancelled and cancel_user */
    /* Loads only the tensors that experts have besides their matrices: biases. */
    bool experts_only;
    uint32_t n_threads;       /* threads that touch the arena's pages ahead of the bytes */
    moe_progress_fn progress; /* false cancels; may be NULL */
    void *user;               /* progress's */
} moe_weights_source;

/* Bytes that loading will take on the device. */
uint64_t moe_weights_bytes(const moe_model_config *config, const moe_tensor_map *map,
                           bool experts_only);

/* Reads, verifies and uploads the weights. MOE_ERR_CANCELLED when the progress callback cancels;
 * MOE_ERR_IO, naming the tensor, when its bytes do not match its checksum at two readings. */
int moe_weights_load(moe_weights *weights, moe_device *device, const moe_weights_source *source,
                     moe_error *err);
void moe_weights_free(moe_weights *weights, moe_device *device);

#endif
