/* SPDX-License-Identifier: MIT */
/* Drafting from the text: proposals against a naive search through the whole timeline, on timelines
 * that grow, are cut back and replaced; pathological texts; every allocation refused once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "runtime/base/random.h"
#include "runtime/draft/suffix_draft.h"

#define MOST_TOKENS 400

static long calls_until_failure = -1; /* < 0: never */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

static bool refused(void)
{
    return calls_until_failure >= 0 && calls_until_failure-- == 0;
}

void *__wrap_malloc(size_t size)
{
    return refused() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return refused() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return refused() ? NULL : __real_realloc(old, size);
}

/* ---- The naive reading ---- */

static uint32_t match_at(const int32_t *text, uint32_t n, uint32_t end)
{
    uint32_t length = 0;
    while (length < 32 && length < end && text[end - 1 - length] == text[n - 1 - length]) {
        length++;
    }
    return length;
}

/* text has room for `depth` more, and gets the chain that is to be drafted; returns its length. At
 * most the 64 latest occurrences of the longest match among the 256 latest of a pair vote. */
static uint32_t naive(int32_t *text, uint32_t n, uint32_t depth, uint32_t *longest)
{
    uint32_t ends[MOST_TOKENS], n_ends = 0, seen = 0;
    *longest = 0;
    for (uint32_t end = n; end-- > 2 && seen < 255;) {
        uint32_t match = match_at(text, n, end);
        seen += match >= 2;
        if (match >= 2 && match > *longest) {
            *longest = match;
            n_ends = 0;
        }
        if (match >= 2 && match == *longest && n_ends < 64) {
            ends[n_ends++] = end;
        }
    }
    for (uint32_t d = 0; d < depth && n_ends > 0; d++) {
        uint32_t best = 0;
        for (uint32_t i = 0; i < n_ends; i++) {
            uint32_t count = 0;
            for (uint32_t k = 0; k < n_ends; k++) {
                count += text[ends[k] + d] == text[ends[i] + d];
            }
            if (count > best) {
                best = count;
                text[n + d] = text[ends[i] + d];
            }
        }
        uint32_t left = 0;
        for (uint32_t i = 0; i < n_ends; i++) {
            if (text[ends[i] + d] == text[n + d]) {
                ends[left++] = ends[i];
            }
        }
        n_ends = left;
    }
    return n_ends > 0 ? depth : 0;
}

static void check_proposal(const moe_suffix_index *index, const int32_t *tokens, uint32_t n)
{
    int32_t text[MOST_TOKENS + 8], path[64], again[64];
    moe_token_tree tree;
    moe_suffix_options options = {.max_depth = 6, .max_nodes = 6, .drafter = 2};
    uint32_t longest;
    memcpy(text, tokens, n * sizeof *text);
    uint32_t expected = naive(text, n, 6, &longest);
    assert_int_equal(moe_suffix_match_length(index, &options), longest);
    assert_int_equal(moe_token_tree_init(&tree, 40, NULL), MOE_OK);
    moe_token_tree_reset(&tree, tokens[n - 1]);
    assert_int_equal(moe_suffix_propose(index, &options, 0, &tree), expected);
    assert_int_equal(moe_token_tree_path(&tree, tree.n - 1, path), expected);
    assert_memory_equal(path, text + n, expected * sizeof *path);
    for (uint32_t i = 1; i < tree.n; i++) {
        assert_true(tree.nodes[i].q > 0.0f && tree.nodes[i].q < 1.0f);
        assert_int_equal(tree.nodes[i].drafter, 2);
    }
    /* With nodes to spare: the same path first, nothing beyond the limits, siblings not surer
     * together than sure. */
    options.max_nodes = 30;
    moe_token_tree_reset(&tree, tokens[n - 1]);
    uint32_t added = moe_suffix_propose(index, &options, 0, &tree);
    assert_true(added >= expected && added <= 30 && added == tree.n - 1);
    assert_int_equal(moe_token_tree_path(&tree, expected, again), expected);
    assert_memory_equal(path, again, expected * sizeof *path);
    for (uint32_t i = 0; i < tree.n; i++) {
        float sum = 0.0f;
        assert_true(tree.nodes[i].depth <= 6);
        for (uint32_t c = tree.nodes[i].first_child; c != MOE_NODE_NONE;
             c = tree.nodes[c].next_sibling) {
            sum += tree.nodes[c].q;
        }
        assert_true(sum < 1.0f);
    }
    /* From below the root it is the longer timeline's proposal. */
    if (expected > 0) {
        options.max_nodes = 6;
        moe_token_tree_reset(&tree, tokens[n - 1]);
        uint32_t child = moe_token_tree_add(&tree, 0, text[n], 0.5f, 0);
        (void)moe_suffix_propose(index, &options, child, &tree);
        assert_true(tree.n <= 8);
    }
    moe_token_tree_free(&tree);
}

static void against_naive(void **state)
{
    (void)state;
    static const char words[] = "the cat sat on the mat and the cat sat on the rat; the rat ran to "
                                "the mat, and on the mat the cat and the rat sat and sat. ";
    moe_random random;
    moe_random_seed(&random, 12);
    for (uint32_t alphabet = 1; alphabet <= 7; alphabet++) {
        moe_suffix_index *index = NULL;
        int32_t tokens[MOST_TOKENS];
        uint32_t n = 0;
        assert_int_equal(moe_suffix_index_create(&index, NULL), MOE_OK);
        for (int i = 0; i < 400; i++) {
            uint64_t what = moe_random_next(&random) % 12;
            uint32_t more = 1 + (uint32_t)(moe_random_next(&random) % 9);
            if (what == 0) { /* cut back, and on differently */
                n -= n > 0 ? (uint32_t)(moe_random_next(&random) % n) : 0;
                moe_suffix_index_cut(index, n);
            } else if (what == 1 && n > 0) { /* replaced from somewhere on */
                uint32_t at = (uint32_t)(moe_random_next(&random) % n);
                tokens[at] += 1;
                moe_suffix_index_cut(index, at);
            }
            for (uint32_t k = 0; k < more && n < MOST_TOKENS; k++, n++) {
                tokens[n] = alphabet == 7 ? words[(n + (uint32_t)i / 50) % (sizeof words - 1)]
                                          : (int32_t)(moe_random_next(&random) % alphabet);
            }
            assert_int_equal(moe_suffix_index_update(index, tokens, n, NULL), MOE_OK);
            check_proposal(index, tokens, n);
            n = n == MOST_TOKENS ? 5 : n;
            moe_suffix_index_cut(index, n);
        }
        moe_suffix_index_free(&index);
    }
}

/* A timeline that begins to repeat itself is drafted as far as is asked, after three tokens. */
static void repeats_itself(void **state)
{
    (void)state;
    static const int32_t tokens[] = {1, 2, 3, 9, 9, 9};
    moe_suffix_index *index = NULL;
    moe_token_tree tree;
    int32_t path[8];
    moe_suffix_options options = {.max_depth = 7, .max_nodes = 7};
    assert_int_equal(moe_suffix_index_create(&index, NULL), MOE_OK);
    assert_int_equal(moe_token_tree_init(&tree, 8, NULL), MOE_OK);
    moe_token_tree_reset(&tree, 9);
    assert_int_equal(moe_suffix_propose(index, &options, 0, &tree), 0); /* of nothing, nothing */
    assert_int_equal(moe_suffix_index_update(index, tokens, 6, NULL), MOE_OK);
    assert_int_equal(moe_suffix_propose(index, &options, 0, &tree), 7);
    assert_int_equal(moe_token_tree_path(&tree, 7, path), 7);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(path[i], 9);
    }
    moe_token_tree_free(&tree);
    moe_suffix_index_free(&index);
}

static double seconds_for(uint32_t n, uint32_t period)
{
    moe_suffix_index *index = NULL;
    moe_token_tree tree;
    moe_suffix_options options = {.max_depth = 8, .max_nodes = 8};
    int32_t *tokens = malloc(n * sizeof *tokens);
    assert_int_equal(moe_suffix_index_create(&index, NULL), MOE_OK);
    assert_int_equal(moe_token_tree_init(&tree, 64, NULL), MOE_OK);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)(i % period);
    }
    clock_t begin = clock();
    for (uint32_t i = 1; i <= n; i++) {
        assert_int_equal(moe_suffix_index_update(index, tokens, i, NULL), MOE_OK);
        if (i % 1000 == 0 || i == n) {
            moe_token_tree_reset(&tree, tokens[i - 1]);
            assert_int_equal(moe_suffix_propose(index, &options, 0, &tree), 8);
        }
    }
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    free(tokens);
    moe_token_tree_free(&tree);
    moe_suffix_index_free(&index);
    return seconds;
}

/* Growing token by token is linear: were what was there compared each time, these would move 20 GB
 * and take seconds. */
static void pathological(void **state)
{
    (void)state;
    assert_true(seconds_for(100000, 1) < 1.0);
    assert_true(seconds_for(100000, 2) < 1.0);
}

static void refused_memory(void **state)
{
    (void)state;
    int32_t tokens[3000];
    for (int i = 0; i < 3000; i++) {
        tokens[i] = i % 50;
    }
    bool failed = true;
    for (long at = 0; failed; at++) {
        moe_suffix_index *index = NULL;
        moe_error err = {""};
        calls_until_failure = at;
        int status = moe_suffix_index_create(&index, &err);
        for (uint32_t n = 1000; n <= 3000 && status == MOE_OK; n += 1000) {
            status = moe_suffix_index_update(index, tokens, n, &err);
        }
        failed = status != MOE_OK;
        calls_until_failure = -1;
        if (failed) {
            assert_int_equal(status, MOE_ERR_MEMORY);
            assert_true(err.message[0] != '\0');
        }
        if (failed && index != NULL) { /* empty, and of use again */
            moe_suffix_options options = {.max_depth = 4, .max_nodes = 4};
            assert_int_equal(moe_suffix_match_length(index, &options), 0);
            assert_int_equal(moe_suffix_index_update(index, tokens, 100, NULL), MOE_OK);
            assert_int_equal(moe_suffix_match_length(index, &options), 32);
        }
        moe_suffix_index_free(&index);
        assert_true(at < 50 && (failed || at > 5));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_naive),
        cmocka_unit_test(repeats_itself),
        cmocka_unit_test(pathological),
        cmocka_unit_test(refused_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
