/* SPDX-License-Identifier: MIT */
/* The public functions that read or write a trace file. They recognize a file's format, and
 * describe what a trace contains. */
#include <string.h>

#include "cache/access_list.h"
#include "cache/trace_formats.h"
#include "cache/trace_rows.h"
#include "cache/trace_writer.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"

int moe_trace_get_info(const moe_trace *trace, moe_trace_info *info)
{
    if (trace == NULL) {
        return MOE_ERR_ARGUMENT;
    }
    const moe_trace_info own = {.n_layer = trace->n_layer,
                                .n_expert = trace->n_expert,
                                .n_expert_used = trace->n_expert_used,
                                .n_sequences = trace->n_sequences,
                                .n_rows = trace->n_rows,
                                .n_passes = trace->n_passes,
                                .n_choices = trace->n_ids,
                                .n_accesses = moe_trace_count_accesses(trace),
                                .has_gates = trace->has_gates,
                                .has_forecasts = trace->n_forecasts > 0};
    return moe_struct_give(&moe_kind_trace_info, info, &own, NULL);
}

void moe_trace_open_options_init_sized(moe_trace_open_options *options, size_t struct_size)
{
    const moe_trace_open_options defaults = {.struct_size = sizeof defaults};
    moe_struct_init(&moe_kind_trace_open_options, options, struct_size, &defaults);
}

static moe_trace_format format_of(const char *path, moe_trace_format format)
{
    if (format != MOE_TRACE_AUTO) {
        return format;
    }
    return strstr(path, ".oracleGeneral") != NULL ? MOE_TRACE_ORACLE_GENERAL : MOE_TRACE_JSONL;
}

static int open_trace(moe_trace **out, const moe_trace_open_options *options, moe_error *err)
{
    if (options->path == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "opening a trace: its path must be set");
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

int moe_trace_open(moe_trace **out, const moe_trace_open_options *options, moe_error *err)
{
    if (out == NULL) {
        return moe_fail_null(err, "moe_trace_open", "out");
    }
    *out = NULL;
    moe_trace_open_options own = {0};
    MOE_TRY(moe_struct_take(&moe_kind_trace_open_options, &own, options, err));
    return open_trace(out, &own, err);
}

/* Writes, together with the first row of a pass, the forecasts that were made before that pass. */
static void save_forecasts(moe_trace_writer *writer, const moe_trace *trace, uint64_t row,
                           size_t *next)
{
    for (; *next < trace->n_forecasts && trace->forecast_pass[*next] == trace->pass[row];
         (*next)++) {
        const moe_trace_forecast *f = &trace->forecasts[*next];
        moe_trace_writer_add_forecast(writer, f->passes_ahead, f->layer, f->expert, f->chance);
    }
}

static int save_jsonl(const moe_trace *trace, const char *path, moe_error *err)
{
    moe_trace_writer *writer = NULL;
    size_t next_forecast = 0;
    int status = moe_trace_writer_open(&writer, path, trace->n_layer, trace->n_expert,
                                       trace->has_gates, true, err);
    for (uint64_t row = 0; status == MOE_OK && row < trace->n_rows; row++) {
        status = moe_trace_writer_begin_row(writer, trace->pass[row], trace->token[row],
                                            trace->sequence[row], err);
        for (uint32_t layer = 0; status == MOE_OK && layer < trace->n_layer; layer++) {
            moe_trace_list list = moe_trace_list_of(trace, row, layer);
            moe_trace_writer_add_list(writer, list.ids, list.gates, list.n);
        }
        save_forecasts(writer, trace, row, &next_forecast);
    }
    int closed = moe_trace_writer_close(&writer, status == MOE_OK ? err : NULL);
    return status == MOE_OK ? closed : status;
}

int moe_trace_save(const moe_trace *trace, const char *path, moe_trace_format format,
                   uint32_t expert_bytes, moe_error *err)
{
    if (trace == NULL || path == NULL) {
        return moe_fail_null(err, "moe_trace_save", "trace or path");
    }
    if (format_of(path, format) == MOE_TRACE_ORACLE_GENERAL) {
        return moe_trace_write_oracle(trace, path, expert_bytes, err);
    }
    return save_jsonl(trace, path, err);
}
