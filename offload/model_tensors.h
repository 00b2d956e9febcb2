/* SPDX-License-Identifier: MIT */
/* Tensors of a model's files by where they lie. */
#ifndef MOE_OFFLOAD_MODEL_TENSORS_H
#define MOE_OFFLOAD_MODEL_TENSORS_H

#include "offload/model_reader.h"

/* *index: the tensor, of the gguf's, that begins where the range does; false: none does. */
bool moe_model_tensor_at(const moe_gguf *gguf, const moe_model_range *range, size_t *index);

/* MOE_ERR_IO: the tensor's bytes are not those that its checksum is of. */
int moe_fail_damaged_tensor(moe_error *err, const moe_gguf *gguf, size_t index);

/* MOE_ERR_FORMAT: values of the tensor, or scales of its blocks, are no numbers. */
int moe_fail_infinite_tensor(moe_error *err, const moe_gguf *gguf, size_t index);

#endif
