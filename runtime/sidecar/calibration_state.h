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
    uint32_t n_samples; /* tokens on which all experts are compared, spread evenly over the text */
    bool with_gram;

    /* Progress: the number of tokens counted, of layers whose experts' outputs are compared, and
     * of layers whose experts' weights are compared. */
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

/* Creates the state. Of `settings`, the shape, key, n_tokens, n_samples and with_gram are used. */
int moe_calibration_state_create(moe_calibration_state **out, const moe_calibration_state *settings,
                                 moe_error *err);
void moe_calibration_state_free(moe_calibration_state **state);

/* Writes the file atomically: afterwards it is the old or the new one. */
int moe_calibration_state_save(const moe_calibration_state *state, const char *path,
                               moe_error *err);
/* Continues from the file, if it is complete and has the same settings. Returns whether it did. */
bool moe_calibration_state_resume(moe_calibration_state *state, const char *path);

/* Returns which sample the token is, or UINT32_MAX if it is none. */
uint32_t moe_calibration_sample_of(const moe_calibration_state *state, uint64_t token);

/* Counts one token's choice of experts. probs: [n_expert], the router's probabilities; experts:
 * [n_expert_used], the chosen ones. */
void moe_calibration_count(moe_calibration_state *state, uint32_t layer, const uint32_t *experts,
                           const float *probs);

/* Computes the tables from the sums, except the ranking by router rows. */
int moe_calibration_state_finish(const moe_calibration_state *state, moe_calibration *tables,
                                 moe_error *err);

#endif
