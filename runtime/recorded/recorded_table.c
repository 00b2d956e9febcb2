/* SPDX-License-Identifier: MIT */
#include "runtime/recorded/recorded_table.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/runner.h"

/* ---- Memory ---- */

static size_t results_words(const moe_model_config *c, uint32_t n_rows, bool substitutes)
{
    size_t picks = (size_t)c->n_layer * n_rows * c->n_expert_used;
    size_t more = substitutes ? (size_t)c->n_layer * c->n_expert + picks : 0;
    return 2 * picks + c->n_layer + more;
}

/* Returns the bytes of a layer's lists of substitutes: their lengths and entries. */
static size_t lists_bytes(const moe_model_config *c, uint32_t max)
{
    return moe_align64(c->n_expert * sizeof(uint32_t)) +
           moe_align64((size_t)c->n_expert * max * sizeof(uint16_t));
}

/* Returns the bytes of the kept x, or of the kept norm. */
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
    t->longest_list = o->longest_list;
    t->max_rows = o->max_rows;
    t->n_rows = 1;
    t->layer_bytes = moe_align64(n * (sizeof(moe_expert_address) + sizeof(bool)));
    t->keeps = o->keeps;
    t->spares_at = c->n_layer * t->layer_bytes;
    t->ranges_at = t->spares_at + (o->stops ? MOE_MOST_OFFERS * sizeof *t->spares : 0);
    t->taken_at = t->ranges_at + (o->stops ? moe_align64(c->n_layer * sizeof *t->ranges) : 0);
    t->results_at = t->taken_at + (o->stops ? MOE_MOST_OFFERS * sizeof(uint32_t) : 0);
    t->results_bytes = results_words(c, o->max_rows, t->longest_list > 0) * sizeof(uint32_t);
    t->stops = o->stops;
    t->stop_at = t->results_at + moe_align64(t->results_bytes);
    t->substitutes_at =
        t->stop_at + (t->stops ? moe_align64(1) + 2 * kept_bytes(c, t->max_rows) : 0);
    t->bytes = t->substitutes_at;
    t->bytes += t->has_affinity ? c->n_layer * n * n * sizeof(uint16_t) : 0;
    t->bytes += t->longest_list > 0 ? c->n_layer * lists_bytes(c, t->longest_list) : 0;
}

uint64_t moe_recorded_table_bytes(const moe_model_config *config,
                                  const moe_recorded_table_options *options)
{
    moe_recorded_table t;
    lay_out(&t, config, options);
    return t.bytes;
}

static int upload_lists(moe_recorded_table *t, moe_device *device, const moe_lossy *lossy,
                        moe_error *err)
{
    const moe_model_config *c = t->config;
    size_t layer_bytes = lists_bytes(c, t->longest_list);
    size_t ids_at = moe_align64(c->n_expert * sizeof(uint32_t));
    uint8_t *layer = moe_calloc(1, layer_bytes);
    int status =
        layer != NULL ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "no memory for substitutes");
    for (uint32_t l = 0; l < c->n_layer && status == MOE_OK; l++) {
        const moe_substitution from = moe_lossy_substitution(lossy, l);
        uint16_t *ids = (uint16_t *)(layer + ids_at);
        memcpy(layer, from.count, c->n_expert * sizeof *from.count);
        for (uint32_t e = 0; e < c->n_expert; e++) {
            memcpy(ids + (size_t)e * t->longest_list, from.lists + (size_t)e * from.max,
                   from.max * sizeof *ids);
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
    t->results = moe_calloc(1, t->results_at - t->taken_at + t->results_bytes);
    t->reach = moe_calloc(config->n_layer, config->n_expert);
    t->offers = moe_calloc(MOE_MOST_OFFERS, sizeof *t->offers);
    /* The ranges and the marks of taken spares are sent behind the spares. */
    t->spares = moe_calloc(1, t->results_at - t->spares_at);
    t->ranges = moe_calloc(config->n_layer, sizeof *t->ranges);
    t->kept = moe_calloc(MOE_MOST_OFFERS, sizeof *t->kept);
    if (t->table == NULL || t->fresh == NULL || t->results == NULL || t->reach == NULL ||
        t->offers == NULL || t->spares == NULL || t->ranges == NULL || t->kept == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for passes of the device alone");
    }
    void *memory;
    MOE_TRY(ops->alloc(device, t->bytes, &memory, err));
    t->memory = memory;
    int status = ops->upload(device, t->memory, t->table, t->spares_at, err);
    if (status == MOE_OK) { /* layers without experts have no results */
        status = ops->upload(device, t->memory + t->taken_at, t->results,
                             t->results_at - t->taken_at + t->results_bytes, err);
    }
    if (status == MOE_OK && options->affinity != NULL) {
        status = ops->upload(device, t->memory + t->substitutes_at, options->affinity,
                             t->bytes - t->substitutes_at, err);
    }
    return status == MOE_OK && t->longest_list > 0
               ? upload_lists(t, device, options->substitutes, err)
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
    free(t->offers);
    free(t->spares);
    free(t->ranges);
    free(t->kept);
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

/* Updates a layer of the table. Returns whether it has changed. */
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

/* ---- What passes keep ---- */

static moe_expert_address *entry_in(const moe_recorded_table *t, uint8_t *memory, uint32_t key)
{
    const uint32_t n_expert = t->config->n_expert;
    return (moe_expert_address *)(memory + key / n_expert * t->layer_bytes) + key % n_expert;
}

/* Returns the number of the first spare in use. */
static uint32_t first_spare(const moe_recorded_table *t)
{
    return MOE_MOST_OFFERS - t->n_offers;
}

static bool offers_hold(const moe_recorded_table *t, const moe_runner *runner)
{
    bool hold = true;
    for (uint32_t i = 0; i < t->n_offers; i++) {
        hold = hold && moe_expert_store_offer_holds(runner->experts, &t->offers[i]);
    }
    return hold;
}

/* Asks the store to offer slots: from each domain in proportion to its share of the layers. */
static void ask_for_offers(moe_recorded_table *t, moe_runner *runner, const moe_recorded_reach *by)
{
    const moe_model_config *c = t->config;
    uint32_t n_layers = 0;
    memset(t->ranges, 0, c->n_layer * sizeof *t->ranges);
    t->n_offers = 0;
    for (uint32_t l = 0; l < c->n_layer; l++) { /* `end` counts layers at first */
        if (moe_layer_has_experts(c, l)) {
            t->ranges[moe_expert_store_domain_of(runner->experts, l)].end++;
            n_layers++;
        }
    }
    for (uint32_t l = 0; l < c->n_layer; l++) {
        if (!moe_layer_has_experts(c, l)) {
            continue;
        }
        moe_spare_range *range = &t->ranges[moe_expert_store_domain_of(runner->experts, l)];
        uint32_t room = MOE_MOST_OFFERS - t->n_offers;
        uint32_t wanted = (by->n_offers * range->end + n_layers - 1) / n_layers;
        if (range->first != 0 || range->end == 0) {
            continue; /* an earlier layer has already asked for this domain */
        }
        uint32_t got = moe_expert_store_offer(runner->experts, l, wanted < room ? wanted : room,
                                              t->offers + t->n_offers);
        *range = (moe_spare_range){.first = 1 + t->n_offers,
                                   .end = 1 + t->n_offers + got,
                                   .early_end = 1 + t->n_offers + (by->early ? got : 0)};
        t->n_offers += got;
    }
    t->offered = by->n_offers > 0 && 2 * t->n_offers >= by->n_offers;
    for (uint32_t d = 0; d < c->n_layer; d++) {
        if (t->ranges[d].first != 0) {
            t->ranges[d].first += first_spare(t) - 1;
            t->ranges[d].end += first_spare(t) - 1;
            t->ranges[d].early_end += first_spare(t) - 1;
        }
    }
}

static int send_offers(moe_recorded_table *t, moe_runner *runner, moe_error *err)
{
    const uint32_t first = first_spare(t);
    const size_t at = t->spares_at + first * sizeof *t->spares;
    uint8_t *ranges = (uint8_t *)(t->spares + MOE_MOST_OFFERS);
    uint8_t *taken = ranges + (t->taken_at - t->ranges_at);
    for (uint32_t i = 0; i < t->n_offers; i++) {
        const moe_slot_offer *offer = &t->offers[i];
        t->spares[first + i] = (moe_expert_spare){
            .slot = offer->place,
            .home = offer->home,
            .entry = offer->key != MOE_KEY_NONE ? entry_in(t, t->memory, offer->key) : NULL};
    }
    memcpy(ranges, t->ranges, t->config->n_layer * sizeof *t->ranges);
    memset(taken, UINT8_MAX, MOE_MOST_OFFERS * sizeof(uint32_t)); /* MOE_SPARE_UNTAKEN */
    return runner->device->ops->upload(runner->device, t->memory + at, t->spares + first,
                                       t->results_at - at, err);
}

/* Returns the slots that the last pass has taken: [MOE_MOST_OFFERS] */
static const uint32_t *taken_in(const moe_recorded_table *t)
{
    return (const uint32_t *)t->results;
}

const moe_kept_expert *moe_recorded_table_take_kept(moe_recorded_table *t, moe_runner *runner,
                                                    uint32_t layer, uint32_t *n)
{
    const uint32_t n_expert = t->config->n_expert;
    *n = 0;
    if (!t->keeps || t->n_offers == 0) {
        return t->kept;
    }
    const uint32_t d = moe_expert_store_domain_of(runner->experts, layer);
    const uint32_t *taken = taken_in(t);
    for (uint32_t i = t->ranges[d].first; i < t->ranges[d].end; i++) {
        if (taken[i] == MOE_SPARE_UNTAKEN || taken[i] / n_expert != layer) {
            continue;
        }
        const moe_slot_offer *offer = &t->offers[i - first_spare(t)];
        if (offer->key != MOE_KEY_NONE) {
            *entry_in(t, t->table, offer->key) = offer->home;
            t->reach[offer->key] = MOE_REACH_HOST;
        }
        *entry_in(t, t->table, taken[i]) = offer->place;
        t->kept[(*n)++] = (moe_kept_expert){taken[i] % n_expert, offer};
    }
    return t->kept;
}

void moe_recorded_table_settle(moe_recorded_table *t)
{
    bool any = false;
    for (uint32_t i = first_spare(t); i < MOE_MOST_OFFERS; i++) {
        any = any || taken_in(t)[i] != MOE_SPARE_UNTAKEN;
    }
    t->n_offers = any ? 0 : t->n_offers; /* the store has changed, so it is asked again */
}

void moe_recorded_table_forget(moe_recorded_table *t, moe_runner *runner)
{
    for (uint32_t i = 0; i < t->n_offers; i++) {
        moe_expert_store_lose_offer(runner->experts, &t->offers[i]);
    }
    if (t->n_offers > 0) {
        memset(t->table, UINT8_MAX, t->config->n_layer * t->layer_bytes);
    }
    t->n_offers = 0;
    t->has_version = false;
}

int moe_recorded_table_refresh(moe_recorded_table *t, moe_runner *runner,
                               const moe_recorded_reach *by, moe_error *err)
{
    uint64_t version = moe_expert_store_settle(runner->experts);
    size_t first = t->config->n_layer;
    size_t end = 0;
    const bool keeps = t->keeps && by->in_place;
    if (t->has_version && version == t->version && by->in_place == t->was_in_place &&
        !by->may_change && (!keeps || offers_hold(t, runner))) {
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
    if (status == MOE_OK && keeps) {
        ask_for_offers(t, runner, by);
        status = send_offers(t, runner, err);
    }
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
    if (t->longest_list > 0) {
        uint32_t *more = words + 2 * picks;
        l.probs = (float *)more + (size_t)layer * c->n_expert;
        l.chosen = more + (size_t)c->n_layer * c->n_expert + layer * n_used;
    }
    return l;
}

moe_recorded_results moe_recorded_table_results(const moe_recorded_table *t, uint32_t layer)
{
    return places(t, t->results + (t->results_at - t->taken_at), layer);
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
    MOE_TRY(device->ops->copy(device, runner->buffers.values[MOE_VALUE_X], kept, bytes, err));
    return device->ops->copy(device, runner->buffers.values[MOE_VALUE_NORM],
                             kept + kept_bytes(t->config, t->max_rows), bytes, err);
}

void moe_recorded_table_fill(const moe_recorded_table *t, const moe_runner *runner, uint32_t layer,
                             uint32_t first, moe_resident_experts *job,
                             moe_substitution *substitution)
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
        job->stop = (moe_resident_stop){
            .stopped = (uint32_t *)(t->memory + t->stop_at),
            .begins = layer == first_with_experts(c, first),
            .inputs = {runner->buffers.values[MOE_VALUE_X], runner->buffers.values[MOE_VALUE_NORM]},
            .kept = {kept, kept + n_kept},
            .n = t->n_rows * c->n_embd};
    }
    if (t->keeps) {
        job->keep.spares = (moe_expert_spare *)(t->memory + t->spares_at);
        job->keep.range = (moe_spare_range *)(t->memory + t->ranges_at) +
                          moe_expert_store_domain_of(runner->experts, layer);
        job->keep.taken = (uint32_t *)(t->memory + t->taken_at);
        job->keep.table = (moe_expert_address *)table;
        job->keep.first_key = layer * c->n_expert;
    }
    if (t->has_affinity) {
        job->lists = (const uint16_t *)substitutes + (size_t)layer * c->n_expert * c->n_expert;
    }
    if (t->longest_list > 0) {
        const uint8_t *lists = substitutes + layer * lists_bytes(c, t->longest_list);
        substitution->count = (const uint32_t *)lists;
        substitution->lists =
            (const uint16_t *)(lists + moe_align64(c->n_expert * sizeof(uint32_t)));
        substitution->max = t->longest_list;
        job->substitution = substitution;
    }
}

int moe_recorded_table_download(moe_recorded_table *t, moe_device *device, moe_error *err)
{
    size_t bytes = results_words(t->config, t->n_rows, t->longest_list > 0) * sizeof(uint32_t);
    return device->ops->download(device, t->results, t->memory + t->taken_at,
                                 t->results_at - t->taken_at + bytes, err);
}
