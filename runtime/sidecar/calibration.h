/* SPDX-License-Identifier: MIT */
/* The results of a calibration, in memory and as the sidecar file beside the model: a small GGUF
 * file of these keys and tensors (N experts, L layers; a layer without experts has zeros, and
 * neighbours in the order of their numbers).
 *
 *   moe-cal.version, .tables, .n_layer, .n_expert, .n_expert_used, .n_embd   u32
 *   moe-cal.model.fingerprint, .text.tokens, .learned.tokens, .checksum, .gram.checksum  u64
 *   moe-cal.text.name                                               string
 *   counts                 I64 [L][N]      tokens that chose the expert
 *   coactivation           F32 [L][N][N]   tokens that chose both; the diagonal is 0
 *   coactivation.weighted  F32 [L][N][N]   the same, each token counted min(p_i, p_j), p
 *                                          renormalised over its chosen experts
 *   tae.percentiles        F32 [L][99]     entropy of the chosen experts' p, over log k
 *   margin.percentiles     F32 [L][99]     largest p minus second largest
 *   affinity.output        I16 [L][N][N]   row i: the experts from the nearest to i (i itself) on
 *   affinity.weight, affinity.coact, affinity.router   the same by other kinds of nearness
 *   checksums              I64 [L][N][3]   XXH3 of the expert's gate, up and down bytes
 *   gram                   F32 [L][n_embd][n_embd]  X^T X of what the routers saw; optional
 *   tensor.checksums       I64 [T]         XXH3 of each of the model's T tensors, 0 for those of
 *                                          experts; earlier versions lack this and the following
 *   model.samples          I64 [32]        XXH3 of the samples of weights in the fingerprint
 *   moe-cal.model.header  u64              the model's fingerprint without its weights
 *   moe-cal.integrity.checksum  u64        of tensor.checksums, model.samples and model.header
 *   drafts                 F32 [4][318]    results of length control (draft_habits.h); only if
 *   moe-cal.drafts.checksum  u64           drafts were made and saved. Its checksum
 *
 * .tables is 10. It is 1 if there was no calibration and only conversations were counted (/learn);
 * the file then has no table except counts. .text.tokens is the number of tokens in counts;
 * .learned.tokens is how many of these conversations have added. They add only to counts.
 *
 * .checksum is XXH3 over the tensors in this order, seeded with the fingerprint. The Gram matrices
 * have a checksum of their own, .gram.checksum, so that they are only read if they are wanted. */
#ifndef MOE_SIDECAR_CALIBRATION_H
#define MOE_SIDECAR_CALIBRATION_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/moe.h>

#include "runtime/sidecar/draft_habits.h"
#include "runtime/sidecar/fingerprint.h"
#include "runtime/model/tensor_map.h"

#define MOE_PERCENTILES 99u /* 1, 2, ... 99 */

/* How the nearness of two experts of a layer is defined. */
typedef enum moe_affinity {
    MOE_AFFINITY_OUTPUT, /* mean L2 distance of their outputs on sampled tokens */
    MOE_AFFINITY_WEIGHT, /* L2 distance of their weights */
    MOE_AFFINITY_COACT,  /* weighted co-activation, most first */
    MOE_AFFINITY_ROUTER, /* L2 distance of their rows in the router */
    MOE_AFFINITY_KINDS
} moe_affinity;

/* The sizes that the tables of a sidecar must match. */
typedef struct moe_calibration_shape {
    uint64_t fingerprint;
    uint32_t n_layer;
    uint32_t n_expert;
    uint32_t n_expert_used;
    uint32_t n_embd;
} moe_calibration_shape;

/* Which tables a file has. */
typedef enum moe_calibration_extent {
    MOE_CALIBRATION_HOTNESS, /* counts */
    MOE_CALIBRATION_TABLES,  /* all but gram */
    MOE_CALIBRATION_GRAM     /* and gram */
} moe_calibration_extent;

/* The tables of a sidecar in memory. A table that the file lacks is NULL. */
typedef struct moe_calibration {
    moe_calibration_shape shape;
    char *text_name;
    uint64_t n_tokens;                      /* the tokens that `counts` counts */
    uint64_t n_learned;                     /* of n_tokens, those that conversations added */
    uint64_t *counts;                       /* [n_layer][n_expert] */
    float *coactivation;                    /* [n_layer][n_expert][n_expert] */
    float *coactivation_weighted;           /* [n_layer][n_expert][n_expert] */
    float *tae;                             /* [n_layer][MOE_PERCENTILES] */
    float *margin;                          /* [n_layer][MOE_PERCENTILES] */
    uint16_t *affinity[MOE_AFFINITY_KINDS]; /* [n_layer][n_expert][n_expert] */
    uint64_t *checksums;                    /* [n_layer][n_expert][MOE_EXPERT_PARTS] */
    float *gram;                            /* [n_layer][n_embd][n_embd] or NULL */
    /* These tables distinguish a damaged model from another one, and find the damaged tensor.
     * Sidecars of earlier versions, and those of conversations alone, lack them. */
    uint64_t header;
    uint32_t n_samples;
    uint64_t samples[MOE_IDENTITY_SAMPLES]; /* as in the model's identity */
    uint32_t n_tensors;
    uint64_t *tensor_checksums; /* [n_tensors], see moe_model_checksums(); or NULL */
    moe_draft_habits *drafts;   /* or NULL */
} moe_calibration;

/* Creates a calibration whose tables are filled with zeros. */
int moe_calibration_create(moe_calibration **out, const moe_calibration_shape *shape,
                           const char *text_name, moe_calibration_extent extent, moe_error *err);
void moe_calibration_free(moe_calibration **calibration);

/* Writes the file atomically: afterwards it is the old or the new one. */
int moe_calibration_save(const moe_calibration *calibration, const char *path, moe_error *err);

/* Whether the calibration has all tables. A sidecar that only conversations made has hotness
 * alone. */
bool moe_calibration_has_tables(const moe_calibration *calibration);
/* Fails with MOE_ERR_ARGUMENT if the calibration only has hotness, because `what` needs the other
 * tables, too. */
/* Fails with MOE_ERR_ARGUMENT: `what` needs a calibration, but the model has none. */
int moe_calibration_fail_missing(const char *what, const moe_engine_options *options,
                                 moe_error *err);
int moe_calibration_need_tables(const moe_calibration *calibration, const char *model_path,
                                const char *what, moe_error *err);

/* Adds the choices of n_tokens tokens; counts: [n_layer][n_expert], none above n_tokens. */
void moe_calibration_learn(moe_calibration *calibration, const uint64_t *counts, uint64_t n_tokens);

/* Stores what length control has learnt about drafts. */
int moe_calibration_learn_drafts(moe_calibration *calibration, const moe_draft_habits *drafts,
                                 moe_error *err);

/* Allocates tensor_checksums for n_tensors tensors. */
int moe_calibration_make_tensors(moe_calibration *calibration, uint32_t n_tensors, moe_error *err);

/* Loads a sidecar. The file may be hostile, so everything in it is checked. Fails with
 * MOE_ERR_MISMATCH if it belongs to another model, to other weights, or to an earlier version
 * that did not record the weights. If the expected fingerprint is 0, other weights are accepted.
 * Gram matrices are only loaded on request. Of `reading`, only the time-out and is_cancelled are
 * used; NULL: 30 seconds, and no cancelling. */
int moe_calibration_load(moe_calibration **out, const char *path,
                         const moe_calibration_shape *expected, bool with_gram,
                         const moe_model_reader_options *reading, moe_error *err);

/* Returns the path of a model's sidecar: MODEL.gguf -> MODEL.moe-cal.gguf. Release it with
 * free(). NULL: memory is short. */
char *moe_calibration_default_path(const char *model_path);

/* Returns each expert's share of its layer's choices, [n_layer][n_expert]. Release it with
 * free(). */
float *moe_calibration_hotness(const moe_calibration *calibration);

/* Lists a layer's experts, the most often chosen first; of equally often chosen ones, the lower
 * id first. */
void moe_calibration_hottest(const moe_calibration *calibration, uint32_t layer, uint32_t *experts);
/* Lists the keys of the n_kept hottest experts of every layer that has experts. Release *keys
 * with free(). */
int moe_calibration_hottest_of_layers(const moe_calibration *calibration,
                                      const moe_model_config *config, uint32_t n_kept,
                                      uint32_t **keys, uint32_t *n, moe_error *err);

#endif
