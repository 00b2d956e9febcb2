/* SPDX-License-Identifier: MIT */
/* The sums that an unfinished calibration has gathered, and its progress. They are saved as a whole
 * from time to time, so that a stopped calibration can continue. */
#ifndef MOE_SIDECAR_CALIBRATION_STATE_H
#define MOE_SIDECAR_CALIBRATION_STATE_H

#include "runtime/sidecar/calibration.h"
#include "runtime/pass/route_observer.h"

#define MOE_HISTOGRAM_BINS 4096u /* of [0, 1] */

typedef struct moe_calibration_state {
    moe_calibration_shape shape;
    uint64_t key;       /* of text and settings: a state with another key is not used */
    uint64_t n_tokens;  /* in all */
    uint32_t n_samples; /* tokens on which all experts are compared; evenly over the text */
    bool with_gram;

    /* Progress: tokens counted; layers whose experts' outputs, then bytes, are compared. */
    uint64_t n_done;
    uint32_t n_layers_output;
    uint32_t n_layers_weight;

    uint64_t *counts;              /* [n_layer][n_expert] */
    double *coactivation;          /* [n_layer][n_expert][n_expert], i < j only */
    double *coactivation_weighted; /* likewise */
    uint32_t *tae;                 /* [n_layer][MOE_HISTOGRAM_BINS] */
    uint32_t *margin;              /* likewise */
    float *samples;                /* [n_layer][n_samples][n_embd]: the router's inputs */
    float *gram;                   /* [n_layer][n_embd][n_embd], i <= j; NULL without */
    uint16_t *affinity_output;     /* [n_layer][n_expert][n_expert] */
    uint16_t *affinity_weight;
    uint64_t *checksums; /* [n_layer][n_expert][MOE_EXPERT_PARTS] */
} moe_calibration_state;

/* settings: shape, key, n_tokens, n_samples, with_gram. */
int moe_calibration_state_create(moe_calibration_state **out, const moe_calibration_state *settings,
                                 moe_error *err);
void moe_calibration_state_free(moe_calibration_state **state);

/* Atomic: afterwards the file is the old or the new one. */
int moe_calibration_state_save(const moe_calibration_state *state, const char *path,
                               moe_error *err);
/* Loads the file if it is whole and of the same settings: true. */
bool moe_calibration_state_resume(moe_calibration_state *state, const char *path);

/* Index of a token among the samples, or UINT32_MAX. */
uint32_t moe_calibration_sample_of(const moe_calibration_state *state, uint64_t token);

/* Adds one token's choice of experts: probs [n_expert] of all, experts [n_expert_used]. */
void moe_calibration_count(moe_calibration_state *state, uint32_t layer, const uint32_t *experts,
                           const float *probs);

/* Turns sums into tables. Router affinity is not among them. */
int moe_calibration_state_finish(const moe_calibration_state *state, moe_calibration *tables,
                                 moe_error *err);

#endif
