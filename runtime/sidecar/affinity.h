/* SPDX-License-Identifier: MIT */
/* Orders the experts of a layer by how near they are to each other: row i lists all experts by
 * their distance from i, beginning with i itself. Experts at the same distance are in the order of
 * ids. */
#ifndef MOE_SIDECAR_AFFINITY_H
#define MOE_SIDECAR_AFFINITY_H

#include <moe/status.h>

#include "cpu/blas_load.h"
#include "cpu/kernels/matmul.h"
#include "offload/model_reader.h"
#include "runtime/model/tensor_map.h"

/* Ranks the experts by their distances. distances: [n][n], of which only the entries with i < j
 * are read; order: [n][n]. */
int moe_affinity_rank(const double *distances, uint32_t n, uint16_t *order, moe_error *err);
/* Ranks experts by how often they are used together: more often means nearer. coactivation:
 * [n][n], symmetric. */
int moe_affinity_by_coactivation(const float *coactivation, uint32_t n, uint16_t *order,
                                 moe_error *err);

/* Sets the distances (i < j) of experts from their outputs on the same rows: the mean over the
 * rows of the L2 distance. outputs: [n_expert][n_rows][n_embd]. */
void moe_affinity_of_outputs(const float *outputs, uint32_t n_expert, uint32_t n_rows,
                             uint32_t n_embd, double *distances);

typedef struct moe_weight_reader {
    moe_model_reader *files;
    const moe_tensor_map *map;
    moe_matmul_kernels kernels; /* their dequantisers */
    moe_blas blas;              /* loaded */
} moe_weight_reader;

/* Reads a layer's experts from the file, once and in chunks. Ranks them by the L2 distance of
 * their dequantised weights, and computes the XXH3 checksum of every part
 * ([n_expert][MOE_EXPERT_PARTS]). */
int moe_affinity_of_weights(const moe_weight_reader *reader, uint32_t layer, uint16_t *order,
                            uint64_t *checksums, moe_error *err);
/* Ranks the experts by the L2 distance of their rows in the router's matrix. */
int moe_affinity_of_router(const moe_weight_reader *reader, uint32_t layer, uint16_t *order,
                           moe_error *err);

#endif
