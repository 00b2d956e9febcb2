/* SPDX-License-Identifier: MIT */
/* Panels: a long prompt reads each missing expert once, whatever the cache; other sessions go on
 * meanwhile; whatever happens to a session whose panel is under way, texts stay and memory comes
 * back. That the text is the same with panels of any size is also test_grid's part. Usage:
 * test_panel [bytes] DEMO-MODEL, or test_panel family MODEL. "bytes" counts what is read, and
 * touches no memory that the others do not: sanitizers can do without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/engine/engine_state.h"
#include "runtime/engine/session_panel.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/engine_options.h"
#include "tests/engine/panel_fixture.h"
#include "tests/test_size.h"

/* Of the experts used, the bytes of those that are not in memory, and not on the device. */
static traffic missing_of(const moe_engine *engine, const used_experts *used)
{
    uint32_t n_all, n_disk = 0, n_link = 0;
    uint8_t *tiers = tiers_of(engine, &n_all);
    for (uint32_t k = 0; k < n_all; k++) {
        n_disk += used->is[k] && tiers[k] == MOE_TIER_DISK;
        n_link += used->is[k] && tiers[k] != MOE_TIER_DEVICE;
    }
    free(tiers);
    return (traffic){used->bytes.read * n_disk / used->n, used->bytes.moved * n_link / used->n};
}

static void check_bytes(const char *what, uint64_t got, uint64_t least)
{
    if ((double)got > 1.02 * (double)least) {
        fail_msg("%s: %llu bytes, of %llu", what, (unsigned long long)got,
                 (unsigned long long)least);
    }
}

/* What a panel reads, and moves over a link: the experts that it uses and that miss when it begins,
 * each once; of an empty cache, of a full one, and of one that is smaller than a layer. tight: only
 * slots have memory for a block. Empty ones lend it for nothing; of a full cache, the experts that
 * give it up are read again. */
static void check_bound(uint32_t n, uint32_t chunk, double share, const char *device, bool tight,
                        const used_experts *used)
{
    char what[96];
    moe_engine_options o = options_of(chunk, MANY, share);
    o.prefetch = o.host_compute = MOE_SWITCH_OFF;
    o.device = device != NULL ? device : o.device;
    moe_engine *engine = open_engine(&o);
    moe_memory_border *border = &engine->border;
    const uint64_t taken = tight ? border->ram_free - n * 5 * KIB : 0;
    assert_int_equal(moe_memory_border_take(border, taken, NULL), MOE_OK);
    for (uint32_t i = 0; i < 2; i++) {
        traffic least = missing_of(engine, &used[i]);
        traffic got = evaluate(engine, n, 1 + i);
        least.read += tight && i > 0 ? moe_panel_block_bytes(&engine->program, n, chunk) : 0;
        snprintf(what, sizeof what, "%u tokens by %u, a cache of %g, prompt %u%s", n, chunk, share,
                 i, tight ? ", tight" : "");
        /* Over the link everything was read for the first prompt. */
        check_bytes(what, got.read,
                    device == NULL || i == 0 ? least.read : used[i].bytes.read / 20);
        check_bytes(what, got.moved, least.moved);
    }
    moe_memory_border_give(border, taken);
    check_returned(engine);
    moe_engine_close(&engine);
}

/* From the shortest panel of chunks of 512 to all of the model's context. */
static void bytes_are_bound(void **state)
{
    const uint32_t lengths[] = {512, test_is_small() ? 700 : 1400, CONTEXT};
    static const uint32_t chunks[][2] = {{64, 512}, {100, 333}, {128, 512}};
    static const double shares[] = {0.15, 0.4, 0.75};
    static const char *const devices[] = {NULL, "sim:memory=60M,link=20GB/s,latency=1us"};
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        const char *device = devices[i / 3];
        const uint32_t n = lengths[i % 3];
        const used_experts used[2] = {used_by(n, 1, device), used_by(n, 2, device)};
        for (uint32_t s = 0; s < 6; s++) {
            const uint32_t chunk = chunks[i % 3][s / 3];
            /* Half of the settings show each value beside each other one. */
            if ((i + s) % 2 == 0 && !test_leaves_out(i + s, 4)) {
                check_bound(n, chunk, shares[s % 3], device, false, used);
            }
            if (device == NULL && !test_leaves_out(i + s, n < CONTEXT ? 2 : 4)) {
                check_bound(n, chunk, shares[s % 3], NULL, true, used);
            }
        }
        free(used[0].is);
        free(used[1].is);
    }
}

/* Prefetching also reads experts that the guess was wrong about, and some that a cache of little
 * more than a layer cannot hold until they are used: a few of a hundred. */
static void prefetching_is_bound(void **state)
{
    const used_experts used = used_by(n_long, 1, NULL);
    (void)state;
    for (uint32_t s = 0; s < 3; s++) {
        static const double shares[] = {0.15, 0.4, 0.75};
        moe_engine_options o = options_of(64, MANY, shares[s]);
        o.prefetch = MOE_SWITCH_ON;
        moe_engine *engine = open_engine(&o);
        for (uint32_t i = 0; i < 2; i++) {
            const uint64_t least = missing_of(engine, &used).read;
            const uint64_t most = least + used.bytes.read * 12 / 100;
            const uint64_t got = evaluate(engine, n_long, 1).read;
            if (got > most) {
                fail_msg("a cache of %g: %llu bytes, of %llu", shares[s], (unsigned long long)got,
                         (unsigned long long)least);
            }
        }
        moe_engine_close(&engine);
    }
    free(used.is);
}

/* A block's sums are those of passes, bit by bit. */
static void sums_are_the_same(void **state)
{
    (void)state;
    float *logits[2];
    size_t bytes = 0;
    for (uint32_t i = 0; i < 2; i++) {
        moe_engine_options o = options_of(16, i == 0 ? 1 : MANY, 0.12);
        o.context = n_long + 20;
        moe_engine *engine = open_engine(&o);
        moe_session *session = fed_session(engine, n_long, 3);
        bytes = engine->config.n_vocab * sizeof(float);
        logits[i] = logits_behind(engine, session);
        moe_session_close(&session);
        moe_engine_close(&engine);
    }
    assert_memory_equal(logits[0], logits[1], bytes);
    free(logits[0]);
    free(logits[1]);
}

/* Through a cache that a layer does not fit, as one block or as several: the same text. */
static void through_few_slots(void **state)
{
    int32_t alone[N_WRITTEN], got[N_WRITTEN];
    moe_engine_options o = options_of(16, 1, 0.12);
    (void)state;
    o.context = MOST_LONG + 20;
    moe_engine *engine = open_engine(&o);
    write_alone(engine, MOST_LONG, 3, alone);
    moe_engine_close(&engine);
    o.panel = MANY;
    for (uint32_t is_tight = 0; is_tight < 2; is_tight++) {
        o.expert_cache_share = is_tight ? 0.03 : 0.12;
        uint32_t n_parts[MOE_PANEL_REST + 1] = {0}, n_cut = 0;
        engine = open_engine(&o);
        /* Somebody else has the memory beside the cache, but for pages and the stream. */
        moe_memory_border *border = &engine->border;
        const uint64_t taken = is_tight ? border->ram_free - MOST_LONG * 9 * KIB / 2 : 0;
        assert_int_equal(moe_memory_border_take(border, taken, NULL), MOE_OK);
        moe_session *session = fed_session(engine, MOST_LONG, 3);
        while (moe_session_n_pending(session) > 0) {
            const moe_panel *p = &engine->panel;
            step(engine, &session, 1);
            n_parts[p->part]++;
            n_cut += p->part == MOE_PANEL_EXPERTS && p->block.n_rows < p->n_rows;
        }
        assert_true(n_parts[MOE_PANEL_EXPERTS] > engine->config.n_layer);
        assert_int_equal(n_cut > 0, is_tight);
        decode(engine, session, got, N_WRITTEN);
        assert_memory_equal(got, alone, sizeof got);
        moe_session_close(&session);
        moe_memory_border_give(border, taken);
        check_returned(engine);
        moe_engine_close(&engine);
    }
}

/* Cancelled, or closed, in each part of a block: nothing is left of it, and the text is the same.
 */
static void blocks_end_anywhere(void **state)
{
    int32_t alone[N_WRITTEN], got[N_WRITTEN];
    moe_engine_options o = options_of(16, MANY, 0.12);
    (void)state;
    moe_engine *engine = open_engine(&o);
    write_alone(engine, n_long, 3, alone);
    for (int part = MOE_PANEL_MIX; part <= MOE_PANEL_REST; part++) {
        moe_session *session = fed_session(engine, n_long, 3);
        do {
            step(engine, &session, 1);
        } while ((int)engine->panel.part != part || engine->panel.layer == 0);
        step(engine, &session, 1);
        moe_session_cancel(session);
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_ERR_CANCELLED);
        assert_int_equal(engine->panel.n_prompts, 0);
        assert_int_equal(engine->panel.block_bytes, 0);
        decode(engine, session, got, N_WRITTEN);
        assert_memory_equal(got, alone, sizeof got);
        moe_session_close(&session);
        session = fed_session(engine, n_long, 3);
        while ((int)engine->panel.part != part) {
            step(engine, &session, 1);
        }
        moe_session_close(&session);
        check_returned(engine);
    }
    moe_engine_close(&engine);
}

/* While the panel is under way it is what is told of. */
static void is_of_the_panel(const moe_pass_progress *p, void *user)
{
    moe_engine *const *engine = user;
    if (*engine != NULL && (*engine)->panel.n_prompts > 0 && (*engine)->panel.layer > 0) {
        assert_int_equal(p->n_rows, (*engine)->panel.n_rows);
        assert_in_range(p->layer, (*engine)->panel.layer, (*engine)->panel.layer + 1);
    }
}

static void others_go_on(void **state)
{
    (void)state;
    int32_t alone[3][N_WRITTEN], got[3][N_WRITTEN];
    moe_engine_options o = options_of(64, 1, 0.4);
    moe_engine *engine = open_engine(&o);
    write_alone(engine, N_SHORT, 2, alone[0]);
    write_alone(engine, n_long, 3, alone[1]);
    write_alone(engine, n_long, 4, alone[2]);
    moe_engine_close(&engine);
    o.panel = MANY;
    o.speculate = MOE_SPECULATE_OFF;
    o.pass_progress = is_of_the_panel;
    o.user = &engine;
    engine = open_engine(&o);
    /* The second long prompt waits for the first one's panel. */
    moe_session *s[] = {fed_session(engine, N_SHORT, 2), fed_session(engine, n_long, 3),
                        fed_session(engine, n_long, 4)};
    size_t n_written[3] = {0};
    uint32_t n_steps = 0, n_between = 0;
    while (n_written[0] < N_WRITTEN || n_written[1] < N_WRITTEN || n_written[2] < N_WRITTEN) {
        step(engine, s, 3);
        for (size_t i = 0; i < 3; i++) {
            int32_t tokens[4];
            size_t n = moe_session_take(s[i], tokens, 4);
            for (size_t t = 0; t < n && n_written[i] < N_WRITTEN; t++) {
                got[i][n_written[i]++] = tokens[t];
            }
        }
        n_steps++;
        if (moe_panel_has(engine, s[1]) && n_steps <= N_WRITTEN) { /* a token for each step */
            n_between++;
            assert_int_equal(n_written[0], n_steps);
            assert_int_equal(n_written[1], 0);
        }
        assert_true(n_steps < 1000);
    }
    assert_true(n_between > 0);
    assert_memory_equal(got, alone, sizeof got);
    for (size_t i = 0; i < 3; i++) {
        moe_session_close(&s[i]);
    }
    check_returned(engine);
    moe_engine_close(&engine);
}

/* Steps until the panel is in the middle of the model. */
static moe_session *half_way(moe_engine *engine, uint32_t seed)
{
    moe_session *session = fed_session(engine, n_long, seed);
    for (uint32_t i = 0; i < 1000 && engine->panel.layer < 3; i++) {
        step(engine, &session, 1);
    }
    assert_true(moe_panel_has(engine, session) && engine->panel.layer > 0);
    assert_int_equal(moe_session_n_pending(session), n_long);
    return session;
}

static void changes_end_it(void **state)
{
    (void)state;
    int32_t alone[N_WRITTEN], got[N_WRITTEN], prompt[MOST_LONG];
    moe_engine_options o = options_of(64, MANY, 0.4);
    moe_engine *engine = open_engine(&o);
    prompt_of(engine, n_long, 5, prompt);
    write_alone(engine, 100, 5, alone);

    /* Cut to another length, which is then evaluated. */
    moe_session *session = half_way(engine, 5);
    assert_int_equal(moe_session_truncate(session, 100, NULL), MOE_OK);
    assert_int_equal(engine->panel.n_prompts, 0);
    decode(engine, session, got, N_WRITTEN);
    assert_memory_equal(got, alone, sizeof got);
    moe_session_close(&session);
    check_returned(engine);

    /* Closed. */
    session = half_way(engine, 6);
    moe_session_close(&session);
    check_returned(engine);

    /* More tokens are fed: the panel goes on, and they come after it. */
    write_alone(engine, n_long, 5, alone);
    session = greedy_session(engine);
    feed(session, prompt, n_long - 100);
    for (int i = 0; i < 7; i++) {
        step(engine, &session, 1);
    }
    assert_true(moe_panel_has(engine, session));
    feed(session, prompt + n_long - 100, 100);
    assert_true(moe_panel_has(engine, session));
    decode(engine, session, got, N_WRITTEN);
    assert_memory_equal(got, alone, sizeof got);
    moe_session_close(&session);

    /* A fork of one under way: both write the text. */
    session = half_way(engine, 5);
    moe_session *fork;
    assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
    decode(engine, session, got, N_WRITTEN);
    assert_memory_equal(got, alone, sizeof got);
    decode(engine, fork, got, N_WRITTEN);
    assert_memory_equal(got, alone, sizeof got);
    moe_session_close(&fork);
    moe_session_close(&session);

    /* Cancelled between two chunks: left out of one step, and then evaluated anew. */
    session = half_way(engine, 5);
    moe_session_cancel(session);
    assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_ERR_CANCELLED);
    assert_int_equal(engine->panel.n_prompts, 0);
    decode(engine, session, got, N_WRITTEN);
    assert_memory_equal(got, alone, sizeof got);
    moe_session_close(&session);
    check_returned(engine);
    moe_engine_close(&engine);
}

/* With too little memory for all rows there are several panels, or none; the text is the same. */
static void by_memory(void **state)
{
    (void)state;
    int32_t alone[N_WRITTEN], got[N_WRITTEN];
    moe_engine_options o = options_of(64, 1, 0.3);
    moe_engine *engine = open_engine(&o);
    write_alone(engine, n_long, 7, alone);
    moe_engine_close(&engine);
    static const uint32_t asked[] = {0, 65, 500, MANY};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        if (test_leaves_out((uint32_t)i, 3)) {
            continue;
        }
        o.panel = asked[i];
        engine = open_engine(&o);
        assert_true(engine->plan.panel_rows > 64);
        assert_true(asked[i] == 0 || engine->plan.panel_rows <= asked[i]);
        moe_memory_plan plan = {.struct_size = sizeof plan};
        assert_int_equal(moe_plan_memory(&o, &plan, NULL), MOE_OK);
        assert_true(plan.panel_rows > 64);
        write_alone(engine, n_long, 7, got);
        assert_memory_equal(got, alone, sizeof got);
        check_returned(engine);
        moe_engine_close(&engine);
    }
    o.panel = 64; /* no more than a pass has */
    engine = open_engine(&o);
    assert_int_equal(engine->plan.panel_rows, 0);
    moe_engine_close(&engine);
    o = options_of(64, 0, 1.0); /* nothing would be read twice */
    engine = open_engine(&o);
    assert_int_equal(engine->plan.panel_rows, 0);
    moe_engine_close(&engine);
}

static moe_memory_plan plan_of(const moe_engine_options *o)
{
    moe_memory_plan plan = {.struct_size = sizeof plan};
    moe_error error = {""};
    if (moe_plan_memory(o, &plan, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    return plan;
}

/* Options with memory for a quarter of the experts beside the scratch of 128 rows. */
static moe_engine_options with_little_memory(void)
{
    moe_engine_options o = options_of(128, 0, 0.0);
    const moe_memory_plan plan = plan_of(&o);
    o.host_memory = plan.floor + plan.expert_bytes / 4;
    o.prefill_chunk = 0;
    return o;
}

/* Where experts lack memory, passes have fewer rows by default, and write the same text. */
static void short_of_memory(void **state)
{
    (void)state;
    int32_t alone[N_WRITTEN], got[N_WRITTEN];
    moe_engine_options o = options_of(0, 0, 0.0);
    assert_int_equal(plan_of(&o).prefill_chunk, 512);
    moe_engine *engine = open_engine(&o);
    write_alone(engine, n_long, 7, alone);
    moe_engine_close(&engine);
    o = with_little_memory();
    engine = open_engine(&o);
    assert_int_equal(engine->plan.prefill_chunk, 128);
    write_alone(engine, n_long, 7, got);
    assert_memory_equal(got, alone, sizeof got);
    check_returned(engine);
    moe_engine_close(&engine);
    o = with_little_memory();
    o.host_memory += 64 * KIB * KIB;
    o.panel = 1; /* passes would read more */
    assert_int_equal(plan_of(&o).prefill_chunk, 512);
    o.panel = 0;
    o.expert_cache_share = 0.3; /* less scratch would not make it larger */
    assert_int_equal(plan_of(&o).prefill_chunk, 512);
    o = with_little_memory();
    o.prefill_chunk = 64;
    assert_int_equal(plan_of(&o).prefill_chunk, 64);
}

typedef struct scores {
    float *logits;
    size_t n, most, n_vocab;
} scores;

static bool keep(size_t position, const float *logits, void *user)
{
    scores *s = user;
    assert_int_equal(position, s->n);
    memcpy(s->logits + s->n++ * s->n_vocab, logits, s->n_vocab * sizeof *logits);
    return s->n < s->most;
}

static scores score(uint32_t panel, uint32_t n, size_t most)
{
    int32_t prompt[CONTEXT];
    moe_error error = {""};
    moe_engine_options o = options_of(64, panel, 0.4);
    moe_engine *engine = open_engine(&o);
    scores s = {.most = most, .n_vocab = engine->config.n_vocab};
    s.logits = calloc(n * s.n_vocab, sizeof *s.logits);
    prompt_of(engine, n, 8, prompt);
    moe_session *session = greedy_session(engine);
    if (moe_session_score(session, prompt, n, keep, &s, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(moe_session_n_tokens(session), s.n);
    assert_int_equal(moe_session_n_pending(session), 0);
    assert_memory_equal(moe_session_logits(session), s.logits + (s.n - 1) * s.n_vocab,
                        s.n_vocab * sizeof *s.logits);
    moe_session_close(&session);
    check_returned(engine);
    moe_engine_close(&engine);
    return s;
}

/* Scoring has the same logits of all positions, also where the program wants no more of them. */
static void scored(void **state)
{
    (void)state;
    scores plain = score(1, 300, 300);
    static const size_t most[] = {300, 1, 100, 299};
    for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
        scores s = score(MANY, 300, most[i]);
        assert_int_equal(s.n, most[i]);
        assert_memory_equal(s.logits, plain.logits, s.n * s.n_vocab * sizeof *s.logits);
        free(s.logits);
    }
    free(plain.logits);
}

/* A panel has had pages behind windows that are now free again. */
static void check_pages(const moe_session *session)
{
    const moe_kv_pool *pool = &session->engine->kv;
    for (uint32_t g = 0; g < pool->n_groups; g++) {
        const moe_kv_group *group = &pool->groups[g];
        assert_true(!group->frees ||
                    session->kv.n_pages - session->kv.first_page[g] <= group->most_live);
    }
}

/* Models whose layers keep a state, or free pages behind a window: the same text, also after a cut
 * back into the prompt, and sessions that were stepped together. */
static void write_twice(moe_engine *engine, uint32_t n, int32_t *out)
{
    moe_session *other = fed_session(engine, 70, 9);
    moe_session *session = fed_session(engine, n, 10);
    moe_session *both[] = {session, other};
    for (int i = 0; i < 5; i++) {
        step(engine, both, 2);
    }
    decode(engine, session, out, N_WRITTEN);
    check_pages(session);
    assert_int_equal(moe_session_truncate(session, n - 90, NULL), MOE_OK);
    feed(session, out, 3);
    decode(engine, session, out + N_WRITTEN, N_WRITTEN);
    decode(engine, other, out + 2 * N_WRITTEN, N_WRITTEN);
    moe_session_close(&other);
    moe_session_close(&session);
}

static void of_a_family(void **state)
{
    const char *path = *state;
    int32_t expected[3 * N_WRITTEN], got[3 * N_WRITTEN];
    moe_engine_options o = fixture_options(path, 32, 768);
    o.expert_cache_share = 0.5;
    o.speculate = MOE_SPECULATE_OFF;
    o.panel = 1;
    moe_engine *engine = open_engine(&o);
    /* The second is about the least that works: what a token uses in a layer. */
    const double least = (double)engine->config.n_expert_used / (double)engine->plan.experts;
    const double shares[] = {0.5, least < 0.45 ? 1.1 * least : 0.5};
    write_twice(engine, 330, expected);
    moe_engine_close(&engine);
    static const uint32_t panels[] = {MANY, 100, 65};
    for (size_t i = 0; i < 2 * sizeof panels / sizeof panels[0]; i++) {
        o.panel = panels[i / 2];
        o.expert_cache_share = shares[i % 2];
        engine = open_engine(&o);
        assert_true(engine->plan.panel_rows > 32);
        write_twice(engine, 330, got);
        assert_memory_equal(got, expected, sizeof got);
        check_returned(engine);
        moe_engine_close(&engine);
    }
    /* Other chunks, behind a link. */
    o.device = "sim:memory=64M,link=20GB/s,latency=1us";
    o.prefill_chunk = 48;
    o.panel = 100;
    o.expert_cache_share = shares[0];
    engine = open_engine(&o);
    write_twice(engine, 330, got);
    assert_memory_equal(got, expected, sizeof got);
    check_returned(engine);
    moe_engine_close(&engine);
}

/* An option that cannot act is refused. */
static void refused(void **state)
{
    (void)state;
    moe_error error = {""};
    moe_engine *engine = NULL;
    moe_engine_options o = options_of(64, MANY, 0.4);
    o.speculate = MOE_SPECULATE_OFF;
    o.lookahead = 4;
    assert_int_equal(moe_engine_open(&engine, &o, &error), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "options.panel cannot act: it needs options.lookahead"));
    o.lookahead = 0;
    lab_of(&o)->offload = MOE_OFFLOAD_ON_DEMAND;
    assert_int_equal(moe_engine_open(&engine, &o, &error), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "options.panel cannot act"));
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "family") == 0) {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test_prestate(of_a_family, argv[2]),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    if (argc > 2 && strcmp(argv[1], "bytes") == 0) {
        panel_fixture_open(argc - 1, argv + 1);
        const struct CMUnitTest tests[] = {
            cmocka_unit_test(bytes_are_bound),
            cmocka_unit_test(prefetching_is_bound),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    panel_fixture_open(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_the_same),
        cmocka_unit_test(through_few_slots),
        cmocka_unit_test(blocks_end_anywhere),
        cmocka_unit_test(others_go_on),
        cmocka_unit_test(changes_end_it),
        cmocka_unit_test(by_memory),
        cmocka_unit_test(short_of_memory),
        cmocka_unit_test(scored),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
