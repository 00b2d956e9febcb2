/* SPDX-License-Identifier: MIT */
/* Lists all weights of a model's files as parts: the gate, up and down matrix of each expert, and
 * every other tensor. There is one checksum for each part. */
#ifndef MOE_SIDECAR_MODEL_PARTS_H
#define MOE_SIDECAR_MODEL_PARTS_H

#include "offload/model_reader.h"
#include "runtime/sidecar/calibration.h"
#include "runtime/model/tensor_map.h"

typedef struct moe_model_part {
    moe_model_range range;
    uint32_t tensor; /* index of a tensor of the gguf */
    bool is_expert;
    uint32_t layer, expert; /* if the part belongs to an expert */
    moe_expert_part part;
} moe_model_part;

/* Lists the parts in the order of their bytes in the files. map: NULL for a file that the engine
 * cannot run; its parts are its tensors. Release *parts with free(). */
int moe_model_parts_list(const moe_gguf *gguf, const moe_tensor_map *map, moe_model_part **parts,
                         size_t *n, moe_error *err);

/* Whether the calibration is of this model, and some of the model's bytes have changed since: the
 * header is the same, and so are most samples of the weights. *tensor: one that has changed. */
bool moe_calibration_tells_damage(const moe_calibration *calibration,
                                  const moe_model_identity *identity, size_t *tensor);

/* Computes the XXH3 of every tensor without experts, 0 for the others: [n tensors of the gguf].
 * Reads all tensors without experts. */
int moe_model_checksums(moe_model_reader *reader, const moe_gguf *gguf, const moe_tensor_map *map,
                        uint64_t *checksums, moe_error *err);

#endif
