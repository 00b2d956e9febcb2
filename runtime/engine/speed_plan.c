/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include <moe/lab.h>
#include <moe/speed.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/engine_state.h"
#include "runtime/engine/option_set.h"

/* Tokens decoded before computing is measured: the first few find caches and page tables cold. */
#define N_WARM_UP  4
#define N_MEASURED 16
/* For measuring the disk. */
#define MAX_BYTES   (UINT64_C(256) << 20)
#define MAX_SECONDS 1.0
#define MAX_DEPTH   16u

static double seconds(double bytes, double bytes_per_s)
{
    return bytes_per_s > 0.0 ? bytes / bytes_per_s : 0.0;
}

static moe_speed_estimate estimate_of(const moe_memory_plan *plan, const moe_speed_rates *rates)
{
    double bytes = (double)plan->token_expert_bytes;
    double missing = bytes * (1.0 - plan->expected_hit_rate);
    double read = bytes * (1.0 - plan->expected_memory_hit_rate);
    bool moves = plan->has_device_memory && missing > 0.0;
    moe_speed_estimate estimate = {
        .disk_bytes = (uint64_t)read,
        .link_bytes = moves ? (uint64_t)missing : 0,
        .disk_s = seconds(read, rates->disk_bytes_per_s),
        .link_s = moves ? seconds(missing, rates->link_bytes_per_s) : 0.0,
        .compute_s = rates->compute_s_per_token,
        .complete = rates->compute_s_per_token > 0.0 &&
                    (read <= 0.0 || rates->disk_bytes_per_s > 0.0) &&
                    (!moves || rates->link_bytes_per_s > 0.0),
    };
    double total = estimate.disk_s + estimate.link_s + estimate.compute_s;
    estimate.tokens_per_s = total > 0.0 ? 1.0 / total : 0.0;
    return estimate;
}

int moe_plan_speed(const moe_memory_plan *plan, const moe_speed_rates *rates,
                   moe_speed_estimate *estimate)
{
    moe_memory_plan own_plan = {0};
    moe_speed_rates own_rates = {0};
    int status = moe_struct_take(&moe_kind_memory_plan, &own_plan, plan, NULL);
    if (status == MOE_OK) {
        status = moe_struct_take(&moe_kind_speed_rates, &own_rates, rates, NULL);
    }
    if (status != MOE_OK) {
        return status;
    }
    moe_speed_estimate made = estimate_of(&own_plan, &own_rates);
    return moe_struct_give(&moe_kind_speed_estimate, estimate, &made, NULL);
}

static int compare_times(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The median time of steps, without their waits for experts. */
static int measure_steps(moe_engine *engine, moe_session *session, double *s_per_token,
                         moe_error *err)
{
    uint64_t times[N_MEASURED];
    int32_t token = 0;
    int status = moe_session_feed(session, &token, 1, err);
    for (int i = -N_WARM_UP; i < N_MEASURED && status == MOE_OK; i++) {
        uint64_t begin = moe_now_ns();
        uint64_t waited = moe_expert_store_wait_ns(engine->runner.experts);
        status = moe_step(engine, &session, 1, err);
        uint64_t step_ns = moe_now_ns() - begin;
        waited = moe_expert_store_wait_ns(engine->runner.experts) - waited;
        if (i >= 0) {
            times[i] = step_ns > waited ? step_ns - waited : 0;
        }
    }
    if (status == MOE_OK) {
        qsort(times, N_MEASURED, sizeof times[0], compare_times);
        *s_per_token = (double)times[N_MEASURED / 2] * 1e-9;
    }
    return status;
}

static int measure_compute(moe_engine *engine, double *s_per_token, moe_error *err)
{
    moe_session_options options;
    moe_session *session = NULL;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    int status = moe_session_create(&session, engine, &options, err);
    if (status == MOE_OK) {
        status = measure_steps(engine, session, s_per_token, err);
    }
    moe_session_close(&session);
    return status;
}

/* Measures ranges as long as an expert's parts, with as many at once as a layer's misses. */
static int measure_disk(const moe_engine *engine, const moe_engine_options *o, double *bytes_per_s,
                        moe_error *err)
{
    const moe_model_config *c = &engine->config;
    moe_storage_test test;
    moe_storage_speed speed = {.struct_size = sizeof speed};
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        for (int p = 0; moe_layer_has_experts(c, l) && p < MOE_EXPERT_PARTS; p++) {
            uint64_t size = engine->map.layers[l].experts[0].parts[p].size;
            least = size < least ? size : least;
            most = size > most ? size : most;
        }
    }
    double missing = (double)c->n_expert_used * (1.0 - engine->plan.expected_memory_hit_rate);
    uint32_t n_reads = (uint32_t)(missing * MOE_EXPERT_PARTS + 0.5);
    moe_storage_test_init(&test);
    test.path = moe_gguf_file_at(engine->gguf, 0)->path;
    test.io = o->io;
    test.buffered = o->buffered_io;
    test.small_pages = true; /* like the slots */
    test.range_min_bytes = least;
    test.range_max_bytes = most;
    test.depth = n_reads < 1 ? 1 : n_reads > MAX_DEPTH ? MAX_DEPTH : n_reads;
    test.total_bytes = MAX_BYTES;
    test.max_seconds = MAX_SECONDS;
    test.seed = moe_now_ns();
    int status = moe_storage_measure(&test, &speed, err);
    *bytes_per_s = status == MOE_OK ? speed.bytes_per_s : 0.0;
    return status;
}

int moe_speed_measure(const moe_engine_options *options, moe_speed_rates *rates, moe_error *err)
{
    moe_speed_rates measured = {0};
    moe_option_set set;
    int status = moe_struct_give(&moe_kind_speed_rates, rates, &measured, err);
    if (status == MOE_OK) {
        status = moe_option_set_take(&set, options, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    moe_lab_options given = set.lab;
    set.options.speculate = MOE_SPECULATE_OFF;
    set.options.draft_model = NULL;
    set.options.draft_max = set.options.tree_nodes = 0;
    set.options.acceptance = MOE_ACCEPTANCE_EXACT;
    set.options.prefetch = MOE_SWITCH_OFF;
    set.options.warm_start = MOE_SWITCH_OFF;
    moe_lab_options_init(&set.lab);
    set.lab.offload = given.offload;
    set.lab.kernels = given.kernels;
    set.lab.route_trace = given.route_trace;
    set.lab.per_layer_cache = given.per_layer_cache;
    set.lab.budget_oracle = given.budget_oracle;
    set.lab.budget_error = given.budget_error;
    moe_engine *engine = NULL;
    status = moe_engine_open(&engine, &set.options, err);
    if (status != MOE_OK) {
        return status;
    }
    status = measure_compute(engine, &measured.compute_s_per_token, err);
    if (status == MOE_OK) {
        status = measure_disk(engine, &set.options, &measured.disk_bytes_per_s, err);
    }
    if (status == MOE_OK && engine->device->link != NULL) {
        measured.link_bytes_per_s = (double)engine->device->link_bytes_per_s;
    }
    moe_engine_close(&engine);
    (void)moe_struct_give(&moe_kind_speed_rates, rates, &measured, NULL);
    return status;
}
