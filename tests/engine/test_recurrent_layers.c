/* SPDX-License-Identifier: MIT */
/* Layers with a state of fixed size, shown by a toy or by the product's own (toy_recurrence.h):
 * whatever is done to a session, its states are those of the tokens on its timeline, the logits
 * have the bits of a plain evaluation, and the memory is what the plan says. Usage:
 * test_recurrent_layers ORACLE-FOLDER [MODEL OTHER-MODEL DRAFT-MODEL]. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "engine_options.h"
#include "tests/test_size.h"
#include "toy_recurrence.h"

#define N_TEXT     700u
#define N_TEXTS    2u
#define CONTEXT    768u
#define N_GREEDY   60u
#define N_PROMPT   24u
#define ODD_LAYERS 0xAAAAAAAAu
#define ALL_LAYERS 0xFFFFFFFFu

static const char *folder;
static char path[1024];
static uint32_t n_vocab;
static int32_t texts[N_TEXTS][N_TEXT];
static float *logits[N_TEXTS]; /* [N_TEXT][n_vocab]: by one thread, token by token */

static moe_engine_options toy_options(uint32_t chunk, uint32_t n_threads)
{
    moe_engine_options options = oracle_options(path, folder, toy_model(toy_layers == ALL_LAYERS));
    options.context = CONTEXT;
    options.prefill_chunk = chunk;
    options.n_threads = n_threads;
    return options;
}

static moe_engine *open_toy(uint32_t chunk, uint32_t n_threads)
{
    moe_engine_options options = toy_options(chunk, n_threads);
    return open_engine(&options);
}

static void step(moe_engine *engine, moe_session **sessions, size_t n)
{
    moe_error error;
    if (moe_step(engine, sessions, n, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
}

static void step_all(moe_engine *engine, moe_session *session)
{
    while (moe_session_n_pending(session) > 0) {
        step(engine, &session, 1);
    }
    toy_check_states(session);
}

static moe_session *reading_session(moe_engine *engine)
{
    moe_session_options options;
    moe_session_options_init(&options);
    options.evaluate_only = true;
    moe_session *session = NULL;
    assert_int_equal(moe_session_create(&session, engine, &options, NULL), MOE_OK);
    return session;
}

/* The session holds the first n tokens of a text. */
static void check_logits(const moe_session *session, uint32_t text, uint32_t n)
{
    assert_non_null(moe_session_logits(session));
    if (memcmp(moe_session_logits(session), logits[text] + (size_t)(n - 1) * n_vocab,
               n_vocab * sizeof(float)) != 0) {
        fail_msg("other logits after %u tokens of text %u", n, text);
    }
}

static int open_layers(uint32_t layers)
{
    toy_layers = layers;
    moe_engine *engine = open_toy(1, 1);
    n_vocab = engine->config.n_vocab;
    assert_true(moe_count_mixers(&engine->config, MOE_MIXER_RECURRENT) > 0);
    for (uint32_t t = 0; t < N_TEXTS; t++) {
        make_prompt(texts[t], N_TEXT, n_vocab, 3 + t);
        logits[t] = calloc((size_t)N_TEXT * n_vocab, sizeof(float));
        moe_session *session = reading_session(engine);
        for (uint32_t i = 0; i < N_TEXT; i++) {
            feed(session, &texts[t][i], 1);
            step(engine, &session, 1);
            memcpy(logits[t] + (size_t)i * n_vocab, moe_session_logits(session),
                   n_vocab * sizeof(float));
        }
        toy_check_states(session);
        moe_session_close(&session);
    }
    assert_true(moe_memory_border_check(&engine->border));
    moe_engine_close(&engine);
    return 0;
}

static int set_up_some(void **state)
{
    (void)state;
    return open_layers(ODD_LAYERS);
}

static int set_up_all(void **state)
{
    (void)state;
    return open_layers(ALL_LAYERS);
}

static int tear_down(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < N_TEXTS; t++) {
        free(logits[t]);
    }
    return 0;
}

static bool compare_row(size_t position, const float *row, void *user)
{
    (void)user;
    if (memcmp(row, logits[0] + position * n_vocab, n_vocab * sizeof *row) != 0) {
        fail_msg("other logits at position %zu", position);
    }
    return true;
}

static void chunks_and_threads(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {2, 7, 64, 512};
    for (uint32_t i = 0; i < 4; i++) {
        moe_engine *engine = open_toy(chunks[i], 1 + i % 3);
        moe_session *session = reading_session(engine);
        assert_int_equal(moe_session_score(session, texts[0], N_TEXT, compare_row, NULL, NULL),
                         MOE_OK);
        toy_check_states(session);
        moe_session_close(&session);
        moe_engine_close(&engine);
    }
}

/* The slots do not hold all experts, the state is in another device's memory, and the kernels are
 * in portable C. */
static void caches_and_devices(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "sim:memory=64M,link=4GB/s,latency=20us"};
    if (!toy_is_real) {
        skip(); /* the toy works on the CPU alone */
    }
    for (uint32_t i = 0; i < 4; i++) {
        moe_engine_options options = toy_options(i < 2 ? 96 : 5, 2);
        options.device = devices[i % 2];
        options.expert_cache_share = 0.5;
        lab_of(&options)->kernels = i < 2 ? MOE_KERNELS_REFERENCE : MOE_KERNELS_NATIVE;
        moe_engine *engine = open_engine(&options);
        moe_session *session = reading_session(engine);
        assert_int_equal(moe_session_score(session, texts[0], N_TEXT, compare_row, NULL, NULL),
                         MOE_OK);
        moe_session_close(&session);
        moe_engine_close(&engine);
    }
}

static void batch_neighbours(void **state)
{
    (void)state;
    moe_engine *engine = open_toy(48, 2);
    moe_session *sessions[3];
    uint32_t n[3] = {0};
    for (uint32_t i = 0; i < 3; i++) {
        sessions[i] = reading_session(engine);
    }
    for (uint32_t round = 0; round < 12; round++) {
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t more = (round * 5 + i * 11) % 23 + (i == 0);
            feed(sessions[i], texts[i % 2] + n[i], more);
            n[i] += more;
        }
        bool pending = true;
        while (pending) {
            step(engine, sessions, 3);
            pending = false;
            for (uint32_t i = 0; i < 3; i++) {
                pending |= moe_session_n_pending(sessions[i]) > 0;
            }
        }
        for (uint32_t i = 0; i < 3; i++) {
            toy_check_states(sessions[i]);
            check_logits(sessions[i], i % 2, n[i]);
        }
    }
    for (uint32_t i = 0; i < 3; i++) {
        moe_session_close(&sessions[i]);
    }
    moe_engine_close(&engine);
}

/* ---- Timelines that are cut, forked and saved ---- */

static uint32_t dice = 17;

static uint32_t roll(uint32_t n)
{
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 10) % n;
}

static void save_and_load(moe_engine *engine, moe_session **session)
{
    char file[] = "/tmp/moe-recurrent-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    size_t n_pending = moe_session_n_pending(*session);
    assert_int_equal(moe_session_save(*session, file, NULL), MOE_OK);
    moe_session_close(session);
    moe_error error;
    if (moe_session_load(session, engine, file, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(moe_session_n_pending(*session), n_pending);
    unlink(file);
}

static void go_through_a_fork(moe_session **session)
{
    moe_session *fork;
    assert_int_equal(moe_session_fork(&fork, *session, NULL), MOE_OK);
    if (roll(2) == 0) {
        moe_session *old = *session;
        *session = fork;
        fork = old;
    }
    /* The other one goes elsewhere, beside it. */
    feed(fork, texts[1] + 40, 3);
    step_all(fork->engine, fork);
    moe_session_close(&fork);
}

/* Of one of the texts, whose tokens the session holds the first n of. */
static void random_walk(moe_engine *engine, uint32_t n_moves)
{
    moe_session *session = reading_session(engine);
    uint32_t text = 0;
    uint32_t n = 0;
    uint32_t n_replays = 0;
    for (uint32_t move = 0; move < n_moves; move++) {
        uint32_t kind = roll(8);
        if (kind == 0) {
            save_and_load(engine, &session);
        } else if (kind == 1) {
            go_through_a_fork(&session);
        } else if (kind == 2 || n > N_TEXT - 160) {
            n = roll(4) == 0 ? roll(n + 1) : n - roll(n < 40 ? n + 1 : 40);
            size_t n_seen = moe_session_n_tokens(session) - moe_session_n_pending(session);
            assert_int_equal(moe_session_truncate(session, n, NULL), MOE_OK);
            assert_int_equal(moe_session_n_tokens(session), n);
            assert_int_equal(moe_session_n_pending(session), n > n_seen ? n - n_seen : 0);
            n_replays += session->n_evaluated < n;
            text = n == 0 ? 1 - text : text;
        } else {
            uint32_t more = 1 + roll(roll(3) == 0 ? 150 : 12);
            feed(session, texts[text] + n, more);
            n += more;
            if (roll(3) > 0) {
                step(engine, &session, 1);
            } else {
                step_all(engine, session);
                check_logits(session, text, n);
            }
        }
        toy_check_states(session);
    }
    assert_true(n_replays > 0);
    moe_session_close(&session);
}

static void cut_forked_and_saved(void **state)
{
    (void)state;
    moe_engine *engine = open_toy(48, 2);
    uint64_t before = engine->border.ram_granted;
    for (uint32_t walk = 0; walk < (test_is_small() ? 2 : 8); walk++) {
        random_walk(engine, 150);
        assert_int_equal(engine->border.ram_granted, before);
        assert_true(moe_memory_border_check(&engine->border));
    }
    moe_engine_close(&engine);
}

/* Cut back and not fed, a session has nothing to say, as without such layers; and scoring that was
 * stopped leaves the logits of where it was. */
static void logits_after_a_cut(void **state)
{
    (void)state;
    moe_engine *engine = open_toy(64, 1);
    moe_session *session = greedy_session(engine);
    feed(session, texts[0], 100);
    while (moe_session_n_tokens(session) == 100) {
        step(engine, &session, 1);
    }
    assert_int_equal(moe_session_truncate(session, 90, NULL), MOE_OK);
    assert_null(moe_session_logits(session));
    step(engine, &session, 1);
    step(engine, &session, 1);
    assert_null(moe_session_logits(session));
    assert_int_equal(moe_session_n_tokens(session), 90);
    feed(session, texts[0] + 90, 1);
    while (moe_session_n_tokens(session) == 91) {
        step(engine, &session, 1);
    }
    check_logits(session, 0, 91);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static bool stop_at_20(size_t position, const float *row, void *user)
{
    return compare_row(position, row, user) && position < 20;
}

static void scoring_that_is_stopped(void **state)
{
    (void)state;
    moe_engine *engine = open_toy(64, 1);
    moe_session *session = reading_session(engine);
    assert_int_equal(moe_session_score(session, texts[0], 60, stop_at_20, NULL, NULL), MOE_OK);
    assert_int_equal(moe_session_n_tokens(session), 21);
    check_logits(session, 0, 21);
    step(engine, &session, 1); /* evaluates again what the cut has cost */
    check_logits(session, 0, 21);
    assert_int_equal(moe_session_score(session, texts[0] + 21, 30, compare_row, NULL, NULL),
                     MOE_OK);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

/* A pass that fails between layers leaves the timeline as it was. */
static void passes_that_fail(void **state)
{
    (void)state;
    if (toy_is_real) {
        skip();
    }
    moe_engine *engine = open_toy(64, 1);
    moe_session *session = reading_session(engine);
    for (uint32_t n = 0; n < 120; n += 10) {
        feed(session, texts[0] + n, 10);
        toy_fails_in = 1;
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_ERR_IO);
        toy_check_states(session);
        assert_int_equal(moe_session_n_pending(session), 10);
        step_all(engine, session);
        check_logits(session, 0, n + 10);
    }
    moe_session_close(&session);
    moe_engine_close(&engine);
}

/* ---- Drafts ---- */

static void make_looping_prompt(int32_t *tokens)
{
    make_prompt(tokens, N_PROMPT, n_vocab, 9);
    for (uint32_t i = 8; i < N_PROMPT; i++) {
        tokens[i] = tokens[i % 8];
    }
}

static void write_greedy(moe_engine *engine, moe_session *session, int32_t *out)
{
    for (size_t done = 0; done < N_GREEDY;) {
        step(engine, &session, 1);
        toy_check_states(session);
        done += moe_session_take(session, out + done, N_GREEDY - done);
    }
}

static void check_drafts(moe_speculate speculate, double share, const int32_t *expected,
                         uint64_t *accepted, uint64_t *rejected)
{
    char draft[1100];
    moe_engine_options options = toy_options(64, 2);
    snprintf(draft, sizeof draft, "%s/%s/model.gguf", folder, toy_draft_model());
    options.speculate = speculate;
    options.draft_model = speculate == MOE_SPECULATE_MODEL ? draft : NULL;
    lab_of(&options)->length_control = MOE_LENGTH_STATIC;
    options.draft_max = 5;
    options.expert_cache_share = share;
    moe_engine *engine = open_engine(&options);
    int32_t prompt[N_PROMPT];
    int32_t got[N_GREEDY];
    make_looping_prompt(prompt);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    write_greedy(engine, session, got);
    assert_memory_equal(got, expected, sizeof got);
    /* And it can be cut back into the middle of what was drafted. */
    uint32_t n = N_PROMPT + N_GREEDY / 2;
    assert_int_equal(moe_session_truncate(session, n, NULL), MOE_OK);
    feed(session, expected + N_GREEDY / 2, 1);
    int32_t again[N_GREEDY];
    decode(engine, session, again, N_GREEDY / 2 - 1);
    assert_memory_equal(again, expected + N_GREEDY / 2 + 1, (N_GREEDY / 2 - 1) * sizeof *again);
    const moe_speculation_stats *stats = &engine->speculation->stats;
    *accepted += stats->accepted;
    *rejected += stats->drafted - stats->accepted;
    moe_session_close(&session);
    assert_true(moe_memory_border_check(&engine->border));
    moe_engine_close(&engine);
}

static void rejected_drafts(void **state)
{
    (void)state;
    int32_t prompt[N_PROMPT];
    int32_t expected[N_GREEDY];
    uint64_t accepted = 0, rejected = 0;
    moe_engine *engine = open_toy(64, 1);
    moe_session *session = greedy_session(engine);
    make_looping_prompt(prompt);
    feed(session, prompt, N_PROMPT);
    write_greedy(engine, session, expected);
    moe_session_close(&session);
    moe_engine_close(&engine);
    check_drafts(MOE_SPECULATE_NGRAM, 1.0, expected, &accepted, &rejected);
    check_drafts(MOE_SPECULATE_SELF, 0.6, expected, &accepted, &rejected);
    check_drafts(MOE_SPECULATE_SELF, 1.0, expected, &accepted, &rejected);
    check_drafts(MOE_SPECULATE_AUTO, 0.7, expected, &accepted, &rejected);
    check_drafts(MOE_SPECULATE_MODEL, 1.0, expected, &accepted, &rejected);
    print_message("%llu drafted tokens accepted, %llu rejected\n", (unsigned long long)accepted,
                  (unsigned long long)rejected);
    assert_true(accepted > 20 && rejected > 20);
}

static void trees_are_refused(void **state)
{
    (void)state;
    moe_engine_options options = toy_options(64, 1);
    options.speculate = MOE_SPECULATE_SELF;
    options.tree_nodes = 8;
    moe_engine *engine;
    moe_error error;
    assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "tree_nodes"));
    assert_non_null(strstr(error.message, "recurrent"));
}

/* Writes the prompt's text in a session of its own. */
static moe_session *write_text(moe_engine *engine, const int32_t *expected)
{
    int32_t prompt[N_PROMPT];
    int32_t got[N_GREEDY];
    make_looping_prompt(prompt);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    write_greedy(engine, session, got);
    assert_memory_equal(got, expected, sizeof got);
    return session;
}

/* Lookahead's stats of writing the text. Its experts are in memory before if all fit: of those that
 * have still to come the draft knows nothing. */
static moe_speculation_stats write_ahead(moe_engine *engine, const int32_t *expected)
{
    moe_session *session = write_text(engine, expected);
    moe_session_close(&session);
    engine->speculation->stats = (moe_speculation_stats){0};
    session = write_text(engine, expected);
    moe_session_close(&session);
    return engine->speculation->stats;
}

/* A fork has no log yet, and a timeline that is cut has a line of another text. */
static void cut_and_fork_ahead(moe_engine *engine, const int32_t *expected)
{
    int32_t other[N_GREEDY];
    moe_session *session = write_text(engine, expected);
    moe_session *fork;
    assert_int_equal(moe_session_truncate(session, N_PROMPT + 20, NULL), MOE_OK);
    assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
    feed(session, expected + 20, 1);
    feed(fork, expected + 20, 1);
    decode(engine, fork, other, N_GREEDY - 21);
    assert_memory_equal(other, expected + 21, (N_GREEDY - 21) * sizeof *other);
    moe_session *both[] = {session, fork};
    moe_session_truncate(fork, N_PROMPT + 40, NULL);
    feed(fork, expected + 40, 1);
    for (uint32_t i = 0; i < 12; i++) {
        step(engine, both, 2);
        toy_check_states(session);
        toy_check_states(fork);
    }
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t n = (uint32_t)moe_session_n_tokens(both[i]) - N_PROMPT;
        assert_true(n >= 30);
        assert_memory_equal(moe_session_tokens(both[i]) + N_PROMPT, expected,
                            (n < N_GREEDY ? n : N_GREEDY) * sizeof *expected);
        moe_session_close(&both[i]);
    }
}

/* How many tokens of the text a draft of the model itself says before they come: all but the first,
 * the last, whose step has not come, and those at which a draft ends. */
static uint32_t n_foreseen(const moe_engine *engine, const int32_t *expected)
{
    const moe_tokenizer *tokenizer = engine->speculation->parts.tokenizer;
    uint32_t n = 0;
    for (uint32_t i = 1; i + 1 < N_GREEDY; i++) {
        n += tokenizer == NULL || !moe_tokenizer_is_end(tokenizer, expected[i]);
    }
    return n;
}

/* The text stays. With its experts in memory the draft is the model: every token of it stands, over
 * several ends of the log. */
static void lookahead_rolls_on(void **state)
{
    (void)state;
    static const struct {
        uint32_t lookahead;
        double share;
        moe_speculate speculate;
        moe_switch overlap;
    } ways[] = {{4, 1.0, MOE_SPECULATE_OFF, MOE_SWITCH_OFF},
                {16, 1.0, MOE_SPECULATE_OFF, MOE_SWITCH_OFF},
                {4, 0.5, MOE_SPECULATE_OFF, MOE_SWITCH_OFF},
                {6, 0.5, MOE_SPECULATE_OFF, MOE_SWITCH_ON},
                {4, 0.6, MOE_SPECULATE_NGRAM, MOE_SWITCH_OFF}};
    int32_t prompt[N_PROMPT];
    int32_t expected[N_GREEDY];
    moe_engine *engine = open_toy(64, 1);
    moe_session *session = greedy_session(engine);
    make_looping_prompt(prompt);
    feed(session, prompt, N_PROMPT);
    write_greedy(engine, session, expected);
    moe_session_close(&session);
    moe_engine_close(&engine);
    for (uint32_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        moe_engine_options options = toy_options(64, 2);
        options.lookahead = ways[i].lookahead;
        options.expert_cache_share = ways[i].share;
        options.speculate = ways[i].speculate;
        lab_of(&options)->lookahead_overlap = ways[i].overlap;
        engine = open_engine(&options);
        moe_speculation_stats ahead = write_ahead(engine, expected);
        if (ways[i].share == 1.0) {
            assert_int_equal(ahead.lookahead_tokens, n_foreseen(engine, expected));
            assert_int_equal(ahead.lookahead_stood, ahead.lookahead_tokens);
            /* One a token, and rows that are drafted again at a border of pages. */
            assert_true(ahead.lookahead_passes <= N_GREEDY + options.lookahead * options.lookahead);
        } else if (ways[i].overlap == MOE_SWITCH_OFF) {
            assert_true(ahead.lookahead_passes > 0);
        }
        cut_and_fork_ahead(engine, expected);
        if (ways[i].share == 1.0) {
            assert_int_equal(engine->speculation->stats.lookahead_stood,
                             engine->speculation->stats.lookahead_tokens);
        }
        assert_true(moe_memory_border_check(&engine->border));
        moe_engine_close(&engine);
    }
}

/* ---- Memory ---- */

static uint32_t n_states(const moe_session *session)
{
    const moe_state_table *t = &session->states;
    return (t->current != NULL) + (t->next != NULL) + t->n_snapshots;
}

/* A session with a full context takes no more than the plan has for it, and has as many states as
 * it may; a fork has its own only for what it writes. */
static void memory_as_planned(void **state)
{
    (void)state;
    moe_engine_options options = toy_options(32, 1);
    options.speculate = MOE_SPECULATE_NGRAM;
    moe_memory_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(moe_plan_memory(&options, &plan, NULL), MOE_OK);
    moe_engine *engine = open_engine(&options);
    uint64_t states = moe_state_pool_session_bytes(&engine->states);
    assert_int_equal(plan.layer_states, states);
    assert_int_equal(states, 5 * moe_memory_border_cost(engine->states.state_bytes) +
                                 moe_memory_border_cost(engine->states.log_bytes));
    uint64_t pages = CONTEXT / MOE_KV_PAGE * moe_memory_border_cost(engine->kv.page_bytes);
    assert_int_equal(plan.kv_cache, pages + states);
    uint64_t before = engine->border.ram_granted;
    moe_session *session = reading_session(engine);
    uint32_t most = 0;
    for (uint32_t n = 0; n < N_TEXT; n += 20) {
        feed(session, texts[0] + n, 20);
        step_all(engine, session);
        most = n_states(session) > most ? n_states(session) : most;
    }
    assert_int_equal(most, MOE_STATES_MOST);
    uint64_t granted = engine->border.ram_granted - before;
    assert_true(granted <= plan.kv_cache + plan.session_state);
    moe_session *fork;
    assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
    assert_ptr_equal(fork->states.current, session->states.current);
    assert_int_equal(fork->states.n_snapshots, session->states.n_snapshots);
    moe_session_close(&session);
    feed(fork, texts[1], 5);
    step_all(engine, fork);
    moe_session_close(&fork);
    assert_int_equal(engine->border.ram_granted, before);
    moe_engine_close(&engine);
}

/* The snapshots lie where they shorten what a cut evaluates again. */
static void snapshots_shorten_replays(void **state)
{
    (void)state;
    moe_engine *engine = open_toy(32, 1);
    moe_session *session = reading_session(engine);
    feed(session, texts[0], 600);
    step_all(engine, session);
    feed(session, texts[0] + 600, 20); /* a turn begins */
    step_all(engine, session);
    for (uint32_t i = 620; i < 660; i++) {
        feed(session, texts[0] + i, 1);
        step_all(engine, session);
    }
    assert_int_equal(moe_session_truncate(session, 659, NULL), MOE_OK);
    assert_int_equal(session->n_evaluated, 659); /* where the last pass began */
    assert_int_equal(moe_session_truncate(session, 610, NULL), MOE_OK);
    assert_int_equal(session->n_evaluated, 600); /* where the turn began */
    assert_int_equal(moe_session_truncate(session, 590, NULL), MOE_OK);
    assert_true(session->n_evaluated >= 590 - MOE_STATE_INTERVAL - 32);
    feed(session, texts[0] + 590, 1);
    step_all(engine, session);
    check_logits(session, 0, 591);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_and_threads),      cmocka_unit_test(batch_neighbours),
        cmocka_unit_test(cut_forked_and_saved),    cmocka_unit_test(logits_after_a_cut),
        cmocka_unit_test(scoring_that_is_stopped), cmocka_unit_test(passes_that_fail),
        cmocka_unit_test(rejected_drafts),         cmocka_unit_test(trees_are_refused),
        cmocka_unit_test(memory_as_planned),       cmocka_unit_test(snapshots_shorten_replays),
        cmocka_unit_test(caches_and_devices),      cmocka_unit_test(lookahead_rolls_on),
    };
    if (argc < 2 || !toy_take_models(argc - 2, argv + 2)) {
        fprintf(stderr, "usage: %s ORACLE-FOLDER [MODEL OTHER-MODEL DRAFT-MODEL]\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    int failed = cmocka_run_group_tests_name("some layers", tests, set_up_some, tear_down);
    return failed + cmocka_run_group_tests_name("all layers", tests, set_up_all, tear_down);
}
