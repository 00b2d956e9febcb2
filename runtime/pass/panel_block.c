/* SPDX-License-Identifier: MIT */
#include "runtime/pass/panel_block.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/kernels/cpu_features.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/expert_form.h"
#include "runtime/pass/program_run.h"
#include "runtime/program/op_forms.h"

/* ---- Memory ---- */

static size_t input_bytes(const moe_model_config *c, uint32_t n_rows)
{
    return moe_align64((size_t)n_rows * c->n_expert_in * sizeof(float));
}

static size_t slot_bytes(const moe_model_config *c, uint32_t n_rows)
{
    return moe_align64((size_t)n_rows * c->n_expert_used * sizeof(float));
}

static bool keeps_inputs(const moe_program *program)
{
    bool keeps = false;
    for (uint32_t l = 0; l < program->config->n_layer; l++) {
        keeps = keeps || (moe_layer_has_experts(program->config, l) &&
                          !moe_program_norms_experts_input(program, l));
    }
    return keeps;
}

static size_t mapped_bytes(const moe_program *program, uint32_t n_rows, uint32_t chunk)
{
    const moe_model_config *c = program->config;
    return (1 + keeps_inputs(program)) * input_bytes(c, n_rows) + 2 * input_bytes(c, chunk) +
           2 * slot_bytes(c, n_rows);
}

uint64_t moe_panel_block_bytes(const moe_program *program, uint32_t n_rows, uint32_t chunk)
{
    return mapped_bytes(program, n_rows, chunk) +
           2 * slot_bytes(program->config, n_rows); /* the block's and the plan's */
}

int moe_panel_block_open(moe_panel_block *block, const moe_program *program, uint32_t n_rows,
                         uint32_t chunk, moe_error *err)
{
    const moe_model_config *c = program->config;
    *block = (moe_panel_block){.max_rows = n_rows, .bytes = mapped_bytes(program, n_rows, chunk)};
    block->memory = moe_map_pages(block->bytes);
    block->views = moe_calloc(c->n_expert, sizeof *block->views);
    block->has_come = moe_calloc(c->n_expert, sizeof *block->has_come);
    block->elsewhere = moe_calloc(c->n_expert, sizeof *block->elsewhere);
    block->asked = moe_calloc(c->n_expert, sizeof *block->asked);
    block->asked_at = moe_calloc(c->n_expert, sizeof *block->asked_at);
    moe_vector_kernels_init(&block->vector, moe_cpu_features());
    int status = block->memory != NULL && block->views != NULL && block->has_come != NULL &&
                         block->elsewhere != NULL && block->asked != NULL && block->asked_at != NULL
                     ? moe_layer_plan_init(&block->plan, n_rows, c->n_expert_used, c->n_expert, err)
                     : moe_fail(err, MOE_ERR_MEMORY, "no memory for %u rows of a panel", n_rows);
    if (status != MOE_OK) {
        moe_panel_block_close(block);
        return status;
    }
    uint8_t *at = block->memory;
    if (keeps_inputs(program)) {
        block->inputs = (float *)at;
        at += input_bytes(c, n_rows);
    }
    block->sums = (float *)at;
    block->tile_x = (float *)(at += input_bytes(c, n_rows));
    block->tile_out = (float *)(at += input_bytes(c, chunk));
    block->weights = (float *)(at += input_bytes(c, chunk));
    block->chosen = (uint32_t *)(at + slot_bytes(c, n_rows));
    return MOE_OK;
}

void moe_panel_block_close(moe_panel_block *block)
{
    if (block->memory != NULL) {
        moe_unmap_pages(block->memory, block->bytes);
    }
    free(block->views);
    free(block->has_come);
    free(block->elsewhere);
    free(block->asked);
    free(block->asked_at);
    moe_layer_plan_free(&block->plan);
    *block = (moe_panel_block){.memory = NULL};
}

void moe_panel_block_begin(moe_panel_block *block, uint32_t first, uint32_t n_rows)
{
    MOE_ASSERT(n_rows <= block->max_rows);
    block->first = first;
    block->n_rows = n_rows;
    block->n_served = block->n_begun = 0;
    block->is_planned = false;
    /* Rows that bring no choices keep MOE_PLAN_NO_EXPERT. */
    const size_t n_slots = (size_t)n_rows * (block->plan.max_slots / block->max_rows);
    memset(block->chosen, 0xff, n_slots * sizeof *block->chosen);
    _Static_assert(MOE_PLAN_NO_EXPERT == UINT32_MAX, "all bits are set");
}

bool moe_panel_block_is_served(const moe_panel_block *block)
{
    return block->is_planned && block->n_served == block->plan.n_experts;
}

/* ---- Chunks ---- */

/* The index, in the block, of the pass's first row. */
static uint32_t row_of(const moe_pass *pass)
{
    const moe_panel_chunk *panel = pass->panel;
    MOE_ASSERT(panel->first >= panel->block->first &&
               panel->first + pass->n_rows <= panel->block->first + panel->block->n_rows);
    return panel->first - panel->block->first;
}

int moe_panel_block_keep(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_model_config *c = runner->config;
    const moe_pass_buffers *b = &runner->buffers;
    moe_panel_block *block = pass->panel->block;
    const size_t row = row_of(pass);
    const size_t n_slots = (size_t)pass->n_rows * c->n_expert_used;
    memcpy(block->chosen + row * c->n_expert_used, b->chosen, n_slots * sizeof *b->chosen);
    memcpy(block->weights + row * c->n_expert_used, b->chosen_weights,
           n_slots * sizeof *b->chosen_weights);
    if (block->inputs == NULL) {
        return MOE_OK;
    }
    return runner->device->ops->download(runner->device, block->inputs + row * c->n_expert_in,
                                         moe_experts_x(runner, pass->panel->layer),
                                         (size_t)pass->n_rows * c->n_expert_in * sizeof(float),
                                         err);
}

int moe_panel_block_bring(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const size_t n_in = runner->config->n_expert_in;
    const moe_op *combine = moe_experts_op(runner, pass->panel->layer) + 1;
    MOE_ASSERT(combine->kind == MOE_OP_COMBINE);
    return runner->device->ops->upload(runner->device, runner->buffers.values[combine->y.value],
                                       pass->panel->block->sums + row_of(pass) * n_in,
                                       pass->n_rows * n_in * sizeof(float), err);
}

/* ---- Experts ---- */

/* Rows that are brought to experts: pairs of a row and one of its experts, by ascending expert. */
typedef struct row_tile {
    moe_runner *runner;
    const moe_panel_block *block;
    const float *rows; /* the block's rows that the pairs refer to */
    uint32_t layer;
    bool scales_inputs; /* the routers' weights multiply inputs, not outputs */
    uint32_t n_works, n_pairs;
    uint32_t *slots; /* [n_pairs]: row * n_used + rank; in the pass's buffers, as is index */
    uint32_t *index; /* 0, 1, .. */
} row_tile;

/* Adds the tile's outputs to the sums of their rows, in the way of moe_combine. */
static void add_outputs(const row_tile *t)
{
    const moe_model_config *c = t->runner->config;
    const size_t n_in = c->n_expert_in;
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        const float weight = t->block->weights[t->slots[i]];
        if (weight != 0.0f) {
            t->block->vector.axpy(t->scales_inputs ? 1.0f : weight, t->block->tile_out + i * n_in,
                                  t->block->sums + t->slots[i] / c->n_expert_used * n_in,
                                  c->n_expert_in);
        }
    }
}

/* Copies the tile's rows to the device. If these are rows of the stream, applies the norm to
 * them. */
static int bring_tile(const row_tile *t, moe_error *err)
{
    const moe_runner *runner = t->runner;
    const size_t bytes = (size_t)t->n_pairs * runner->config->n_expert_in * sizeof(float);
    const moe_run run = {.runner = t->runner, .layer = t->layer, .n_rows = t->n_pairs};
    const uint32_t norm = runner->program->layers[t->layer].mixed;
    float *x = t->block->inputs != NULL ? moe_experts_x(runner, t->layer)
                                        : runner->buffers.values[MOE_VALUE_X];
    MOE_TRY(runner->device->ops->upload(runner->device, x, t->block->tile_x, bytes, err));
    return t->block->inputs == NULL ? moe_program_run(&run, (moe_span){norm, norm + 1}, err)
                                    : MOE_OK;
}

/* Has the device compute the tile, and adds its outputs to the sums. */
static int compute_tile(row_tile *t, moe_error *err)
{
    moe_pass_buffers *b = &t->runner->buffers;
    moe_device *device = t->runner->device;
    moe_place *place = &t->runner->at_device.base;
    const size_t bytes = (size_t)t->n_pairs * t->runner->config->n_expert_in * sizeof(float);
    float *out = b->values[MOE_VALUE_RANK_OUT];
    const moe_place_job job = {.x = moe_experts_x(t->runner, t->layer),
                               .n_x_rows = t->n_pairs,
                               .works = b->works,
                               .n_works = t->n_works,
                               .out = out};
    if (t->n_pairs == 0) {
        return MOE_OK;
    }
    MOE_TRY(bring_tile(t, err));
    MOE_TRY(moe_place_compute(place, &job, err));
    MOE_TRY(device->ops->download(device, t->block->tile_out, out, bytes, err));
    add_outputs(t);
    t->n_works = t->n_pairs = 0;
    return MOE_OK;
}

/* Adds rows of an expert to the tile, from index `begin` of the plan's lists on, as many as there
 * is room for. Returns how many. */
static uint32_t add_rows(row_tile *t, uint32_t entry, uint32_t begin, const moe_expert_view *view)
{
    moe_pass_buffers *b = &t->runner->buffers;
    const moe_layer_plan *plan = &t->block->plan;
    const size_t n_in = t->runner->config->n_expert_in;
    uint32_t n = plan->first[entry + 1] - begin;
    n = n < b->max_rows - t->n_pairs ? n : b->max_rows - t->n_pairs;
    moe_expert_work *work = &b->works[t->n_works++];
    *work = moe_expert_work_of(t->runner, t->layer, plan->experts[entry], view);
    work->x_index = work->out_index = t->index + t->n_pairs;
    work->n_rows = n;
    if (t->scales_inputs) {
        work->x_scales = b->input_scales + t->n_pairs;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t slot = plan->ranked_slots[begin + i];
        memcpy(t->block->tile_x + t->n_pairs * n_in, t->rows + plan->rows[begin + i] * n_in,
               n_in * sizeof(float));
        b->input_scales[t->n_pairs] = t->block->weights[slot];
        t->index[t->n_pairs] = t->n_pairs;
        t->slots[t->n_pairs++] = slot;
    }
    return n;
}

static row_tile new_tile(moe_runner *runner, const moe_panel_chunk *panel)
{
    const moe_panel_block *block = panel->block;
    const size_t before = (size_t)(panel->first - block->first) * runner->config->n_expert_in;
    return (row_tile){.runner = runner,
                      .block = block,
                      .rows = block->inputs != NULL ? block->inputs : panel->x - before,
                      .layer = panel->layer,
                      .scales_inputs =
                          moe_experts_op(runner, panel->layer)->u.experts.scales_inputs,
                      .slots = runner->buffers.plan.ranked_slots,
                      .index = runner->buffers.plan.rows};
}

/* Computes n experts of the plan from the next one on, over all of their rows. views: [n]. */
static int compute(moe_runner *runner, const moe_panel_chunk *panel, uint32_t n,
                   const moe_expert_view *views, moe_error *err)
{
    moe_panel_block *block = panel->block;
    const moe_layer_plan *plan = &block->plan;
    const uint32_t first = block->n_served;
    row_tile t = new_tile(runner, panel);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = plan->first[first + i] + (i == 0 ? block->n_begun : 0);
        while (at < plan->first[first + i + 1]) {
            at += add_rows(&t, first + i, at, &views[i]);
            if (t.n_pairs == runner->buffers.max_rows) {
                MOE_TRY(compute_tile(&t, err));
            }
        }
    }
    MOE_TRY(compute_tile(&t, err));
    block->n_served += n;
    block->n_begun = 0;
    return MOE_OK;
}

int moe_panel_block_inputs(moe_runner *runner, const moe_pass *pass, const uint32_t *pairs,
                           uint32_t n, float *x, moe_error *err)
{
    const moe_panel_block *block = pass->panel->block;
    const size_t n_in = runner->config->n_expert_in;
    row_tile t = new_tile(runner, pass->panel);
    for (; t.n_pairs < n; t.n_pairs++) {
        memcpy(block->tile_x + t.n_pairs * n_in, t.rows + block->plan.rows[pairs[t.n_pairs]] * n_in,
               n_in * sizeof(float));
    }
    MOE_TRY(bring_tile(&t, err));
    return runner->device->ops->download(runner->device, x, moe_experts_x(runner, t.layer),
                                         n * n_in * sizeof(float), err);
}

/* Takes the next expert's outputs from the hook that computes it, and adds them to the sums. If
 * they do not come, the expert will be computed here. */
static int take_next(moe_runner *runner, const moe_pass *pass, bool *lost, moe_error *err)
{
    const moe_pass_hook *hook = moe_hooks_of_blocks(runner, pass);
    moe_panel_block *block = pass->panel->block;
    const uint32_t end = block->plan.first[block->n_served + 1];
    uint32_t begin = block->plan.first[block->n_served] + block->n_begun;
    row_tile t = new_tile(runner, pass->panel);
    *lost = false;
    while (begin < end) {
        t.n_pairs = end - begin < runner->buffers.max_rows ? end - begin : runner->buffers.max_rows;
        t.slots = block->plan.ranked_slots + begin;
        MOE_TRY(hook->block_stages->take(hook->context, runner, pass, begin, t.n_pairs, lost, err));
        if (*lost) {
            block->elsewhere[block->n_served] = false;
            return MOE_OK;
        }
        add_outputs(&t);
        block->n_begun += t.n_pairs;
        begin += t.n_pairs;
    }
    block->n_served++;
    block->n_begun = 0;
    return MOE_OK;
}

/* How many of the plan's experts come next: enough to keep a pass busy, if there are free slots for
 * the missing ones, but at least one. A slot is free if its expert has been served, or belongs to
 * an earlier layer. If the pass prefetches, only half of the free slots count: the following
 * experts come into the other half meanwhile. */
static uint32_t choose_group(moe_runner *runner, const moe_panel_chunk *panel)
{
    const moe_panel_block *block = panel->block;
    const moe_layer_plan *plan = &block->plan;
    const uint32_t enough = runner->buffers.max_rows * runner->config->n_expert_used;
    uint8_t *hops = runner->buffers.tiers;
    moe_expert_store_hops(runner->experts, panel->layer, hops);
    uint32_t room = moe_expert_store_scan_room(runner->experts, panel->layer);
    room = runner->prefetches ? (room + 1) / 2 : room;
    uint32_t n = 0, n_rows = 0;
    for (uint32_t i = block->n_served; i < plan->n_experts && n_rows < enough; i++, n++) {
        const bool misses = hops[plan->experts[i]] > 0 && !block->elsewhere[i];
        if (misses && room == 0) {
            break;
        }
        room -= misses;
        n_rows += plan->first[i + 1] - plan->first[i];
    }
    return n > 0 || block->n_served == plan->n_experts ? n : 1;
}

/* Requests those of the next n experts that are computed here. */
static moe_layer_request request_of(moe_runner *runner, const moe_pass *pass, uint32_t n)
{
    moe_pass_buffers *b = &runner->buffers;
    const moe_panel_block *block = pass->panel->block;
    const moe_layer_plan *plan = &block->plan;
    uint32_t n_asked = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *first = &plan->first[block->n_served + i];
        if (block->elsewhere[block->n_served + i]) {
            continue;
        }
        block->asked[n_asked] = plan->experts[block->n_served + i];
        block->asked_at[n_asked] = i;
        b->n_rows_of[n_asked] = first[1] - first[0];
        b->gates[n_asked] = 0.0f;
        for (uint32_t s = first[0]; s < first[1]; s++) {
            b->gates[n_asked] += block->weights[plan->ranked_slots[s]];
        }
        n_asked++;
    }
    return (moe_layer_request){.layer = pass->panel->layer,
                               .pass = runner->n_passes,
                               .experts = block->asked,
                               .n_rows = b->n_rows_of,
                               .gates = b->gates,
                               .n = n_asked,
                               .at_once = true,
                               .cancel = {pass->is_cancelled, pass->cancel_user}};
}

/* Waits for requested experts. *n_new = 0: there are no more. */
static int await(moe_runner *runner, moe_panel_block *block, uint32_t *n_new, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    MOE_TRY(moe_expert_store_next(runner->experts, b->positions, b->views, n_new, err));
    for (uint32_t i = 0; i < *n_new; i++) {
        const uint32_t at = block->asked_at[b->positions[i]];
        block->views[at] = b->views[i];
        block->has_come[at] = true;
    }
    return MOE_OK;
}

/* Computes the next n experts in their order, each as soon as it and all before it have arrived.
 * Ends early if the outputs of one that is computed elsewhere do not come. */
static int compute_in_order(moe_runner *runner, const moe_pass *pass, uint32_t n, bool *lost,
                            moe_error *err)
{
    moe_panel_block *block = pass->panel->block;
    const uint32_t first = block->n_served;
    uint32_t n_new = 1;
    *lost = false;
    memset(block->has_come, 0, n * sizeof *block->has_come);
    while (block->n_served < first + n && !*lost) {
        const uint32_t at = block->n_served - first;
        uint32_t end = at;
        while (end < n && block->has_come[end]) {
            end++;
        }
        if (block->elsewhere[block->n_served]) {
            MOE_TRY(take_next(runner, pass, lost, err));
        } else if (end == at) {
            MOE_TRY(await(runner, block, &n_new, err));
            MOE_ASSERT(n_new > 0);
        } else {
            MOE_TRY(compute(runner, pass->panel, end - at, block->views + at, err));
        }
    }
    return MOE_OK;
}

/* Requests the experts behind the next n that will be read here. */
static void prefetch_behind(moe_runner *runner, const moe_panel_chunk *panel, uint32_t n)
{
    moe_panel_block *block = panel->block;
    uint32_t *ahead = runner->buffers.n_rows_of + n; /* the request uses the first n */
    uint32_t n_ahead = 0;
    for (uint32_t i = block->n_served + n; i < block->plan.n_experts; i++) {
        if (!block->elsewhere[i]) {
            ahead[n_ahead++] = block->plan.experts[i];
        }
    }
    moe_expert_store_prefetch(runner->experts, panel->layer, runner->n_passes, ahead, n_ahead,
                              n_ahead);
}

/* Loads what is missing of the next n experts, and computes them. */
static int serve_group(moe_runner *runner, const moe_pass *pass, uint32_t n, moe_error *err)
{
    const moe_layer_request request = request_of(runner, pass, n);
    bool lost = false;
    uint32_t n_new;
    int status = request.n > 0 ? moe_expert_store_begin(runner->experts, &request, err) : MOE_OK;
    if (status == MOE_OK && runner->prefetches) {
        prefetch_behind(runner, pass->panel, n);
    }
    moe_hooks_while_loading(runner, pass, pass->panel->layer);
    status = status == MOE_OK ? compute_in_order(runner, pass, n, &lost, err) : status;
    if (status == MOE_OK && !lost && request.n > 0) {
        status = await(runner, pass->panel->block, &n_new, err); /* ends the request */
    }
    if ((status != MOE_OK || lost) && request.n > 0) {
        moe_expert_store_end_layer(runner->experts);
    }
    return status;
}

static void plan_block(moe_runner *runner, moe_panel_block *block)
{
    const moe_model_config *c = runner->config;
    const size_t n_floats = (size_t)block->n_rows * c->n_expert_in;
    moe_layer_plan_build(&block->plan, block->chosen, block->n_rows, c->n_expert_used);
    memset(block->sums, 0, n_floats * sizeof *block->sums);
    memset(block->elsewhere, 0, c->n_expert * sizeof *block->elsewhere);
    block->is_planned = true;
}

int moe_panel_block_serve(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_panel_chunk *panel = pass->panel;
    moe_panel_block *block = panel->block;
    const moe_pass_hook *hook = moe_hooks_of_blocks(runner, pass);
    const bool begins = !block->is_planned;
    if (begins) {
        plan_block(runner, block);
    }
    if (block->n_served == block->plan.n_experts) {
        return MOE_OK; /* no row has chosen an expert */
    }
    moe_expert_store_scan(runner->experts, panel->layer, block->plan.experts[block->n_served]);
    if (hook != NULL) {
        MOE_TRY(hook->block_stages->share(hook->context, runner, pass, begins, err));
    }
    return serve_group(runner, pass, choose_group(runner, panel), err);
}
