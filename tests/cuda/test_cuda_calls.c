/* SPDX-License-Identifier: MIT */
/* Counts what writing a token requires of the driver, on the emulation: launches, copies and waits,
 * each of which costs the host microseconds, whatever the GPU. The counts must stay below limits,
 * and the library's own counts must be the same whether tokens are replayed or launched one
 * operation at a time. Runs on a model given by path; with `table` behind it, it prints a table by
 * residency and kind of step instead (bench/results/cuda.md); with the first word of a kind behind
 * that, of this kind alone, with a percentage behind that, of this residency, and with `host`
 * behind that where the host routes all layers. */
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
#include "fake_module.h"
#include "tests/test_size.h"

#define N_PROMPT  40
#define N_WARM    4
#define N_DECODE  8
#define N_BATCH   8
#define N_STEPS   24
#define N_EARLIER 4

static const char *model_path;
static fake_module fake;

static int find_fake(void **state)
{
    (void)state;
    find_fake_module(&fake);
    return 0;
}

typedef struct calls {
    double launches, kernels, early, copies, waits, graphs; /* a token */
    uint32_t n_layers;
    int32_t tokens[N_DECODE];
    moe_engine_stats stats;
} calls;

static moe_engine_options decode_options(void)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.prefill_chunk = N_PROMPT;
    options.context = 128;
    options.device = "cuda";
    options.host_compute = MOE_SWITCH_OFF;
    options.prefetch = MOE_SWITCH_OFF;
    return options;
}

/* Steps until every session has written n tokens more; how many were written. */
static uint32_t write_tokens(moe_engine *engine, moe_session **sessions, uint32_t n_sessions,
                             uint32_t n)
{
    uint32_t n_written = 0;
    uint32_t own[N_BATCH] = {0};
    bool all = false;
    while (!all) {
        moe_error err;
        assert_int_equal(moe_step(engine, sessions, n_sessions, &err), MOE_OK);
        all = true;
        for (uint32_t s = 0; s < n_sessions; s++) {
            int32_t taken[N_STEPS];
            uint32_t n_taken = (uint32_t)moe_session_take(sessions[s], taken, N_STEPS);
            own[s] += n_taken;
            n_written += n_taken;
            all = all && own[s] >= n;
        }
    }
    return n_written;
}

/* Prompts that read nearly all experts once. */
static void read_earlier(moe_engine *engine, uint32_t n_vocab)
{
    int32_t prompt[N_PROMPT];
    for (uint32_t s = 0; s < N_EARLIER; s++) {
        moe_session *earlier = greedy_session(engine);
        make_prompt(prompt, N_PROMPT, n_vocab, 100 + s);
        feed(earlier, prompt, N_PROMPT);
        (void)write_tokens(engine, &earlier, 1, 1);
        moe_session_close(&earlier);
    }
}

/* A prompt reads nearly all experts of a layer if they are fewer than its rows. Where they are
 * more, prompts before it do, so that host memory has what later passes need. */
static void read_all(moe_engine *engine, const moe_engine_info *info)
{
    if (info->n_expert >= N_PROMPT) {
        read_earlier(engine, info->n_vocab);
    }
}

/* plays: graphs are to be had. */
static calls count_calls(const moe_engine_options *options, bool plays)
{
    fake_machine machine;
    fake_usage before, after;
    int32_t prompt[N_PROMPT];
    calls c;
    fake.init(&machine);
    machine.fail_call = plays ? NULL : "cudaStreamBeginCapture";
    machine.fail_code = cudaErrorNotSupported;
    machine.fail_each = true;
    fake.set(&machine);
    moe_engine *engine = open_engine(options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    read_all(engine, &info);
    moe_engine_stats first = {.struct_size = sizeof first};
    moe_engine_get_stats(engine, &first);
    make_prompt(prompt, N_PROMPT, info.n_vocab, 1);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    decode(engine, session, c.tokens, N_WARM);
    fake.usage(&before);
    decode(engine, session, c.tokens, N_DECODE);
    fake.usage(&after);
    c.n_layers = info.n_layer;
    c.launches = (double)(after.n_launches - before.n_launches) / N_DECODE;
    c.kernels = (double)(after.n_kernels - before.n_kernels) / N_DECODE;
    c.early = (double)(after.n_early - before.n_early) / N_DECODE;
    c.copies = (double)(after.n_copies - before.n_copies) / N_DECODE;
    c.waits = (double)(after.n_waits - before.n_waits) / N_DECODE;
    c.graphs = (double)(after.n_graphs - before.n_graphs) / N_DECODE;
    c.stats.struct_size = sizeof c.stats;
    moe_engine_get_stats(engine, &c.stats);
    c.stats.bytes_moved_link -= first.bytes_moved_link;
    moe_session_close(&session);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
    printf("%s experts resident, %u layers, %s: a token takes %.1f launches, %.1f graphs, %.1f "
           "kernels (%.1f may begin early), %.1f copies, %.1f waits\n",
           options->expert_cache_share < 1 ? "some" : "all", info.n_layer,
           plays ? "with graphs" : "without", c.launches, c.graphs, c.kernels, c.early, c.copies,
           c.waits);
    return c;
}

static void assert_same_counts(const calls *a, const calls *b)
{
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_int_equal(a->stats.decode_tokens, b->stats.decode_tokens);
    assert_int_equal(a->stats.passes, b->stats.passes);
    assert_int_equal(a->stats.expert_hits, b->stats.expert_hits);
    assert_int_equal(a->stats.expert_misses, b->stats.expert_misses);
    assert_int_equal(a->stats.expert_evictions, b->stats.expert_evictions);
    assert_int_equal(a->stats.bytes_moved_link, b->stats.bytes_moved_link);
}

/* Kernels of a token whose experts are all resident: one more is a fusion lost. */
static void assert_fused(double kernels)
{
    static const struct {
        const char *model;
        double most;
    } limits[] = {{"/olmoe-q8_0/", 20},
                  {"/qwen3moe-q4_k/", 19},
                  {"/deepseek2-v3/", 49},
                  {"/moe-demo-q4.gguf", 84}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        assert_true(strstr(model_path, limits[i].model) == NULL || kernels <= limits[i].most);
    }
}

/* A token is one graph. Its inputs, what it tells of itself, and its logits go by a kernel each, so
 * nothing waits in the link's queues. */
static void resident(void **state)
{
    (void)state;
    moe_engine_options options = decode_options();
    options.expert_cache_share = 1;
    calls played = count_calls(&options, true);
    calls launched = count_calls(&options, false);
    assert_same_counts(&played, &launched);
    assert_true(played.launches <= 3 && played.graphs == 1);
    assert_true(played.copies == 0 && played.waits <= 2);
    assert_true(launched.copies == 0);
    assert_true(played.kernels < launched.kernels); /* some are fused */
    assert_fused(played.kernels);
    assert_int_equal(played.stats.passes_recorded, N_WARM + N_DECODE - 1);
    assert_int_equal(launched.stats.passes_recorded, 0);
}

/* A pass's most stops: each halves what is left, or doubles what the host serves next. */
static double most_stops(uint32_t n_layers)
{
    return n_layers > 2 ? 1 + most_stops(n_layers / 2) : 1;
}

/* What precedes a layer's routing is a graph; the host waits once a layer, and for the logits. A
 * token that stops at a missing expert has one wait more for each stop, and all counts of one that
 * the host routed. */
static void offloaded(void **state)
{
    (void)state;
    moe_engine_options options = decode_options();
    options.expert_cache_share = 0.5;
    lab_of(&options)->read_in_place = MOE_SWITCH_OFF;
    calls played = count_calls(&options, true);
    calls launched = count_calls(&options, false);
    assert_same_counts(&played, &launched);
    double n_resumed = (double)played.stats.passes_resumed;
    assert_true(played.stats.passes_missed == 0 && n_resumed > 0);
    /* Both launch as many kernels more as experts arrive in groups. Not so what graphs launch. */
    assert_true(played.kernels - played.launches > 0.3 * launched.launches);
    double n_stops = n_resumed * most_stops(played.n_layers);
    assert_true(played.waits <= played.n_layers + 1 + n_stops / N_DECODE);
    assert_true(launched.waits <= launched.n_layers + 1);
}

/* Experts that the host has are read there, and kept on the device: every token is one graph,
 * whatever is on the device, and no copy is needed. */
static void in_place(void **state)
{
    (void)state;
    moe_engine_options options = decode_options();
    static const double shares[] = {0.6, 0.5};
    for (int i = 0; i < 2; i++) {
        options.expert_cache_share = shares[i];
        calls played = count_calls(&options, true);
        calls launched = count_calls(&options, false);
        assert_memory_equal(played.tokens, launched.tokens, sizeof played.tokens);
        printf("%.0f misses, %.0f read in place, %.0f whole and %.0f resumed passes\n",
               (double)played.stats.expert_misses, (double)played.stats.read_in_place,
               (double)played.stats.passes_recorded, (double)played.stats.passes_resumed);
        assert_true(played.stats.read_in_place > 0 && played.stats.bytes_in_place > 0);
        assert_int_equal(launched.stats.read_in_place, 0);
        assert_true(played.stats.passes_recorded > launched.stats.passes_recorded);
        assert_true(played.launches < launched.launches && played.waits <= launched.waits);
        /* What is read over the link is kept, as where the host routes; which expert leaves for it
         * is decided a pass earlier: in so short a text two experts more or less, and which copies
         * have ended by then depends on the machine. */
        uint64_t bytes = played.stats.bytes_moved_link + played.stats.bytes_in_place;
        uint64_t of_two = 2 * bytes / played.stats.expert_misses;
        printf("%.0f KiB over the link, %.0f where the host routes\n", (double)bytes / 1024,
               (double)launched.stats.bytes_moved_link / 1024);
        assert_true((double)bytes <=
                    1.15 * (double)launched.stats.bytes_moved_link + (double)of_two);
    }
}

/* Verification of a draft's tokens is played likewise. Drafts use what is on the device, which
 * reading in place changes. */
static void verified(void **state)
{
    (void)state;
    moe_engine_options options = decode_options();
    options.expert_cache_share = 0.5;
    options.speculate = MOE_SPECULATE_SELF;
    lab_of(&options)->affinity = MOE_STAND_IN_TOPK;
    lab_of(&options)->cost_by_bytes = true; /* nothing depends on when a read arrives */
    lab_of(&options)->length_control = MOE_LENGTH_STATIC;
    options.draft_max = 3;
    calls played = count_calls(&options, true);
    calls launched = count_calls(&options, false);
    assert_memory_equal(played.tokens, launched.tokens, sizeof played.tokens);
    assert_true(played.stats.speculation.passes > 0);
    assert_true(played.stats.passes_recorded >= played.stats.speculation.passes / 2);
    assert_true(played.launches < 0.5 * launched.launches);
    assert_true(played.waits <= 1.1 * launched.waits); /* a draft that fails has one, too */
}

/* Activations come to the host with the routing, and its outputs go back in one copy. */
static void host_computed(void **state)
{
    (void)state;
    moe_engine_options options = decode_options();
    options.expert_cache_share = 0.5;
    options.host_compute = MOE_SWITCH_ON;
    calls launched = count_calls(&options, false);
    assert_true(launched.stats.host_computed > 0);
    assert_true(launched.waits <= launched.n_layers + 1);
}

/* Reading ahead, too: the next layer's router is asked together with this one's. */
static void foretold(void **state)
{
    (void)state;
    moe_engine_options options = decode_options();
    options.expert_cache_share = 0.5;
    options.prefetch = MOE_SWITCH_ON;
    calls launched = count_calls(&options, false);
    assert_true(launched.waits <= launched.n_layers + 1);
}

/* ---- The table ---- */

#define N_TREE 7

typedef enum step_kind {
    STEP_TOKEN,
    STEP_CHAIN,
    STEP_TREE,
    STEP_BATCH,
    STEP_PROMPT,
    STEP_KINDS
} step_kind;

static const char *const kind_names[STEP_KINDS] = {"decode", "chain of 3 (self draft)",
                                                   "tree of 7 (self draft)", "batch 8",
                                                   "prompt of 40, whole"};

static moe_engine_options table_options(double share, step_kind kind)
{
    moe_engine_options options = decode_options();
    options.expert_cache_share = share;
    options.context = kind == STEP_BATCH ? N_BATCH * 128 : 128;
    if (kind == STEP_CHAIN || kind == STEP_TREE) {
        options.speculate = MOE_SPECULATE_SELF;
        lab_of(&options)->affinity = MOE_STAND_IN_TOPK;
        lab_of(&options)->cost_by_bytes = true;
        lab_of(&options)->length_control = MOE_LENGTH_STATIC;
        options.draft_max = 3;
        options.tree_nodes = kind == STEP_TREE ? N_TREE : 0;
    }
    return options;
}

typedef struct written {
    moe_engine_stats stats;
    float logits[4096]; /* of the first session's last token */
    int32_t tokens[N_BATCH][N_STEPS];
} written;

/* Chains, trees and batches as whole graphs, or without graphs. */
static void write_steps(step_kind kind, double share, bool plays, written *w)
{
    fake_machine machine;
    int32_t prompt[N_PROMPT];
    moe_session *sessions[N_BATCH];
    uint32_t n_sessions = kind == STEP_BATCH ? N_BATCH : 1;
    moe_engine_options options = table_options(share, kind);
    fake.init(&machine);
    machine.fail_call = plays ? NULL : "cudaStreamBeginCapture";
    machine.fail_code = cudaErrorNotSupported;
    machine.fail_each = true;
    fake.set(&machine);
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    read_all(engine, &info);
    moe_engine_stats first = {.struct_size = sizeof first};
    moe_engine_get_stats(engine, &first);
    for (uint32_t s = 0; s < n_sessions; s++) {
        make_prompt(prompt, N_PROMPT, info.n_vocab, 1 + s);
        sessions[s] = greedy_session(engine);
        feed(sessions[s], prompt, N_PROMPT);
    }
    (void)write_tokens(engine, sessions, n_sessions, N_STEPS);
    *w = (written){.stats.struct_size = sizeof w->stats};
    moe_engine_get_stats(engine, &w->stats);
    w->stats.passes -= first.passes;
    assert_true(info.n_vocab <= sizeof w->logits / sizeof w->logits[0]);
    memcpy(w->logits, moe_session_logits(sessions[0]), info.n_vocab * sizeof w->logits[0]);
    for (uint32_t s = 0; s < n_sessions; s++) {
        memcpy(w->tokens[s], moe_session_tokens(sessions[s]) + N_PROMPT, sizeof w->tokens[s]);
        moe_session_close(&sessions[s]);
    }
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

static void steps_are_graphs(void **state)
{
    (void)state;
    static const double shares[] = {1.0, 0.6};
    static const step_kind kinds[] = {STEP_CHAIN, STEP_TREE, STEP_BATCH};
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < 2; i++) {
            static written played, launched;
            if (test_leaves_out((uint32_t)(k + i + 1), 2)) {
                continue;
            }
            write_steps(kinds[k], shares[i], true, &played);
            write_steps(kinds[k], shares[i], false, &launched);
            const moe_engine_stats *stats = &played.stats;
            printf(
                "%s, %.0f %%: %.0f passes, %.0f whole, %.0f resumed; %.0f misses, %.0f in place\n",
                kind_names[kinds[k]], 100 * shares[i], (double)stats->passes,
                (double)stats->passes_recorded, (double)stats->passes_resumed,
                (double)stats->expert_misses, (double)stats->read_in_place);
            assert_memory_equal(played.tokens, launched.tokens, sizeof played.tokens);
            /* One that met an expert nobody had read yet is two graphs or more. */
            assert_true(stats->passes_recorded + stats->passes_resumed > stats->passes / 2);
            assert_int_equal(launched.stats.passes_recorded, 0);
            assert_true(shares[i] == 1.0 ? stats->read_in_place == 0 : stats->read_in_place > 0);
            if (shares[i] == 1.0) { /* drafts are the same, so texts end at the same token */
                assert_memory_equal(played.logits, launched.logits, sizeof played.logits);
            }
        }
    }
}

/* What is counted: tokens of the text, or one prompt. Returns how many. */
static double run_counted(moe_engine *engine, moe_session **sessions, uint32_t n_sessions,
                          step_kind kind)
{
    if (kind == STEP_PROMPT) {
        (void)write_tokens(engine, sessions, n_sessions, 1);
        return 1;
    }
    return write_tokens(engine, sessions, n_sessions, N_STEPS);
}

static void print_counts(double share, step_kind kind, const fake_usage *before,
                         const fake_usage *after, const moe_engine_stats *first,
                         const moe_engine_stats *last, double n)
{
    printf("| %s | %.0f %% | %.1f | %.2f | %.0f | %.1f | %.2f | %.2f | %.2f | %.0f | %.0f |\n",
           kind_names[kind], 100 * share, (double)(after->n_launches - before->n_launches) / n,
           (double)(after->n_graphs - before->n_graphs) / n,
           (double)(after->n_kernels - before->n_kernels) / n,
           (double)(after->n_copies - before->n_copies) / n,
           (double)(after->n_waits - before->n_waits) / n,
           (double)(last->expert_misses - first->expert_misses) / n,
           (double)(last->read_in_place - first->read_in_place) / n,
           (double)(last->bytes_moved_link - first->bytes_moved_link) / n / 1024,
           (double)(last->bytes_in_place - first->bytes_in_place) / n / 1024);
    fflush(stdout);
}

static bool host_routes; /* no graphs are to be had */

static void print_row(double share, step_kind kind)
{
    fake_machine machine;
    fake_usage before, after;
    int32_t prompt[N_PROMPT];
    moe_session *sessions[N_BATCH];
    uint32_t n_sessions = kind == STEP_BATCH ? N_BATCH : 1;
    moe_engine_options options = table_options(share, kind);
    fake.init(&machine);
    machine.fail_call = host_routes ? "cudaStreamBeginCapture" : NULL;
    machine.fail_code = cudaErrorNotSupported;
    machine.fail_each = true;
    fake.set(&machine);
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    read_earlier(engine, info.n_vocab);
    for (uint32_t s = 0; s < n_sessions; s++) {
        make_prompt(prompt, N_PROMPT, info.n_vocab, 1 + s);
        sessions[s] = greedy_session(engine);
        feed(sessions[s], prompt, N_PROMPT);
    }
    if (kind != STEP_PROMPT) {
        (void)write_tokens(engine, sessions, n_sessions, N_WARM);
    }
    moe_engine_stats first = {.struct_size = sizeof first}, last = {.struct_size = sizeof last};
    moe_engine_get_stats(engine, &first);
    fake.usage(&before);
    double n = run_counted(engine, sessions, n_sessions, kind);
    fake.usage(&after);
    moe_engine_get_stats(engine, &last);
    print_counts(share, kind, &before, &after, &first, &last, n);
    for (uint32_t s = 0; s < n_sessions; s++) {
        moe_session_close(&sessions[s]);
    }
    moe_engine_close(&engine);
}

static const char *wanted_kind = ""; /* the first word of a kind's name; "": all */
static int wanted_percent;           /* 0: all */

static void print_table(void **state)
{
    (void)state;
    static const double shares[] = {1.0, 0.99, 0.9, 0.5};
    printf("| step | experts on the GPU | launches | graphs | kernels | copies | waits | misses | "
           "read in place | KiB moved | KiB in place |\n");
    printf("|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (uint32_t kind = 0; kind < STEP_KINDS; kind++) {
        bool wanted = strncmp(kind_names[kind], wanted_kind, strlen(wanted_kind)) == 0;
        for (int i = 0; i < 4 && wanted; i++) {
            if (wanted_percent == 0 || (int)(100 * shares[i] + 0.5) == wanted_percent) {
                print_row(shares[i], (step_kind)kind);
            }
        }
    }
}

int main(int argc, char **argv)
{
    bool table = argc >= 3 && argc <= 6 && strcmp(argv[2], "table") == 0;
    wanted_kind = argc >= 4 ? argv[3] : wanted_kind;
    wanted_percent = argc >= 5 ? atoi(argv[4]) : 0;
    host_routes = argc == 6 && strcmp(argv[5], "host") == 0;
    if (argc != 2 && !table) {
        fprintf(stderr,
                "usage: %s MODEL [table [decode|chain|tree|batch|prompt [PERCENT [host]]]]\n",
                argv[0]);
        return 2;
    }
    model_path = argv[1];
    if (table) {
        const struct CMUnitTest alone[] = {cmocka_unit_test(print_table)};
        return cmocka_run_group_tests(alone, find_fake, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resident),         cmocka_unit_test(offloaded),
        cmocka_unit_test(in_place),         cmocka_unit_test(verified),
        cmocka_unit_test(steps_are_graphs), cmocka_unit_test(host_computed),
        cmocka_unit_test(foretold)};
    return cmocka_run_group_tests(tests, find_fake, NULL);
}
