/* SPDX-License-Identifier: MIT */
#include "runtime/recorded/recorded_table.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/runner.h"

/* ---- Memory ---- */

static size_t results_words(const moe_model_config *c, uint32_t n_rows, bool has_buddies)
{
    size_t picks = (size_t)c->n_layer * n_rows * c->n_expert_used;
    size_t more = has_buddies ? (size_t)c->n_layer * c->n_expert + picks : 0;
    return 2 * picks + c->n_layer + more;
}

/* Buddies of a layer: each expert's number of them, and their ids. */
static size_t buddies_bytes(const moe_model_config *c, uint32_t max)
{
    return moe_align64(c->n_expert * sizeof(uint32_t)) +
           moe_align64((size_t)c->n_expert * max * sizeof(uint16_t));
}

/* Of x, or of norm. */
static size_t kept_bytes(const moe_model_config *c, uint32_t n_rows)
{
    return moe_align64((size_t)n_rows * c->n_embd * sizeof(float));
}

static void lay_out(moe_recorded_table *t, const moe_model_config *c,
                    const moe_recorded_table_options *o)
{
    size_t n = c->n_expert;
    t->config = c;
    t->has_affinity = o->affinity != NULL;
    t->max_buddies = o->max_buddies;
    t->max_rows = o->max_rows;
    t->n_rows = 1;
    t->layer_bytes = moe_align64(n * (sizeof(moe_expert_address) + sizeof(bool)));
    t->results_at = c->n_layer * t->layer_bytes;
    t->results_bytes = results_words(c, o->max_rows, t->max_buddies > 0) * sizeof(uint32_t);
    t->stops = o->stops;
    t->stop_at = t->results_at + moe_align64(t->results_bytes);
    t->substitutes_at =
        t->stop_at + (t->stops ? moe_align64(1) + 2 * kept_bytes(c, t->max_rows) : 0);
    t->bytes = t->substitutes_at;
    t->bytes += t->has_affinity ? c->n_layer * n * n * sizeof(uint16_t) : 0;
    t->bytes += t->max_buddies > 0 ? c->n_layer * buddies_bytes(c, t->max_buddies) : 0;
}

uint64_t moe_recorded_table_bytes(const moe_model_config *config,
                                  const moe_recorded_table_options *options)
{
    moe_recorded_table t;
    lay_out(&t, config, options);
    return t.bytes;
}

static int upload_buddies(moe_recorded_table *t, moe_device *device, const moe_buddy_list *lists,
                          moe_error *err)
{
    const moe_model_config *c = t->config;
    size_t layer_bytes = buddies_bytes(c, t->max_buddies);
    size_t ids_at = moe_align64(c->n_expert * sizeof(uint32_t));
    uint8_t *layer = moe_calloc(1, layer_bytes);
    int status = layer != NULL ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "no memory for buddies");
    for (uint32_t l = 0; l < c->n_layer && status == MOE_OK; l++) {
        const moe_buddy_list *list = &lists[l];
        uint16_t *ids = (uint16_t *)(layer + ids_at);
        memcpy(layer, list->count, c->n_expert * sizeof *list->count);
        for (uint32_t e = 0; e < c->n_expert; e++) {
            memcpy(ids + (size_t)e * t->max_buddies, list->buddies + (size_t)e * list->max,
                   list->max * sizeof *ids);
        }
        status = device->ops->upload(device, t->memory + t->substitutes_at + l * layer_bytes, layer,
                                     layer_bytes, err);
    }
    free(layer);
    return status;
}

int moe_recorded_table_open(moe_recorded_table *t, moe_device *device,
                            const moe_model_config *config,
                            const moe_recorded_table_options *options, moe_error *err)
{
    const moe_device_ops *ops = device->ops;
    lay_out(t, config, options);
    t->table = moe_calloc(config->n_layer, t->layer_bytes);
    t->fresh = moe_calloc(1, t->layer_bytes);
    t->results = moe_calloc(1, t->results_bytes);
    t->reach = moe_calloc(config->n_layer, config->n_expert);
    if (t->table == NULL || t->fresh == NULL || t->results == NULL || t->reach == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for passes of the device alone");
    }
    void *memory;
    int status = ops->alloc(device, t->bytes, &memory, err);
    if (status != MOE_OK) {
        return status;
    }
    t->memory = memory;
    status = ops->upload(device, t->memory, t->table, t->results_at, err);
    if (status == MOE_OK) { /* layers without experts have no results */
        status = ops->upload(device, t->memory + t->results_at, t->results, t->results_bytes, err);
    }
    if (status == MOE_OK && options->affinity != NULL) {
        status = ops->upload(device, t->memory + t->substitutes_at, options->affinity,
                             t->bytes - t->substitutes_at, err);
    }
    return status == MOE_OK && t->max_buddies > 0 ? upload_buddies(t, device, options->buddies, err)
                                                  : status;
}

void moe_recorded_table_close(moe_recorded_table *t, moe_device *device)
{
    if (t->memory != NULL) {
        device->ops->free(device, t->memory, t->bytes);
    }
    free(t->table);
    free(t->fresh);
    free(t->results);
    free(t->reach);
    *t = (moe_recorded_table){0};
}

/* ---- The table ---- */

static bool *residents_in(const moe_recorded_table *t, uint8_t *layer)
{
    return (bool *)(layer + t->config->n_expert * sizeof(moe_expert_address));
}

const bool *moe_recorded_table_residents(const moe_recorded_table *t, uint32_t layer)
{
    return residents_in(t, t->table + layer * t->layer_bytes);
}

const uint8_t *moe_recorded_table_reach(const moe_recorded_table *t, uint32_t layer)
{
    return t->reach + (size_t)layer * t->config->n_expert;
}

/* True if the layer has changed. */
static bool refresh_layer(moe_recorded_table *t, moe_runner *runner, uint32_t layer,
                          const moe_speculation *confined, bool in_place)
{
    uint32_t n_expert = t->config->n_expert;
    moe_expert_address *addresses = (moe_expert_address *)t->fresh;
    bool *resident = residents_in(t, t->fresh);
    uint8_t *reach = t->reach + (size_t)layer * n_expert;
    moe_expert_store_reach(runner->experts, layer, in_place, reach, addresses);
    if (confined != NULL) {
        moe_draft_residents(confined, layer, resident);
    }
    for (uint32_t e = 0; e < n_expert; e++) {
        resident[e] = reach[e] != MOE_REACH_NONE && (confined == NULL || resident[e]);
        if (!resident[e]) {
            addresses[e] = (moe_expert_address){0};
        }
    }
    uint8_t *table = t->table + layer * t->layer_bytes;
    if (memcmp(table, t->fresh, t->layer_bytes) == 0) {
        return false;
    }
    memcpy(table, t->fresh, t->layer_bytes);
    return true;
}

int moe_recorded_table_refresh(moe_recorded_table *t, moe_runner *runner,
                               const moe_recorded_reach *by, moe_error *err)
{
    uint64_t version = moe_expert_store_settle(runner->experts);
    size_t first = t->config->n_layer;
    size_t end = 0;
    if (t->has_version && version == t->version && by->in_place == t->was_in_place &&
        !by->may_change) {
        return MOE_OK;
    }
    for (uint32_t l = by->first; l < t->config->n_layer; l++) {
        if (moe_layer_has_experts(t->config, l) &&
            refresh_layer(t, runner, l, by->confined, by->in_place)) {
            first = l < first ? l : first;
            end = l + 1;
        }
    }
    size_t at = first * t->layer_bytes;
    int status = first < end
                     ? runner->device->ops->upload(runner->device, t->memory + at, t->table + at,
                                                   (end - first) * t->layer_bytes, err)
                     : MOE_OK;
    t->version = version;
    t->was_in_place = by->in_place;
    t->has_version = status == MOE_OK && by->first == 0;
    return status;
}

/* ---- Results ---- */

static moe_recorded_results places(const moe_recorded_table *t, uint8_t *results, uint32_t layer)
{
    const moe_model_config *c = t->config;
    size_t n_used = (size_t)t->n_rows * c->n_expert_used;
    size_t picks = c->n_layer * n_used;
    uint32_t *words = (uint32_t *)results + c->n_layer;
    moe_recorded_results l = {.missing = (uint32_t *)results + layer,
                              .picks = words + layer * n_used,
                              .weights = (float *)words + picks + layer * n_used};
    if (t->max_buddies > 0) {
        uint32_t *more = words + 2 * picks;
        l.probs = (float *)more + (size_t)layer * c->n_expert;
        l.chosen = more + (size_t)c->n_layer * c->n_expert + layer * n_used;
    }
    return l;
}

moe_recorded_results moe_recorded_table_results(const moe_recorded_table *t, uint32_t layer)
{
    return places(t, t->results, layer);
}

static uint32_t first_with_experts(const moe_model_config *c, uint32_t layer)
{
    while (layer < c->n_layer && !moe_layer_has_experts(c, layer)) {
        layer++;
    }
    return layer;
}

int moe_recorded_table_restore(const moe_recorded_table *t, moe_runner *runner, moe_error *err)
{
    size_t bytes = (size_t)t->n_rows * t->config->n_embd * sizeof(float);
    moe_device *device = runner->device;
    const uint8_t *kept = t->memory + t->stop_at + moe_align64(1);
    int status = device->ops->copy(device, runner->buffers.x, kept, bytes, err);
    return status != MOE_OK
               ? status
               : device->ops->copy(device, runner->buffers.norm,
                                   kept + kept_bytes(t->config, t->max_rows), bytes, err);
}

void moe_recorded_table_fill(const moe_recorded_table *t, const moe_runner *runner, uint32_t layer,
                             uint32_t first, moe_resident_experts *job,
                             moe_resident_buddies *buddies)
{
    const moe_model_config *c = t->config;
    uint8_t *table = t->memory + layer * t->layer_bytes;
    const uint8_t *substitutes = t->memory + t->substitutes_at;
    moe_recorded_results results = places(t, t->memory + t->results_at, layer);
    job->resident = residents_in(t, table);
    job->addresses = (const moe_expert_address *)table;
    job->picks = results.picks;
    job->weights = results.weights;
    job->n_missing = results.missing;
    job->probs = results.probs;
    job->chosen = results.chosen;
    job->n_rows = t->n_rows;
    if (t->stops) {
        float *kept = (float *)(t->memory + t->stop_at + moe_align64(1));
        size_t n_kept = kept_bytes(c, t->max_rows) / sizeof *kept;
        job->stop = (moe_resident_stop){.stopped = (uint32_t *)(t->memory + t->stop_at),
                                        .begins = layer == first_with_experts(c, first),
                                        .inputs = {runner->buffers.x, runner->buffers.norm},
                                        .kept = {kept, kept + n_kept},
                                        .n = t->n_rows * c->n_embd};
    }
    if (t->has_affinity) {
        job->affinity = (const uint16_t *)substitutes + (size_t)layer * c->n_expert * c->n_expert;
    }
    if (t->max_buddies > 0) {
        const uint8_t *lists = substitutes + layer * buddies_bytes(c, t->max_buddies);
        buddies->count = (const uint32_t *)lists;
        buddies->buddies = (const uint16_t *)(lists + moe_align64(c->n_expert * sizeof(uint32_t)));
        buddies->max = t->max_buddies;
        job->buddies = buddies;
    }
}

int moe_recorded_table_download(moe_recorded_table *t, moe_device *device, moe_error *err)
{
    size_t bytes = results_words(t->config, t->n_rows, t->max_buddies > 0) * sizeof(uint32_t);
    return device->ops->download(device, t->results, t->memory + t->results_at, bytes, err);
}
