/* SPDX-License-Identifier: MIT */
/* Everything that a pass needs to run: the device, the model's config and weights, memory for the
 * rows, keys and values, the experts. An engine owns one runner. The runner knows neither sessions
 * nor features: a feature that watches or changes a pass adds a hook (pass_hooks.h). */
#ifndef MOE_PASS_RUNNER_H
#define MOE_PASS_RUNNER_H

#include <moe/plan.h>
#include <moe/status.h>
#include <moe/types.h>

#include "offload/expert_store.h"
#include "offload/row_table.h"
#include "runtime/device/device.h"
#include "runtime/model/model_config.h"
#include "runtime/pass/kv_cache.h"
#include "runtime/pass/pass.h"
#include "runtime/pass/pass_hooks.h"
#include "runtime/pass/state_pool.h"
#include "runtime/pass/trial_gate.h"
#include "runtime/pass/weights.h"
#include "runtime/place/place.h"
#include "runtime/place/place_split.h"

typedef enum moe_prefetch_mode {
    MOE_PREFETCH_OFF,
    MOE_PREFETCH_ON,
    MOE_PREFETCH_TRIED /* while it makes passes faster, which prefetch_gate decides */
} moe_prefetch_mode;

/* Copies of the residual stream as it is before each of the layers listed in `layers`, for all
 * rows of the last pass that was not a draft. No copy is made for a layer that the model does
 * not have. */
#define MOE_MOST_TAPS 3u
typedef struct moe_layer_taps {
    uint32_t layers[MOE_MOST_TAPS];
    float *x[MOE_MOST_TAPS]; /* device, [max rows][n_embd] */
} moe_layer_taps;

struct moe_runner {
    /* Set when the engine is opened, and owned by the engine. */
    const char *model_path; /* for messages */
    moe_device *device;
    const moe_model_config *config;
    const moe_program *program; /* the model's program */
    const moe_op_body *bodies;  /* [MOE_OPS]: moe_op_bodies of program_run.h */
    const moe_weights *weights;
    const float *rope_frequencies;   /* [n_rot / 2] */
    const float *window_frequencies; /* [window_n_rot / 2], for layers with a window; or NULL */
    const moe_memory_plan *plan;
    moe_kv_pool *kv;
    moe_state_pool *states;
    moe_expert_store *experts;
    moe_row_table *ngrams; /* NULL: the model has no table */
    moe_dtype ngrams_type;
    moe_place *at_host;         /* NULL: experts are computed on the device only */
    const moe_layer_taps *taps; /* NULL: the stream between layers is not read */
    moe_prefetch_mode prefetch;
    moe_log_fn log;
    void *user;

    /* Changed by passes; one pass runs at a time. */
    moe_pass_buffers buffers;
    moe_device_place at_device; /* computes the experts that are in the device's slots */
    moe_place_split split;      /* divides experts between the two places */
    moe_pass_hook *hooks;       /* a list, ordered by moe_hook_order */
    moe_trial_gate prefetch_gate;
    bool prefetches;         /* this pass prefetches */
    uint64_t n_pass_experts; /* distinct experts that this pass has requested, in all layers */
    uint64_t n_passes;
    uint64_t n_predicted, n_predicted_right;
    bool fronts_refused; /* the device has refused to record the fronts of layers */
};

/* A tensor of a layer, by its name in tensor_map.h (MOE_LAYER_*); data is NULL if the model lacks
 * it. */
static inline const moe_weight *moe_layer_weight(const moe_runner *runner, uint32_t layer,
                                                 int tensor)
{
    return &runner->weights->layers[layer].tensors[tensor];
}

#endif
