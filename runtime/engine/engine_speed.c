/* SPDX-License-Identifier: MIT */
/* Measures with an engine: how fast it computes tokens, and how fast its threads read memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <moe/lab.h>
#include <moe/speed.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/option_set.h"
#include "runtime/lab/expert_read_speed.h"
#include "runtime/lab/memory_speed.h"
#include "runtime/workers/worker_owners.h"

#define N_MEASURED_LEAST 16
#define N_MEASURED_MOST  256
#define N_WARM_UP        4 /* without a trace: the first tokens find caches and page tables cold */
#define MOST_NS          UINT64_C(2000000000)
#define N_QUARTERS       4

/* What a token took. */
typedef struct token_time {
    double compute_s, wait_s;
    uint64_t n_read; /* experts that it read from the disk */
} token_time;

/* Decodes a token, and fills in its time. */
static int time_step(moe_engine *engine, moe_session *session, token_time *time, moe_error *err)
{
    moe_expert_store_stats before, after;
    moe_expert_store_get_stats(engine->runner.experts, &before);
    const uint64_t begin = moe_now_ns();
    MOE_TRY(moe_step(engine, &session, 1, err));
    const uint64_t ns = moe_now_ns() - begin;
    moe_expert_store_get_stats(engine->runner.experts, &after);
    const uint64_t waited = after.wait_ns - before.wait_ns;
    time->compute_s = ns > waited ? (double)(ns - waited) * 1e-9 : 0;
    time->wait_s = (double)waited * 1e-9;
    time->n_read = after.misses - before.misses;
    return MOE_OK;
}

/* How many tokens fill the cache, and how many are measured. */
static void choose_counts(const moe_engine *engine, uint64_t *n_warm_up, uint64_t *n_measured)
{
    const uint64_t context = engine->plan.context;
    moe_trace_info info = {.struct_size = sizeof info};
    if (engine->route_replay != NULL) {
        moe_trace_get_info(engine->route_replay->trace, &info);
    }
    *n_warm_up = info.n_rows > 0 ? info.n_rows / 4 : N_WARM_UP;
    *n_measured = info.n_rows > 0 ? N_MEASURED_MOST : N_MEASURED_LEAST;
    /* A token was fed. */
    if (*n_warm_up + *n_measured >= context) {
        *n_warm_up = context / 4;
        *n_measured = context - 1 - *n_warm_up;
    }
}

/* Decodes n tokens, or at least n_least within MOST_NS, and fills in their times. */
static int time_tokens(moe_engine *engine, moe_session *session, const moe_engine_options *o,
                       uint64_t n_least, uint64_t *n, token_time *times, double done,
                       moe_error *err)
{
    const uint64_t begin = moe_now_ns();
    for (uint64_t i = 0; i < *n; i++) {
        if (i >= n_least && moe_now_ns() - begin > MOST_NS) {
            *n = i;
            break;
        }
        MOE_TRY(time_step(engine, session, &times[i], err));
        const double share = done + (double)(i + 1) / (double)*n / 2;
        if (o->progress != NULL && !o->progress(share, o->user)) {
            return moe_fail(err, MOE_ERR_CANCELLED, "measuring was cancelled");
        }
    }
    return MOE_OK;
}

static token_time mean_of(const token_time *times, uint64_t n)
{
    token_time sum = {0};
    for (uint64_t i = 0; i < n; i++) {
        sum.compute_s += times[i].compute_s / (double)n;
        sum.wait_s += times[i].wait_s / (double)n;
        sum.n_read += times[i].n_read;
    }
    return sum;
}

static void summarize(const token_time *times, uint64_t n, moe_speed_rates *rates, double *wait_s)
{
    const token_time all = mean_of(times, n);
    rates->compute_s_per_token = all.compute_s;
    *wait_s = all.n_read > 0 ? all.wait_s * (double)n / (double)all.n_read : 0;
    for (uint64_t q = 0; q < N_QUARTERS; q++) {
        const uint64_t first = q * n / N_QUARTERS, end = (q + 1) * n / N_QUARTERS;
        if (first == end) {
            continue;
        }
        const token_time part = mean_of(times + first, end - first);
        const double expected_s =
            all.compute_s + *wait_s * (double)part.n_read / (double)(end - first);
        const double difference = fabs((part.compute_s + part.wait_s) / expected_s - 1);
        rates->spread = difference > rates->spread ? difference : rates->spread;
    }
}

/* Measures computing, and the wait for an expert. */
static int measure_steps(moe_engine *engine, moe_session *session, const moe_engine_options *o,
                         moe_speed_rates *rates, double *wait_s, moe_error *err)
{
    uint64_t n_warm_up, n_measured;
    choose_counts(engine, &n_warm_up, &n_measured);
    const uint64_t n_most = n_warm_up > n_measured ? n_warm_up : n_measured;
    token_time *times = moe_calloc(n_most + 1, sizeof *times);
    int32_t token = 0;
    if (times == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the times of tokens");
    }
    int status = moe_session_feed(session, &token, 1, err);
    if (status == MOE_OK) {
        status = time_tokens(engine, session, o, N_WARM_UP, &n_warm_up, times, 0, err);
    }
    if (status == MOE_OK) {
        status = time_tokens(engine, session, o, N_MEASURED_LEAST, &n_measured, times, 0.5, err);
    }
    if (status == MOE_OK) {
        summarize(times, n_measured, rates, wait_s);
    }
    free(times);
    return status;
}

static int measure_tokens(moe_engine *engine, const moe_engine_options *o, moe_speed_rates *rates,
                          double *wait_s, moe_error *err)
{
    moe_session_options options;
    moe_session *session = NULL;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    int status = moe_session_create(&session, engine, &options, err);
    if (status == MOE_OK) {
        status = measure_steps(engine, session, o, rates, wait_s, err);
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
    double wait_s = 0; /* for an expert */
    status = measure_tokens(engine, &set.options, &measured, &wait_s, err);
    if (status == MOE_OK) {
        status = moe_expert_read_speed(moe_gguf_file_at(engine->gguf, 0)->path, &engine->config,
                                       &engine->map, engine->plan.expected_memory_hit_rate,
                                       &set.options, &measured.disk_bytes_per_s, err);
    }
    if (status == MOE_OK && !engine->plan.has_device_memory && wait_s > 0) {
        const double bytes = (double)engine->plan.expert_bytes / (double)engine->plan.experts;
        measured.wait_s_per_expert = wait_s - bytes / measured.disk_bytes_per_s;
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
    for (size_t key = 0; engine->workers != NULL && key < n_all; key++) {
        const uint32_t layer = (uint32_t)(key / engine->config.n_expert);
        const uint32_t expert = (uint32_t)(key % engine->config.n_expert);
        if (tiers[key] == MOE_TIER_DISK && moe_workers_have(engine->workers, layer, expert)) {
            tiers[key] = MOE_TIER_WORKER;
        }
    }
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
