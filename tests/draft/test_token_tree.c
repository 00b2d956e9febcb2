/* SPDX-License-Identifier: MIT */
/* Token trees under random operations, against their invariants and a plain list of paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/random.h"
#include "runtime/draft/token_tree.h"

static uint32_t roll(moe_random *random, uint32_t n)
{
    return (uint32_t)(moe_random_next(random) % n);
}

/* Parents before children, links and depths that fit, tokens of siblings distinct, q and path. */
static void check(const moe_token_tree *tree)
{
    uint32_t n_linked = 1;
    assert_true(tree->n >= 1 && tree->n <= tree->capacity);
    assert_true(tree->nodes[0].parent == MOE_NODE_NONE && tree->nodes[0].depth == 0);
    for (uint32_t i = 0; i < tree->n; i++) {
        const moe_tree_node *node = &tree->nodes[i];
        assert_true(node->next_sibling == MOE_NODE_NONE || node->next_sibling > i);
        if (i > 0) {
            const moe_tree_node *parent = &tree->nodes[node->parent];
            assert_true(node->parent < i);
            assert_int_equal(node->depth, parent->depth + 1);
            assert_true(node->path == parent->path * node->q);
        }
        uint32_t last = MOE_NODE_NONE;
        for (uint32_t c = node->first_child; c != MOE_NODE_NONE; c = tree->nodes[c].next_sibling) {
            assert_true(c < tree->n && tree->nodes[c].parent == i);
            assert_int_equal(moe_token_tree_child(tree, i, tree->nodes[c].token), c);
            last = c;
            n_linked++;
        }
        assert_int_equal(node->last_child, last);
    }
    assert_int_equal(n_linked, tree->n); /* no node is lost, none is linked twice */
}

static void check_path(const moe_token_tree *tree, uint32_t node)
{
    int32_t tokens[MOE_TREE_MAX_NODES];
    uint32_t depth = moe_token_tree_path(tree, node, tokens);
    uint32_t at = 0;
    assert_int_equal(depth, tree->nodes[node].depth);
    for (uint32_t i = 0; i < depth; i++) {
        at = moe_token_tree_child(tree, at, tokens[i]);
        assert_int_not_equal(at, MOE_NODE_NONE);
    }
    assert_int_equal(at, node);
}

static void add(moe_token_tree *tree, moe_random *random)
{
    static const float qs[] = {1.0f, 0.9f, 0.5f, 0.25f, 0.01f, 0.0f};
    uint32_t parent = roll(random, tree->n), before = tree->n;
    int32_t token = (int32_t)roll(random, 6);
    float q = qs[roll(random, 6)];
    uint32_t had = moe_token_tree_child(tree, parent, token);
    float had_q = had != MOE_NODE_NONE ? tree->nodes[had].q : 0.0f;
    uint32_t got = moe_token_tree_add(tree, parent, token, q, 3);
    if (had != MOE_NODE_NONE) {
        assert_int_equal(got, had);
        assert_true(tree->n == before && tree->nodes[had].q == had_q);
    } else if (before == tree->capacity) {
        assert_int_equal(got, MOE_NODE_NONE);
        assert_int_equal(tree->n, before);
    } else {
        assert_int_equal(got, before);
        assert_int_equal(tree->n, before + 1);
        assert_true(tree->nodes[got].token == token && tree->nodes[got].q == q);
        assert_int_equal(tree->nodes[got].drafter, 3);
    }
}

/* What stays: asked for, and so is everything above it. Tokens, q and order are as before. */
static void check_kept(const moe_token_tree *before, const moe_token_tree *after, const bool *stays,
                       const uint32_t *moved)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < before->n; i++) {
        if (!stays[i]) {
            assert_int_equal(moved[i], MOE_NODE_NONE);
            continue;
        }
        assert_int_equal(moved[i], n);
        const moe_tree_node *a = &before->nodes[i], *b = &after->nodes[n++];
        assert_true(a->token == b->token && a->q == b->q && a->path == b->path);
        assert_true(a->depth == b->depth && a->drafter == b->drafter);
        assert_int_equal(b->parent, i == 0 ? MOE_NODE_NONE : moved[a->parent]);
    }
    assert_int_equal(after->n, n);
}

static void keep(moe_token_tree *tree, moe_random *random)
{
    bool wanted[MOE_TREE_MAX_NODES], stays[MOE_TREE_MAX_NODES];
    uint32_t moved[MOE_TREE_MAX_NODES];
    moe_tree_node nodes[MOE_TREE_MAX_NODES];
    moe_token_tree before = {tree->n, tree->capacity, nodes};
    memcpy(nodes, tree->nodes, tree->n * sizeof *nodes);
    for (uint32_t i = 0; i < tree->n; i++) {
        wanted[i] = roll(random, 4) > 0;
        stays[i] = i == 0 || (wanted[i] && stays[nodes[i].parent]);
    }
    moe_token_tree_keep(tree, wanted, moved);
    check_kept(&before, tree, stays, moved);
}

static void prune(moe_token_tree *tree, moe_random *random)
{
    bool stays[MOE_TREE_MAX_NODES] = {true};
    uint32_t moved[MOE_TREE_MAX_NODES];
    moe_tree_node nodes[MOE_TREE_MAX_NODES];
    moe_token_tree before = {tree->n, tree->capacity, nodes};
    memcpy(nodes, tree->nodes, tree->n * sizeof *nodes);
    uint32_t n = roll(random, tree->n + 3);
    /* One by one, the surest that is left. */
    for (uint32_t taken = 1; taken < n && taken < before.n; taken++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < before.n; i++) {
            best = !stays[i] && (best == 0 || nodes[i].path > nodes[best].path) ? i : best;
        }
        stays[best] = true;
    }
    moe_token_tree_prune(tree, n, moved);
    check_kept(&before, tree, stays, moved);
}

static void random_operations(void **state)
{
    (void)state;
    moe_random random;
    moe_random_seed(&random, 4);
    for (int round = 0; round < 60; round++) {
        moe_token_tree tree;
        uint32_t size = round == 0 ? 1 : round == 1 ? MOE_TREE_MAX_NODES : 1 + roll(&random, 90);
        assert_int_equal(moe_token_tree_init(&tree, size, NULL), MOE_OK);
        moe_token_tree_reset(&tree, 7);
        for (int i = 0; i < 1500; i++) {
            uint32_t what = roll(&random, 300);
            if (what == 0) {
                keep(&tree, &random);
            } else if (what == 1) {
                prune(&tree, &random);
            } else if (what == 2) {
                moe_token_tree_reset(&tree, (int32_t)roll(&random, 9));
                assert_int_equal(tree.n, 1);
            } else {
                add(&tree, &random);
            }
            if (i % 7 == 0 || what < 3) {
                check(&tree);
                check_path(&tree, roll(&random, tree.n));
            }
        }
        moe_token_tree_free(&tree);
    }
}

static void limits(void **state)
{
    (void)state;
    moe_token_tree tree;
    moe_error err = {""};
    assert_int_equal(moe_token_tree_init(&tree, 0, &err), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_token_tree_init(&tree, MOE_TREE_MAX_NODES + 1, &err), MOE_ERR_ARGUMENT);
    moe_token_tree_free(&tree);
    /* A chain as deep as a tree can be. */
    assert_int_equal(moe_token_tree_init(&tree, MOE_TREE_MAX_NODES, &err), MOE_OK);
    moe_token_tree_reset(&tree, 0);
    uint32_t node = 0;
    for (uint32_t i = 1; i < MOE_TREE_MAX_NODES; i++) {
        node = moe_token_tree_add(&tree, node, 5, 0.5f, 0);
        assert_int_equal(node, i);
    }
    check(&tree);
    check_path(&tree, node);
    assert_int_equal(moe_token_tree_add(&tree, node, 5, 0.5f, 0), MOE_NODE_NONE);
    assert_int_equal(moe_token_tree_add(&tree, 0, 5, 0.5f, 0), 1);
    bool none[MOE_TREE_MAX_NODES] = {false};
    moe_token_tree_keep(&tree, none, NULL);
    assert_int_equal(tree.n, 1);
    check(&tree);
    moe_token_tree_free(&tree);
}

/* The tree is sane, is not when field is value, and is again when it is what it was. */
#define NOTICED(field, value)                                                                      \
    do {                                                                                           \
        __typeof__((field) + 0) was = field;                                                       \
        assert_true(moe_token_tree_is_sane(&tree));                                                \
        field = (value);                                                                           \
        assert_true(field != was);                                                                 \
        assert_false(moe_token_tree_is_sane(&tree));                                               \
        field = was;                                                                               \
        assert_true(moe_token_tree_is_sane(&tree));                                                \
    } while (0)

/* Each field that is changed alone is noticed. */
static void test_is_sane(void **state)
{
    (void)state;
    moe_token_tree tree;
    assert_int_equal(moe_token_tree_init(&tree, 8, NULL), MOE_OK);
    moe_token_tree_reset(&tree, 7);
    uint32_t a = moe_token_tree_add(&tree, 0, 1, 0.5f, 0);
    uint32_t b = moe_token_tree_add(&tree, 0, 2, 0.25f, 0);
    uint32_t c = moe_token_tree_add(&tree, a, 3, 0.5f, 1);
    moe_tree_node *nodes = tree.nodes;
    NOTICED(tree.n, 0);
    NOTICED(tree.n, 3);
    NOTICED(tree.n, 9);
    NOTICED(tree.capacity, 3);
    NOTICED(tree.capacity, MOE_TREE_MAX_NODES + 1);
    NOTICED(tree.nodes, NULL);
    NOTICED(nodes[0].parent, 0);
    NOTICED(nodes[0].next_sibling, b);
    NOTICED(nodes[0].path, 0.5f);
    NOTICED(nodes[b].token, 1); /* as its sibling */
    for (uint32_t i = 0; i < tree.n; i++) {
        NOTICED(nodes[i].parent, i + 1);
        NOTICED(nodes[i].depth, nodes[i].depth + 1);
        NOTICED(nodes[i].path, 0.75f);
        NOTICED(nodes[i].first_child, i);
        NOTICED(nodes[i].first_child, tree.n);
        NOTICED(nodes[i].last_child, i);
        NOTICED(nodes[i].next_sibling, i == 0 ? 1 : 0);
    }
    NOTICED(nodes[a].q, 0.25f);
    NOTICED(nodes[c].q, 0.25f);
    NOTICED(nodes[c].parent, b);
    NOTICED(nodes[a].next_sibling, MOE_NODE_NONE);
    NOTICED(nodes[a].first_child, MOE_NODE_NONE);
    NOTICED(nodes[0].last_child, a);
    moe_token_tree_free(&tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_sane),
        cmocka_unit_test(random_operations),
        cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
