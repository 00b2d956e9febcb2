/* SPDX-License-Identifier: MIT */
/* The sums that a calibration under way has gathered, and how far it has come. Saved whole to a
 * file now and then, so that a calibration that was stopped goes on where it was. */
#ifndef MOE_SIDECAR_CALIBRATION_STATE_H
#define MOE_SIDECAR_CALIBRATION_STATE_H

#include "runtime/sidecar/calibration.h"
#include "runtime/pass/route_observer.h"

#define MOE_HISTOGRAM_BINS 4096u /* of [0, 1] */

typedef struct moe_calibration_state {
    moe_calibration_shape shape;
    uint64_t key;       /* of text and settings: a state of another key is of no use */
    uint64_t n_tokens;  /* in all */
    uint32_t n_samples; /* tokens on which all experts are compared; evenly over the text */
    bool with_gram;

    /* How far: tokens counted; layers whose experts' outputs, then bytes, are compared. */
    uint64_t n_done;
    uint32_t n_layers_output;
    uint32_t n_layers_weight;

    uint64_t *counts;              /* [n_layer][n_expert] */
    double *coactivation;          /* [n_layer][n_expert][n_expert], i < j only */
    double *coactivation_weighted; /* likewise */
    uint32_t *tae;                 /* [n_layer][MOE_HISTOGRAM_BINS] */
    uint32_t *margin;              /* likewise */
    float *samples;                /* [n_layer][n_samples][n_embd] what the router saw */
    float *gram;                   /* [n_layer][n_embd][n_embd], i <= j; NULL without */
    uint16_t *affinity_output;     /* [n_layer][n_expert][n_expert] */
    uint16_t *affinity_weight;
    uint64_t *checksums; /* [n_layer][n_expert][MOE_EXPERT_PARTS] */
} moe_calibration_state;

/* settings: shape, key, n_tokens, n_samples, with_gram. */
int moe_calibration_state_create(moe_calibration_state **out, const moe_calibration_state *settings,
                                 moe_error *err);
void moe_calibration_state_free(moe_calibration_state **state);

/* Atomically. */
int moe_calibration_state_save(const moe_calibration_state *state, const char *path,
                               moe_error *err);
/* Takes over what the file holds when it is whole and of the same settings: true. */
bool moe_calibration_state_resume(moe_calibration_state *state, const char *path);

/* Index of a token among the samples, or UINT32_MAX. */
uint32_t moe_calibration_sample_of(const moe_calibration_state *state, uint64_t token);

/* Adds one token's choice of experts: probs [n_expert] of all, experts [n_expert_used]. */
void moe_calibration_count(moe_calibration_state *state, uint32_t layer, const uint32_t *experts,
                           const float *probs);

/* Sums become tables. Router affinity is not among them. */
int moe_calibration_state_finish(const moe_calibration_state *state, moe_calibration *tables,
                                 moe_error *err);

#endif
