/* SPDX-License-Identifier: MIT */
/* Experts on a device behind a link: tokens and the bits of the logits do not depend on the device,
 * the sizes of its tiers, the offload mode, the policy, or where an expert is computed; and the
 * counters add up. Run on a model given by path. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../engine/engine_fixture.h"
#include "../engine/engine_options.h"

#define N_PROMPT 40
#define N_DECODE 12
#define SIM      "sim:memory=256M,link=4GB/s,latency=5us"

/* By how much the process may have grown since the plan was made that a budget is taken from. */
#define SLACK (6u << 20)

static const char *model_path;

/* Tokens and last logits of the plain CPU. */
static struct {
    int32_t tokens[N_DECODE];
    float *logits;
    uint32_t n_vocab;
} expected;

static moe_engine_options default_options(void)
{
    return fixture_options(model_path, 16, 64);
}

static moe_session *generate(moe_engine *engine, int32_t *tokens)
{
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, expected.n_vocab, 1);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    decode(engine, session, tokens, N_DECODE);
    return session;
}

static int make_reference(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    expected.n_vocab = info.n_vocab;
    moe_session *session = generate(engine, expected.tokens);
    expected.logits = malloc(info.n_vocab * sizeof(float));
    memcpy(expected.logits, moe_session_logits(session), info.n_vocab * sizeof(float));
    moe_session_close(&session);
    moe_engine_close(&engine);
    return 0;
}

static int free_reference(void **state)
{
    (void)state;
    free(expected.logits);
    return 0;
}

static void check_counters(const moe_engine_info *info, const moe_engine_stats *stats)
{
    if (!info->memory.has_device_memory) {
        assert_int_equal(stats->bytes_moved_link, 0);
        assert_int_equal(stats->host_hits + stats->host_misses + stats->host_computed, 0);
        assert_int_equal(stats->experts_demoted + stats->demotions_lost + stats->demoted_hits, 0);
        return;
    }
    assert_non_null(strstr(info->device, "simulated"));
    assert_true(info->device_simulated);
    assert_int_equal(stats->expert_misses, stats->host_hits + stats->host_misses);
    assert_true(stats->host_computed <= stats->host_hits);
    assert_true(stats->demoted_hits <= stats->host_hits);
    assert_true(stats->experts_demoted <= stats->expert_evictions);
    assert_true((stats->bytes_demoted > 0) == (stats->experts_demoted > 0));
    assert_int_equal(stats->bytes_moved_link, stats->bytes_demand + stats->bytes_prefetch);
    assert_true(stats->bytes_read_disk >= stats->bytes_disk_demand + stats->bytes_disk_prefetch);
    /* What was computed on the device and found there has come over the link once at least. */
    assert_true(stats->expert_hits == 0 || stats->bytes_moved_link > 0);
}

/* Runs a configuration; false when the plan refuses it. */
static bool check_options(const moe_engine_options *options, moe_engine_stats *stats)
{
    moe_memory_plan plan = {.struct_size = sizeof plan};
    int status = moe_plan_memory(options, &plan, NULL);
    if (status == MOE_ERR_BUDGET) {
        return false;
    }
    moe_engine *engine = open_engine(options);
    moe_engine_info info = {.struct_size = sizeof info};
    int32_t tokens[N_DECODE];
    moe_session *session = generate(engine, tokens);
    assert_memory_equal(tokens, expected.tokens, sizeof tokens);
    assert_memory_equal(moe_session_logits(session), expected.logits,
                        expected.n_vocab * sizeof(float));
    stats->struct_size = sizeof *stats;
    moe_engine_get_info(engine, &info);
    moe_engine_get_stats(engine, stats);
    check_counters(&info, stats);
    moe_session_close(&session);
    moe_engine_close(&engine);
    return true;
}

/* Device slots and host slots from the floor to all experts. */
static void tier_sizes(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    options.device = SIM;
    moe_memory_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(moe_plan_memory(&options, &plan, NULL), MOE_OK);
    /* All experts fit the device: the host has slots for what is on its way there,
     * which in small models may be all of them. */
    assert_true(plan.has_device_memory && plan.expert_slots == plan.experts);
    assert_true(plan.host_slots > 0 && plan.host_slots <= plan.experts);
    assert_int_equal(plan.experts_in_memory, plan.experts);
    const double shares[] = {0.1, 0.25, 0.5, 1.0};
    const double host_shares[] = {0.0, 0.5, 2.0};
    size_t n_ran = 0;
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 3; j++) {
            /* The process grows from run to run, and with sanitizers by much. */
            options.host_memory = 0;
            options.expert_cache_share = shares[i];
            if (moe_plan_memory(&options, &plan, NULL) == MOE_OK) {
                uint64_t both = plan.expert_slots + plan.host_slots;
                assert_int_equal(plan.experts_in_memory, both < plan.experts ? both : plan.experts);
                assert_true(plan.expected_memory_hit_rate >= plan.expected_hit_rate);
            }
            options.host_memory =
                plan.floor + SLACK + (uint64_t)(host_shares[j] * (double)plan.host_cache);
            moe_engine_stats stats;
            n_ran += check_options(&options, &stats);
        }
    }
    assert_true(n_ran >= 3);
}

static void modes(void **state)
{
    (void)state;
    const char *const devices[] = {"cpu", SIM};
    const moe_offload_mode names[] = {MOE_OFFLOAD_AUTO, MOE_OFFLOAD_ON_DEMAND, MOE_OFFLOAD_OVERLAP};
    for (size_t d = 0; d < 2; d++) {
        for (size_t m = 0; m < 3; m++) {
            for (int small = 0; small <= 1; small++) {
                moe_engine_options options = default_options();
                options.device = devices[d];
                lab_of(&options)->offload = names[m];
                options.expert_cache_share = small ? 0.5 : 0;
                moe_engine_stats stats;
                assert_true(check_options(&options, &stats));
                assert_true((stats.oracle_ns > 0) == (m == 2));
                if (m == 1) {
                    assert_int_equal(stats.expert_hits, 0);
                }
                if (m == 2) {
                    assert_int_equal(stats.expert_hits, stats.prefetches_used);
                }
            }
        }
    }
}

/* Experts computed in host memory, some or all, beside few and many device slots. */
static void host_compute(void **state)
{
    (void)state;
    const double shares[] = {0.5, 1.0};
    for (size_t i = 0; i < 2; i++) {
        for (int how = MOE_SWITCH_AUTO; how <= MOE_SWITCH_OFF; how++) {
            moe_engine_options options = default_options();
            options.device = "sim:memory=256M,link=20MB/s,latency=100us";
            options.expert_cache_share = shares[i];
            options.host_compute = (moe_switch)how;
            moe_engine_stats stats;
            assert_true(check_options(&options, &stats));
            if (how == MOE_SWITCH_OFF) {
                assert_int_equal(stats.host_computed, 0);
            } else if (shares[i] < 1.0) {
                assert_true(stats.host_computed > 0);
            }
        }
    }
}

/* What cannot take effect is refused. */
static void refusals(void **state)
{
    (void)state;
    moe_memory_plan plan = {.struct_size = sizeof plan};
    moe_error err = {""};
    moe_engine_options options = default_options();
    options.host_compute = MOE_SWITCH_ON;
    assert_int_equal(moe_plan_memory(&options, &plan, &err), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "options.host_compute cannot act"));
    options.device = SIM;
    lab_of(&options)->offload = MOE_OFFLOAD_ON_DEMAND;
    assert_int_equal(moe_plan_memory(&options, &plan, &err), MOE_ERR_ARGUMENT);
    options = default_options();
    options.device_memory = 1 << 20;
    assert_int_equal(moe_plan_memory(&options, &plan, &err), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "no memory of its own"));
    options.device = SIM;
    options.device_memory = 1ull << 40;
    assert_int_equal(moe_plan_memory(&options, &plan, &err), MOE_ERR_BUDGET);
    options.device_memory = 1;
    assert_int_equal(moe_plan_memory(&options, &plan, &err), MOE_ERR_BUDGET);
    assert_int_equal(plan.device_budget, 1);
    options.device_memory = plan.device_floor;
    assert_int_equal(moe_plan_memory(&options, &plan, &err), MOE_OK);
    assert_true(plan.device_total <= plan.device_budget);
    options.device = "sim:memory=1G,link=fast";
    assert_int_equal(moe_plan_memory(&options, &plan, &err), MOE_ERR_ARGUMENT);
    options.device = "gpu";
    assert_int_equal(moe_plan_memory(&options, &plan, &err), MOE_ERR_UNSUPPORTED);
}

static void policies(void **state)
{
    (void)state;
    const char *const names[] = {"lru", "lfu", "lfru"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (int per_layer = 0; per_layer <= 1; per_layer++) {
            moe_engine_options options = default_options();
            options.device = SIM;
            options.expert_cache_share = 0.5;
            options.policy = names[i];
            lab_of(&options)->per_layer_cache = per_layer != 0;
            moe_engine_stats stats;
            assert_true(check_options(&options, &stats));
        }
    }
}

/* Both tiers together hold some of the experts: what leaves the device goes to the host. */
static void demotions(void **state)
{
    (void)state;
    const char *const names[] = {"lfru", "lru"};
    for (size_t i = 0; i < 2; i++) {
        moe_engine_options options = default_options();
        options.device = SIM;
        options.host_compute = options.prefetch = MOE_SWITCH_OFF;
        options.policy = names[i];
        options.expert_cache_share = 0.4;
        moe_memory_plan plan = {.struct_size = sizeof plan};
        assert_int_equal(moe_plan_memory(&options, &plan, NULL), MOE_OK);
        /* Room for about a third of the experts, less what the process has grown by since. */
        options.host_memory = plan.floor + 3 * SLACK;
        moe_engine_stats stats;
        assert_true(check_options(&options, &stats));
        assert_true(stats.expert_slots + stats.host_slots < plan.experts);
        assert_true(stats.experts_demoted > 0 && stats.demoted_hits > 0);
        assert_int_equal(stats.demotions_lost, 0);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: test_tiers MODEL.gguf [demotions]\n");
        return 2;
    }
    model_path = argv[1];
    if (argc == 3) {
        const struct CMUnitTest one[] = {cmocka_unit_test(demotions)};
        return cmocka_run_group_tests(one, make_reference, free_reference);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tier_sizes), cmocka_unit_test(modes),    cmocka_unit_test(host_compute),
        cmocka_unit_test(refusals),   cmocka_unit_test(policies),
    };
    return cmocka_run_group_tests(tests, make_reference, free_reference);
}
