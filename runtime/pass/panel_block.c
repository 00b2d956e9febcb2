/* SPDX-License-Identifier: MIT */
#include "runtime/pass/panel_block.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/expert_form.h"
#include "runtime/pass/program_run.h"

/* ---- Memory ---- */

static size_t input_bytes(const moe_model_config *c, uint32_t n_rows)
{
    return moe_align64((size_t)n_rows * c->n_expert_in * sizeof(float));
}

static size_t slot_bytes(const moe_model_config *c, uint32_t n_rows)
{
    return moe_align64((size_t)n_rows * c->n_expert_used * sizeof(float));
}

static size_t mapped_bytes(const moe_model_config *c, uint32_t n_rows, uint32_t chunk)
{
    return input_bytes(c, n_rows) + input_bytes(c, n_rows * c->n_expert_used) +
           2 * input_bytes(c, chunk) + 2 * slot_bytes(c, n_rows);
}

uint64_t moe_panel_block_bytes(const moe_model_config *c, uint32_t n_rows, uint32_t chunk)
{
    return mapped_bytes(c, n_rows, chunk) + 2 * slot_bytes(c, n_rows); /* with the plan */
}

int moe_panel_block_open(moe_panel_block *block, const moe_model_config *c, uint32_t n_rows,
                         uint32_t chunk, moe_error *err)
{
    *block = (moe_panel_block){.max_rows = n_rows, .bytes = mapped_bytes(c, n_rows, chunk)};
    block->memory = moe_map_pages(block->bytes);
    block->served = moe_calloc(c->n_expert, sizeof *block->served);
    block->group = moe_calloc(3 * (size_t)c->n_expert, sizeof *block->group);
    int status = block->memory != NULL && block->served != NULL && block->group != NULL
                     ? moe_layer_plan_init(&block->plan, n_rows, c->n_expert_used, c->n_expert, err)
                     : moe_fail(err, MOE_ERR_MEMORY, "no memory for %u rows of a panel", n_rows);
    if (status != MOE_OK) {
        moe_panel_block_close(block);
        return status;
    }
    uint8_t *at = block->memory;
    block->inputs = (float *)at;
    block->outputs = (float *)(at += input_bytes(c, n_rows));
    block->tile_x = (float *)(at += input_bytes(c, n_rows * c->n_expert_used));
    block->tile_out = (float *)(at += input_bytes(c, chunk));
    block->weights = (float *)(at += input_bytes(c, chunk));
    block->chosen = (uint32_t *)(at + slot_bytes(c, n_rows));
    block->experts = block->group + c->n_expert;
    block->ahead = block->experts + c->n_expert;
    return MOE_OK;
}

void moe_panel_block_close(moe_panel_block *block)
{
    if (block->memory != NULL) {
        moe_unmap_pages(block->memory, block->bytes);
    }
    free(block->served);
    free(block->group);
    moe_layer_plan_free(&block->plan);
    *block = (moe_panel_block){.memory = NULL};
}

void moe_panel_block_begin(moe_panel_block *block, uint32_t first, uint32_t n_rows)
{
    MOE_ASSERT(n_rows <= block->max_rows);
    block->first = first;
    block->n_rows = n_rows;
    block->n_served = 0;
    block->is_planned = false;
}

bool moe_panel_block_is_served(const moe_panel_block *block)
{
    return block->is_planned && block->n_served == block->plan.n_experts;
}

/* ---- Chunks ---- */

/* Where the pass's rows are in the block. */
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
    return runner->device->ops->download(runner->device, block->inputs + row * c->n_expert_in,
                                         moe_experts_x(runner, pass->panel->layer),
                                         (size_t)pass->n_rows * c->n_expert_in * sizeof(float),
                                         err);
}

int moe_panel_block_bring(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    const moe_panel_block *block = pass->panel->block;
    const size_t slot = (size_t)row_of(pass) * c->n_expert_used;
    const size_t n_slots = (size_t)pass->n_rows * c->n_expert_used;
    memcpy(b->chosen, block->chosen + slot, n_slots * sizeof *b->chosen);
    memcpy(b->chosen_weights, block->weights + slot, n_slots * sizeof *b->chosen_weights);
    moe_layer_plan_build(&b->plan, b->chosen, pass->n_rows, c->n_expert_used);
    moe_place_weights(runner, pass->panel->layer, pass->n_rows);
    return runner->device->ops->upload(runner->device, b->values[MOE_VALUE_RANK_OUT],
                                       block->outputs + slot * c->n_expert_in,
                                       n_slots * c->n_expert_in * sizeof(float), err);
}

/* ---- Experts ---- */

/* Rows on their way to experts: pairs of a row and one of its experts. */
typedef struct row_tile {
    moe_runner *runner;
    const moe_panel_block *block;
    uint32_t layer;
    uint32_t n_works, n_pairs;
    uint32_t *slots; /* [n_pairs]: where the outputs go; in the buffers, as what follows */
    uint32_t *index; /* 0, 1, .. */
} row_tile;

/* Has the device compute the tile, and takes the outputs to their ranks. */
static int compute_tile(row_tile *t, moe_error *err)
{
    moe_pass_buffers *b = &t->runner->buffers;
    moe_device *device = t->runner->device;
    moe_place *place = &t->runner->at_device.base;
    const size_t n_in = t->runner->config->n_expert_in;
    const size_t bytes = t->n_pairs * n_in * sizeof(float);
    float *x = moe_experts_x(t->runner, t->layer);
    float *out = b->values[MOE_VALUE_RANK_OUT];
    const moe_place_job job = {
        .x = x, .n_x_rows = t->n_pairs, .works = b->works, .n_works = t->n_works, .out = out};
    if (t->n_pairs == 0) {
        return MOE_OK;
    }
    MOE_TRY(device->ops->upload(device, x, t->block->tile_x, bytes, err));
    MOE_TRY(moe_place_compute(place, &job, err));
    MOE_TRY(device->ops->download(device, t->block->tile_out, out, bytes, err));
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        memcpy(t->block->outputs + t->slots[i] * n_in, t->block->tile_out + i * n_in,
               n_in * sizeof(float));
    }
    t->n_works = t->n_pairs = 0;
    return MOE_OK;
}

/* Adds the next rows of an expert, from `begin` on in the plan's lists, as many as there is room
 * for; returns how many. */
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
    if (moe_experts_op(t->runner, t->layer)->u.experts.scales_inputs) {
        work->x_scales = b->input_scales + t->n_pairs;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t slot = plan->ranked_slots[begin + i];
        memcpy(t->block->tile_x + t->n_pairs * n_in,
               t->block->inputs + plan->rows[begin + i] * n_in, n_in * sizeof(float));
        b->input_scales[t->n_pairs] = t->block->weights[slot];
        t->index[t->n_pairs] = t->n_pairs;
        t->slots[t->n_pairs++] = slot;
    }
    return n;
}

/* Computes experts that lie with the device, over all of their rows. entries: [n] of the plan. */
static int compute(moe_runner *runner, const moe_pass *pass, const uint32_t *entries, uint32_t n,
                   moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    row_tile t = {.runner = runner,
                  .block = pass->panel->block,
                  .layer = pass->panel->layer,
                  .slots = b->plan.ranked_slots,
                  .index = b->plan.rows};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t entry = entries[b->positions[i]];
        uint32_t at = t.block->plan.first[entry];
        while (at < t.block->plan.first[entry + 1]) {
            at += add_rows(&t, entry, at, &b->views[i]);
            if (t.n_pairs == b->max_rows) {
                MOE_TRY(compute_tile(&t, err));
            }
        }
    }
    return compute_tile(&t, err);
}

/* Lists experts of the plan that are not served and so far from the device, in the order of the
 * file: up to `most`, and no more than have enough rows to keep a pass busy. */
static uint32_t list_next(const moe_runner *runner, const moe_panel_block *block, uint8_t hops,
                          uint32_t most, uint32_t *entries)
{
    const uint32_t enough = runner->buffers.max_rows * runner->config->n_expert_used;
    const moe_layer_plan *plan = &block->plan;
    uint32_t n = 0, n_rows = 0;
    for (uint32_t i = 0; i < plan->n_experts && n < most && n_rows < enough; i++) {
        if (!block->served[i] && runner->buffers.tiers[plan->experts[i]] == hops) {
            entries[n++] = i;
            n_rows += plan->first[i + 1] - plan->first[i];
        }
    }
    return n;
}

/* Chooses what is served next: the experts on the device first, then those in host memory, then
 * those on the disk. The first need no slot. The others take slots of layers behind, and of this
 * one, where all that was on the device is served by then; in host memory likewise. Half of them,
 * if the next group is to come into the other half meanwhile. */
static uint32_t choose_group(moe_runner *runner, const moe_panel_chunk *panel, uint32_t *entries)
{
    const uint32_t layer = panel->layer;
    moe_expert_store_hops(runner->experts, layer, runner->buffers.tiers);
    moe_expert_store_scan(runner->experts, layer, layer);
    uint32_t n = list_next(runner, panel->block, 0, UINT32_MAX, entries);
    for (uint8_t hops = 1; hops <= 2 && n == 0; hops++) {
        moe_expert_store_scan(runner->experts, layer + 1, layer + (hops == 2));
        uint32_t room = moe_expert_store_scan_room(runner->experts, layer);
        room /= runner->prefetches ? 2 : 1;
        n = list_next(runner, panel->block, hops, room > 0 ? room : 1, entries);
    }
    return n;
}

/* Requests the group's experts, and marks them. */
static moe_layer_request ask_for_group(moe_runner *runner, const moe_pass *pass, uint32_t n)
{
    moe_pass_buffers *b = &runner->buffers;
    moe_panel_block *block = pass->panel->block;
    const moe_layer_plan *plan = &block->plan;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t entry = block->group[i];
        block->experts[i] = plan->experts[entry];
        b->n_rows_of[i] = plan->first[entry + 1] - plan->first[entry];
        b->gates[i] = 0.0f;
        for (uint32_t s = plan->first[entry]; s < plan->first[entry + 1]; s++) {
            b->gates[i] += block->weights[plan->ranked_slots[s]];
        }
        block->served[entry] = true;
    }
    block->n_served += n;
    return (moe_layer_request){.layer = pass->panel->layer,
                               .pass = runner->n_passes,
                               .experts = block->experts,
                               .n_rows = b->n_rows_of,
                               .gates = b->gates,
                               .n = n,
                               .cancel = {pass->is_cancelled, pass->cancel_user}};
}

/* Asks for those on the disk that come next, as far as slots are free for them. */
static void prefetch(moe_runner *runner, const moe_panel_chunk *panel)
{
    moe_panel_block *block = panel->block;
    const uint32_t n = list_next(runner, block, 2, UINT32_MAX, block->ahead);
    for (uint32_t i = 0; i < n; i++) {
        block->ahead[i] = block->plan.experts[block->ahead[i]];
    }
    moe_expert_store_prefetch(runner->experts, panel->layer, runner->n_passes, block->ahead, n, n);
}

int moe_panel_block_serve(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    moe_panel_block *block = pass->panel->block;
    if (!block->is_planned) {
        moe_layer_plan_build(&block->plan, block->chosen, block->n_rows,
                             runner->config->n_expert_used);
        memset(block->served, 0, runner->config->n_expert * sizeof *block->served);
        block->is_planned = true;
    }
    uint32_t n = choose_group(runner, pass->panel, block->group);
    if (n == 0) {
        return MOE_OK; /* no row has chosen any */
    }
    const moe_layer_request request = ask_for_group(runner, pass, n);
    int status = moe_expert_store_begin(runner->experts, &request, err);
    if (status == MOE_OK && runner->prefetches) {
        prefetch(runner, pass->panel);
    }
    moe_hooks_while_loading(runner, pass, pass->panel->layer);
    while (status == MOE_OK && n > 0) {
        status = moe_expert_store_next(runner->experts, b->positions, b->views, &n, err);
        if (status == MOE_OK && n > 0) {
            status = compute(runner, pass, block->group, n, err);
        }
    }
    if (status != MOE_OK) {
        moe_expert_store_end_layer(runner->experts);
    }
    return status;
}
