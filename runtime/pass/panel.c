/* SPDX-License-Identifier: MIT */
/* Panels: the rows of long prompts, more than a pass holds. Computes one layer for all of these
 * rows, chunk by chunk, before the next layer begins. So each expert is read once for all of them.
 */
#include "cache/expert_cache.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/panel_block.h"
#include "runtime/pass/position_index.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/routing.h"
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

/* Uploads what the layer before left for the rows. */
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

static int bring_or_embed(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    return pass->panel->layer > 0 ? bring_rows(runner, pass, err)
                                  : moe_program_front(runner, pass, err);
}

/* Takes the chunk through the whole layer. */
static int run_layer(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const uint32_t layer = pass->panel->layer;
    MOE_TRY(bring_or_embed(runner, pass, err));
    MOE_TRY(moe_pass_queue_layer(runner, pass, layer, err));
    return layer + 1 < runner->config->n_layer ? fetch_rows(runner, pass, err) : MOE_OK;
}

static moe_run run_of(moe_runner *runner, const moe_pass *pass)
{
    return (moe_run){
        .runner = runner, .pass = pass, .layer = pass->panel->layer, .n_rows = pass->n_rows};
}

/* Mixes and routes a chunk of a block. */
static int mix(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_program_layer *l = &runner->program->layers[pass->panel->layer];
    const moe_run run = run_of(runner, pass);
    runner->prefetches = false; /* the next layer's experts must not be requested yet */
    MOE_TRY(bring_or_embed(runner, pass, err));
    int status = moe_program_run(&run, (moe_span){l->first, l->rest + 1}, err);
    MOE_TRY(moe_place_collect(runner->at_host, status, err));
    MOE_TRY(moe_panel_block_keep(runner, pass, err));
    return fetch_rows(runner, pass, err);
}

/* Computes what follows the experts' sum, for a chunk of a block. Before that it repeats the
 * operations between the mixer and the routing. */
static int rest(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const uint32_t layer = pass->panel->layer;
    const moe_program_layer *l = &runner->program->layers[layer];
    const moe_run run = run_of(runner, pass);
    const moe_device_ops *ops = runner->device->ops;
    const size_t bytes = chunk_bytes(runner, pass);
    float *x = runner->buffers.values[MOE_VALUE_X];
    MOE_TRY(ops->upload(runner->device, x, pass->panel->x, bytes, err));
    MOE_TRY(moe_program_run(&run, (moe_span){l->mixed, l->rest}, err));
    if (runner->prefetches) {
        MOE_TRY(moe_predict_next_layer(runner, pass, layer, err));
    }
    MOE_TRY(moe_panel_block_bring(runner, pass, err));
    MOE_TRY(moe_program_run(&run, (moe_span){l->rest + 3, l->summed}, err));
    MOE_TRY(moe_hooks_after_experts(runner, pass, layer, err));
    MOE_TRY(moe_program_run(&run, (moe_span){l->summed, l->end}, err));
    return layer + 1 < runner->config->n_layer
               ? ops->download(runner->device, pass->panel->x, x, bytes, err)
               : MOE_OK;
}

static int run_part(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_panel_chunk *panel = pass->panel;
    moe_step_inputs inputs;
    if (pass->is_cancelled != NULL && pass->is_cancelled(pass->cancel_user)) {
        moe_expert_store_note_cancel(runner->experts);
        return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
    }
    int status = moe_pass_begin_step(runner, pass, &inputs, err);
    if (status == MOE_OK) {
        static int (*const parts[])(moe_runner *, const moe_pass *,
                                    moe_error *) = {[MOE_PANEL_LAYER] = run_layer,
                                                    [MOE_PANEL_MIX] = mix,
                                                    [MOE_PANEL_EXPERTS] = moe_panel_block_serve,
                                                    [MOE_PANEL_REST] = rest};
        status = parts[panel->part](runner, pass, err);
    }
    status = moe_pass_end_step(runner, status, err);
    const bool ends = panel->layer + 1 == runner->config->n_layer &&
                      (panel->part == MOE_PANEL_LAYER || panel->part == MOE_PANEL_REST);
    return status == MOE_OK && ends ? moe_pass_finish(runner, pass, err) : status;
}

int moe_panel_run_chunk(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_panel_chunk *panel = pass->panel;
    MOE_ASSERT(pass->kind == MOE_PASS_EXACT && pass->n_rows <= runner->buffers.max_rows);
    MOE_ASSERT(panel->layer < runner->config->n_layer);
    MOE_ASSERT((panel->part == MOE_PANEL_LAYER) == (panel->block == NULL));
    const uint32_t behind = panel->layer + (panel->part == MOE_PANEL_REST);
    runner->prefetches = runner->prefetch != MOE_PREFETCH_OFF;
    moe_expert_store_scan(runner->experts, behind, 0);
    int status = run_part(runner, pass, err);
    moe_expert_store_scan(runner->experts, MOE_NO_SCAN, 0);
    if (status == MOE_OK) {
        moe_expert_store_end_pass(runner->experts, runner->n_passes++);
    }
    return status;
}

moe_panel_slots moe_panel_count_slots(const moe_runner *runner, uint32_t layer)
{
    const uint32_t n_missing = moe_expert_store_n_without_slot(runner->experts, layer);
    moe_expert_store_scan(runner->experts, layer, 0);
    const uint32_t room = moe_expert_store_scan_room(runner->experts, layer);
    const uint32_t spare = moe_expert_store_scan_spare(runner->experts, layer);
    moe_expert_store_scan(runner->experts, MOE_NO_SCAN, 0);
    return (moe_panel_slots){.lacks = n_missing > room ? n_missing - room : 0, .spare = spare};
}
