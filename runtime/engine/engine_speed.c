/* SPDX-License-Identifier: MIT */
/* Measures with an engine: how fast it computes tokens, and how fast its threads read memory. */
#include <stdlib.h>
#include <string.h>

#include <moe/lab.h>
#include <moe/speed.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/option_set.h"
#include "runtime/lab/expert_read_speed.h"
#include "runtime/lab/memory_speed.h"

/* Tokens decoded before computing is measured: the first few find caches and page tables cold. */
#define N_WARM_UP  4
#define N_MEASURED 16

static int compare_times(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Measures the median time of a step, without the time that it waits for experts. */
static int measure_steps(moe_engine *engine, moe_session *session, const moe_engine_options *o,
                         double *s_per_token, moe_error *err)
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
        double share = (double)(i + 1 + N_WARM_UP) / (N_WARM_UP + N_MEASURED);
        if (status == MOE_OK && o->progress != NULL && !o->progress(share, o->user)) {
            status = moe_fail(err, MOE_ERR_CANCELLED, "measuring was cancelled");
        }
    }
    if (status == MOE_OK) {
        qsort(times, N_MEASURED, sizeof times[0], compare_times);
        *s_per_token = (double)times[N_MEASURED / 2] * 1e-9;
    }
    return status;
}

static int measure_compute(moe_engine *engine, const moe_engine_options *o, double *s_per_token,
                           moe_error *err)
{
    moe_session_options options;
    moe_session *session = NULL;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    int status = moe_session_create(&session, engine, &options, err);
    if (status == MOE_OK) {
        status = measure_steps(engine, session, o, s_per_token, err);
    }
    moe_session_close(&session);
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
    MOE_TRY(moe_engine_open(&engine, &set.options, err));
    status = measure_compute(engine, &set.options, &measured.compute_s_per_token, err);
    if (status == MOE_OK) {
        status = moe_expert_read_speed(moe_gguf_file_at(engine->gguf, 0)->path, &engine->config,
                                       &engine->map, engine->plan.expected_memory_hit_rate,
                                       &set.options, &measured.disk_bytes_per_s, err);
    }
    if (status == MOE_OK && engine->device->link != NULL) {
        measured.link_bytes_per_s = (double)engine->device->link_bytes_per_s;
    }
    moe_engine_close(&engine);
    (void)moe_struct_give(&moe_kind_speed_rates, rates, &measured, NULL);
    return status;
}

int moe_engine_get_tiers(const moe_engine *engine, uint8_t *tiers, size_t n, moe_error *err)
{
    if (engine == NULL || tiers == NULL) {
        return moe_fail_null(err, "moe_engine_get_tiers", "engine or tiers");
    }
    MOE_TRY(moe_engine_need_model(engine, "the tiers of experts", err));
    uint64_t n_all = (uint64_t)engine->config.n_layer * engine->config.n_expert;
    if (n < n_all) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "moe_engine_get_tiers: the model has %llu experts in its layers, and there "
                        "is room for %zu",
                        (unsigned long long)n_all, n);
    }
    moe_expert_store_tiers(engine->runner.experts, tiers);
    return MOE_OK;
}

int moe_engine_measure_bandwidth(moe_engine *engine, double *bytes_per_s, moe_error *err)
{
    if (engine == NULL || bytes_per_s == NULL) {
        return moe_fail_null(err, "moe_engine_measure_bandwidth", "engine or bytes_per_s");
    }
    *bytes_per_s = 0.0;
    MOE_TRY(moe_engine_need_model(engine, "measuring", err));
    if (engine->plan.has_device_memory && !engine->device->simulated) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the threads' read bandwidth is no bound for %s, which has memory of its "
                        "own",
                        engine->device->name);
    }
    if (engine->plan.total + MOE_MEMORY_SPEED_BYTES > engine->plan.budget) {
        return moe_fail(err, MOE_ERR_BUDGET,
                        "the memory budget has no room for the %zu MiB that measuring takes",
                        MOE_MEMORY_SPEED_BYTES >> 20);
    }
    return moe_memory_speed(engine->team, engine->device, bytes_per_s, err);
}
