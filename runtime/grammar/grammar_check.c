/* SPDX-License-Identifier: MIT */
/* Checks that the matcher takes a bounded number of steps for each byte: no rule may call itself
 * before it has read a byte (left recursion). */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/grammar/grammar_program.h"

/* How many steps each visit counts for. A visit handles one instruction that a rule reaches without
 * reading a byte. */
enum { STEPS_OF_VISIT = 2 };

typedef struct walk {
    moe_grammar *g;
    uint32_t *seen; /* [n_code] the number of the walk that was here last */
    uint32_t number;
    uint32_t *stack; /* [2 n_code + 2] */
    /* Which rules each rule calls before it has read a byte: those of rule i are
     * called[first[i]..first[i + 1]). */
    uint32_t *first;  /* [n_rules + 1] */
    uint32_t *called; /* [n_code] */
    uint32_t n_called;
    uint32_t *marked; /* [n_rules] the rule that named this one last, and 1 */
    uint8_t *colors;  /* [n_rules] 0: not seen, 1: on the way, 2: done */
    bool refused;     /* too many steps */
} walk;

static void note_call(walk *w, uint32_t rule, uint32_t callee)
{
    if (w->marked[callee] != rule + 1) {
        w->marked[callee] = rule + 1;
        w->called[w->n_called++] = callee;
    }
}

/* Visits the instructions that a rule can reach without reading a byte. Returns whether the rule's
 * RETURN is one of them, so that the rule matches the empty text. With `notes`, also records which
 * rules are called on the way. */
static bool reaches_end(walk *w, uint32_t rule, bool notes)
{
    const moe_grammar *g = w->g;
    uint32_t n = 0;
    bool ends = false;
    w->number++;
    w->stack[n++] = g->rules[rule].start;
    while (n > 0 && !w->refused) {
        uint32_t at = w->stack[--n];
        if (w->seen[at] == w->number) {
            continue;
        }
        w->seen[at] = w->number;
        w->refused = !moe_grammar_step(w->g, STEPS_OF_VISIT);
        const moe_grammar_code *c = &g->code[at];
        if (c->op == MOE_GRAMMAR_SPLIT) {
            w->stack[n++] = c->a;
            w->stack[n++] = c->b;
        } else if (c->op == MOE_GRAMMAR_JUMP) {
            w->stack[n++] = c->a;
        } else if (c->op == MOE_GRAMMAR_CALL) {
            if (notes) {
                note_call(w, rule, c->a);
            }
            if (g->rules[c->a].nullable) {
                w->stack[n++] = at + 1;
            }
        } else {
            ends |= c->op == MOE_GRAMMAR_RETURN;
        }
    }
    return ends;
}

/* Finds all rules that match the empty text. Repeats until nothing changes, in alternating
 * directions, because in most grammars either most rules call later rules or most call earlier
 * ones. */
static void find_nullable(walk *w)
{
    bool changed = true;
    bool back = true;
    const uint32_t n = w->g->n_rules;
    while (changed && !w->refused) {
        changed = false;
        for (uint32_t i = 0; i < n && !w->refused; i++) {
            uint32_t at = back ? n - 1 - i : i;
            moe_grammar_rule *rule = &w->g->rules[at];
            if (!rule->nullable && reaches_end(w, at, false)) {
                rule->nullable = changed = true;
            }
        }
        back = !back;
    }
}

static void find_calls(walk *w)
{
    for (uint32_t i = 0; i < w->g->n_rules; i++) {
        w->first[i] = w->n_called;
        (void)reaches_end(w, i, true);
    }
    w->first[w->g->n_rules] = w->n_called;
}

/* Searches depth first for a rule that calls itself without reading a byte. w->stack has the path,
 * and w->first[] of a rule moves on to the call to look at next. Returns the rule, or n_rules. */
static uint32_t find_circle(walk *w, uint32_t rule)
{
    uint32_t depth = 0;
    w->stack[depth++] = rule;
    w->colors[rule] = 1;
    while (depth > 0) {
        uint32_t at = w->stack[depth - 1];
        if (w->marked[at] == w->first[at + 1]) {
            w->colors[at] = 2;
            depth--;
            continue;
        }
        uint32_t callee = w->called[w->marked[at]++];
        if (w->colors[callee] == 1) {
            return callee;
        }
        if (w->colors[callee] == 0) {
            w->colors[callee] = 1;
            w->stack[depth++] = callee;
        }
    }
    return w->g->n_rules;
}

static int find_circles(walk *w, moe_error *err)
{
    moe_grammar *g = w->g;
    memcpy(w->marked, w->first, g->n_rules * sizeof *w->marked); /* the calls that are next */
    for (uint32_t i = 0; i < g->n_rules; i++) {
        uint32_t circle = w->colors[i] == 0 ? find_circle(w, i) : g->n_rules;
        if (circle < g->n_rules) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "grammar: rule '%.60s' calls itself before it reads a character (left "
                            "recursion): put what it reads first",
                            g->rules[circle].name);
        }
    }
    return MOE_OK;
}

static int check(walk *w, moe_error *err)
{
    find_nullable(w);
    if (!w->refused) {
        find_calls(w);
    }
    if (!w->refused) {
        return find_circles(w, err);
    }
    const moe_allowance *allowance = w->g->allowance;
    return allowance != NULL && allowance->refused != MOE_OK
               ? moe_allowance_fail(allowance, err, "the grammar")
               : moe_fail(err, MOE_ERR_ARGUMENT,
                          "grammar: its rules take too many steps to check: nest less");
}

int moe_grammar_check(moe_grammar *g, moe_error *err)
{
    for (uint32_t i = 0; i < g->n_rules; i++) {
        if (g->rules[i].start == UINT32_MAX) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "grammar: rule '%.60s' is used and not defined",
                            g->rules[i].name);
        }
    }
    /* One allocation for all arrays: seen, stack and called have entries for each instruction, and
     * first, marked and colors have one for each rule. */
    const size_t n_code = g->n_code;
    const size_t n_rules = g->n_rules;
    const size_t n_words = 4 * n_code + 2 + 2 * n_rules + 1;
    const size_t bytes = n_words * sizeof(uint32_t) + n_rules;
    uint32_t *words = moe_allowance_take(g->allowance, bytes) ? moe_calloc(bytes, 1) : NULL;
    if (words == NULL) {
        return moe_allowance_fail(g->allowance, err, "a grammar");
    }
    walk w = {.g = g, .seen = words, .stack = words + n_code};
    w.called = w.stack + 2 * n_code + 2;
    w.first = w.called + n_code;
    w.marked = w.first + n_rules + 1;
    w.colors = (uint8_t *)(w.marked + n_rules);
    int status = check(&w, err);
    free(words);
    moe_allowance_give(g->allowance, bytes);
    return status;
}
