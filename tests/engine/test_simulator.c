/* SPDX-License-Identifier: MIT */
/* The simulator is the engine: a recorded run, replayed, has exactly the hits, misses, evictions
 * and bytes that engines with that cache had; with a device's slots and the host's, in both tiers.
 * Usage: test_simulator ORACLE-FOLDER DEMO-MODEL [DEVICE]: with it only two tiers, on that device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include <moe/trace.h>

#include "engine_fixture.h"
#include "engine_options.h"

static bool one_policy;
static const char *folder, *demo_model, *device = "sim:memory=1G,link=64GB/s";

/* A prompt in chunks, a second session that joins and leaves, and some tokens written.
 * options->sessions is 1: without the second session, which would borrow host slots. */
static moe_engine_stats run(const moe_engine_options *options, uint64_t *expert_bytes)
{
    moe_engine *engine = open_engine(options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    *expert_bytes = info.expert_bytes / info.memory.experts;
    moe_session *sessions[2] = {greedy_session(engine),
                                options->sessions == 1 ? NULL : greedy_session(engine)};
    int32_t prompt[50];
    make_prompt(prompt, 50, info.n_vocab, 1);
    feed(sessions[0], prompt, 50);
    make_prompt(prompt, 50, info.n_vocab, 2);
    if (sessions[1] != NULL) {
        feed(sessions[1], prompt, 9);
    }
    for (int step = 0; step < 40; step++) {
        size_t n = options->sessions == 1 || step < 5 || step > 20 ? 1 : 2;
        moe_error error;
        if (moe_step(engine, sessions, n, &error) != MOE_OK) {
            fail_msg("%s", error.message);
        }
    }
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    moe_session_close(&sessions[0]);
    moe_session_close(&sessions[1]);
    moe_engine_close(&engine);
    return stats;
}

static void check(const moe_trace *trace, const moe_engine_options *options)
{
    uint64_t expert_bytes;
    moe_engine_stats engine = run(options, &expert_bytes);
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.policy = options->policy;
    simulation.n_slots = (uint32_t)engine.expert_slots;
    simulation.per_layer = options->lab->per_layer_cache;
    simulation.expert_bytes = expert_bytes;
    moe_simulation_result result = {.struct_size = sizeof result};
    moe_error error;
    if (moe_simulate(trace, &simulation, &result, &error) != MOE_OK) {
        fail_msg("%s: %s", options->policy, error.message);
    }
    if (result.hits != engine.expert_hits || result.misses != engine.expert_misses ||
        result.evictions != engine.expert_evictions || result.n_passes != engine.passes ||
        result.misses * expert_bytes != engine.bytes_demand || engine.bytes_prefetch != 0) {
        fail_msg("%s, share %.2f, per layer %d: simulated %llu hits, %llu misses, %llu evictions "
                 "in %llu passes; the engine had %llu, %llu, %llu in %llu, and read %llu bytes of "
                 "experts of %llu",
                 options->policy, options->expert_cache_share, (int)options->lab->per_layer_cache,
                 (unsigned long long)result.hits, (unsigned long long)result.misses,
                 (unsigned long long)result.evictions, (unsigned long long)result.n_passes,
                 (unsigned long long)engine.expert_hits, (unsigned long long)engine.expert_misses,
                 (unsigned long long)engine.expert_evictions, (unsigned long long)engine.passes,
                 (unsigned long long)engine.bytes_demand, (unsigned long long)expert_bytes);
    }
}

static bool is_exact(const moe_simulation_result *r, const moe_engine_stats *e,
                     uint64_t expert_bytes)
{
    return r->hits == e->expert_hits && r->misses == e->expert_misses &&
           r->evictions == e->expert_evictions && r->host_hits == e->host_hits &&
           r->host_misses == e->host_misses && r->demoted == e->experts_demoted &&
           r->demoted_hits == e->demoted_hits && e->demotions_lost == 0 &&
           r->misses * expert_bytes == e->bytes_moved_link &&
           r->host_misses * expert_bytes == e->bytes_disk_demand;
}

/* Returns how many experts were copied back to the host. */
static uint64_t check_tiers(const moe_trace *trace, const moe_engine_options *options)
{
    uint64_t expert_bytes;
    moe_engine_stats engine = run(options, &expert_bytes);
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.policy = options->policy;
    simulation.n_slots = (uint32_t)engine.expert_slots;
    simulation.host_slots = (uint32_t)engine.host_slots;
    moe_simulation_result result = {.struct_size = sizeof result};
    moe_error error;
    if (moe_simulate(trace, &simulation, &result, &error) != MOE_OK) {
        fail_msg("%s: %s", options->policy, error.message);
    }
    if (!is_exact(&result, &engine, expert_bytes)) {
        fail_msg(
            "%s, %u and %u slots, in the simulator and the engine: hits %llu %llu; misses %llu "
            "%llu; in the host %llu %llu; read %llu %llu; saved %llu %llu; hits on these %llu "
            "%llu; lost %llu; lent %llu",
            options->policy, simulation.n_slots, simulation.host_slots,
            (unsigned long long)result.hits, (unsigned long long)engine.expert_hits,
            (unsigned long long)result.misses, (unsigned long long)engine.expert_misses,
            (unsigned long long)result.host_hits, (unsigned long long)engine.host_hits,
            (unsigned long long)result.host_misses, (unsigned long long)engine.host_misses,
            (unsigned long long)result.demoted, (unsigned long long)engine.experts_demoted,
            (unsigned long long)result.demoted_hits, (unsigned long long)engine.demoted_hits,
            (unsigned long long)engine.demotions_lost, (unsigned long long)engine.host_slots_lent);
    }
    return result.demoted;
}

static moe_trace *record(moe_engine_options options)
{
    char path[] = "/tmp/moe-trace-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    uint64_t unused;
    lab_of(&options)->trace_path = path;
    lab_of(&options)->trace_gates = true;
    (void)run(&options, &unused);
    moe_trace_open_options open;
    moe_trace_open_options_init(&open);
    open.path = path;
    moe_engine_info info = {.struct_size = sizeof info};
    lab_of(&options)->trace_path = NULL;
    lab_of(&options)->trace_gates = false;
    moe_engine *engine = open_engine(&options);
    moe_engine_get_info(engine, &info);
    open.n_expert = info.n_expert;
    open.n_layer = info.n_layer;
    moe_engine_close(&engine);
    moe_trace *trace;
    moe_error error;
    if (moe_trace_open(&trace, &open, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    unlink(path);
    return trace;
}

static void replayed(void **state)
{
    const char *name = *state;
    char path[1024];
    moe_engine_options options = oracle_options(path, folder, name);
    options.context = 128;
    options.prefill_chunk = 16;
    options.n_threads = 1;
    options.prefetch = MOE_SWITCH_OFF;
    options.panel = 1; /* the simulator replays passes */
    options.buffered_io = true;
    moe_trace *trace = record(options);
    const double shares[] = {0.13, 0.25, 0.5};
    const uint32_t gates = MOE_POLICY_NEEDS_GATES;
    uint32_t n_runs = 0;
    for (uint32_t i = 0; moe_policy_name(i) != NULL; i++) {
        options.policy = moe_policy_name(i);
        for (size_t s = 0; (moe_policy_needs(i) & ~gates) == 0 && s < 6; s++) {
            options.expert_cache_share = shares[s % 3];
            lab_of(&options)->per_layer_cache = s >= 3;
            moe_memory_plan plan = {.struct_size = sizeof plan};
            while (moe_plan_memory(&options, &plan, NULL) == MOE_ERR_BUDGET) {
                options.expert_cache_share += 0.04; /* below the experts of one token */
            }
            check(trace, &options);
            n_runs++;
        }
    }
    print_message("%s: %u runs\n", name, n_runs);
    assert_true(n_runs >= 6 * 6);
    moe_trace_close(&trace);
}

/* The demo model, whose routing is trained: with two tiers, saves begin to pay or stop to. */
static void two_tiers(void **state)
{
    static const char *const policies[] = {"lfru", "arc", "lecar"};
    const double shares[] = {0.2, 0.5};
    moe_engine_options options;
    (void)state;
    moe_engine_options_init(&options);
    options.model_path = demo_model;
    options.context = 128;
    options.prefill_chunk = 16;
    options.n_threads = 1;
    options.sessions = 1;
    options.prefetch = MOE_SWITCH_OFF;
    options.warm_start = MOE_SWITCH_OFF;
    options.speculate = MOE_SPECULATE_OFF;
    options.panel = 1;
    options.buffered_io = true;
    moe_trace *trace = record(options);
    options.device = device;
    lab_of(&options)->read_in_place = MOE_SWITCH_OFF; /* a GPU would choose slots by itself */
    options.host_compute = MOE_SWITCH_OFF;
    options.expert_cache_share = 0.25;
    uint64_t n_demoted = 0;
    const size_t n_policies = one_policy ? 1 : sizeof policies / sizeof policies[0];
    for (size_t i = 0; i < 2 * n_policies; i++) {
        moe_memory_plan plan = {.struct_size = sizeof plan};
        options.policy = policies[i / 2];
        options.host_memory = 0;
        assert_int_equal(moe_plan_memory(&options, &plan, NULL), MOE_OK);
        options.host_memory = plan.total - plan.host_cache;
        const uint64_t n_slots = (uint64_t)(shares[i % 2] * (double)plan.experts);
        while (moe_plan_memory(&options, &plan, NULL) == MOE_ERR_BUDGET ||
               plan.host_slots < n_slots) {
            options.host_memory += one_policy ? 4u << 20 : 1u << 20; /* each plan opens the GPU */
        }
        n_demoted += check_tiers(trace, &options);
    }
    assert_true(n_demoted > 0);
    moe_trace_close(&trace);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: test_simulator ORACLE-FOLDER DEMO-MODEL [DEVICE]\n");
        return 2;
    }
    folder = argv[1];
    demo_model = argv[2];
    const struct CMUnitTest alone[] = {cmocka_unit_test(two_tiers)};
    if (argc == 4) {
        device = argv[3];
        one_policy = true;
        return cmocka_run_group_tests(alone, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        {"olmoe-q8_0", replayed, NULL, NULL, (void *)"olmoe-q8_0"},
        {"deepseek2-v3", replayed, NULL, NULL, (void *)"deepseek2-v3"},
        cmocka_unit_test(two_tiers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
