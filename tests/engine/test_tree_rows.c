/* SPDX-License-Identifier: MIT */
/* Rows of a pass that are nodes of token trees: every node has the logits of the timeline that its
 * ancestors make, evaluated alone in a session of its own; and once the keys and values of the
 * accepted nodes are moved to their places, the session goes on as if there had been no tree.
 * Usage: test_tree_rows ORACLE-FOLDER. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "tests/test_size.h"
#include "runtime/engine/engine_state.h"

#define CONTEXT     1024u
#define MAX_NODES   511u
#define MAX_ROWS    512u
#define N_TIMELINES 3u
#define N_AFTER     70u /* tokens evaluated after the last tree: more than a page */

static const char *folder;

typedef struct tree_case {
    const char *name;
    moe_kv_cache_type kv;
} tree_case;

/* Parents stand before their children; node 0 is the root. */
typedef struct draft_tree {
    uint32_t n;
    int32_t tokens[MAX_NODES];
    uint32_t parents[MAX_NODES];
    uint32_t depths[MAX_NODES];
    bool has_child[MAX_NODES];
} draft_tree;

/* A session, what is on its timeline, and the tree that continues it. */
typedef struct timeline {
    moe_session *session;
    int32_t tokens[CONTEXT];
    uint32_t n;
    bool plain; /* the tree is a chain, given as rows without paths */
    draft_tree tree;
    uint32_t *paths; /* [tree.n][tree.n] */
    float *logits;   /* [tree.n][n_vocab] */
} timeline;

typedef struct bench {
    moe_engine *engine;
    uint32_t n_vocab;
    uint32_t draw_state;
    timeline timelines[N_TIMELINES];
    uint32_t n_timelines;
    /* The pass. */
    uint32_t n_rows;
    int32_t tokens[MAX_ROWS];
    moe_kv_row rows[MAX_ROWS];
    moe_row_id ids[MAX_ROWS];
    uint32_t logit_rows[MAX_ROWS];
    float *logits_of[MAX_ROWS];
} bench;

static uint32_t draw(bench *b, uint32_t n)
{
    b->draw_state = b->draw_state * 1664525u + 1013904223u;
    return (b->draw_state >> 8) % n;
}

static int32_t draw_token(bench *b)
{
    return (int32_t)draw(b, b->n_vocab);
}

/* In three of four cases a node continues the one before, so trees are deep and wide. */
static void grow_tree(bench *b, timeline *t, uint32_t n)
{
    draft_tree *tree = &t->tree;
    memset(tree, 0, sizeof *tree);
    tree->n = n;
    for (uint32_t i = 0; i < n; i++) {
        tree->tokens[i] = draw_token(b);
        if (i > 0) {
            uint32_t parent = t->plain || draw(b, 4) > 0 ? i - 1 : draw(b, i);
            tree->parents[i] = parent;
            tree->depths[i] = tree->depths[parent] + 1;
            tree->has_child[parent] = true;
        }
    }
    t->paths = calloc((size_t)n * n, sizeof *t->paths);
    t->logits = calloc((size_t)n * b->n_vocab, sizeof *t->logits);
    assert_true(t->paths != NULL && t->logits != NULL);
}

static void add_rows(bench *b, timeline *t)
{
    moe_session *session = t->session;
    const draft_tree *tree = &t->tree;
    assert_int_equal(session->n_evaluated, t->n);
    assert_int_equal(moe_kv_table_reserve(&b->engine->kv, &session->kv, t->n, t->n + tree->n, NULL),
                     MOE_OK);
    for (uint32_t i = 0; i < tree->n; i++) {
        uint32_t row = b->n_rows++;
        uint32_t *path = t->paths + (size_t)i * tree->n;
        for (uint32_t at = i, d = tree->depths[i] + 1; d-- > 0; at = tree->parents[at]) {
            path[d] = t->n + at;
        }
        b->tokens[row] = tree->tokens[i];
        b->rows[row] = moe_kv_row_at(session->kv.addresses, t->n + tree->depths[i]);
        if (!t->plain) {
            b->rows[row].stored = t->n + i;
            b->rows[row].path = path;
            b->rows[row].path_first = t->n;
        }
        b->ids[row] = (moe_row_id){session->number, b->rows[row].position};
        b->logits_of[row] = t->logits + (size_t)i * b->n_vocab;
    }
}

/* The order of a pass's rows is nobody's business. */
static void shuffle_rows(bench *b)
{
    for (uint32_t i = b->n_rows; i-- > 1;) {
        uint32_t k = draw(b, i + 1);
        int32_t token = b->tokens[i];
        moe_kv_row row = b->rows[i];
        moe_row_id id = b->ids[i];
        float *logits = b->logits_of[i];
        b->tokens[i] = b->tokens[k], b->tokens[k] = token;
        b->rows[i] = b->rows[k], b->rows[k] = row;
        b->ids[i] = b->ids[k], b->ids[k] = id;
        b->logits_of[i] = b->logits_of[k], b->logits_of[k] = logits;
    }
}

static bool keep_row_logits(uint32_t row, const float *hidden, const float *logits, void *user)
{
    (void)hidden;
    const bench *b = user;
    memcpy(b->logits_of[row], logits, b->n_vocab * sizeof *logits);
    return true;
}

static void run_pass(bench *b)
{
    for (uint32_t r = 0; r < b->n_rows; r++) {
        b->logit_rows[r] = r;
    }
    moe_pass pass = {.n_rows = b->n_rows,
                     .tokens = b->tokens,
                     .kv_rows = b->rows,
                     .row_ids = b->ids,
                     .logit_rows = b->logit_rows,
                     .n_logit_rows = b->n_rows,
                     .on_logits = keep_row_logits,
                     .user = b};
    moe_error error;
    if (moe_pass_run(&b->engine->runner, &pass, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
}

typedef struct comparison {
    const bench *bench;
    const timeline *timeline;
    const uint32_t *nodes; /* by depth */
    uint32_t n_compared;
} comparison;

static bool compare_node(size_t position, const float *logits, void *user)
{
    comparison *c = user;
    const timeline *t = c->timeline;
    if (position < t->n) {
        return true;
    }
    uint32_t node = c->nodes[position - t->n];
    const float *got = t->logits + (size_t)node * c->bench->n_vocab;
    if (memcmp(got, logits, c->bench->n_vocab * sizeof *logits) != 0) {
        fail_msg("node %u at depth %u of a tree of %u after %u tokens: other logits than its path",
                 node, t->tree.depths[node], t->tree.n, t->n);
    }
    c->n_compared++;
    return true;
}

static void score_afresh(const bench *b, const int32_t *tokens, uint32_t n, moe_logits_fn visit,
                         void *user)
{
    moe_session *session = NULL;
    moe_error error;
    assert_int_equal(moe_session_create(&session, b->engine, NULL, NULL), MOE_OK);
    if (moe_session_score(session, tokens, n, visit, user, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    moe_session_close(&session);
}

/* The nodes from the root to a node; returns how many. */
static uint32_t trace_path(const draft_tree *tree, uint32_t node, uint32_t *nodes)
{
    uint32_t depth = tree->depths[node];
    for (uint32_t d = depth + 1; d-- > 0; node = tree->parents[node]) {
        nodes[d] = node;
    }
    return depth + 1;
}

/* The path to every leaf, and with it every node, in a session of its own. */
static void check_tree(const bench *b, const timeline *t)
{
    static int32_t tokens[CONTEXT];
    static uint32_t nodes[MAX_NODES];
    memcpy(tokens, t->tokens, t->n * sizeof *tokens);
    for (uint32_t i = 0; i < t->tree.n; i++) {
        if (t->tree.has_child[i]) {
            continue;
        }
        uint32_t n = trace_path(&t->tree, i, nodes);
        for (uint32_t d = 0; d < n; d++) {
            tokens[t->n + d] = t->tree.tokens[nodes[d]];
        }
        comparison c = {b, t, nodes, 0};
        score_afresh(b, tokens, t->n + n, compare_node, &c);
        assert_int_equal(c.n_compared, n);
    }
}

/* Verification has accepted the path to a node: it becomes the timeline. */
static void accept_rows(bench *b, timeline *t, uint32_t node)
{
    static uint32_t nodes[MAX_NODES], to[MAX_NODES];
    moe_session *session = t->session;
    uint32_t n = trace_path(&t->tree, node, nodes);
    for (uint32_t d = 0; d < n; d++) {
        t->tokens[t->n + d] = t->tree.tokens[nodes[d]];
        nodes[d] += t->n;
        to[d] = t->n + d;
    }
    assert_int_equal(moe_kv_table_move(&b->engine->kv, &session->kv, nodes, to, n, NULL), MOE_OK);
    feed(session, t->tokens + t->n, n);
    t->n += n;
    session->n_evaluated = t->n;
    moe_kv_table_truncate(&b->engine->kv, &session->kv, t->n);
    free(t->paths);
    free(t->logits);
}

typedef struct ending {
    const bench *bench;
    uint32_t first;
    float *logits; /* [N_AFTER][n_vocab] */
    bool compare;
    uint32_t n;
} ending;

static bool visit_ending(size_t position, const float *logits, void *user)
{
    ending *e = user;
    size_t bytes = e->bench->n_vocab * sizeof *logits;
    if (position >= e->first) {
        float *at = e->logits + (position - e->first) * e->bench->n_vocab;
        if (e->compare) {
            assert_memory_equal(logits, at, bytes);
        } else {
            memcpy(at, logits, bytes);
        }
        e->n++;
    }
    return true;
}

/* A plain continuation: the session itself against a fresh one. */
static void check_continuation(bench *b, timeline *t)
{
    ending e = {.bench = b, .first = t->n};
    e.logits = calloc((size_t)N_AFTER * b->n_vocab, sizeof *e.logits);
    assert_non_null(e.logits);
    for (uint32_t i = 0; i < N_AFTER; i++) {
        t->tokens[t->n + i] = draw_token(b);
    }
    assert_int_equal(
        moe_session_score(t->session, t->tokens + t->n, N_AFTER, visit_ending, &e, NULL), MOE_OK);
    assert_int_equal(e.n, N_AFTER);
    e.compare = true;
    score_afresh(b, t->tokens, t->n + N_AFTER, visit_ending, &e);
    assert_int_equal(e.n, 2 * N_AFTER);
    free(e.logits);
    t->n += N_AFTER;
}

static bool nothing(size_t position, const float *logits, void *user)
{
    (void)position;
    (void)logits;
    (void)user;
    return true;
}

/* Trees of n_nodes[] behind timelines of n_before[] tokens, all in one pass; then once more from
 * what was accepted; then plainly. The third timeline is a plain one. */
static void check_trees(bench *b, const uint32_t *n_before, const uint32_t *n_nodes, uint32_t n,
                        uint32_t n_rounds)
{
    b->n_timelines = n;
    for (uint32_t i = 0; i < n; i++) {
        timeline *t = &b->timelines[i];
        *t = (timeline){.n = n_before[i], .plain = i == 2};
        make_prompt(t->tokens, t->n, b->n_vocab, 50 + i);
        assert_int_equal(moe_session_create(&t->session, b->engine, NULL, NULL), MOE_OK);
        assert_int_equal(moe_session_score(t->session, t->tokens, t->n, nothing, NULL, NULL),
                         MOE_OK);
    }
    for (uint32_t round = 0; round < n_rounds; round++) {
        b->n_rows = 0;
        for (uint32_t i = 0; i < n; i++) {
            grow_tree(b, &b->timelines[i], n_nodes[i]);
            add_rows(b, &b->timelines[i]);
        }
        shuffle_rows(b);
        run_pass(b);
        for (uint32_t i = 0; i < n; i++) {
            check_tree(b, &b->timelines[i]);
            accept_rows(b, &b->timelines[i], draw(b, n_nodes[i]));
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        check_continuation(b, &b->timelines[i]);
        moe_session_close(&b->timelines[i].session);
    }
}

static bench *open_bench(const tree_case *c)
{
    char path[1024];
    moe_engine_options options = oracle_options(path, folder, c->name);
    options.context = CONTEXT;
    options.prefill_chunk = MAX_ROWS;
    options.kv_cache = c->kv;
    bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->engine = open_engine(&options);
    b->n_vocab = b->engine->config.n_vocab;
    b->draw_state = 17;
    return b;
}

static void close_bench(bench *b)
{
    moe_engine_close(&b->engine);
    free(b);
}

static void small_trees(void **state)
{
    static const uint32_t before[][N_TIMELINES] = {{60, 127, 5},   {64, 63, 64}, {127, 60, 1},
                                                   {128, 64, 120}, {1, 62, 63},  {0, 126, 0}};
    static const uint32_t nodes[][N_TIMELINES] = {{7, 40, 20}, {70, 1, 5},  {2, 66, 64},
                                                  {3, 12, 1},  {150, 9, 2}, {20, 5, 90}};
    bench *b = open_bench(*state);
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        if (test_leaves_out((uint32_t)i, 3)) {
            continue;
        }
        check_trees(b, before[i], nodes[i], N_TIMELINES, test_is_small() ? 2 : 3);
    }
    close_bench(b);
}

static void large_tree(void **state)
{
    static const uint32_t before[] = {60, 127};
    const uint32_t nodes[] = {test_is_small() ? 130 : 511, 1};
    bench *b = open_bench(*state);
    check_trees(b, before, nodes, 2, 1);
    close_bench(b);
}

/* A fork's pages are its own to move in, and what makes no timeline is refused. */
static void moves_of_tables(void **state)
{
    bench *b = open_bench(*state);
    int32_t tokens[100];
    make_prompt(tokens, 100, b->n_vocab, 3);
    moe_session *session = NULL, *fork = NULL;
    assert_int_equal(moe_session_create(&session, b->engine, NULL, NULL), MOE_OK);
    assert_int_equal(moe_session_score(session, tokens, 100, nothing, NULL, NULL), MOE_OK);
    assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
    moe_kv_pool *pool = &b->engine->kv;
    const uint32_t from[] = {64, 70}, down[] = {60, 61}, up[] = {64, 71}, back[] = {60, 60};
    const uint32_t beyond[] = {64, 128};
    assert_int_equal(moe_kv_table_move(pool, &fork->kv, from, up, 2, NULL), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_kv_table_move(pool, &fork->kv, from, back, 2, NULL), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_kv_table_move(pool, &fork->kv, beyond, down, 2, NULL), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_kv_table_move(pool, &fork->kv, from, down, 0, NULL), MOE_OK);
    assert_ptr_equal(fork->kv.pages[0], session->kv.pages[0]);
    assert_int_equal(moe_kv_table_move(pool, &fork->kv, from, down, 2, NULL), MOE_OK);
    assert_ptr_not_equal(fork->kv.pages[0], session->kv.pages[0]);
    assert_ptr_equal(fork->kv.pages[1], session->kv.pages[1]);
    /* The other session has noticed nothing. */
    timeline *t = &b->timelines[0];
    *t = (timeline){.session = session, .n = 100};
    memcpy(t->tokens, tokens, sizeof tokens);
    check_continuation(b, t);
    moe_session_close(&session);
    moe_session_close(&fork);
    close_bench(b);
}

static void all_trees(void **state)
{
    small_trees(state);
    large_tree(state);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_tree_rows ORACLE-FOLDER\n");
        return 2;
    }
    folder = argv[1];
    static tree_case qwen = {"qwen3moe", MOE_KV_CACHE_F16};
    static tree_case qwen_q8 = {"qwen3moe", MOE_KV_CACHE_Q8_0};
    static tree_case qwen_q4 = {"qwen3moe", MOE_KV_CACHE_Q4_0};
    static tree_case olmoe_f8 = {"olmoe-q8_0", MOE_KV_CACHE_F8};
    static tree_case olmoe = {"olmoe-q8_0", MOE_KV_CACHE_F32};
    static tree_case deepseek = {"deepseek2-v3", MOE_KV_CACHE_F16};
    const struct CMUnitTest tests[] = {
        {"small trees: qwen3moe, F16", small_trees, NULL, NULL, &qwen},
        {"large tree: qwen3moe, F16", large_tree, NULL, NULL, &qwen},
        {"trees: qwen3moe, Q8_0", all_trees, NULL, NULL, &qwen_q8},
        {"small trees: qwen3moe, Q4_0", small_trees, NULL, NULL, &qwen_q4},
        {"small trees: olmoe, F8", small_trees, NULL, NULL, &olmoe_f8},
        {"small trees: olmoe, F32", small_trees, NULL, NULL, &olmoe},
        {"small trees: deepseek2 (MLA), F16", small_trees, NULL, NULL, &deepseek},
        {"large tree: deepseek2 (MLA), F16", large_tree, NULL, NULL, &deepseek},
        {"moves of tables", moves_of_tables, NULL, NULL, &qwen},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
