/* SPDX-License-Identifier: MIT */
/* Turns a list of alternatives into a tree of their common beginnings. For "apple" | "apply" |
 * "axe" the matcher then follows a single 'a' instead of three. Without the tree it would follow
 * every alternative of a long list at once. Alternatives share only instructions that read a byte
 * or call a rule; from its first SPLIT or JUMP on, the code of an alternative is kept in one
 * piece. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/grammar/grammar_program.h"

enum { STEPS_OF_ALTERNATIVE = 16 };

typedef struct alternative {
    const moe_grammar_code *code; /* of the copy */
    uint32_t size;
    uint32_t straight; /* instructions before the first SPLIT or JUMP */
} alternative;

typedef struct tree {
    moe_grammar *g;
    const moe_grammar_code *copy; /* of the alternatives' code, */
    uint32_t first;               /* ... which began there */
    uint32_t last_jump;           /* to the end of them all: a list, linked by a */
} tree;

static uint64_t key_of(const moe_grammar_code *c)
{
    return (uint64_t)c->op << 48 | (uint64_t)c->lo << 40 | (uint64_t)c->hi << 32 | c->a;
}

static bool are_alike(const alternative *x, const alternative *y, uint32_t at)
{
    return at < x->straight && at < y->straight && key_of(&x->code[at]) == key_of(&y->code[at]);
}

/* Returns how many instructions the two alternatives have in common from instruction `at` on. */
static uint32_t shared(const alternative *x, const alternative *y, uint32_t at)
{
    while (are_alike(x, y, at)) {
        at++;
    }
    return at;
}

static int compare(const void *a, const void *b)
{
    const alternative *x = a, *y = b;
    uint32_t at = shared(x, y, 0);
    uint64_t of_x = at < x->straight ? 1 + key_of(&x->code[at]) : 0;
    uint64_t of_y = at < y->straight ? 1 + key_of(&y->code[at]) : 0;
    return of_x != of_y ? (of_x > of_y) - (of_x < of_y) : (x->code > y->code) - (x->code < y->code);
}

/* Emits the instructions of an alternative that it does not share, and a jump to the end of the
 * group. */
static bool emit_rest(tree *t, const alternative *a, uint32_t at)
{
    moe_grammar *g = t->g;
    const uint32_t was = t->first + (uint32_t)(a->code - t->copy) + at;
    const uint32_t is = g->n_code;
    for (; at < a->size; at++) {
        moe_grammar_code c = a->code[at];
        if (c.op == MOE_GRAMMAR_SPLIT || c.op == MOE_GRAMMAR_JUMP) {
            c.a += is - was;
            c.b += c.op == MOE_GRAMMAR_SPLIT ? is - was : 0;
        }
        if (!moe_grammar_emit(g, c)) {
            return false;
        }
    }
    uint32_t before = t->last_jump;
    t->last_jump = g->n_code;
    return moe_grammar_emit(g, (moe_grammar_code){.op = MOE_GRAMMAR_JUMP, .a = before});
}

/* Returns how many alternatives, beginning with a[0], have the same instruction at `at`.
 * Alternatives that end at `at` form one branch. */
static size_t count_branch(const alternative *a, size_t n, uint32_t at)
{
    size_t same = 1;
    bool ends = a[0].size == at;
    while (same < n && (ends ? a[same].size == at : are_alike(&a[0], &a[same], at))) {
        same++;
    }
    return same;
}

/* Emits the tree of n sorted alternatives that are equal before `at`. The largest branch is emitted
 * last, by the loop and not by a recursive call, so the depth of recursion is at most the logarithm
 * of n. */
static bool emit_tree(tree *t, const alternative *a, size_t n, uint32_t at)
{
    moe_grammar *g = t->g;
    for (;;) {
        const uint32_t end = n > 1 ? shared(&a[0], &a[n - 1], at) : at;
        size_t most = 0, of_most = 0;
        if (!moe_grammar_step(g, n + end - at)) {
            return false;
        }
        for (; at < end; at++) {
            if (!moe_grammar_emit(g, a->code[at])) {
                return false;
            }
        }
        for (size_t i = 0, of_i; i < n; i += of_i) {
            of_i = count_branch(a + i, n - i, at);
            most = of_i > of_most ? i : most;
            of_most = of_i > of_most ? of_i : of_most;
        }
        for (size_t i = 0, of_i; i < n; i += of_i) {
            const uint32_t split = g->n_code;
            of_i = count_branch(a + i, n - i, at);
            if (i == most) {
                continue;
            }
            if (!moe_grammar_emit(g, (moe_grammar_code){.op = MOE_GRAMMAR_SPLIT, .a = split + 1}) ||
                !emit_tree(t, a + i, a[i].size == at ? 1 : of_i, at)) {
                return false;
            }
            g->code[split].b = g->n_code;
        }
        a += most;
        n = a->size == at ? 1 : of_most;
        if (n == 1) {
            return emit_rest(t, a, at);
        }
    }
}

static void measure(const tree *t, const uint32_t *starts, size_t n, alternative *list)
{
    for (size_t i = 0; i < n; i++) {
        alternative *a = &list[i];
        uint32_t end = i + 1 < n ? starts[i + 1] : t->g->n_code;
        *a = (alternative){.code = t->copy + (starts[i] - t->first), .size = end - starts[i]};
        while (a->straight < a->size && a->code[a->straight].op != MOE_GRAMMAR_SPLIT &&
               a->code[a->straight].op != MOE_GRAMMAR_JUMP) {
            a->straight++;
        }
    }
}

static bool join(tree *t, const uint32_t *starts, size_t n, moe_grammar_code *copy,
                 alternative *list)
{
    moe_grammar *g = t->g;
    const uint32_t size = g->n_code - t->first;
    if (!moe_grammar_step(g, size + STEPS_OF_ALTERNATIVE * n)) {
        return false;
    }
    memcpy(copy, g->code + t->first, size * sizeof *copy);
    t->copy = copy;
    measure(t, starts, n, list);
    qsort(list, n, sizeof *list, compare);
    g->n_code = t->first;
    if (!emit_tree(t, list, n, 0)) {
        return false;
    }
    while (t->last_jump != UINT32_MAX) {
        uint32_t before = g->code[t->last_jump].a;
        g->code[t->last_jump].a = g->n_code;
        t->last_jump = before;
    }
    return true;
}

bool moe_grammar_join_alternatives(moe_grammar *g, const uint32_t *starts, size_t n)
{
    tree t = {.g = g, .first = starts[0], .last_jump = UINT32_MAX};
    const size_t size = g->n_code - t.first;
    const uint64_t bytes = (size + 1) * sizeof(moe_grammar_code) + n * sizeof(alternative);
    if (!moe_allowance_take(g->allowance, bytes)) {
        return false;
    }
    moe_grammar_code *copy = moe_calloc(size + 1, sizeof *copy);
    alternative *list = moe_calloc(n, sizeof *list);
    bool joined = copy != NULL && list != NULL && join(&t, starts, n, copy, list);
    free(copy);
    free(list);
    moe_allowance_give(g->allowance, bytes);
    return joined;
}
