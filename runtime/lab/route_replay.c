/* SPDX-License-Identifier: MIT */
#include "runtime/lab/route_replay.h"

#include <stdlib.h>

#include "cache/trace_rows.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/runner.h"

/* Checks that every list of a layer with experts is a full choice. */
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

static int open_trace(moe_trace **out, const char *path, const moe_model_config *config,
                      moe_error *err)
{
    moe_trace_open_options options;
    moe_trace_open_options_init(&options);
    options.path = path;
    MOE_TRY(moe_trace_open(out, &options, err));
    const moe_trace *trace = *out;
    if (trace->n_layer != config->n_layer || trace->n_expert > config->n_expert ||
        trace->n_rows == 0) {
        return moe_fail(err, MOE_ERR_MISMATCH,
                        "%s: a trace of %u layers and %u experts, but the model has %u and %u",
                        path, trace->n_layer, trace->n_expert, config->n_layer, config->n_expert);
    }
    return check_lists(trace, path, config, err);
}

static int replay(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                  moe_error *err)
{
    const moe_trace *trace = context;
    uint32_t n_used = runner->config->n_expert_used;
    (void)err;
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        uint64_t row = pass->kv_rows[r].position % trace->n_rows;
        moe_trace_list list = moe_trace_list_of(trace, row, layer);
        for (uint32_t k = 0; k < n_used; k++) {
            runner->buffers.chosen[(size_t)r * n_used + k] = list.ids[k];
        }
    }
    return MOE_OK;
}

int moe_route_replay_open(moe_route_replay **out, const char *path, moe_runner *runner,
                          moe_error *err)
{
    moe_route_replay *r = moe_calloc(1, sizeof *r);
    *out = r;
    if (r == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to replay a routing");
    }
    int status = open_trace(&r->trace, path, runner->config, err);
    if (status == MOE_OK) {
        r->hook = (moe_pass_hook){.order = MOE_HOOK_REPLAY,
                                  .passes = MOE_HOOK_ON_ALL,
                                  .needs_host_routing = true,
                                  .context = r->trace,
                                  .after_routing = replay};
        status = moe_runner_add_hook(runner, &r->hook, err);
    }
    if (status != MOE_OK) {
        moe_route_replay_close(out);
    }
    return status;
}

void moe_route_replay_close(moe_route_replay **replay)
{
    if (*replay != NULL) {
        moe_trace_close(&(*replay)->trace);
        free(*replay);
        *replay = NULL;
    }
}
