/* SPDX-License-Identifier: MIT */
/* A session with a full context takes what the plan has for it, to the byte: with the budget that
 * the plan asks for, all experts stay in memory, for every kind of layer, in small contexts and in
 * large ones. Usage: test_plan_holds ORACLE-FOLDER. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "runtime/engine/engine_state.h"
#include "toy_recurrence.h"
#include "tests/test_size.h"

static const char *folder;

/* The families of layers. What frees pages or states has the plan's most only at times. */
typedef struct kind {
    const char *name, *model;
    uint32_t toy_layers; /* bits of layers that the toy makes recurrent */
    bool frees;
    uint32_t tree_nodes, lookahead;
} kind;

static const kind kinds[] = {
    {"full", "qwen3moe", 0, false, 0, 0},
    {"MLA", "deepseek2-v3", 0, false, 0, 0},
    {"indexer", "deepseek32-plain", 0, false, 0, 0},
    {"windows", "gpt-oss", 0, true, 0, 0},
    {"chunks", "llama4", 0, true, 0, 0},
    {"recurrent and full", "qwen35moe", 0, true, 0, 0},
    {"convolution", "lfm2moe", 0, true, 0, 0},
    {"trees", "qwen3moe", 0, true, 12, 0},
    {"lookahead", "qwen3moe", 0, true, 0, 4},
    {"recurrent alone", "olmoe", UINT32_MAX, true, 0, 0},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

#define MOST 4160
static const uint32_t contexts[] = {100, 640, MOST};

static uint64_t granted(const moe_engine *engine)
{
    return engine->border.ram_granted;
}

/* Whether a session that was granted so much has all that it may have of each thing. */
static void check(const moe_engine *engine, const kind *k, uint32_t context, bool is_full)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    uint64_t planned = engine->plan.kv_cache + engine->plan.session_state;
    bool fits = is_full && !k->frees ? granted(engine) == planned : granted(engine) <= planned;
    if (!fits || engine->border.ram_taken > 0 || stats.expert_evictions > 0) {
        fail_msg("%s, context %u: granted %llu of planned %llu; slots gave %llu, %llu evictions",
                 k->name, context, (unsigned long long)granted(engine), (unsigned long long)planned,
                 (unsigned long long)engine->border.ram_taken,
                 (unsigned long long)stats.expert_evictions);
    }
    assert_true(moe_memory_border_check(&engine->border));
}

static void step(moe_engine *engine, moe_session *session)
{
    moe_error error;
    if (moe_step(engine, &session, 1, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
}

/* Feeds the whole context, or feeds it in turns, so that snapshots are kept, and writes its last
 * tokens. */
static void fill_context(moe_engine *engine, const kind *k, uint32_t context, bool in_turns)
{
    int32_t tokens[MOST];
    moe_session *session = greedy_session(engine);
    uint32_t last = context - (in_turns ? 40 : 0);
    uint32_t most = in_turns ? 512 : last;
    for (uint32_t n = 0; n < last;) {
        uint32_t piece = last - n < most ? last - n : most;
        make_prompt(tokens, piece, engine->config.n_vocab, n);
        feed(session, tokens, piece);
        n += piece;
        while (in_turns && moe_session_n_pending(session) > 0 && n < last) {
            step(engine, session);
            check(engine, k, context, false);
        }
        check(engine, k, context, !in_turns);
        n = (uint32_t)moe_session_n_tokens(session);
    }
    while (moe_session_n_tokens(session) < context || moe_session_n_pending(session) > 0) {
        step(engine, session);
        check(engine, k, context, false);
    }
    check(engine, k, context, false);
    moe_session_close(&session);
    assert_int_equal(granted(engine), 0);
}

static void plan_holds(void **state)
{
    const kind *k = *state;
    char path[1024];
    const size_t n_contexts = sizeof contexts / sizeof contexts[0];
    for (size_t i = 0; i < n_contexts && !(test_is_small() && contexts[i] == MOST); i++) {
        moe_engine_options options = oracle_options(path, folder, k->model);
        options.context = contexts[i];
        options.prefill_chunk = 256;
        options.tree_nodes = k->tree_nodes;
        options.speculate = k->tree_nodes > 0 ? MOE_SPECULATE_SELF : MOE_SPECULATE_OFF;
        options.lookahead = k->lookahead;
        toy_layers = k->toy_layers;
        moe_engine *engine = open_engine(&options);
        toy_layers = 0;
        assert_int_equal(engine->plan.expert_slots, engine->plan.experts);
        moe_memory_border_seal(&engine->border, &engine->plan); /* the budget is the plan's total */
        assert_int_equal(engine->border.ram_at_open,
                         engine->plan.kv_cache + engine->plan.session_state);
        fill_context(engine, k, contexts[i], false);
        fill_context(engine, k, contexts[i], true);
        moe_engine_close(&engine);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_plan_holds ORACLE-FOLDER\n");
        return 2;
    }
    folder = argv[1];
    struct CMUnitTest tests[N_KINDS] = {0};
    size_t n = 0;
    for (size_t i = 0; i < N_KINDS; i++) {
        if (toy_is_real == (kinds[i].toy_layers == 0)) {
            tests[n++] =
                (struct CMUnitTest){kinds[i].name, plan_holds, NULL, NULL, (void *)&kinds[i]};
        }
    }
    return _cmocka_run_group_tests("plan-holds", tests, n, NULL, NULL);
}
