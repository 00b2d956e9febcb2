/* SPDX-License-Identifier: MIT */
#include "runtime/engine/route_replay.h"

#include "cache/trace_rows.h"
#include "runtime/base/error.h"

/* Every list of a layer with experts must be a full choice. */
static int check_lists(const moe_trace *trace, const char *path, const moe_model_config *config,
                       moe_error *err)
{
    for (uint64_t row = 0; row < trace->n_rows; row++) {
        for (uint32_t l = 0; l < trace->n_layer; l++) {
            uint32_t wanted = moe_layer_has_experts(config, l) ? config->n_expert_used : 0;
            uint32_t n = moe_trace_list_of(trace, row, l).n;
            if (n != wanted) {
                return moe_fail(err, MOE_ERR_MISMATCH,
                                "%s: row %llu chooses %u experts in layer %u, the model %u", path,
                                (unsigned long long)row, n, l, wanted);
            }
        }
    }
    return MOE_OK;
}

int moe_route_replay_open(moe_trace **out, const char *path, const moe_model_config *config,
                          moe_error *err)
{
    moe_trace_open_options options;
    moe_trace_open_options_init(&options);
    options.path = path;
    int status = moe_trace_open(out, &options, err);
    if (status != MOE_OK) {
        return status;
    }
    const moe_trace *trace = *out;
    if (trace->n_layer != config->n_layer || trace->n_expert > config->n_expert ||
        trace->n_rows == 0) {
        status = moe_fail(err, MOE_ERR_MISMATCH,
                          "%s: a trace of %u layers and %u experts, but the model has %u and %u",
                          path, trace->n_layer, trace->n_expert, config->n_layer, config->n_expert);
    } else {
        status = check_lists(trace, path, config, err);
    }
    if (status != MOE_OK) {
        moe_trace_close(out);
    }
    return status;
}

void moe_route_replay(const moe_trace *trace, uint32_t layer, const moe_kv_row *rows,
                      uint32_t n_rows, uint32_t n_used, uint32_t *chosen)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        moe_trace_list list = moe_trace_list_of(trace, rows[r].position % trace->n_rows, layer);
        for (uint32_t k = 0; k < n_used; k++) {
            chosen[(size_t)r * n_used + k] = list.ids[k];
        }
    }
}
