/* SPDX-License-Identifier: MIT */
/* How fast the disk reads a model's experts. */
#ifndef MOE_LAB_EXPERT_READ_SPEED_H
#define MOE_LAB_EXPERT_READ_SPEED_H

#include <moe/lab.h>

#include "runtime/model/tensor_map.h"

/* Measures for at most a second: ranges of the file at path, as long as an expert's parts, with as
 * many at once as a layer misses at this hit rate. Reads as the options say. */
int moe_expert_read_speed(const char *path, const moe_model_config *config,
                          const moe_tensor_map *map, double hit_rate,
                          const moe_engine_options *options, double *bytes_per_s, moe_error *err);

#endif
