/* SPDX-License-Identifier: MIT */
/* An engine on several emulated GPUs of little memory each: the experts of some layers lie on the
 * second and third. Tokens and bits of the logits equal the CPU's in decoding, prompts, batches and
 * the verification of drafts; each GPU holds what the plan says, to the byte; failures leave
 * nothing behind. Runs on a model given by path. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <moe/lab.h>

#include "../engine/engine_fixture.h"
#include "../engine/engine_options.h"
#include "fake_module.h"
#include "offload/expert_store_state.h"
#include "runtime/engine/engine_state.h"

#define N_PROMPT   20
#define N_DECODE   6
#define N_DRAFTED  24
#define N_SESSIONS 3
#define HEADROOM   (64u << 20) /* LEAST_HEADROOM of cuda_open.c */

static const char *model_path;
static fake_module fake;

static struct {
    int32_t tokens[N_SESSIONS][N_DECODE];
    float *logits[N_SESSIONS];
    uint32_t n_vocab;
} expected;

static moe_engine_options default_options(void)
{
    moe_engine_options options = fixture_options(model_path, 8, 64);
    options.exact_attention = true; /* results are compared with the CPU's */
    return options;
}

static void set_machine(uint32_t nap_us)
{
    fake_machine machine;
    fake.init(&machine);
    machine.n_devices = 3;
    machine.nap_us = nap_us;
    fake.set(&machine);
}

/* What a first GPU needs so that this share of all experts fits beside the rest and more sessions.
 */
static uint64_t memory_for(moe_engine_options options, double share, uint32_t n_more)
{
    moe_memory_plan plan = {.struct_size = sizeof plan};
    moe_error err = {""};
    options.device = "cuda:0,1"; /* nothing is recorded there, so there are no tables for it */
    options.device_memory = 0;
    set_machine(0);
    if (moe_plan_memory(&options, &plan, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(plan.expert_slots, plan.experts);
    assert_int_equal(plan.card_cache[0], plan.expert_cache);
    return plan.device_total - plan.expert_cache + 2 * n_more * plan.kv_cache +
           (uint64_t)(share * (double)plan.expert_cache);
}

/* n sessions with prompts of their own, decoded as one batch. */
static void run(moe_engine *engine, uint32_t n, int32_t tokens[][N_DECODE], moe_session **sessions)
{
    size_t n_written[N_SESSIONS] = {0};
    for (uint32_t s = 0; s < n; s++) {
        int32_t prompt[N_PROMPT];
        make_prompt(prompt, N_PROMPT, expected.n_vocab, s + 1);
        sessions[s] = greedy_session(engine);
        moe_error err = {""};
        if (moe_session_feed(sessions[s], prompt, N_PROMPT, &err) != MOE_OK) {
            fail_msg("%s", err.message);
        }
    }
    for (bool more = true; more;) {
        moe_session *active[N_SESSIONS];
        uint32_t n_active = 0;
        moe_error err = {""};
        for (uint32_t s = 0; s < n; s++) {
            if (n_written[s] < N_DECODE) {
                active[n_active++] = sessions[s];
            }
        }
        more = n_active > 0;
        if (more && moe_step(engine, active, n_active, &err) != MOE_OK) {
            fail_msg("%s", err.message);
        }
        for (uint32_t s = 0; s < n; s++) {
            size_t length = moe_session_n_tokens(sessions[s]);
            n_written[s] = length > N_PROMPT ? length - N_PROMPT : 0;
        }
    }
    for (uint32_t s = 0; s < n; s++) {
        memcpy(tokens[s], moe_session_tokens(sessions[s]) + N_PROMPT, sizeof tokens[s]);
    }
}

static int make_reference(void **state)
{
    (void)state;
    find_fake_module(&fake);
    moe_engine_options options = default_options();
    options.device = "cpu";
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    expected.n_vocab = info.n_vocab;
    moe_session *sessions[N_SESSIONS];
    run(engine, N_SESSIONS, expected.tokens, sessions);
    for (uint32_t s = 0; s < N_SESSIONS; s++) {
        expected.logits[s] = malloc(info.n_vocab * sizeof(float));
        memcpy(expected.logits[s], moe_session_logits(sessions[s]), info.n_vocab * sizeof(float));
        moe_session_close(&sessions[s]);
    }
    moe_engine_close(&engine);
    return 0;
}

static int free_reference(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < N_SESSIONS; s++) {
        free(expected.logits[s]);
    }
    return 0;
}

/* Returns the calls of experts() that went to other GPUs. */
static uint64_t check_exact(const moe_engine_options *options, uint32_t n, moe_engine_stats *stats)
{
    moe_session *sessions[N_SESSIONS];
    int32_t tokens[N_SESSIONS][N_DECODE];
    moe_cards_counts counts;
    moe_engine *engine = open_engine(options);
    run(engine, n, tokens, sessions);
    for (uint32_t s = 0; s < n; s++) {
        assert_memory_equal(tokens[s], expected.tokens[s], sizeof tokens[s]);
        assert_memory_equal(moe_session_logits(sessions[s]), expected.logits[s],
                            expected.n_vocab * sizeof(float));
        moe_session_close(&sessions[s]);
    }
    stats->struct_size = sizeof *stats;
    moe_engine_get_stats(engine, stats);
    moe_cards_count(engine->device, &counts);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
    return counts.n_calls;
}

/* Two and three GPUs that hold all experts together, or half of them, or little. */
static void exact(void **state)
{
    (void)state;
    static const double shares[] = {0.55, 0.4, 0.2};
    static const char *const devices[] = {"cuda:0,1", "cuda:2,0,1"};
    for (uint32_t i = 0; i < 6; i++) {
        moe_engine_options options = default_options();
        moe_engine_stats stats;
        uint32_t n = i % 2 == 0 ? 1 : N_SESSIONS;
        options.device_memory = memory_for(options, shares[i % 3], n - 1);
        options.device = devices[i / 3];
        options.host_compute = i != 4 ? MOE_SWITCH_OFF : MOE_SWITCH_AUTO;
        options.warm_start = i % 2 == 0 ? MOE_SWITCH_OFF : MOE_SWITCH_AUTO;
        set_machine(100);
        uint64_t n_calls = check_exact(&options, n, &stats);
        assert_true(n_calls > 0 || n > 1); /* sessions' memory may hold all experts */
        assert_int_equal(stats.passes_recorded, 0);
    }
}

/* Drafts are verified as rows of one pass, and change no token. */
static void drafts(void **state)
{
    (void)state;
    int32_t prompt[N_PROMPT], plain[N_DRAFTED], tokens[N_DRAFTED];
    make_prompt(prompt, N_PROMPT, expected.n_vocab, 1);
    for (int drafting = 0; drafting <= 1; drafting++) {
        moe_engine_options options = default_options();
        moe_engine_stats stats = {.struct_size = sizeof stats};
        options.device = "cpu";
        if (drafting) {
            options.device_memory = memory_for(options, 0.2, 0);
            options.device = "cuda:0,1";
            options.prefetch = MOE_SWITCH_OFF;
            options.host_compute = MOE_SWITCH_OFF;
            options.speculate = MOE_SPECULATE_SELF;
            options.draft_max = 3;
            lab_of(&options)->cost_by_bytes = true;
            lab_of(&options)->length_control = MOE_LENGTH_STATIC;
        }
        set_machine(0);
        moe_engine *engine = open_engine(&options);
        moe_session *session = greedy_session(engine);
        feed(session, prompt, N_PROMPT);
        decode(engine, session, drafting ? tokens : plain, N_DRAFTED);
        moe_engine_get_stats(engine, &stats);
        assert_true(!drafting || stats.speculation.drafted > 0);
        moe_session_close(&session);
        moe_engine_close(&engine);
    }
    assert_memory_equal(tokens, plain, sizeof tokens);
    assert_nothing_left(&fake);
}

/* Each GPU has handed out what the plan says. */
static void planned_memory(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    set_machine(0);
    options.device_memory = memory_for(options, 0.4, 0);
    options.device = "cuda:0,1,2";
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    const moe_memory_plan *plan = &info.memory;
    moe_device_limits limits;
    fake_usage usage;
    fake.usage(&usage);
    fake_machine machine;
    fake.init(&machine);
    const uint64_t machine_bytes = machine.memory_bytes;
    moe_pass_device_limits(&engine->program, engine->prefill_chunk, &limits);
    assert_int_equal(plan->cards, 3);
    assert_int_equal(plan->expert_slots, plan->experts);
    uint64_t sum = 0;
    for (uint32_t k = 0; k < 3; k++) {
        sum += plan->card_cache[k];
    }
    assert_int_equal(sum, plan->expert_cache);
    assert_true(plan->device_total <= plan->device_budget);
    const moe_slot_arena *arena = &engine->runner.experts->arena;
    uint64_t first = arena->bytes - arena->more[1].bytes - arena->more[2].bytes;
    uint64_t there = machine_bytes - HEADROOM;
    assert_true(first > 0 && first <= plan->card_cache[0]);
    assert_int_equal(usage.bytes_of[0], there - engine->device->memory_bytes + plan->device_total -
                                            plan->kv_cache - plan->card_cache[0] + first);
    for (uint32_t k = 1; k < 3; k++) {
        uint64_t slots = arena->more[k].bytes;
        assert_true(slots <= plan->card_cache[k] && (slots > 0 || k == 2));
        assert_int_equal(usage.bytes_of[k],
                         there - moe_cards_room(engine->device, k, &limits, 0) + slots);
    }
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

/* Calls that fail on any of the GPUs. */
static void faults(void **state)
{
    (void)state;
    static const struct {
        const char *call;
        uint32_t after;
    } places[] = {{"cudaMalloc", 3},  {"cudaMalloc", 9},       {"cudaSetDevice", 40},
                  {"cudaMalloc", 14}, {"cudaHostAlloc", 6},    {"cudaMemcpyAsync", 9},
                  {"kernel", 40},     {"cudaMemcpyAsync", 30}, {"cudaStreamSynchronize", 12}};
    moe_engine_options options = default_options();
    options.device_memory = memory_for(options, 0.4, 0);
    options.device = "cuda:0,1";
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        fake_machine machine;
        fake.init(&machine);
        machine.n_devices = 2;
        machine.fail_call = places[i].call;
        machine.fail_after = places[i].after;
        machine.fail_code = i < 2 ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure;
        fake.set(&machine);
        moe_engine *engine = NULL;
        moe_error err = {""};
        int status = moe_engine_open(&engine, &options, &err);
        moe_session *session = status == MOE_OK ? greedy_session(engine) : NULL;
        for (int32_t t = 0; status == MOE_OK && t < N_PROMPT; t++) {
            feed(session, &t, 1);
        }
        for (int s = 0; status == MOE_OK && s < 8; s++) {
            status = moe_step(engine, &session, 1, &err);
        }
        fake_usage usage;
        fake.usage(&usage);
        assert_true(usage.n_failures == 0 || status == MOE_OK || err.message[0] != '\0');
        moe_session_close(&session);
        moe_engine_close(&engine);
        assert_nothing_left(&fake);
    }
}

static void expect_refusal(const char *device, const char *words)
{
    moe_engine_options options = default_options();
    moe_engine *engine = NULL;
    moe_error err = {""};
    options.device = device;
    set_machine(0);
    assert_int_not_equal(moe_engine_open(&engine, &options, &err), MOE_OK);
    if (strstr(err.message, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, err.message);
    }
    assert_nothing_left(&fake);
}

static void refusals(void **state)
{
    (void)state;
    expect_refusal("cuda:0,0", "not known");
    expect_refusal("cuda:0,", "not known");
    expect_refusal("cuda:,1", "not known");
    expect_refusal("cuda:0,1,2,3,4,5,6,7,8", "not known");
    expect_refusal("cuda:0,3", "there are 3");
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_cuda_cards MODEL.gguf\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact),  cmocka_unit_test(drafts),   cmocka_unit_test(planned_memory),
        cmocka_unit_test(faults), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, make_reference, free_reference);
}
