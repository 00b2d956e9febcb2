/* SPDX-License-Identifier: MIT */
/* Sampling through the engine is lossless: at temperature 1 the first three tokens after a prompt
 * are distributed with speculation as without. Sessions that share one fork's past, each with a
 * seed of its own, are decoded together; their tokens by position and their pairs and triples by
 * hash are compared with those of plain decoding by chi-square.
 * Usage: test_speculation_sampling MODEL.gguf DRAFT.gguf [SEQUENCES] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../draft/chi_square.h"
#include "engine_fixture.h"
#include "engine_options.h"

#define N_PROMPT  24
#define N_TOKENS  3
#define BATCH     64
#define N_CELLS   509 /* of a statistic; prime */
#define N_TABLES  5
#define MAX_DRAFT 3

static const char *model_path, *draft_path;
static uint32_t n_sequences = 2880; /* of each configuration */

typedef struct counts {
    uint32_t cells[N_TABLES][N_CELLS]; /* three positions, two pairs */
} counts;

static counts plain;

static void count(counts *c, const int32_t *t)
{
    for (int i = 0; i < N_TOKENS; i++) {
        c->cells[i][(uint32_t)t[i] % N_CELLS]++;
    }
    c->cells[3][((uint32_t)t[0] * 31 + (uint32_t)t[1] * 17) % 97]++;
    c->cells[4][((uint32_t)t[1] * 31 + (uint32_t)t[2] * 17) % 97]++;
}

/* Drawn chains are accepted by rejection. */
static moe_engine *open_with(moe_speculate speculate, uint32_t tree)
{
    moe_engine_options o;
    moe_engine_options_init(&o);
    o.model_path = model_path;
    o.n_threads = 2;
    o.context = 64;
    o.prefill_chunk = BATCH * 8;
    o.speculate = speculate;
    o.draft_model = speculate == MOE_SPECULATE_MODEL ? draft_path : NULL;
    lab_of(&o)->length_control =
        speculate != MOE_SPECULATE_OFF ? MOE_LENGTH_STATIC : MOE_LENGTH_SURVIVAL;
    o.draft_max = speculate != MOE_SPECULATE_OFF ? MAX_DRAFT : 0;
    o.acceptance = speculate != MOE_SPECULATE_OFF ? MOE_ACCEPTANCE_REJECTION : MOE_ACCEPTANCE_EXACT;
    o.tree_nodes = tree;
    lab_of(&o)->cost_by_bytes = speculate != MOE_SPECULATE_OFF;
    o.expert_cache_share = speculate != MOE_SPECULATE_OFF ? 0.5 : 1.0;
    return open_engine(&o);
}

/* The prompt, and one token after it that all sequences share: drafts begin at once. The prompt is
 * searched for, so that its last token and the likeliest two after it stood in it before: n-grams
 * then have something to draft that may be accepted. */
static moe_session *make_past(moe_engine *engine)
{
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    assert_true(info.n_vocab <= N_CELLS);
    int32_t prompt[N_PROMPT], tokens[2];
    for (uint32_t i = 0; i < 400; i++) {
        if (i % 4 == 0) {
            make_prompt(prompt, N_PROMPT, info.n_vocab, 11 + i);
            prompt[3] = prompt[N_PROMPT - 1];
        }
        moe_session *session = greedy_session(engine);
        feed(session, prompt, N_PROMPT);
        decode(engine, session, tokens, 2);
        moe_session_close(&session);
        if (memcmp(tokens, prompt + 4, sizeof tokens) == 0) {
            session = greedy_session(engine);
            feed(session, prompt, N_PROMPT);
            decode(engine, session, tokens, 1);
            return session;
        }
        memcpy(prompt + 4, tokens, sizeof tokens);
    }
    fail_msg("no prompt that repeats itself");
    return NULL;
}

/* Tokens of the forks until each has enough. */
static void write_batch(moe_engine *engine, moe_session **forks, counts *c)
{
    int32_t tokens[BATCH][N_TOKENS + MAX_DRAFT + 2];
    size_t n[BATCH] = {0};
    for (size_t n_busy = BATCH; n_busy > 0;) {
        moe_session *busy[BATCH];
        n_busy = 0;
        for (size_t i = 0; i < BATCH; i++) {
            n[i] += moe_session_take(forks[i], tokens[i] + n[i], N_TOKENS + MAX_DRAFT + 2 - n[i]);
            if (n[i] < N_TOKENS) {
                busy[n_busy++] = forks[i];
            }
        }
        if (n_busy > 0) {
            assert_int_equal(moe_step(engine, busy, n_busy, NULL), MOE_OK);
        }
    }
    for (size_t i = 0; i < BATCH; i++) {
        count(c, tokens[i]);
    }
}

static moe_speculation_stats sample(moe_engine *engine, float temperature, uint64_t seed,
                                    uint32_t n, counts *c)
{
    memset(c, 0, sizeof *c);
    moe_session *past = make_past(engine);
    moe_sampling how;
    moe_sampling_init(&how);
    how.temperature = temperature;
    how.top_k = 0;
    how.top_p = 1.0f;
    how.min_p = 0.0f;
    for (uint32_t done = 0; done < n; done += BATCH) {
        moe_session *forks[BATCH];
        for (uint32_t i = 0; i < BATCH; i++) {
            how.seed = seed + done + i;
            assert_int_equal(moe_session_fork(&forks[i], past, NULL), MOE_OK);
            assert_int_equal(moe_session_set_sampling(forks[i], &how, NULL), MOE_OK);
        }
        write_batch(engine, forks, c);
        for (uint32_t i = 0; i < BATCH; i++) {
            moe_session_close(&forks[i]);
        }
    }
    moe_session_close(&past);
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    moe_engine_close(&engine);
    return stats.speculation;
}

static double worst_excess(const counts *a, const counts *b)
{
    double worst = -INFINITY;
    for (int i = 0; i < N_TABLES; i++) {
        chi_square c = chi_square_two(a->cells[i], b->cells[i], N_CELLS);
        double excess = chi_square_excess(&c);
        worst = excess > worst ? excess : worst;
    }
    return worst;
}

static int set_up(void **state)
{
    (void)state;
    (void)sample(open_with(MOE_SPECULATE_OFF, 0), 1.0f, 1, n_sequences * 2, &plain);
    return 0;
}

static void expect_same(moe_speculate speculate, uint32_t tree, uint64_t seed)
{
    counts c;
    moe_speculation_stats s = sample(open_with(speculate, tree), 1.0f, seed, n_sequences, &c);
    double worst = worst_excess(&plain, &c);
    print_message("%s, draft %d: %llu of %llu accepted, %.2f standard deviations\n",
                  tree > 0 ? "tree" : "chain", (int)speculate, (unsigned long long)s.accepted,
                  (unsigned long long)s.drafted, worst);
    assert_true(s.drafted > n_sequences / 2);
    assert_true(s.accepted > 0 && s.accepted < s.drafted);
    assert_true(worst < CHI_SQUARE_LIMIT);
}

static void self_chain(void **state)
{
    (void)state;
    expect_same(MOE_SPECULATE_SELF, 0, 1000000);
}

static void model_chain(void **state)
{
    (void)state;
    expect_same(MOE_SPECULATE_MODEL, 0, 3000000);
}

static void branching_tree(void **state)
{
    (void)state;
    expect_same(MOE_SPECULATE_SELF, 6, 4000000);
}

static void ngram(void **state)
{
    (void)state;
    expect_same(MOE_SPECULATE_NGRAM, 0, 5000000);
}

/* The statistic tells another temperature from this one. */
static void difference_is_seen(void **state)
{
    (void)state;
    counts c;
    (void)sample(open_with(MOE_SPECULATE_OFF, 0), 0.8f, 6000000, n_sequences, &c);
    assert_true(worst_excess(&plain, &c) > CHI_SQUARE_LIMIT);
}

/* A fork without a seed of its own goes on as the session does, drafts included. */
static void forks_go_on_alike(void **state)
{
    (void)state;
    moe_engine *engine = open_with(MOE_SPECULATE_MODEL, 0);
    moe_session *past = make_past(engine), *fork = NULL;
    moe_sampling how;
    moe_sampling_init(&how);
    how.temperature = 1.0f;
    how.seed = 8;
    assert_int_equal(moe_session_set_sampling(past, &how, NULL), MOE_OK);
    int32_t texts[2][12];
    decode(engine, past, texts[0], 2);
    assert_int_equal(moe_session_fork(&fork, past, NULL), MOE_OK);
    decode(engine, past, texts[0], 12);
    decode(engine, fork, texts[1], 12);
    assert_memory_equal(texts[0], texts[1], sizeof texts[0]);
    moe_session_close(&fork);
    moe_session_close(&past);
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(self_chain),         cmocka_unit_test(model_chain),
        cmocka_unit_test(branching_tree),     cmocka_unit_test(ngram),
        cmocka_unit_test(difference_is_seen), cmocka_unit_test(forks_go_on_alike),
    };
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL.gguf DRAFT.gguf [SEQUENCES]\n", argv[0]);
        return 2;
    }
    model_path = argv[1];
    draft_path = argv[2];
    n_sequences = argc > 3 ? (uint32_t)atoi(argv[3]) : n_sequences;
    return cmocka_run_group_tests(tests, set_up, NULL);
}
