/* SPDX-License-Identifier: MIT */
/* Measures how fast the disk reads a model's experts. */
#ifndef MOE_LAB_EXPERT_READ_SPEED_H
#define MOE_LAB_EXPERT_READ_SPEED_H

#include <moe/lab.h>

#include "runtime/model/tensor_map.h"

/* Reads ranges of the file at path for at most a second, in the way that the options set. The
 * ranges are as long as an expert's parts, and as many are read at once as a layer misses at this
 * hit rate. */
int moe_expert_read_speed(const char *path, const moe_model_config *config,
                          const moe_tensor_map *map, double hit_rate,
                          const moe_engine_options *options, double *bytes_per_s, moe_error *err);

#endif
