/* SPDX-License-Identifier: MIT */
/* The scales that some files hold beside their matrices: NVFP4's, by tensor and by expert. */
#ifndef MOE_OFFLOAD_TENSOR_SCALES_H
#define MOE_OFFLOAD_TENSOR_SCALES_H

#include "offload/model_reader.h"
#include "runtime/model/tensor_map.h"

/* Reads map->scales; does nothing if the map has no ranges of scales. Fails if a scale is not a
 * finite number; the error names its tensor. */
int moe_tensor_scales_read(moe_tensor_map *map, const moe_model_reader_options *options,
                           moe_error *err);

#endif
