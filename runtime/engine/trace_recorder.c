/* SPDX-License-Identifier: MIT */
#include "runtime/engine/trace_recorder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"

struct moe_trace_recorder {
    moe_engine *engine;
    moe_route_observer observer;
    FILE *file;
    char *path;
    bool with_gates;
    uint32_t n_used;
    uint32_t n_rows;   /* of the pass at work */
    moe_row_id *rows;  /* [max_rows] */
    uint32_t *experts; /* [n_layer][max_rows][n_used], ascending within a row */
    float *weights;    /* likewise */
};

static size_t list_at(const moe_trace_recorder *r, uint32_t layer, uint32_t row)
{
    return ((size_t)layer * r->engine->buffers.max_rows + row) * r->n_used;
}

/* Traces list experts by id: the order of their ranks is the router's own affair. */
static void sort_row(uint32_t *experts, float *weights, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        uint32_t expert = experts[i];
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
    memcpy(r->experts + first, event->experts, n * sizeof *r->experts);
    memcpy(r->weights + first, event->weights, n * sizeof *r->weights);
    for (uint32_t row = 0; row < event->n_rows; row++) {
        size_t at = list_at(r, event->layer, row);
        sort_row(r->experts + at, r->weights + at, r->n_used);
    }
    return MOE_OK;
}

static void write_lists(const moe_trace_recorder *r, uint32_t row, bool gates)
{
    const moe_model_config *c = &r->engine->config;
    for (uint32_t layer = 0; layer < c->n_layer; layer++) {
        size_t at = list_at(r, layer, row);
        uint32_t n = moe_layer_has_experts(c, layer) ? r->n_used : 0;
        fputs(layer == 0 ? "[" : ", [", r->file);
        for (uint32_t i = 0; i < n; i++) {
            const char *separator = i == 0 ? "" : ", ";
            if (gates) {
                fprintf(r->file, "%s%.9g", separator, (double)r->weights[at + i]);
            } else {
                fprintf(r->file, "%s%u", separator, r->experts[at + i]);
            }
        }
        fputs("]", r->file);
    }
}

static int on_pass_end(void *context, uint64_t pass, moe_error *err)
{
    moe_trace_recorder *r = context;
    for (uint32_t row = 0; row < r->n_rows; row++) {
        fprintf(r->file, "{\"tok\": %u, \"pass\": %llu, \"seq\": %llu, \"layers\": [",
                r->rows[row].position, (unsigned long long)pass,
                (unsigned long long)r->rows[row].sequence);
        write_lists(r, row, false);
        if (r->with_gates) {
            fputs("], \"gates\": [", r->file);
            write_lists(r, row, true);
        }
        fputs("]}\n", r->file);
    }
    r->n_rows = 0;
    if (fflush(r->file) != 0 || ferror(r->file)) {
        return moe_fail(err, MOE_ERR_IO, "%s: cannot write the trace: %s", r->path,
                        strerror(errno));
    }
    return MOE_OK;
}

static int allocate(moe_trace_recorder *r, const char *path, moe_error *err)
{
    uint32_t max_rows = r->engine->buffers.max_rows;
    size_t n = (size_t)r->engine->config.n_layer * max_rows * r->n_used;
    r->path = moe_strdup(path);
    r->rows = moe_calloc(max_rows, sizeof *r->rows);
    r->experts = moe_calloc(n, sizeof *r->experts);
    r->weights = moe_calloc(n, sizeof *r->weights);
    if (r->path == NULL || r->rows == NULL || r->experts == NULL || r->weights == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to record a trace");
    }
    r->file = fopen(path, "we");
    if (r->file == NULL) {
        return moe_fail(err, MOE_ERR_IO, "%s: cannot create the trace: %s", path, strerror(errno));
    }
    return moe_engine_attach_observer(r->engine, &r->observer, err);
}

int moe_trace_recorder_open(moe_trace_recorder **out, moe_engine *engine, const char *path,
                            bool with_gates, moe_error *err)
{
    *out = NULL;
    moe_trace_recorder *r = moe_calloc(1, sizeof *r);
    if (r == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to record a trace");
    }
    r->engine = engine;
    r->with_gates = with_gates;
    r->n_used = engine->config.n_expert_used;
    r->observer =
        (moe_route_observer){.on_route = on_route, .on_pass_end = on_pass_end, .context = r};
    int status = allocate(r, path, err);
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
    moe_engine_detach_observer(r->engine, &r->observer);
    if (r->file != NULL) {
        fclose(r->file);
    }
    free(r->path);
    free(r->rows);
    free(r->experts);
    free(r->weights);
    free(r);
    *recorder = NULL;
}
