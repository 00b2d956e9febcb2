/* SPDX-License-Identifier: MIT */
/* What the device needs for a pass of its own is a table in its memory, for each layer, and what it
 * tells of the pass follows:
 *
 *     | where each expert's parts are, [n_expert] | which are resident, [n_expert] |  x n_layer
 *     | picks [n_layer][n_used] | weights [n_layer][n_used] | missing picks [n_layer] |
 *     | affinities (of drafts that have them)                                         |
 *
 * Before a pass the table is brought up to date, layers that have changed alone. Nothing moves
 * while the pass runs: moves are asked for by this thread, which waits for the results, and one
 * that is still under way goes to a slot whose expert was not resident when the pass began.
 *
 * A draft's picks go to foresight. An exact pass without missing picks is made up for: the store
 * and whoever counts are told of its layers as if the host had routed them. After one with missing
 * picks the host routes for a while, twice as long each time in a row. */
#include "runtime/engine/recorded_pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/budget_exact.h"
#include "runtime/engine/engine_internal.h"
#include "runtime/engine/routing.h"

#define MOST_SKIPPED 256u

struct moe_recorded_pass {
    bool exact;
    uint32_t number; /* of the recording */
    moe_resident_fill fill;
    uint8_t *memory; /* device */
    size_t bytes;
    size_t layer_bytes; /* of the table */
    size_t told_at, told_bytes;
    size_t affinity_at; /* == bytes: none */
    uint8_t *table;     /* [n_layer][layer_bytes] as the device has it */
    uint8_t *fresh;     /* of one layer */
    uint64_t version;   /* of the store, when the table was made */
    bool has_version;
    uint8_t *told; /* of the last pass */
    bool refused;  /* the device could not record it */
    uint32_t skip; /* passes until the next try */
    uint32_t skipped;
    uint64_t n_played, n_missed;
};

/* ---- Memory ---- */

static size_t picks_of(const moe_model_config *c)
{
    return (size_t)c->n_layer * c->n_expert_used;
}

static void lay_out(moe_recorded_pass *r, const moe_model_config *c, bool has_affinity)
{
    size_t n = c->n_expert;
    r->layer_bytes = moe_align64(n * (sizeof(moe_expert_address) + sizeof(bool)));
    r->told_at = c->n_layer * r->layer_bytes;
    r->told_bytes = picks_of(c) * (sizeof(uint32_t) + sizeof(float)) + c->n_layer * 4u;
    r->affinity_at = r->told_at + moe_align64(r->told_bytes);
    r->bytes = r->affinity_at + (has_affinity ? c->n_layer * n * n * sizeof(uint16_t) : 0);
}

/* What the last pass told, in the host's memory or (base in the device's) where it will. */
static uint32_t *picks_at(uint8_t *told, const moe_model_config *c, uint32_t layer)
{
    return (uint32_t *)told + (size_t)layer * c->n_expert_used;
}

static float *weights_at(uint8_t *told, const moe_model_config *c, uint32_t layer)
{
    return (float *)told + picks_of(c) + (size_t)layer * c->n_expert_used;
}

static uint32_t *missing_at(uint8_t *told, const moe_model_config *c, uint32_t layer)
{
    return (uint32_t *)told + 2 * picks_of(c) + layer;
}

static bool keeps_experts(const moe_engine_options *o)
{
    return !moe_offload_is(o, "on-demand") && !moe_offload_is(o, "overlap");
}

uint64_t moe_recorded_passes_bytes(const moe_device *device, const moe_model_config *config,
                                   const moe_engine_options *options)
{
    moe_recorded_pass draft = {0}, exact = {0};
    bool has_affinity;
    if (device->recording == NULL) {
        return 0;
    }
    if (moe_speculation_may_self(options, &has_affinity)) {
        lay_out(&draft, config, has_affinity);
    }
    if (keeps_experts(options)) {
        lay_out(&exact, config, false);
    }
    return draft.bytes + exact.bytes;
}

static int allocate(moe_recorded_pass *r, moe_engine *engine, const uint16_t *affinity,
                    moe_error *err)
{
    const moe_model_config *c = &engine->config;
    const moe_device_ops *ops = engine->device->ops;
    lay_out(r, c, affinity != NULL);
    r->table = moe_calloc(c->n_layer, r->layer_bytes);
    r->fresh = moe_calloc(1, r->layer_bytes);
    r->told = moe_calloc(1, r->told_bytes);
    if (r->table == NULL || r->fresh == NULL || r->told == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for passes of the device alone");
    }
    void *memory;
    int status = ops->alloc(engine->device, r->bytes, &memory, err);
    if (status != MOE_OK) {
        return status;
    }
    r->memory = memory;
    status = ops->upload(engine->device, r->memory, r->table, r->told_at, err);
    if (status == MOE_OK) { /* layers without experts tell nothing */
        status = ops->upload(engine->device, r->memory + r->told_at, r->told, r->told_bytes, err);
    }
    if (status == MOE_OK && affinity != NULL) {
        status = ops->upload(engine->device, r->memory + r->affinity_at, affinity,
                             r->bytes - r->affinity_at, err);
    }
    return status;
}

static int open_one(moe_recorded_pass **out, moe_engine *engine, bool exact, moe_error *err)
{
    const moe_speculation *s = engine->speculation;
    moe_recorded_pass *r = moe_calloc(1, sizeof *r);
    if (r == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for passes of the device alone");
    }
    r->exact = exact;
    /* Numbers below are of layers. */
    r->number = engine->config.n_layer + exact;
    r->fill = exact                                ? MOE_RESIDENT_FILL_NONE
              : s->fill == MOE_DRAFT_FILL_AFFINITY ? MOE_RESIDENT_FILL_AFFINITY
              : s->fill == MOE_DRAFT_FILL_ROUTER   ? MOE_RESIDENT_FILL_ROUTER
                                                   : MOE_RESIDENT_FILL_NONE;
    int status = allocate(r, engine, exact ? NULL : s->affinity, err);
    if (status != MOE_OK) {
        moe_recorded_pass_close(&r, engine->device);
        return status;
    }
    *out = r;
    return MOE_OK;
}

int moe_recorded_passes_open(moe_engine *engine, moe_error *err)
{
    const moe_speculation *s = engine->speculation;
    int status = MOE_OK;
    if (engine->device->recording == NULL) {
        return MOE_OK;
    }
    if (s != NULL && s->use[MOE_DRAFTER_SELF] && s->tree_nodes == 0 &&
        s->fill != MOE_DRAFT_FILL_RANDOM) {
        status = open_one(&engine->recorded_draft, engine, false, err);
    }
    bool keeps = engine->offload == MOE_OFFLOAD_AUTO || engine->offload == MOE_OFFLOAD_CACHING;
    if (status == MOE_OK && keeps) {
        status = open_one(&engine->recorded_exact, engine, true, err);
    }
    return status;
}

void moe_recorded_pass_close(moe_recorded_pass **recorded, moe_device *device)
{
    moe_recorded_pass *r = *recorded;
    if (r == NULL) {
        return;
    }
    if (r->memory != NULL) {
        device->ops->free(device, r->memory, r->bytes);
    }
    free(r->table);
    free(r->fresh);
    free(r->told);
    free(r);
    *recorded = NULL;
}

void moe_recorded_pass_counts(const moe_recorded_pass *recorded, uint64_t *n, uint64_t *n_missed)
{
    *n = recorded != NULL ? recorded->n_played - recorded->n_missed : 0;
    *n_missed = recorded != NULL ? recorded->n_missed : 0;
}

/* ---- The table ---- */

static bool *resident_of(const moe_engine *engine, uint8_t *layer)
{
    return (bool *)(layer + engine->config.n_expert * sizeof(moe_expert_address));
}

static void find_residents(moe_engine *engine, const moe_recorded_pass *r, uint32_t layer,
                           bool *resident)
{
    if (r->exact) {
        moe_expert_store_residents(engine->experts, layer, resident);
    } else {
        moe_edit_find_residents(engine, layer);
        memcpy(resident, engine->routes->resident, engine->config.n_expert * sizeof *resident);
    }
}

static int refresh_layer(moe_engine *engine, moe_recorded_pass *r, uint32_t layer, moe_error *err)
{
    moe_pass_buffers *b = &engine->buffers;
    uint32_t n_expert = engine->config.n_expert;
    moe_expert_address *addresses = (moe_expert_address *)r->fresh;
    bool *resident = resident_of(engine, r->fresh);
    uint32_t *experts = b->positions;
    uint32_t n = 0;
    find_residents(engine, r, layer, resident);
    for (uint32_t e = 0; e < n_expert; e++) {
        if (resident[e]) {
            experts[n++] = e;
        }
    }
    moe_expert_store_peek(engine->experts, layer, experts, n, b->views);
    memset(addresses, 0, n_expert * sizeof *addresses);
    for (uint32_t i = 0; i < n; i++) {
        for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
            addresses[experts[i]].parts[p] = b->views[i].parts[p].data;
        }
    }
    size_t at = layer * r->layer_bytes;
    if (memcmp(r->table + at, r->fresh, r->layer_bytes) == 0) {
        return MOE_OK;
    }
    memcpy(r->table + at, r->fresh, r->layer_bytes);
    return engine->device->ops->upload(engine->device, r->memory + at, r->fresh, r->layer_bytes,
                                       err);
}

/* Whom a draft is confined to changes without the store. */
static int refresh(moe_engine *engine, moe_recorded_pass *r, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    uint64_t version = moe_expert_store_version(engine->experts);
    bool confined = !r->exact && engine->speculation->draft_experts > 0;
    int status = MOE_OK;
    if (r->has_version && version == r->version && !confined) {
        return MOE_OK;
    }
    for (uint32_t l = 0; l < c->n_layer && status == MOE_OK; l++) {
        status = moe_layer_has_experts(c, l) ? refresh_layer(engine, r, l, err) : MOE_OK;
    }
    r->version = version;
    r->has_version = status == MOE_OK;
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

/* What the mixing weights of an edited row are made by; an exact row's are the router's. */
static bool renormalises(const moe_engine *engine, const moe_recorded_pass *r, uint32_t layer)
{
    return !r->exact && engine->routes->mixing[layer].renormalise;
}

int moe_recorded_pass_experts(moe_engine *engine, moe_recorded_pass *r, uint32_t layer,
                              moe_error *err)
{
    const moe_model_config *c = &engine->config;
    moe_pass_buffers *b = &engine->buffers;
    moe_device *device = engine->device;
    uint8_t *table = r->memory + layer * r->layer_bytes;
    uint8_t *told = r->memory + r->told_at;
    const uint16_t *affinities = (const uint16_t *)(r->memory + r->affinity_at);
    moe_resident_experts experts = {.route = moe_route_of_layer(engine, layer),
                                    .renormalise = renormalises(engine, r, layer),
                                    .fill = r->fill,
                                    .affinity =
                                        r->affinity_at < r->bytes
                                            ? affinities + (size_t)layer * c->n_expert * c->n_expert
                                            : NULL,
                                    .resident = resident_of(engine, table),
                                    .addresses = (const moe_expert_address *)table,
                                    .gate = shape_of(engine, layer, MOE_EXPERT_GATE),
                                    .up = shape_of(engine, layer, MOE_EXPERT_UP),
                                    .down = shape_of(engine, layer, MOE_EXPERT_DOWN),
                                    .x = b->norm,
                                    .picks = picks_at(told, c, layer),
                                    .weights = weights_at(told, c, layer),
                                    .n_missing = missing_at(told, c, layer),
                                    .outs = b->rank_out,
                                    .y = b->branch};
    return device->recording->resident_experts(device, &experts, err);
}

static int record(moe_engine *engine, moe_recorded_pass *r, const moe_pass *pass, moe_error *err)
{
    moe_device *device = engine->device;
    moe_pass recorded = *pass;
    recorded.recorded = r;
    int status = device->recording->record(device, r->number, err);
    if (status != MOE_OK) {
        return status;
    }
    status = moe_pass_queue_layers(engine, &recorded, err);
    if (status == MOE_OK) {
        status = moe_pass_queue_logits(engine, pass->logit_rows, 1, err);
    }
    status = device->recording->record_end(device, status, err);
    if (!r->exact) {
        engine->speculation->stats.draft_recordings += status == MOE_OK;
    }
    return status;
}

/* Plays the pass, and records it where that has to be. MOE_ERR_UNSUPPORTED: it cannot be. */
static int launch(moe_engine *engine, moe_recorded_pass *r, const moe_pass *pass, moe_error *err)
{
    moe_step_inputs inputs;
    bool played;
    int status = moe_pass_begin_step(engine, pass, &inputs, err);
    if (status == MOE_OK) {
        status = engine->device->recording->play(engine->device, r->number, &played, err);
    }
    if (status == MOE_OK && !played) {
        status = record(engine, r, pass, err);
    }
    return moe_pass_end_step(engine, status, err);
}

/* ---- A pass ---- */

static void foresee(moe_engine *engine, const moe_recorded_pass *r, const moe_pass *pass)
{
    const moe_model_config *c = &engine->config;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        if (moe_layer_has_experts(c, l)) {
            moe_edit_foresee(engine, pass, l, 0, picks_at(r->told, c, l));
        }
    }
}

static bool has_missed(const moe_engine *engine, const moe_recorded_pass *r)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < engine->config.n_layer; l++) {
        n += *missing_at(r->told, &engine->config, l);
    }
    return n > 0;
}

/* The layers as if the host had routed them. */
static int make_up_for(moe_engine *engine, const moe_recorded_pass *r, const moe_pass *pass,
                       moe_error *err)
{
    const moe_model_config *c = &engine->config;
    moe_pass_buffers *b = &engine->buffers;
    int status = MOE_OK;
    for (uint32_t l = 0; l < c->n_layer && status == MOE_OK; l++) {
        if (moe_layer_has_experts(c, l)) {
            memcpy(b->chosen, picks_at(r->told, c, l), c->n_expert_used * sizeof *b->chosen);
            memcpy(b->chosen_weights, weights_at(r->told, c, l),
                   c->n_expert_used * sizeof *b->chosen_weights);
            status = moe_feed_forward_note(engine, pass, l, err);
        }
    }
    return status;
}

/* *done false: experts were missing. */
static int take_results(moe_engine *engine, moe_recorded_pass *r, const moe_pass *pass, bool *done,
                        moe_error *err)
{
    bool is_told = r->exact || engine->speculation->foresight, last;
    int status = MOE_OK;
    if (is_told) {
        status = engine->device->ops->download(engine->device, r->told, r->memory + r->told_at,
                                               r->told_bytes, err);
    }
    r->n_played += status == MOE_OK;
    if (status == MOE_OK && r->exact && has_missed(engine, r)) {
        r->n_missed++;
        r->skip = r->skip == 0 ? 1 : r->skip < MOST_SKIPPED ? 2 * r->skip : MOST_SKIPPED;
        r->skipped = 0;
        *done = false;
        return MOE_OK;
    }
    if (status == MOE_OK && r->exact) {
        r->skip = 0;
        status = make_up_for(engine, r, pass, err);
    } else if (status == MOE_OK && is_told) {
        foresee(engine, r, pass);
    }
    return status != MOE_OK ? status : moe_pass_hand_over(engine, pass, 0, 1, &last, err);
}

/* Observers are shown what a pass of the device alone does not bring back. */
static bool is_recorded(const moe_engine *engine, const moe_recorded_pass *r, const moe_pass *pass)
{
    bool fits = r != NULL && !r->refused && pass->n_rows == 1 && pass->n_logit_rows == 1 &&
                pass->kv_rows[0].path == NULL;
    return fits &&
           (!r->exact || (pass->kind == MOE_PASS_EXACT && engine->observers == NULL &&
                          engine->route_replay == NULL && !moe_budget_exact_wanted(engine, pass)));
}

int moe_recorded_pass_run(moe_engine *engine, moe_recorded_pass *r, const moe_pass *pass,
                          bool *done, moe_error *err)
{
    moe_error reason = {""};
    *done = false;
    if (!is_recorded(engine, r, pass)) {
        return MOE_OK;
    }
    if (r->skipped < r->skip) {
        r->skipped++;
        return MOE_OK;
    }
    if (pass->is_cancelled != NULL && pass->is_cancelled(pass->cancel_user)) {
        return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
    }
    int status = refresh(engine, r, err);
    if (status != MOE_OK) {
        return status;
    }
    status = launch(engine, r, pass, &reason);
    if (status == MOE_ERR_UNSUPPORTED) {
        r->refused = true;
        moe_pass_tell_refusal(
            engine, r->exact ? "tokens are routed by the host" : "drafts are routed by the host",
            &reason);
        return MOE_OK;
    }
    if (status != MOE_OK) {
        return moe_fail(err, status, "%s", reason.message);
    }
    *done = true;
    if (!r->exact) {
        engine->speculation->n_recorded_passes++;
    }
    return take_results(engine, r, pass, done, err);
}
