/* SPDX-License-Identifier: MIT */
/* The phases of a calibration that follow the text: compare each layer's experts by their outputs
 * and by their weights, and write the sidecar. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/expert_form.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/runner.h"
#include "runtime/place/place.h"
#include "runtime/sidecar/calibration_work.h"
#include "runtime/sidecar/checksum_book.h"
#include "runtime/sidecar/model_parts.h"

/* ---- Outputs ---- */

/* Runs one expert on the experts' input in the buffers. */
static int run_expert(moe_calibration_run *run, uint32_t layer, uint32_t expert,
                      const moe_expert_view *view, float *out, moe_error *err)
{
    moe_pass_buffers *b = &run->parts.runner->buffers;
    moe_device *device = run->parts.runner->device;
    uint32_t n = run->state->n_samples;
    uint32_t width = run->parts.model.config->n_expert_in;
    moe_expert_work work = moe_expert_work_of(run->parts.runner, layer, expert, view);
    work.n_rows = n;
    float *outs = b->values[MOE_VALUE_RANK_OUT];
    const float *x = moe_experts_x(run->parts.runner, layer);
    moe_device_place place;
    moe_device_place_init(&place, device, width, false);
    const moe_place_job job = {.x = x, .n_x_rows = n, .works = &work, .n_works = 1, .out = outs};
    MOE_TRY(moe_place_compute(&place.base, &job, err));
    return device->ops->download(device, out, outs, (size_t)n * width * sizeof(float), err);
}

/* Runs every expert of the layer on the samples, in the order in which the store delivers the
 * experts. outputs: [n_expert][n_samples][n_expert_in]. */
static int run_all_experts(moe_calibration_run *run, uint32_t layer, float *outputs, moe_error *err)
{
    moe_runner *runner = run->parts.runner;
    moe_pass_buffers *b = &runner->buffers;
    uint32_t n_expert = run->state->shape.n_expert;
    size_t stride = (size_t)run->state->n_samples * run->parts.model.config->n_expert_in;
    moe_layer_plan *plan = &b->plan;
    for (uint32_t e = 0; e < n_expert; e++) {
        plan->experts[e] = e;
        b->n_rows_of[e] = run->state->n_samples;
        b->gates[e] = 0.0f;
    }
    moe_layer_request request = {.layer = layer,
                                 .pass = runner->n_passes,
                                 .experts = plan->experts,
                                 .n_rows = b->n_rows_of,
                                 .gates = b->gates,
                                 .n = n_expert,
                                 .cancel = {moe_calibration_is_cancelled, run}};
    int status = moe_expert_store_begin(runner->experts, &request, err);
    for (uint32_t n = 1; status == MOE_OK && n > 0;) {
        status = moe_expert_store_next(runner->experts, b->positions, b->views, &n, err);
        for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
            status = run_expert(run, layer, plan->experts[b->positions[i]], &b->views[i],
                                outputs + b->positions[i] * stride, err);
        }
    }
    if (status != MOE_OK) {
        moe_expert_store_end_layer(runner->experts);
    }
    return status;
}

static int compare_layer_outputs(moe_calibration_run *run, uint32_t layer, float *outputs,
                                 double *distances, moe_error *err)
{
    moe_calibration_state *s = run->state;
    size_t pairs = (size_t)s->shape.n_expert * s->shape.n_expert;
    size_t n = (size_t)s->n_samples * s->shape.n_embd;
    int status = MOE_OK;
    memset(distances, 0, pairs * sizeof *distances);
    if (moe_layer_has_experts(run->parts.model.config, layer)) {
        status = moe_bring_experts_x(run->parts.runner, layer, s->samples + layer * n, s->n_samples,
                                     err);
        if (status == MOE_OK) {
            status = run_all_experts(run, layer, outputs, err);
        }
        moe_affinity_of_outputs(outputs, s->shape.n_expert, s->n_samples,
                                run->parts.model.config->n_expert_in, distances);
    }
    return status != MOE_OK ? status
                            : moe_affinity_rank(distances, s->shape.n_expert,
                                                s->affinity_output + layer * pairs, err);
}

int moe_calibration_compare_outputs(moe_calibration_run *run, moe_error *err)
{
    moe_calibration_state *s = run->state;
    size_t n = (size_t)s->shape.n_expert * s->n_samples * run->parts.model.config->n_expert_in;
    float *outputs = moe_calloc_aligned(n, sizeof *outputs);
    double *distances =
        moe_calloc((size_t)s->shape.n_expert * s->shape.n_expert, sizeof *distances);
    int status = MOE_OK;
    if (outputs == NULL || distances == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory for the outputs of all experts");
    }
    while (s->n_layers_output < s->shape.n_layer && status == MOE_OK) {
        status = compare_layer_outputs(run, s->n_layers_output, outputs, distances, err);
        if (status == MOE_OK) {
            s->n_layers_output++;
            status = moe_calibration_checkpoint(
                run, MOE_CALIBRATE_OUTPUTS, (double)s->n_layers_output / (double)s->shape.n_layer,
                err);
        }
    }
    moe_expert_store_end_pass(run->parts.runner->experts, run->parts.runner->n_passes++);
    free(outputs);
    free(distances);
    return status;
}

/* ---- Weights ---- */

/* Ranks the experts of a layer that has none by their numbers, so that the table holds valid
 * values. */
static int rank_nothing(const moe_calibration_state *s, uint16_t *order, moe_error *err)
{
    size_t pairs = (size_t)s->shape.n_expert * s->shape.n_expert;
    double *distances = moe_calloc(pairs, sizeof *distances);
    int status = distances == NULL ? moe_fail(err, MOE_ERR_MEMORY, "no memory to rank experts")
                                   : moe_affinity_rank(distances, s->shape.n_expert, order, err);
    free(distances);
    return status;
}

int moe_calibration_compare_weights(moe_calibration_run *run, moe_error *err)
{
    moe_calibration_state *s = run->state;
    size_t n = s->shape.n_expert;
    while (s->n_layers_weight < s->shape.n_layer) {
        size_t layer = s->n_layers_weight;
        uint16_t *order = s->affinity_weight + layer * n * n;
        MOE_TRY(moe_layer_has_experts(run->parts.model.config, s->n_layers_weight)
                    ? moe_affinity_of_weights(&run->weights, s->n_layers_weight, order,
                                              s->checksums + layer * n * MOE_EXPERT_PARTS, err)
                    : rank_nothing(s, order, err));
        s->n_layers_weight++;
        MOE_TRY(moe_calibration_checkpoint(run, MOE_CALIBRATE_WEIGHTS,
                                           (double)s->n_layers_weight / (double)s->shape.n_layer,
                                           err));
    }
    return MOE_OK;
}

/* Adds checksums of all weights, by which later damage to the model can be found. */
static int add_integrity(moe_calibration_run *run, moe_calibration *tables, moe_error *err)
{
    const moe_sidecar_model *model = &run->parts.model;
    const moe_model_identity *identity = model->identity;
    uint32_t n = (uint32_t)moe_gguf_n_tensors(model->gguf);
    int status = moe_calibration_make_tensors(tables, n, err);
    tables->header = identity->header;
    tables->n_samples = identity->n_samples;
    memcpy(tables->samples, identity->samples, sizeof tables->samples);
    return status != MOE_OK ? status
                            : moe_model_checksums(run->weights.files, model->gguf, model->map,
                                                  tables->tensor_checksums, err);
}

int moe_calibration_write_sidecar(moe_calibration_run *run, moe_error *err)
{
    const moe_calibration_state *s = run->state;
    size_t pairs = (size_t)s->shape.n_expert * s->shape.n_expert;
    const char *name = run->options->text_name != NULL ? run->options->text_name : "";
    moe_calibration *tables = NULL;
    moe_calibration_extent extent = s->with_gram ? MOE_CALIBRATION_GRAM : MOE_CALIBRATION_TABLES;
    int status = moe_calibration_create(&tables, &s->shape, name, extent, err);
    if (status == MOE_OK) {
        status = moe_calibration_state_finish(s, tables, err);
    }
    for (uint32_t l = 0; l < s->shape.n_layer && status == MOE_OK; l++) {
        uint16_t *order = tables->affinity[MOE_AFFINITY_ROUTER] + l * pairs;
        status = moe_layer_has_experts(run->parts.model.config, l)
                     ? moe_affinity_of_router(&run->weights, l, order, err)
                     : rank_nothing(s, order, err);
    }
    if (status == MOE_OK) {
        status = add_integrity(run, tables, err);
    }
    if (status == MOE_OK) {
        status = moe_checksum_book_check_calibration(run->parts.model.book, tables, err);
        if (status == MOE_ERR_IO) {
            (void)unlink(run->partial); /* the checksums of damaged bytes may be in it */
        }
    }
    if (status == MOE_OK) {
        status = moe_calibration_save(tables, run->path, err);
    }
    moe_calibration_free(&tables);
    return status;
}
