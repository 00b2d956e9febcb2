/* SPDX-License-Identifier: MIT */
/* Panels: a layer for all rows before the next one, chunk by chunk. */
#include "cache/expert_cache.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/pass.h"
#include "runtime/pass/position_index.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/runner.h"
#include "runtime/program/op_forms.h"

static bool hooks_take_panels(const moe_runner *runner)
{
    for (const moe_pass_hook *hook = runner->hooks; hook != NULL; hook = hook->next) {
        if ((hook->passes & MOE_HOOK_ON_EXACT) != 0 && !hook->takes_panels) {
            return false;
        }
    }
    return true;
}

bool moe_panel_is_possible(const moe_runner *runner)
{
    return runner->taps == NULL && moe_program_is_by_stream(runner->program) &&
           hooks_take_panels(runner);
}

static size_t chunk_bytes(const moe_runner *runner, const moe_pass *pass)
{
    return (size_t)pass->n_rows * runner->program->n_floats[MOE_VALUE_X] * sizeof(float);
}

/* What the rows had when the layer before was done. */
static int bring_rows(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_panel_chunk *panel = pass->panel;
    MOE_TRY(runner->device->ops->upload(runner->device, runner->buffers.values[MOE_VALUE_X],
                                        panel->x, chunk_bytes(runner, pass), err));
    if (panel->chosen != NULL && moe_pass_chooses(runner->config, pass)) {
        MOE_TRY(moe_index_bring(runner, pass, panel->chosen, err));
    }
    return MOE_OK;
}

static int fetch_rows(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_panel_chunk *panel = pass->panel;
    int status =
        runner->device->ops->download(runner->device, panel->x, runner->buffers.values[MOE_VALUE_X],
                                      chunk_bytes(runner, pass), err);
    if (status == MOE_OK && panel->chosen != NULL && moe_pass_chooses(runner->config, pass)) {
        status = moe_index_fetch(runner, pass, panel->chosen, err);
    }
    return status;
}

static int run_layer(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const uint32_t layer = pass->panel->layer;
    const bool is_last = layer + 1 == runner->config->n_layer;
    moe_step_inputs inputs;
    int status = moe_pass_begin_step(runner, pass, &inputs, err);
    if (status == MOE_OK) {
        status = layer > 0 ? bring_rows(runner, pass, err) : moe_program_front(runner, pass, err);
    }
    if (status == MOE_OK) {
        status = moe_pass_queue_layer(runner, pass, layer, err);
    }
    if (status == MOE_OK && !is_last) {
        status = fetch_rows(runner, pass, err);
    }
    status = moe_pass_end_step(runner, status, err);
    return status == MOE_OK && is_last ? moe_pass_finish(runner, pass, err) : status;
}

int moe_panel_run_chunk(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    MOE_ASSERT(pass->kind == MOE_PASS_EXACT && pass->n_rows <= runner->buffers.max_rows);
    MOE_ASSERT(pass->panel->layer < runner->config->n_layer);
    runner->prefetches = runner->prefetch != MOE_PREFETCH_OFF;
    moe_expert_store_scan(runner->experts, pass->panel->layer);
    int status = run_layer(runner, pass, err);
    moe_expert_store_scan(runner->experts, MOE_NO_SCAN);
    if (status == MOE_OK) {
        moe_expert_store_end_pass(runner->experts, runner->n_passes++);
    }
    return status;
}
