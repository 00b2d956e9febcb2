/* SPDX-License-Identifier: MIT */
/* Finds a model's tensors by their place in the files. */
#ifndef MOE_OFFLOAD_MODEL_TENSORS_H
#define MOE_OFFLOAD_MODEL_TENSORS_H

#include "offload/model_reader.h"

/* Sets *index to the tensor of the gguf that begins where the range does; false if none does. */
bool moe_model_tensor_at(const moe_gguf *gguf, const moe_model_range *range, size_t *index);

/* Returns MOE_ERR_IO: the tensor's bytes do not match its checksum. */
int moe_fail_damaged_tensor(moe_error *err, const moe_gguf *gguf, size_t index);

/* Returns MOE_ERR_FORMAT: values of the tensor, or scales of its blocks, are NaN or infinite. */
int moe_fail_infinite_tensor(moe_error *err, const moe_gguf *gguf, size_t index);

#endif
