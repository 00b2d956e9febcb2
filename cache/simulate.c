/* SPDX-License-Identifier: MIT */
/* Replays a trace through a cache. Here as in the engine, moe_layer_access_wave() decides which
 * expert is accessed when. This file adds the clock:
 *
 *    disk     |--- misses of l ---|- prefetches for l+1 -|      |- misses of l+1 -|
 *    compute  |- resident of l -|  (stall)  |- rest of l -|- resident of l+1 - ...
 *
 * A layer's resident experts are computed while its misses are read. Prefetches queue behind the
 * misses of the layer that asks for them, and the next layer's misses queue behind the prefetches.
 * With host slots below a device (lower_tier.h), every expert that comes then takes its turn on the
 * link: those in host memory at once, the others when they have been read. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <moe/trace.h>

#include "cache/access_list.h"
#include "cache/expert_cache.h"
#include "cache/forecast_source.h"
#include "cache/layer_access.h"
#include "cache/lower_tier.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"

typedef struct simulator {
    const moe_simulation *options;
    const moe_trace *trace;
    const moe_access_list *accesses;
    moe_expert_cache *cache;
    moe_lower_tier host;    /* host.cache NULL: one tier */
    uint64_t first_pass;    /* passes before this one measure hotness */
    float *hotness;         /* [n_layer * n_expert] or NULL */
    bool *handled;          /* [n_expert] */
    moe_layer_access *wave; /* [n_expert] */
    uint32_t *predicted;    /* [n_expert] predicted keys of the next layer */
    uint32_t *prefetching;  /* [n_expert] keys with a slot, pinned until the next layer begins */
    uint32_t n_prefetching;
    moe_forecast_source *ahead; /* NULL: the policy gets no forecasts */
    uint64_t random;
    double now_s;
    double disk_free_s;
    double link_free_s;
    double stall_s;
    uint64_t extra_waves;
    uint64_t n_disk; /* experts read from the disk */
} simulator;

void moe_simulation_init_sized(moe_simulation *simulation, size_t struct_size)
{
    const moe_simulation defaults = {.struct_size = sizeof defaults,
                                     .policy = MOE_POLICY_DEFAULT,
                                     .cache_share = 0.1,
                                     .prefetch_recall = -1,
                                     .expert_bytes = 1u << 20,
                                     .bytes_per_s = 3e9,
                                     .latency_s = 100e-6,
                                     .depth = 16,
                                     .lookahead = MOE_LOOKAHEAD_NONE,
                                     .lookahead_stands = 0.69,
                                     .lookahead_recall = 0.91,
                                     .lookahead_recall_wrong = 0.56,
                                     .link_bytes_per_s = 25e9,
                                     .link_latency_s = 10e-6};
    moe_struct_init(&moe_kind_simulation, simulation, struct_size, &defaults);
}

const char *moe_policy_name(uint32_t index)
{
    const moe_policy *policy = moe_policy_at(index);
    return policy == NULL ? NULL : policy->name;
}

uint32_t moe_policy_needs(uint32_t index)
{
    const moe_policy *policy = moe_policy_at(index);
    return policy == NULL ? 0 : policy->needs;
}

/* ---- Time ---- */

static double read_s(const simulator *sim, uint64_t n)
{
    const moe_simulation *o = sim->options;
    return (double)n * (double)o->expert_bytes / o->bytes_per_s +
           ceil((double)n / o->depth) * o->latency_s;
}

/* n experts come from now on, n_disk of them from the disk. Returns when the last is there. */
static double bring(simulator *sim, uint64_t n, uint64_t n_disk)
{
    const moe_simulation *o = sim->options;
    const double begin_s = fmax(sim->now_s, sim->disk_free_s);
    const double move_s = o->link_latency_s + (double)o->expert_bytes / o->link_bytes_per_s;
    sim->n_disk += n_disk;
    if (n_disk > 0) {
        sim->disk_free_s = begin_s + read_s(sim, n_disk);
    }
    if (sim->host.cache == NULL) {
        return sim->disk_free_s;
    }
    sim->link_free_s = fmax(sim->now_s, sim->link_free_s) + (double)(n - n_disk) * move_s;
    for (uint64_t i = 1; i <= n_disk; i++) {
        sim->link_free_s = fmax(sim->link_free_s, begin_s + read_s(sim, i)) + move_s;
    }
    return sim->link_free_s;
}

static void clock_layer(simulator *sim, uint64_t n_hits, uint64_t n_misses, uint64_t n_disk)
{
    double compute_s = sim->options->compute_s;
    if (n_misses > 0) {
        double there_s = bring(sim, n_misses, n_disk);
        double resident_done =
            sim->now_s + compute_s * (double)n_hits / (double)(n_hits + n_misses);
        double stall = fmax(there_s - resident_done, 0.0);
        sim->stall_s += stall;
        sim->now_s += stall;
    }
    sim->now_s += compute_s;
}

/* ---- Prefetch ---- */

/* Returns a random number in [0, 1), by splitmix64. */
static double uniform(simulator *sim)
{
    uint64_t z = sim->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static bool is_among(const uint32_t *keys, size_t n, uint32_t key)
{
    for (size_t i = 0; i < n; i++) {
        if (keys[i] == key) {
            return true;
        }
    }
    return false;
}

/* Makes up a prediction of the layer's experts: as many keys as the layer will use. On average the
 * share `recall` of them is right. */
static uint32_t predict(simulator *sim, const uint32_t *keys, uint32_t n)
{
    uint32_t n_expert = sim->trace->n_expert;
    uint32_t first_key = n == 0 ? 0 : keys[0] / n_expert * n_expert;
    uint32_t n_predicted = 0;
    uint32_t n_wrong = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (uniform(sim) < sim->options->prefetch_recall) {
            sim->predicted[n_predicted++] = keys[i];
        } else {
            n_wrong++;
        }
    }
    n_wrong = n_wrong < n_expert - n ? n_wrong : n_expert - n;
    while (n_wrong > 0) {
        uint32_t key = first_key + (uint32_t)(uniform(sim) * n_expert);
        if (!is_among(keys, n, key) && !is_among(sim->predicted, n_predicted, key)) {
            sim->predicted[n_predicted++] = key;
            n_wrong--;
        }
    }
    return n_predicted;
}

/* Brings the experts that this wave misses through the host's slots. Returns how many of them the
 * disk has to give. */
static uint64_t bring_wave(simulator *sim, size_t first, uint32_t n_wave)
{
    uint64_t n_disk = 0;
    for (uint32_t i = 0; i < n_wave; i++) {
        const moe_layer_access *access = &sim->wave[i];
        const size_t at = first + access->position;
        bool in_memory = false;
        if (access->hit) {
            continue;
        }
        if (!moe_lower_tier_bring(&sim->host, sim->accesses->keys[at], access->evicted,
                                  &sim->accesses->accesses[at], false, &in_memory)) {
            moe_lower_tier_settle(&sim->host);
            (void)moe_lower_tier_bring(&sim->host, sim->accesses->keys[at], access->evicted,
                                       &sim->accesses->accesses[at], false, &in_memory);
        }
        n_disk += !in_memory;
    }
    moe_lower_tier_settle(&sim->host);
    return n_disk;
}

/* Prefetches for the layer whose accesses are [start, end). Keys that get a slot stay pinned, as
 * they do in the engine while they are being read. */
static void prefetch_layer(simulator *sim, size_t start, size_t end)
{
    if (sim->options->prefetch_recall < 0 || start == end) {
        return;
    }
    uint32_t n = predict(sim, sim->accesses->keys + start, (uint32_t)(end - start));
    moe_policy_access access = sim->accesses->accesses[start];
    access.n_rows = 0;
    access.gate = 0;
    access.next_use = access.pass * sim->accesses->n_layer + access.layer;
    uint32_t n_disk = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t evicted;
        bool in_memory = false;
        if (moe_expert_cache_prefetch(sim->cache, sim->predicted[i], &access, &evicted) !=
            MOE_SLOT_NONE) {
            moe_expert_cache_pin(sim->cache, sim->predicted[i]);
            sim->prefetching[sim->n_prefetching++] = sim->predicted[i];
            (void)moe_lower_tier_bring(&sim->host, sim->predicted[i], evicted, &access, true,
                                       &in_memory);
            n_disk += !in_memory;
        }
    }
    if (sim->n_prefetching > 0) {
        (void)bring(sim, sim->n_prefetching, n_disk);
    }
}

static void end_prefetches(simulator *sim)
{
    for (uint32_t i = 0; i < sim->n_prefetching; i++) {
        moe_expert_cache_unpin(sim->cache, sim->prefetching[i]);
    }
    sim->n_prefetching = 0;
    moe_lower_tier_settle(&sim->host);
}

/* ---- Passes ---- */

/* Runs the layer at `index` in the table of accesses, and prefetches for the next layer while this
 * layer's last wave is pinned. Returns false if a wave took no key; layer_access.h says why this
 * cannot happen. */
static bool run_layer(simulator *sim, size_t index, bool has_next)
{
    size_t first = sim->accesses->start[index];
    size_t end = sim->accesses->start[index + 1];
    uint32_t n = (uint32_t)(end - first);
    uint32_t n_done = 0;
    uint64_t n_hits = 0, n_disk = 0;
    end_prefetches(sim);
    memset(sim->handled, 0, n * sizeof *sim->handled);
    for (uint32_t n_wave = 0; n_done < n; n_done += n_wave) {
        sim->extra_waves += n_done > 0;
        n_wave = moe_layer_access_wave(sim->cache, sim->accesses->keys + first,
                                       sim->accesses->accesses + first, n, sim->handled, sim->wave);
        if (n_wave == 0) {
            return false;
        }
        for (uint32_t i = 0; i < n_wave; i++) {
            n_hits += sim->wave[i].hit;
        }
        n_disk += bring_wave(sim, first, n_wave);
        if (n_done + n_wave == n) {
            double began_s = sim->now_s;
            clock_layer(sim, n_hits, n - n_hits, n_disk);
            if (has_next) {
                double after_s = sim->now_s;
                sim->now_s = began_s;
                prefetch_layer(sim, end, sim->accesses->start[index + 2]);
                sim->now_s = after_s;
            }
        }
        for (uint32_t i = 0; i < n_wave; i++) {
            moe_expert_cache_unpin(sim->cache, sim->accesses->keys[first + sim->wave[i].position]);
        }
    }
    return true;
}

/* Replays accesses one after the other, not layer by layer. No resident experts could be computed
 * while others are read, so the clock treats each access as a layer of one expert. */
static void run_one_by_one(simulator *sim, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        bool hit;
        uint32_t evicted;
        (void)moe_expert_cache_access(sim->cache, sim->accesses->keys[i],
                                      &sim->accesses->accesses[i], &hit, &evicted);
        clock_layer(sim, hit, !hit, !hit);
    }
}

static void end_pass(simulator *sim, uint64_t pass)
{
    moe_expert_cache_end_pass(sim->cache, pass);
    if (sim->host.cache != NULL) {
        moe_expert_cache_end_pass(sim->host.cache, pass);
    }
}

static bool run_pass(simulator *sim, uint64_t pass)
{
    uint32_t n_layer = sim->accesses->n_layer;
    if (sim->options->is_sequential) {
        run_one_by_one(sim, sim->accesses->start[pass * n_layer],
                       sim->accesses->start[(pass + 1) * n_layer]);
        end_pass(sim, pass);
        return true;
    }
    if (sim->ahead != NULL) {
        size_t n;
        const moe_policy_forecast *forecasts = moe_forecast_source_look(sim->ahead, pass, &n);
        moe_expert_cache_lookahead(sim->cache, pass, forecasts, n);
    }
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        if (!run_layer(sim, pass * n_layer + layer, layer + 1 < n_layer)) {
            return false;
        }
    }
    end_pass(sim, pass);
    return true;
}

/* ---- Setting up ---- */

static int check_options(const moe_simulation *o, moe_error *err)
{
    if (o->policy == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "simulation: policy must be set");
    }
    if (o->n_slots == 0 && !(o->cache_share > 0 && o->cache_share <= 1)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "simulation: a cache of %g of the experts; a share is in (0, 1]",
                        o->cache_share);
    }
    if (!(o->calibration >= 0 && o->calibration < 1)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "simulation: calibration on %g of the passes; a share is in [0, 1)",
                        o->calibration);
    }
    if (!(o->prefetch_recall <= 1) || !(o->bytes_per_s > 0) || !(o->latency_s >= 0) ||
        !(o->compute_s >= 0) || o->depth == 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "simulation: recall is at most 1; bandwidth and depth are above 0; latency "
                        "and compute time at least 0");
    }
    if (o->is_sequential && (o->prefetch_recall >= 0 || o->lookahead != MOE_LOOKAHEAD_NONE)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "simulation: accesses one by one have no layer or pass to prefetch or to "
                        "look ahead from");
    }
    if (o->host_slots > 0 && o->is_sequential) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "simulation: accesses one by one have no second tier (host_slots)");
    }
    if ((unsigned)o->tiers > MOE_TIERS_EXCLUSIVE || !(o->link_bytes_per_s > 0) ||
        !(o->link_latency_s >= 0)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "simulation: tiers is one of moe_tier_use; the link's bandwidth is above "
                        "0, its latency at least 0");
    }
    return MOE_OK;
}

/* Computes the hotness of each expert: its share of the layer's choices in the passes that count
 * as calibration. */
static int measure_hotness(simulator *sim, moe_error *err)
{
    const moe_trace *trace = sim->trace;
    sim->first_pass = (uint64_t)(sim->options->calibration * (double)trace->n_passes);
    if (sim->options->calibration <= 0) {
        return MOE_OK;
    }
    if (sim->first_pass == 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "simulation: %g of %llu passes is less than one to calibrate on",
                        sim->options->calibration, (unsigned long long)trace->n_passes);
    }
    sim->hotness = moe_calloc((size_t)trace->n_layer * trace->n_expert, sizeof *sim->hotness);
    if (sim->hotness == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the experts' hotness");
    }
    for (uint32_t layer = 0; layer < trace->n_layer; layer++) {
        float *of_layer = sim->hotness + (size_t)layer * trace->n_expert;
        uint64_t total = 0;
        for (uint64_t row = 0; row < sim->accesses->rows_before[sim->first_pass]; row++) {
            moe_trace_list list = moe_trace_list_of(trace, row, layer);
            for (uint32_t i = 0; i < list.n; i++) {
                of_layer[list.ids[i]] += 1;
            }
            total += list.n;
        }
        for (uint32_t e = 0; e < trace->n_expert && total > 0; e++) {
            of_layer[e] /= (float)total;
        }
    }
    return MOE_OK;
}

/* Assigns layers to size classes. As in the engine, a layer in which no row chooses an expert has
 * no class. */
static uint32_t find_classes(const moe_trace *trace, uint32_t *class_of_layer)
{
    uint32_t n_with_experts = 0;
    for (uint32_t layer = 0; layer < trace->n_layer; layer++) {
        class_of_layer[layer] = UINT32_MAX;
        for (uint64_t row = 0; row < trace->n_rows && class_of_layer[layer] != 0; row++) {
            if (moe_trace_list_of(trace, row, layer).n > 0) {
                class_of_layer[layer] = 0;
                n_with_experts++;
            }
        }
    }
    return n_with_experts;
}

static int make_cache(simulator *sim, const moe_policy *policy, uint32_t *n_slots, moe_error *err)
{
    const moe_simulation *o = sim->options;
    const moe_trace *trace = sim->trace;
    uint32_t *class_of_layer = moe_calloc(trace->n_layer, sizeof *class_of_layer);
    if (class_of_layer == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the simulation");
    }
    uint64_t n_all = (uint64_t)find_classes(trace, class_of_layer) * trace->n_expert;
    *n_slots = o->n_slots;
    if (*n_slots == 0) {
        *n_slots = (uint32_t)fmax(round(o->cache_share * (double)n_all), 1.0);
    }
    *n_slots = *n_slots < n_all ? *n_slots : (uint32_t)n_all;
    moe_expert_cache_options options = {.n_layer = trace->n_layer,
                                        .n_expert = trace->n_expert,
                                        .n_expert_used = trace->n_expert_used,
                                        .class_of_layer = class_of_layer,
                                        .n_classes = 1,
                                        .slots_of_class = n_slots,
                                        .per_layer = o->per_layer,
                                        .policy = policy,
                                        .hotness = sim->hotness,
                                        .has_gates = trace->has_gates,
                                        .has_future = true,
                                        .seed = o->seed};
    int status = moe_expert_cache_create(&sim->cache, &options, err);
    if (status == MOE_OK && o->host_slots > 0) {
        const uint32_t host_slots = o->host_slots < n_all ? o->host_slots : (uint32_t)n_all;
        options.slots_of_class = &host_slots;
        options.per_layer = false;
        options.has_future = false;
        status = moe_lower_tier_create(&sim->host, &options, sim->cache, o->tiers, err);
    }
    free(class_of_layer);
    return status;
}

static int set_up(simulator *sim, const moe_policy *policy, uint32_t *n_slots, moe_error *err)
{
    uint32_t n_expert = sim->trace->n_expert;
    MOE_TRY(moe_access_list_of(&sim->accesses, sim->trace, sim->options->is_sequential, err));
    sim->handled = moe_calloc(n_expert, sizeof *sim->handled);
    sim->wave = moe_calloc(n_expert, sizeof *sim->wave);
    sim->predicted = moe_calloc(n_expert, sizeof *sim->predicted);
    sim->prefetching = moe_calloc(n_expert, sizeof *sim->prefetching);
    if (sim->handled == NULL || sim->wave == NULL || sim->predicted == NULL ||
        sim->prefetching == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the simulation");
    }
    MOE_TRY(measure_hotness(sim, err));
    MOE_TRY(moe_forecast_source_create(&sim->ahead, sim->options, policy, sim->trace, sim->accesses,
                                       err));
    return make_cache(sim, policy, n_slots, err);
}

/* ---- Results ---- */

static void tell(const simulator *sim, const moe_expert_cache_stats *before, uint64_t first_counted,
                 const simulator *then, moe_simulation_result *result)
{
    moe_expert_cache_stats s;
    moe_expert_cache_get_stats(sim->cache, &s);
    result->n_passes = sim->trace->n_passes - first_counted;
    result->n_tokens = sim->trace->n_rows - sim->accesses->rows_before[first_counted];
    result->hits = s.hits - before->hits;
    result->misses = s.misses - before->misses;
    result->evictions = s.evictions - before->evictions;
    result->prefetches = s.prefetch_inserts - before->prefetch_inserts;
    result->prefetches_used = s.prefetch_used - before->prefetch_used;
    result->prefetches_wasted = s.prefetch_wasted - before->prefetch_wasted;
    result->policy_faults = s.policy_faults - before->policy_faults;
    result->extra_waves = sim->extra_waves - then->extra_waves;
    uint64_t n = result->hits + result->misses;
    result->hit_rate = n == 0 ? 0 : (double)result->hits / (double)n;
    result->bytes_per_token = (double)(result->misses + result->prefetches) *
                              (double)sim->options->expert_bytes / (double)result->n_tokens;
    result->disk_bytes_per_token = (double)(sim->n_disk - then->n_disk) *
                                   (double)sim->options->expert_bytes / (double)result->n_tokens;
    result->host_hits = sim->host.hits - then->host.hits;
    result->host_misses = sim->host.misses - then->host.misses;
    result->demoted = sim->host.n_saved - then->host.n_saved;
    result->demoted_hits = sim->host.hits_saved - then->host.hits_saved;
    result->stall_s = sim->stall_s - then->stall_s;
    result->total_s = sim->now_s - then->now_s;
}

static int run(simulator *sim, moe_simulation_result *result, moe_error *err)
{
    uint64_t n_passes = sim->accesses->n_passes;
    uint64_t left = n_passes - sim->first_pass;
    if (sim->options->warm_up >= left) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "simulation: %llu passes to warm up of %llu leave none to count",
                        (unsigned long long)sim->options->warm_up, (unsigned long long)left);
    }
    uint64_t first_counted = sim->first_pass + sim->options->warm_up;
    moe_expert_cache_stats before = {.hits = 0};
    simulator then = *sim;
    for (uint64_t pass = sim->first_pass; pass < n_passes; pass++) {
        if (pass == first_counted) {
            moe_expert_cache_get_stats(sim->cache, &before);
            then = *sim;
        }
        if (!run_pass(sim, pass)) {
            return moe_fail(err, MOE_ERR_INTERNAL, "simulation: every slot is pinned");
        }
    }
    end_prefetches(sim);
    tell(sim, &before, first_counted, &then, result);
    return MOE_OK;
}

static int simulate(const moe_trace *trace, const moe_simulation *simulation,
                    moe_simulation_result *result, moe_error *err)
{
    const moe_policy *policy = NULL;
    void *plugin = NULL;
    int status = check_options(simulation, err);
    if (status == MOE_OK) {
        status =
            moe_policy_choose(&policy, &plugin, simulation->own_policy, simulation->policy, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    simulator sim = {.options = simulation, .trace = trace, .random = simulation->seed};
    if (simulation->host_slots > 0 && (policy->needs & MOE_POLICY_NEEDS_FUTURE) != 0) {
        status = moe_fail(err, MOE_ERR_ARGUMENT,
                          "simulation: cache policy %s is a bound of one tier; no host slots",
                          policy->name);
    }
    if (status == MOE_OK) {
        status = set_up(&sim, policy, &result->n_slots, err);
    }
    if (status == MOE_OK) {
        status = run(&sim, result, err);
    }
    moe_lower_tier_destroy(&sim.host);
    moe_expert_cache_destroy(&sim.cache);
    moe_forecast_source_destroy(&sim.ahead);
    free(sim.hotness);
    free(sim.handled);
    free(sim.wave);
    free(sim.predicted);
    free(sim.prefetching);
    moe_policy_release(&plugin);
    return status;
}

int moe_simulate(const moe_trace *trace, const moe_simulation *simulation,
                 moe_simulation_result *result, moe_error *err)
{
    if (trace == NULL) {
        return moe_fail_null(err, "moe_simulate", "trace");
    }
    moe_simulation own;
    moe_simulation_init(&own);
    moe_simulation_result made = {.n_slots = 0};
    int status = moe_struct_give(&moe_kind_simulation_result, result, &made, err);
    if (status == MOE_OK) {
        status = moe_struct_take(&moe_kind_simulation, &own, simulation, err);
    }
    if (status == MOE_OK) {
        status = simulate(trace, &own, &made, err);
        (void)moe_struct_give(&moe_kind_simulation_result, result, &made, NULL);
    }
    return status;
}
