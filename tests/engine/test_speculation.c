/* SPDX-License-Identifier: MIT */
/* Speculation changes no text: random configurations of drafter, controller, lengths, trees,
 * caches, batches and the rest write what plain decoding writes, and leave a timeline behind that
 * goes on with the same bits. Usage: test_speculation MODEL.gguf DRAFT.gguf [CONFIGURATIONS] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <moe/model_file.h>

#include "engine_fixture.h"
#include "tests/test_size.h"
#include "engine_options.h"

#define N_PROMPT      29
#define N_DECODE      48
#define MOST_SESSIONS 5
#define N_TAIL        3
#define N_STEPS       180

static const char *model_path, *draft_path;
static int n_configurations = 60;
static bool has_head; /* the model brings a drafting layer, or an EAGLE-3 head is beside it: */
static const char *head_path;

/* What plain decoding writes. */
typedef struct expected {
    int32_t prompt[N_PROMPT];
    int32_t tokens[N_DECODE + N_TAIL];
    float *logits; /* after all of them */
} expected;

static expected plain[2][MOST_SESSIONS]; /* greedy; sampled, each session with its own seed */
static uint32_t n_vocab, n_used;

/* A text that repeats itself, so that n-grams have something to find. */
static void make_text(int32_t *tokens, uint32_t seed)
{
    make_prompt(tokens, N_PROMPT, n_vocab, seed);
    for (uint32_t i = 12; i < N_PROMPT; i++) {
        tokens[i] = tokens[i % (4 + seed % 5)];
    }
}

static moe_engine_options basic_options(void)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.prefill_chunk = 128;
    options.context = 256;
    return options;
}

static moe_session *open_session(moe_engine *engine, bool sampled, uint32_t number)
{
    moe_session_options how;
    moe_session_options_init(&how);
    how.sampling.temperature = sampled ? 0.2f : 0.0f;
    how.sampling.seed = number + 3;
    moe_session *session = NULL;
    assert_int_equal(moe_session_create(&session, engine, &how, NULL), MOE_OK);
    return session;
}

static int set_up(void **state)
{
    (void)state;
    moe_engine_options options = basic_options();
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    n_vocab = info.n_vocab;
    n_used = info.n_expert_used;
    for (uint32_t i = 0; i < 2 * MOST_SESSIONS; i++) {
        uint32_t number = i % MOST_SESSIONS;
        expected *e = &plain[i / MOST_SESSIONS][number];
        moe_session *session = open_session(engine, i >= MOST_SESSIONS, number);
        make_text(e->prompt, number + 1);
        feed(session, e->prompt, N_PROMPT);
        decode(engine, session, e->tokens, N_DECODE + N_TAIL);
        e->logits = malloc(n_vocab * sizeof(float));
        memcpy(e->logits, moe_session_logits(session), n_vocab * sizeof(float));
        moe_session_close(&session);
    }
    assert_memory_not_equal(plain[0][0].tokens, plain[1][0].tokens, sizeof plain[0][0].tokens);
    moe_engine_close(&engine);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2 * MOST_SESSIONS; i++) {
        free(plain[i / MOST_SESSIONS][i % MOST_SESSIONS].logits);
    }
    return 0;
}

/* ---- Configurations ---- */

static uint32_t dice;

static uint32_t roll(uint32_t n)
{
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 10) % n;
}

#define PICK(list) list[roll(sizeof list / sizeof list[0])]

static void speculate(moe_engine_options *o, moe_speculate how)
{
    o->speculate = how;
    o->draft_model = how == MOE_SPECULATE_MODEL ? draft_path
                     : how == MOE_SPECULATE_MTP ? head_path
                                                : NULL;
}

static moe_engine_options draw_options(char *text, size_t text_size)
{
    static const moe_length_kind controls[] = {MOE_LENGTH_STATIC, MOE_LENGTH_CASCADE,
                                               MOE_LENGTH_SURVIVAL};
    static const char *const policies[] = {"lfru", "lru", "sieve", "s3-fifo"};
    static const moe_stand_in fills[] = {MOE_STAND_IN_TOPK, MOE_STAND_IN_NONE, MOE_STAND_IN_RANDOM,
                                         MOE_STAND_IN_SHUFFLED};
    static const uint32_t lengths[] = {1, 3, 7, 20};
    static const uint32_t trees[] = {0, 0, 5, 17, 60};
    static const double shares[] = {0.5, 0.75, 1.0};
    static const moe_io_kind ios[] = {MOE_IO_URING, MOE_IO_THREADS, MOE_IO_SYNC};
    static const moe_speculate modes[] = {MOE_SPECULATE_NGRAM, MOE_SPECULATE_SELF,
                                          MOE_SPECULATE_AUTO, MOE_SPECULATE_MODEL};
    moe_engine_options o = basic_options();
    speculate(&o, has_head && roll(2) ? MOE_SPECULATE_MTP : PICK(modes));
    moe_lab_options *lab = lab_of(&o);
    lab->length_control = PICK(controls);
    o.draft_max = PICK(lengths);
    o.tree_nodes = PICK(trees);
    lab->cost_by_bytes = roll(2) != 0;
    lab->affinity = PICK(fills);
    o.expert_cache_share = PICK(shares);
    lab->foresight = roll(2) ? MOE_SWITCH_ON : MOE_SWITCH_OFF;
    lab->verify_bytes = roll(4) == 0 ? 200000 : 0;
    o.n_threads = 1 + roll(2);
    o.io = PICK(ios);
    o.prefill_chunk = roll(3) == 0 ? 7 : 128;
    if (roll(4) == 0) {
        lab->offload = MOE_OFFLOAD_ON_DEMAND;
        o.expert_cache_share = 1.0;
        lab->draft_experts = roll(2) ? n_used : 0;
    } else {
        o.policy = PICK(policies);
        o.prefetch = roll(2) ? MOE_SWITCH_ON : MOE_SWITCH_OFF;
    }
    if (o.speculate != MOE_SPECULATE_SELF && o.speculate != MOE_SPECULATE_AUTO) {
        lab->affinity = MOE_STAND_IN_TOPK; /* settings of the self draft are refused here */
        lab->foresight = MOE_SWITCH_AUTO;
        lab->verify_bytes = 0;
        lab->draft_experts = 0;
    }
    snprintf(text, text_size,
             "speculate %d length control %d max %u tree %u cost by bytes %d affinity %d share "
             "%.2f foresight %d bytes %llu threads %u io %d chunk %u offload %d policy %s prefetch "
             "%d experts %u",
             o.speculate, lab->length_control, o.draft_max, o.tree_nodes, lab->cost_by_bytes,
             lab->affinity, o.expert_cache_share, lab->foresight,
             (unsigned long long)lab->verify_bytes, o.n_threads, o.io, o.prefill_chunk,
             lab->offload, o.policy != NULL ? o.policy : "-", o.prefetch, lab->draft_experts);
    return o;
}

/* ---- One configuration ---- */

typedef struct writer {
    moe_session *session;
    int32_t tokens[N_DECODE + 512];
    size_t n;
} writer;

static void write_all(moe_engine *engine, writer *writers, uint32_t n)
{
    for (bool busy = true; busy;) {
        moe_session *active[MOST_SESSIONS];
        size_t n_active = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (writers[i].n < N_DECODE) {
                active[n_active++] = writers[i].session;
            }
        }
        busy = n_active > 0;
        moe_error err = {""};
        if (busy && moe_step(engine, active, n_active, &err) != MOE_OK) {
            fail_msg("%s", err.message);
        }
        for (uint32_t i = 0; i < n; i++) {
            writers[i].n +=
                moe_session_take(writers[i].session, writers[i].tokens + writers[i].n,
                                 sizeof writers[i].tokens / sizeof(int32_t) - writers[i].n);
        }
    }
}

/* The timeline is cut to what plain decoding had, goes on with its tokens, and ends with its bits.
 */
static void check_tail(moe_engine *engine, writer *w, const expected *e, const char *text)
{
    assert_int_equal(moe_session_truncate(w->session, N_PROMPT + N_DECODE - 4, NULL), MOE_OK);
    feed(w->session, e->tokens + N_DECODE - 4, 4 + N_TAIL - 1);
    while (moe_session_n_pending(w->session) > 1 || moe_session_logits(w->session) == NULL) {
        assert_int_equal(moe_step(engine, &w->session, 1, NULL), MOE_OK);
        int32_t token;
        if (moe_session_take(w->session, &token, 1) > 0) {
            break;
        }
    }
    if (memcmp(moe_session_logits(w->session), e->logits, n_vocab * sizeof(float)) != 0) {
        fail_msg("other logits after: %s", text);
    }
}

static void run_one(const moe_engine_options *options, bool sampled, uint32_t n, const char *text,
                    moe_speculation_stats *sum)
{
    const expected *e = plain[sampled];
    moe_engine *engine = NULL;
    moe_error err = {""};
    moe_engine_options chains = *options; /* for models whose keys do not branch */
    chains.tree_nodes = 0;
    int status = moe_engine_open(&engine, options, &err);
    if (status == MOE_ERR_UNSUPPORTED && strstr(err.message, "not branch") != NULL) {
        status = moe_engine_open(&engine, &chains, &err);
    }
    if (status != MOE_OK) {
        fail_msg("%s: %s", text, err.message);
    }
    writer writers[MOST_SESSIONS] = {{0}};
    for (uint32_t i = 0; i < n; i++) {
        writers[i].session = open_session(engine, sampled, i);
        feed(writers[i].session, e[i].prompt, N_PROMPT);
    }
    write_all(engine, writers, n);
    for (uint32_t i = 0; i < n; i++) {
        if (memcmp(writers[i].tokens, e[i].tokens, N_DECODE * sizeof(int32_t)) != 0) {
            fail_msg("other tokens in sequence %u of %u, %s: %s", i, n,
                     sampled ? "sampled" : "greedy", text);
        }
        check_tail(engine, &writers[i], &e[i], text);
    }
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    const moe_speculation_stats *s = &stats.speculation;
    assert_true(s->accepted <= s->drafted);
    assert_int_equal(s->draft_moves, 0);
    assert_int_equal(s->drafted,
                     s->drafted_by[0] + s->drafted_by[1] + s->drafted_by[2] + s->drafted_by_head);
    assert_int_equal(s->accepted, s->accepted_by[0] + s->accepted_by[1] + s->accepted_by[2] +
                                      s->accepted_by_head);
    sum->accepted_by_head += s->accepted_by_head;
    sum->drafted_by_head += s->drafted_by_head;
    sum->drafted += s->drafted;
    sum->accepted += s->accepted;
    sum->draft_passes += s->draft_passes;
    for (int d = 0; d < MOE_DRAFT_KINDS; d++) {
        sum->accepted_by[d] += s->accepted_by[d];
    }
    for (uint32_t i = 0; i < n; i++) {
        moe_session_close(&writers[i].session);
    }
    moe_engine_close(&engine);
}

static void same_text_everywhere(void **state)
{
    (void)state;
    static const uint32_t batches[] = {1, 2, MOST_SESSIONS};
    moe_speculation_stats sum = {0};
    dice = 7;
    n_configurations = !test_is_small() ? n_configurations : has_head ? 20 : 6;
    for (int i = 0; i < n_configurations; i++) {
        char text[1600];
        moe_engine_options options = draw_options(text, sizeof text);
        uint32_t n = batches[roll(3)];
        run_one(&options, roll(3) == 0, n, text, &sum);
    }
    /* In a whole sweep all kinds of drafters have drafted, and something of each was accepted. */
    print_message("%d configurations: %llu drafted, %llu accepted, %llu draft passes\n",
                  n_configurations, (unsigned long long)sum.drafted,
                  (unsigned long long)sum.accepted, (unsigned long long)sum.draft_passes);
    for (int d = 0; d < MOE_DRAFT_KINDS && n_configurations > 20; d++) {
        assert_true(sum.accepted_by[d] > 0 || has_head);
    }
    /* Layers of random weights are seldom right: in a slice perhaps never. */
    assert_true(!has_head ||
                (sum.drafted_by_head > 0 && (sum.accepted_by_head > 0 || test_is_small())));
}

/* With the same seed every kind of draft writes the same text; a sampler that likes to repeat
 * itself, so that n-grams are right now and then. */
static void same_seed_same_text(void **state)
{
    (void)state;
    static const moe_speculate modes[] = {MOE_SPECULATE_OFF, MOE_SPECULATE_NGRAM,
                                          MOE_SPECULATE_SELF, MOE_SPECULATE_MODEL,
                                          MOE_SPECULATE_MTP};
    const int n_modes = has_head ? 5 : 4;
    int32_t texts[5][N_DECODE];
    uint64_t accepted = 0;
    for (int m = 0; m < n_modes; m++) {
        moe_engine_options options = basic_options();
        speculate(&options, modes[m]);
        lab_of(&options)->length_control = m > 0 ? MOE_LENGTH_STATIC : MOE_LENGTH_SURVIVAL;
        options.expert_cache_share = 0.5;
        moe_engine *engine = open_engine(&options);
        moe_session_options how;
        moe_session_options_init(&how);
        how.sampling.temperature = 0.2f;
        how.sampling.repeat_penalty = 0.7f;
        how.sampling.seed = 3;
        moe_session *session = NULL;
        assert_int_equal(moe_session_create(&session, engine, &how, NULL), MOE_OK);
        feed(session, plain[0][2].prompt, N_PROMPT);
        int32_t tokens[N_DECODE + 64];
        size_t n = 0;
        while (n < N_DECODE) {
            assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
            n += moe_session_take(session, tokens + n, sizeof tokens / sizeof *tokens - n);
        }
        memcpy(texts[m], tokens, sizeof texts[0]);
        moe_engine_stats stats = {.struct_size = sizeof stats};
        moe_engine_get_stats(engine, &stats);
        accepted += stats.speculation.accepted;
        moe_session_close(&session);
        moe_engine_close(&engine);
    }
    assert_true(accepted > 0);
    for (int m = 1; m < n_modes; m++) {
        assert_memory_equal(texts[0], texts[m], sizeof texts[0]);
    }
}

static size_t write_on(moe_engine *engine, moe_session *session, int32_t *tokens, size_t size,
                       size_t n_wanted)
{
    size_t n = 0;
    while (n < n_wanted) {
        moe_error err = {""};
        if (moe_step(engine, &session, 1, &err) != MOE_OK) {
            fail_msg("%s", err.message);
        }
        n += moe_session_take(session, tokens + n, size - n);
    }
    return n;
}

/* A speculating session at a temperature, saved in the middle: loaded by another engine it goes on
 * as it would have, which where drafts only hurry the sampler is as plain decoding does. */
static void check_saved(moe_speculate mode, moe_acceptance acceptance, uint64_t *accepted)
{
    enum { SIZE = N_DECODE + 64 };
    int32_t whole[SIZE], loaded[SIZE];
    char path[] = "/tmp/moe-speculation-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    moe_engine_options options = basic_options();
    speculate(&options, mode);
    lab_of(&options)->length_control = MOE_LENGTH_STATIC;
    options.acceptance = acceptance;
    options.expert_cache_share = 0.5;
    moe_engine *engine = open_engine(&options);
    moe_session *session = open_session(engine, true, 1);
    feed(session, plain[1][1].prompt, N_PROMPT);
    size_t n = write_on(engine, session, whole, SIZE, N_DECODE / 3);
    assert_int_equal(moe_session_save(session, path, NULL), MOE_OK);
    (void)write_on(engine, session, whole + n, SIZE - n, N_DECODE - n);
    moe_session_close(&session);
    moe_engine_close(&engine);

    engine = open_engine(&options);
    assert_int_equal(moe_session_load(&session, engine, path, NULL), MOE_OK);
    (void)write_on(engine, session, loaded, SIZE, N_DECODE - n);
    if (memcmp(whole + n, loaded, (N_DECODE - n) * sizeof *loaded) != 0) {
        fail_msg("draft %d, acceptance %d: another text after loading", mode, acceptance);
    }
    if (acceptance == MOE_ACCEPTANCE_EXACT) {
        assert_memory_equal(whole, plain[1][1].tokens, N_DECODE * sizeof *whole);
    }
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    assert_true(stats.speculation.drafted > 0);
    *accepted += stats.speculation.accepted;
    moe_session_close(&session);
    moe_engine_close(&engine);
    unlink(path);
}

static void saved_goes_on_alike(void **state)
{
    (void)state;
    uint64_t accepted = 0;
    check_saved(MOE_SPECULATE_SELF, MOE_ACCEPTANCE_EXACT, &accepted);
    check_saved(MOE_SPECULATE_MODEL, MOE_ACCEPTANCE_EXACT, &accepted);
    check_saved(MOE_SPECULATE_MODEL, MOE_ACCEPTANCE_REJECTION, &accepted);
    if (has_head) {
        check_saved(MOE_SPECULATE_MTP, MOE_ACCEPTANCE_EXACT, &accepted);
        check_saved(MOE_SPECULATE_MTP, MOE_ACCEPTANCE_REJECTION, &accepted);
    }
    assert_true(accepted > 0);
}

/* Costs in bytes: every run drafts the same lengths, step by step, and so makes the same passes,
 * whatever the threads, the I/O engine and the speed of the machine. */
static void check_lengths(moe_speculate drafter, moe_length_kind control)
{
    static uint64_t seen[3][N_STEPS][4];
    uint64_t drafted = 0;
    memset(seen, 0, sizeof seen);
    for (int r = 0; r < 3; r++) {
        moe_engine_options options = basic_options();
        speculate(&options, drafter);
        lab_of(&options)->length_control = control;
        lab_of(&options)->cost_by_bytes = true;
        options.n_threads = r == 1 ? 2 : 1;
        options.io = r == 1 ? MOE_IO_URING : MOE_IO_SYNC;
        options.expert_cache_share = 0.5;
        moe_engine *engine = open_engine(&options);
        moe_session *session = greedy_session(engine);
        feed(session, plain[0][1].prompt, N_PROMPT);
        size_t n = 0;
        for (int i = 0; i < N_STEPS && n < 180; i++) {
            int32_t tokens[64];
            assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
            size_t n_new = moe_session_take(session, tokens, 64);
            moe_engine_stats stats = {.struct_size = sizeof stats};
            moe_engine_get_stats(engine, &stats);
            seen[r][i][0] = stats.speculation.drafted;
            seen[r][i][1] = stats.passes;
            seen[r][i][2] = stats.speculation.draft_passes;
            seen[r][i][3] = n += n_new;
            drafted = stats.speculation.drafted;
        }
        moe_session_close(&session);
        moe_engine_close(&engine);
    }
    /* The account of what speculation may lose leaves auto nothing to draft on texts like these. */
    assert_true(drafted > 0 || drafter == MOE_SPECULATE_AUTO);
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
    assert_memory_equal(seen[0], seen[2], sizeof seen[0]);
}

static void same_lengths_by_bytes(void **state)
{
    (void)state;
    check_lengths(MOE_SPECULATE_AUTO, MOE_LENGTH_SURVIVAL);
    if (!test_is_small()) {
        check_lengths(MOE_SPECULATE_AUTO, MOE_LENGTH_CASCADE);
        check_lengths(MOE_SPECULATE_SELF, MOE_LENGTH_STATIC);
    }
    if (has_head) {
        check_lengths(MOE_SPECULATE_MTP, MOE_LENGTH_STATIC);
    }
}

/* Budgets that cut nothing and buddies that may replace nothing are off to the bit. */
static void idle_lossy_modes(void **state)
{
    (void)state;
    moe_engine_options options = basic_options();
    moe_speculation_stats sum = {0};
    moe_file *file;
    moe_file_summary summary = {.struct_size = sizeof summary};
    assert_int_equal(moe_file_open(&file, options.model_path, NULL), MOE_OK);
    assert_int_equal(moe_file_get_summary(file, &summary), MOE_OK);
    moe_file_close(&file);
    lossy_of(&options)->expert_budget = summary.n_expert;
    options.expert_cache_share = 0.5;
    run_one(&options, false, 2, "expert budget of all", &sum);
    lossy_of(&options)->budget_truncates = true;
    lossy_of(&options)->budget_free_resident = true;
    run_one(&options, false, 2, "truncating expert budget of all", &sum);
    lossy_of(&options)->budget_free_resident = false;
    lab_of(&options)->budget_oracle = true;
    run_one(&options, false, 2, "the oracle's list of all", &sum);
    lossy_of(&options)->budget_truncates = false;
    lab_of(&options)->budget_oracle = false;
    lab_of(&options)->budget_error = true;
    run_one(&options, false, 2, "measured expert budget of all", &sum);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_text_everywhere), cmocka_unit_test(same_seed_same_text),
        cmocka_unit_test(saved_goes_on_alike),  cmocka_unit_test(same_lengths_by_bytes),
        cmocka_unit_test(idle_lossy_modes),
    };
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL.gguf DRAFT.gguf [CONFIGURATIONS]\n", argv[0]);
        return 2;
    }
    model_path = argv[1];
    draft_path = argv[2];
    static char head[1024];
    if (strstr(model_path, "/eagle3") != NULL) {
        snprintf(head, sizeof head, "%.*s/head.gguf", (int)(strrchr(argv[1], '/') - argv[1]),
                 argv[1]);
        head_path = head;
    }
    has_head = strstr(model_path, "/nextn-") != NULL || head_path != NULL;
    n_configurations = argc > 3 ? atoi(argv[3]) : n_configurations;
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
