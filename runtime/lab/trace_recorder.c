/* SPDX-License-Identifier: MIT */
#include "runtime/lab/trace_recorder.h"

#include <stdlib.h>
#include <string.h>

#include "cache/trace_writer.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/route_observer.h"
#include "runtime/pass/runner.h"

struct moe_trace_recorder {
    moe_runner *runner;
    const moe_speculation *speculation; /* NULL: off */
    moe_route_observer observer;
    moe_trace_writer *writer;
    uint32_t n_used;
    uint32_t n_rows;   /* of the current pass */
    moe_row_id *rows;  /* [max_rows] */
    uint16_t *experts; /* [n_layer][max_rows][n_used], ascending within a row */
    float *weights;    /* likewise */
};

static size_t list_at(const moe_trace_recorder *r, uint32_t layer, uint32_t row)
{
    return ((size_t)layer * r->runner->buffers.max_rows + row) * r->n_used;
}

/* Traces list experts by id, not in the router's order of ranks. */
static void sort_row(uint16_t *experts, float *weights, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        uint16_t expert = experts[i];
        float weight = weights[i];
        uint32_t at = i;
        for (; at > 0 && experts[at - 1] > expert; at--) {
            experts[at] = experts[at - 1];
            weights[at] = weights[at - 1];
        }
        experts[at] = expert;
        weights[at] = weight;
    }
}

static int on_route(void *context, const moe_route_event *event, moe_error *err)
{
    (void)err;
    moe_trace_recorder *r = context;
    size_t n = (size_t)event->n_rows * r->n_used;
    size_t first = list_at(r, event->layer, 0);
    r->n_rows = event->n_rows;
    memcpy(r->rows, event->rows, event->n_rows * sizeof *r->rows);
    for (size_t i = 0; i < n; i++) {
        r->experts[first + i] = (uint16_t)event->experts[i];
    }
    memcpy(r->weights + first, event->weights, n * sizeof *r->weights);
    for (uint32_t row = 0; row < event->n_rows; row++) {
        size_t at = list_at(r, event->layer, row);
        sort_row(r->experts + at, r->weights + at, r->n_used);
    }
    return MOE_OK;
}

/* Writes the forecasts that lookahead passed to the caches before the pass. */
static void add_forecasts(moe_trace_recorder *r, uint64_t pass)
{
    size_t n = 0;
    const moe_policy_forecast *uses =
        r->speculation != NULL ? moe_speculation_forecasts(r->speculation, pass, &n) : NULL;
    uint32_t n_expert = r->runner->config->n_expert;
    for (size_t i = 0; i < n; i++) {
        moe_trace_writer_add_forecast(r->writer, (uint32_t)(uses[i].pass - pass),
                                      uses[i].key / n_expert, uses[i].key % n_expert,
                                      uses[i].chance);
    }
}

/* The list's length without experts that a lossy mode has dropped, which are at the end. */
static uint32_t n_in_list(const uint16_t *experts, uint32_t n)
{
    while (n > 0 && experts[n - 1] == UINT16_MAX) {
        n--;
    }
    return n;
}

static int on_pass_end(void *context, uint64_t pass, moe_error *err)
{
    moe_trace_recorder *r = context;
    const moe_model_config *c = r->runner->config;
    int status = MOE_OK;
    for (uint32_t row = 0; row < r->n_rows && status == MOE_OK; row++) {
        status = moe_trace_writer_begin_row(r->writer, pass, r->rows[row].position,
                                            (uint32_t)r->rows[row].sequence, err);
        for (uint32_t layer = 0; layer < c->n_layer; layer++) {
            size_t at = list_at(r, layer, row);
            uint32_t n = moe_layer_has_experts(c, layer) ? r->n_used : 0;
            moe_trace_writer_add_list(r->writer, r->experts + at, r->weights + at,
                                      n_in_list(r->experts + at, n));
        }
        if (row == 0) {
            add_forecasts(r, pass);
        }
    }
    r->n_rows = 0;
    return status != MOE_OK ? status : moe_trace_writer_flush(r->writer, err);
}

static int allocate(moe_trace_recorder *r, const char *path, bool with_gates, moe_error *err)
{
    uint32_t max_rows = r->runner->buffers.max_rows;
    size_t n = (size_t)r->runner->config->n_layer * max_rows * r->n_used;
    r->rows = moe_calloc(max_rows, sizeof *r->rows);
    r->experts = moe_calloc(n, sizeof *r->experts);
    r->weights = moe_calloc(n, sizeof *r->weights);
    if (r->rows == NULL || r->experts == NULL || r->weights == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to record a trace");
    }
    MOE_TRY(moe_trace_writer_open(&r->writer, path, r->runner->config->n_layer,
                                  r->runner->config->n_expert, with_gates, false, err));
    return moe_runner_attach_observer(r->runner, &r->observer, err);
}

int moe_trace_recorder_open(moe_trace_recorder **out, moe_runner *runner,
                            const moe_speculation *speculation, const char *path, bool with_gates,
                            moe_error *err)
{
    *out = NULL;
    moe_trace_recorder *r = moe_calloc(1, sizeof *r);
    if (r == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to record a trace");
    }
    r->runner = runner;
    r->speculation = speculation;
    r->n_used = runner->config->n_expert_used;
    r->observer =
        (moe_route_observer){.on_route = on_route, .on_pass_end = on_pass_end, .context = r};
    int status = allocate(r, path, with_gates, err);
    if (status != MOE_OK) {
        moe_trace_recorder_close(&r);
        return status;
    }
    *out = r;
    return MOE_OK;
}

void moe_trace_recorder_close(moe_trace_recorder **recorder)
{
    moe_trace_recorder *r = *recorder;
    if (r == NULL) {
        return;
    }
    moe_runner_detach_observer(r->runner, &r->observer);
    (void)moe_trace_writer_close(&r->writer, NULL); /* every pass has already been flushed */
    free(r->rows);
    free(r->experts);
    free(r->weights);
    free(r);
    *recorder = NULL;
}
