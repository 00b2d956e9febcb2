/* SPDX-License-Identifier: MIT */
/* What the device needs for a draft of its own is a table in its memory, for each layer:
 *
 *     | where each expert's parts are, [n_expert] | which are resident, [n_expert] |
 *
 * Before a pass it is brought up to date, layers that have changed alone. Nothing moves while the
 * pass runs: moves are asked for by this thread, which waits for the logits, and one that is still
 * under way goes to a slot whose expert was not resident when the pass began. What the routers
 * would have chosen comes back with the logits, for foresight. */
#include "runtime/engine/recorded_draft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"
#include "runtime/engine/routing.h"

struct moe_recorded_draft {
    moe_resident_fill fill;
    uint8_t *memory; /* device: tables, picks, affinities */
    size_t bytes;
    size_t layer_bytes; /* of a table */
    size_t picks_at;
    size_t affinity_at; /* == bytes: none */
    uint8_t *table;     /* [n_layer][layer_bytes] as the device has it */
    uint8_t *fresh;     /* of one layer */
    uint32_t *picks;    /* [n_layer][n_used] of the last pass */
    bool refused;       /* the device could not record it */
};

/* ---- Memory ---- */

static void lay_out(moe_recorded_draft *d, const moe_model_config *c, bool has_affinity)
{
    size_t n = c->n_expert;
    d->layer_bytes = moe_align64(n * (sizeof(moe_expert_address) + sizeof(bool)));
    d->picks_at = c->n_layer * d->layer_bytes;
    size_t picks = (size_t)c->n_layer * c->n_expert_used * sizeof *d->picks;
    d->affinity_at = d->picks_at + moe_align64(picks);
    d->bytes = d->affinity_at + (has_affinity ? c->n_layer * n * n * sizeof(uint16_t) : 0);
}

uint64_t moe_recorded_draft_bytes(const moe_device *device, const moe_model_config *config,
                                  const moe_engine_options *options)
{
    moe_recorded_draft d;
    bool has_affinity;
    if (device->recording == NULL || !moe_speculation_may_self(options, &has_affinity)) {
        return 0;
    }
    lay_out(&d, config, has_affinity);
    return d.bytes;
}

static int allocate(moe_recorded_draft *d, moe_engine *engine, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    const moe_device_ops *ops = engine->device->ops;
    const uint16_t *affinity = engine->speculation->affinity;
    lay_out(d, c, affinity != NULL);
    d->table = moe_calloc(c->n_layer, d->layer_bytes);
    d->fresh = moe_calloc(1, d->layer_bytes);
    d->picks = moe_calloc(c->n_layer, c->n_expert_used * sizeof *d->picks);
    if (d->table == NULL || d->fresh == NULL || d->picks == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the draft's tables");
    }
    void *memory;
    int status = ops->alloc(engine->device, d->bytes, &memory, err);
    if (status != MOE_OK) {
        return status;
    }
    d->memory = memory;
    status = ops->upload(engine->device, d->memory, d->table, d->picks_at, err);
    if (status == MOE_OK && affinity != NULL) {
        status = ops->upload(engine->device, d->memory + d->affinity_at, affinity,
                             d->bytes - d->affinity_at, err);
    }
    return status;
}

int moe_recorded_draft_open(moe_recorded_draft **out, moe_engine *engine, moe_error *err)
{
    const moe_speculation *s = engine->speculation;
    *out = NULL;
    if (engine->device->recording == NULL || s == NULL || !s->use[MOE_DRAFTER_SELF] ||
        s->tree_nodes > 0 || s->fill == MOE_DRAFT_FILL_RANDOM) {
        return MOE_OK;
    }
    moe_recorded_draft *d = moe_calloc(1, sizeof *d);
    if (d == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for recording drafts");
    }
    d->fill = s->fill == MOE_DRAFT_FILL_AFFINITY ? MOE_RESIDENT_FILL_AFFINITY
              : s->fill == MOE_DRAFT_FILL_ROUTER ? MOE_RESIDENT_FILL_ROUTER
                                                 : MOE_RESIDENT_FILL_NONE;
    int status = allocate(d, engine, err);
    if (status != MOE_OK) {
        moe_recorded_draft_close(&d, engine->device);
        return status;
    }
    *out = d;
    return MOE_OK;
}

void moe_recorded_draft_close(moe_recorded_draft **draft, moe_device *device)
{
    moe_recorded_draft *d = *draft;
    if (d == NULL) {
        return;
    }
    if (d->memory != NULL) {
        device->ops->free(device, d->memory, d->bytes);
    }
    free(d->table);
    free(d->fresh);
    free(d->picks);
    free(d);
    *draft = NULL;
}

/* ---- The table ---- */

static const bool *resident_of(const moe_engine *engine, const uint8_t *layer)
{
    return (const bool *)(layer + engine->config.n_expert * sizeof(moe_expert_address));
}

static int refresh_layer(moe_engine *engine, uint32_t layer, moe_error *err)
{
    moe_recorded_draft *d = engine->recorded_draft;
    moe_pass_buffers *b = &engine->buffers;
    uint32_t n_expert = engine->config.n_expert;
    const bool *resident = engine->routes->resident;
    uint32_t *experts = b->positions;
    uint32_t n = 0;
    moe_edit_find_residents(engine, layer);
    for (uint32_t e = 0; e < n_expert; e++) {
        if (resident[e]) {
            experts[n++] = e;
        }
    }
    moe_expert_store_peek(engine->experts, layer, experts, n, b->views);
    moe_expert_address *addresses = (moe_expert_address *)d->fresh;
    memset(addresses, 0, n_expert * sizeof *addresses);
    for (uint32_t i = 0; i < n; i++) {
        for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
            addresses[experts[i]].parts[p] = b->views[i].parts[p].data;
        }
    }
    memcpy(addresses + n_expert, resident, n_expert * sizeof *resident);
    size_t at = layer * d->layer_bytes;
    if (memcmp(d->table + at, d->fresh, d->layer_bytes) == 0) {
        return MOE_OK;
    }
    memcpy(d->table + at, d->fresh, d->layer_bytes);
    return engine->device->ops->upload(engine->device, d->memory + at, d->fresh, d->layer_bytes,
                                       err);
}

static int refresh(moe_engine *engine, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    int status = MOE_OK;
    for (uint32_t l = 0; l < c->n_layer && status == MOE_OK; l++) {
        status = moe_layer_has_experts(c, l) ? refresh_layer(engine, l, err) : MOE_OK;
    }
    return status;
}

/* ---- Recording ---- */

static moe_weight shape_of(const moe_engine *engine, uint32_t layer, moe_expert_part part)
{
    const moe_tensor_ref *ref = &engine->map.layers[layer].experts[0].parts[part];
    return (moe_weight){.type = ref->type,
                        .n_in = (uint32_t)ref->n_in,
                        .n_out = (uint32_t)ref->n_out,
                        .row_bytes = moe_dtype_row_bytes(ref->type, ref->n_in)};
}

int moe_recorded_draft_experts(moe_engine *engine, uint32_t layer, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    const moe_recorded_draft *d = engine->recorded_draft;
    moe_pass_buffers *b = &engine->buffers;
    moe_device *device = engine->device;
    const uint8_t *table = d->memory + layer * d->layer_bytes;
    const uint16_t *affinities = (const uint16_t *)(d->memory + d->affinity_at);
    moe_linear router = {*moe_layer_weight(engine, layer, MOE_LAYER_ROUTER), NULL,
                         b->router_logits};
    int status = device->ops->linear(device, b->norm, 1, c->n_embd, &router, 1, err);
    if (status != MOE_OK) {
        return status;
    }
    moe_resident_experts experts = {
        .route = moe_route_of_layer(engine, layer),
        .renormalise = engine->routes->mixing[layer].renormalise,
        .fill = d->fill,
        .affinity = d->affinity_at < d->bytes
                        ? affinities + (size_t)layer * c->n_expert * c->n_expert
                        : NULL,
        .resident = resident_of(engine, table),
        .addresses = (const moe_expert_address *)table,
        .gate = shape_of(engine, layer, MOE_EXPERT_GATE),
        .up = shape_of(engine, layer, MOE_EXPERT_UP),
        .down = shape_of(engine, layer, MOE_EXPERT_DOWN),
        .x = b->norm,
        .picks = (uint32_t *)(d->memory + d->picks_at) + (size_t)layer * c->n_expert_used,
        .outs = b->rank_out,
        .y = b->branch};
    return device->recording->resident_experts(device, &experts, err);
}

static const uint32_t only_row = 0;

static int record(moe_engine *engine, const moe_pass *pass, const moe_step_inputs *inputs,
                  moe_error *err)
{
    moe_device *device = engine->device;
    moe_pass recorded = *pass;
    recorded.recorded = true;
    int status = device->recording->record(device, inputs, err);
    if (status != MOE_OK) {
        return status;
    }
    status = moe_pass_run_layers(engine, &recorded, err);
    if (status == MOE_OK) {
        status = moe_pass_queue_logits(engine, &only_row, 1, err);
    }
    status = device->recording->record_end(device, status, err);
    engine->speculation->stats.draft_recordings += status == MOE_OK;
    return status;
}

/* Plays the pass, and records it where that has to be. MOE_ERR_UNSUPPORTED: it cannot be. */
static int launch(moe_engine *engine, const moe_pass *pass, moe_error *err)
{
    moe_step_inputs inputs = {.tokens = pass->tokens,
                              .rows = pass->kv_rows,
                              .cos = engine->buffers.rope_cos,
                              .sin = engine->buffers.rope_sin,
                              .n_rows = 1,
                              .n_rot = engine->config.n_rot};
    bool played;
    moe_pass_fill_rope_tables(engine, pass);
    int status = engine->device->recording->play(engine->device, &inputs, &played, err);
    return status != MOE_OK || played ? status : record(engine, pass, &inputs, err);
}

/* ---- A pass ---- */

static int take_results(moe_engine *engine, const moe_pass *pass, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    const moe_recorded_draft *d = engine->recorded_draft;
    bool foresees = engine->speculation->foresight, last;
    int status = MOE_OK;
    if (foresees) {
        size_t bytes = (size_t)c->n_layer * c->n_expert_used * sizeof *d->picks;
        status = engine->device->ops->download(engine->device, d->picks, d->memory + d->picks_at,
                                               bytes, err);
    }
    for (uint32_t l = 0; l < c->n_layer && foresees && status == MOE_OK; l++) {
        if (moe_layer_has_experts(c, l)) {
            moe_edit_foresee(engine, pass, l, 0, d->picks + (size_t)l * c->n_expert_used);
        }
    }
    return status != MOE_OK ? status : moe_pass_hand_over(engine, pass, 0, 1, &last, err);
}

int moe_recorded_draft_run(moe_engine *engine, const moe_pass *pass, bool *done, moe_error *err)
{
    moe_recorded_draft *d = engine->recorded_draft;
    moe_error reason = {""};
    *done = false;
    if (d == NULL || d->refused || pass->n_rows != 1 || pass->n_logit_rows != 1 ||
        pass->kv_rows[0].path != NULL) {
        return MOE_OK;
    }
    if (pass->is_cancelled != NULL && pass->is_cancelled(pass->cancel_user)) {
        return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
    }
    int status = refresh(engine, err);
    if (status != MOE_OK) {
        return status;
    }
    status = launch(engine, pass, &reason);
    if (status == MOE_ERR_UNSUPPORTED) {
        d->refused = true;
        if (engine->log != NULL) {
            char text[MOE_ERROR_MESSAGE_SIZE + 64];
            snprintf(text, sizeof text, "drafts are routed by the host: %s", reason.message);
            engine->log(text, engine->user);
        }
        return MOE_OK;
    }
    if (status != MOE_OK) {
        return moe_fail(err, status, "%s", reason.message);
    }
    *done = true;
    engine->speculation->n_recorded_passes++;
    return take_results(engine, pass, err);
}
