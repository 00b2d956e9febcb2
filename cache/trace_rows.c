/* SPDX-License-Identifier: MIT */
#include "cache/trace_rows.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

moe_trace *moe_trace_new(uint32_t n_layer, uint32_t n_expert, bool has_gates)
{
    moe_trace *trace = moe_calloc(1, sizeof *trace);
    if (trace != NULL) {
        trace->kept = moe_calloc(1, sizeof *trace->kept);
        if (trace->kept == NULL || pthread_mutex_init(&trace->kept->mutex, NULL) != 0) {
            free(trace->kept);
            free(trace);
            return NULL;
        }
        trace->n_layer = n_layer;
        trace->n_expert = n_expert;
        trace->has_gates = has_gates;
    }
    return trace;
}

void moe_trace_close(moe_trace **trace_ptr)
{
    moe_trace *trace = trace_ptr != NULL ? *trace_ptr : NULL;
    if (trace == NULL) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (trace->kept->lists[i] != NULL) {
            trace->kept->release(trace->kept->lists[i]);
        }
    }
    pthread_mutex_destroy(&trace->kept->mutex);
    free(trace->kept);
    free(trace->pass);
    free(trace->token);
    free(trace->sequence);
    free(trace->start);
    free(trace->ids);
    free(trace->gates);
    free(trace->forecasts);
    free(trace->forecast_pass);
    free(trace);
    *trace_ptr = NULL;
}

/* Grows an array. False: memory is short, and the old array is unchanged. */
static bool grow(void *array, size_t count, size_t size)
{
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = moe_realloc_array(old, count, size);
    if (grown != NULL) {
        memcpy(array, &grown, sizeof grown);
    }
    return grown != NULL;
}

int moe_trace_add_row(moe_trace *trace, bool new_pass, uint64_t token, uint32_t sequence)
{
    if (trace->n_rows == trace->row_capacity) {
        size_t capacity = trace->row_capacity == 0 ? 64 : trace->row_capacity * 2;
        if (!grow(&trace->pass, capacity, sizeof *trace->pass) ||
            !grow(&trace->token, capacity, sizeof *trace->token) ||
            !grow(&trace->sequence, capacity, sizeof *trace->sequence) ||
            !grow(&trace->start, capacity * trace->n_layer + 1, sizeof *trace->start)) {
            return MOE_ERR_MEMORY;
        }
        if (trace->n_rows == 0) {
            trace->start[0] = 0;
        }
        trace->row_capacity = capacity;
    }
    trace->n_passes += new_pass || trace->n_rows == 0;
    trace->pass[trace->n_rows] = trace->n_passes - 1;
    trace->token[trace->n_rows] = token;
    trace->sequence[trace->n_rows] = sequence;
    trace->n_lists = 0;
    trace->n_rows++;
    return MOE_OK;
}

static bool grow_ids(moe_trace *trace, uint32_t n)
{
    if (trace->n_ids + n <= trace->id_capacity) {
        return true;
    }
    size_t capacity = (trace->n_ids + n) * 2;
    if (!grow(&trace->ids, capacity, sizeof *trace->ids) ||
        (trace->has_gates && !grow(&trace->gates, capacity, sizeof *trace->gates))) {
        return false;
    }
    trace->id_capacity = capacity;
    return true;
}

int moe_trace_add_list(moe_trace *trace, const uint16_t *ids, const float *gates, uint32_t n)
{
    if (!grow_ids(trace, n)) {
        return MOE_ERR_MEMORY;
    }
    /* Lists are short, so insertion sort is good enough. */
    for (uint32_t i = 0; i < n; i++) {
        uint16_t id = ids[i];
        size_t at = trace->n_ids + i;
        while (at > trace->n_ids && trace->ids[at - 1] > id) {
            trace->ids[at] = trace->ids[at - 1];
            if (trace->has_gates) {
                trace->gates[at] = trace->gates[at - 1];
            }
            at--;
        }
        if ((at > trace->n_ids && trace->ids[at - 1] == id) ||
            (trace->n_expert > 0 && id >= trace->n_expert)) {
            return MOE_ERR_FORMAT;
        }
        trace->ids[at] = id;
        if (trace->has_gates) {
            trace->gates[at] = gates[i];
        }
    }
    trace->n_ids += n;
    trace->start[(trace->n_rows - 1) * trace->n_layer + ++trace->n_lists] = trace->n_ids;
    trace->n_expert_used = n > trace->n_expert_used ? n : trace->n_expert_used;
    return MOE_OK;
}

int moe_trace_add_forecast(moe_trace *trace, const moe_trace_forecast *forecast)
{
    if (forecast->layer >= trace->n_layer ||
        (trace->n_expert > 0 && forecast->expert >= trace->n_expert)) {
        return MOE_ERR_FORMAT;
    }
    if (trace->n_forecasts == trace->forecast_capacity) {
        size_t capacity = trace->forecast_capacity == 0 ? 256 : 2 * trace->forecast_capacity;
        if (!grow(&trace->forecasts, capacity, sizeof *trace->forecasts) ||
            !grow(&trace->forecast_pass, capacity, sizeof *trace->forecast_pass)) {
            return MOE_ERR_MEMORY;
        }
        trace->forecast_capacity = capacity;
    }
    trace->forecasts[trace->n_forecasts] = *forecast;
    trace->forecast_pass[trace->n_forecasts++] = trace->n_passes - 1;
    return MOE_OK;
}

static int compare_u32(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left;
    uint32_t b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static int count_sequences(moe_trace *trace)
{
    uint32_t *sorted = moe_calloc(trace->n_rows, sizeof *sorted);
    if (sorted == NULL) {
        return MOE_ERR_MEMORY;
    }
    memcpy(sorted, trace->sequence, trace->n_rows * sizeof *sorted);
    qsort(sorted, trace->n_rows, sizeof *sorted, compare_u32);
    trace->n_sequences = 1;
    for (uint64_t i = 1; i < trace->n_rows; i++) {
        trace->n_sequences += sorted[i] != sorted[i - 1];
    }
    free(sorted);
    return MOE_OK;
}

int moe_trace_finish(moe_trace *trace, moe_error *err)
{
    if (trace->n_ids == 0) {
        return moe_fail(err, MOE_ERR_FORMAT, "the trace chooses no expert at all");
    }
    for (size_t i = 0; i < trace->n_ids && trace->n_expert < MOE_TRACE_MAX_EXPERTS; i++) {
        if (trace->ids[i] >= trace->n_expert) {
            trace->n_expert = trace->ids[i] + 1u;
        }
    }
    for (size_t i = 0; i < trace->n_forecasts; i++) {
        if (trace->forecasts[i].expert >= trace->n_expert) {
            trace->n_expert = trace->forecasts[i].expert + 1u;
        }
    }
    if ((uint64_t)trace->n_layer * trace->n_expert > MOE_TRACE_MAX_KEYS) {
        return moe_fail(err, MOE_ERR_FORMAT, "%u layers of %u experts: at most %u experts in all",
                        trace->n_layer, trace->n_expert, MOE_TRACE_MAX_KEYS);
    }
    if (count_sequences(trace) != MOE_OK) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the trace");
    }
    return MOE_OK;
}
