/* SPDX-License-Identifier: MIT */
#include "cache/trace_rows.h"

#include <stdlib.h>
#include <string.h>

#include "cache/access_list.h"
#include "cache/trace_writer.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

moe_trace *moe_trace_new(uint32_t n_layer, uint32_t n_expert, bool has_gates)
{
    moe_trace *trace = moe_calloc(1, sizeof *trace);
    if (trace != NULL) {
        trace->n_layer = n_layer;
        trace->n_expert = n_expert;
        trace->has_gates = has_gates;
    }
    return trace;
}

void moe_trace_close(moe_trace **trace_ptr)
{
    moe_trace *trace = *trace_ptr;
    if (trace == NULL) {
        return;
    }
    free(trace->pass);
    free(trace->token);
    free(trace->sequence);
    free(trace->start);
    free(trace->ids);
    free(trace->gates);
    free(trace);
    *trace_ptr = NULL;
}

/* False when memory is short; the old array stays. */
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
    /* Lists are short: insertion. */
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
    if ((uint64_t)trace->n_layer * trace->n_expert > MOE_TRACE_MAX_KEYS) {
        return moe_fail(err, MOE_ERR_FORMAT, "%u layers of %u experts: at most %u experts in all",
                        trace->n_layer, trace->n_expert, MOE_TRACE_MAX_KEYS);
    }
    if (count_sequences(trace) != MOE_OK) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the trace");
    }
    return MOE_OK;
}

void moe_trace_get_info(const moe_trace *trace, moe_trace_info *info)
{
    *info = (moe_trace_info){.n_layer = trace->n_layer,
                             .n_expert = trace->n_expert,
                             .n_expert_used = trace->n_expert_used,
                             .n_sequences = trace->n_sequences,
                             .n_rows = trace->n_rows,
                             .n_passes = trace->n_passes,
                             .n_choices = trace->n_ids,
                             .n_accesses = moe_trace_count_accesses(trace),
                             .has_gates = trace->has_gates};
}

/* ---- Files ---- */

void moe_trace_open_options_init(moe_trace_open_options *options)
{
    *options = (moe_trace_open_options){.struct_size = sizeof *options};
}

static moe_trace_format format_of(const char *path, moe_trace_format format)
{
    if (format != MOE_TRACE_AUTO) {
        return format;
    }
    return strstr(path, ".oracleGeneral") != NULL ? MOE_TRACE_ORACLE_GENERAL : MOE_TRACE_JSONL;
}

int moe_trace_open(moe_trace **out, const moe_trace_open_options *options, moe_error *err)
{
    *out = NULL;
    if (options->struct_size != sizeof *options || options->path == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "opening a trace: set a path in options made by "
                        "moe_trace_open_options_init()");
    }
    if (options->n_expert > MOE_TRACE_MAX_EXPERTS || options->n_layer > MOE_TRACE_MAX_LAYERS) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "a trace of %u layers with %u experts: at most %u and %u are possible",
                        options->n_layer, options->n_expert, MOE_TRACE_MAX_LAYERS,
                        MOE_TRACE_MAX_EXPERTS);
    }
    switch (format_of(options->path, options->format)) {
    case MOE_TRACE_JSONL:
        return moe_trace_read_jsonl(out, options, err);
    case MOE_TRACE_ORACLE_GENERAL:
        return moe_trace_read_oracle(out, options, err);
    default:
        return moe_fail(err, MOE_ERR_ARGUMENT, "%.200s: trace format %d is not known",
                        options->path, (int)options->format);
    }
}

static int save_jsonl(const moe_trace *trace, const char *path, moe_error *err)
{
    moe_trace_writer *writer = NULL;
    int status = moe_trace_writer_open(&writer, path, trace->n_layer, trace->n_expert,
                                       trace->has_gates, err);
    for (uint64_t row = 0; status == MOE_OK && row < trace->n_rows; row++) {
        status = moe_trace_writer_begin_row(writer, trace->pass[row], trace->token[row],
                                            trace->sequence[row], err);
        for (uint32_t layer = 0; status == MOE_OK && layer < trace->n_layer; layer++) {
            moe_trace_list list = moe_trace_list_of(trace, row, layer);
            moe_trace_writer_add_list(writer, list.ids, list.gates, list.n);
        }
    }
    int closed = moe_trace_writer_close(&writer, status == MOE_OK ? err : NULL);
    return status == MOE_OK ? closed : status;
}

int moe_trace_save(const moe_trace *trace, const char *path, moe_trace_format format,
                   uint32_t expert_bytes, moe_error *err)
{
    if (format_of(path, format) == MOE_TRACE_ORACLE_GENERAL) {
        return moe_trace_write_oracle(trace, path, expert_bytes, err);
    }
    return save_jsonl(trace, path, err);
}
