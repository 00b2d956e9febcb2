/* SPDX-License-Identifier: MIT */
/* What a grammar's program must hold, so that reading a byte takes a bounded number of steps. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/grammar/grammar_program.h"

typedef struct walk {
    moe_grammar *g;
    uint32_t *seen; /* [n_code] the number of the walk that was here last */
    uint32_t number;
    uint32_t *stack; /* [2 n_code + 2] */
    uint8_t *colors; /* [n_rules] 0: not seen, 1: on the way, 2: done */
} walk;

/* Visits the code that a rule reaches without reading a byte. Returns whether it reaches its end
 * so. Marks the rules that it calls on the way in `called`, unless that is NULL. */
static bool reaches_end(walk *w, uint32_t rule, uint8_t *called)
{
    const moe_grammar *g = w->g;
    uint32_t n = 0;
    bool ends = false;
    w->number++;
    w->stack[n++] = g->rules[rule].start;
    while (n > 0) {
        uint32_t at = w->stack[--n];
        if (w->seen[at] == w->number) {
            continue;
        }
        w->seen[at] = w->number;
        const moe_grammar_code *c = &g->code[at];
        if (c->op == MOE_GRAMMAR_SPLIT) {
            w->stack[n++] = c->a;
            w->stack[n++] = c->b;
        } else if (c->op == MOE_GRAMMAR_JUMP) {
            w->stack[n++] = c->a;
        } else if (c->op == MOE_GRAMMAR_CALL) {
            if (called != NULL) {
                called[c->a] = 1;
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

static void find_nullable(walk *w)
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (uint32_t i = 0; i < w->g->n_rules; i++) {
            moe_grammar_rule *rule = &w->g->rules[i];
            if (!rule->nullable && reaches_end(w, i, NULL)) {
                rule->nullable = changed = true;
            }
        }
    }
}

/* Looks for a rule that calls itself without reading, by depth first. */
static int find_circle(walk *w, uint32_t rule, uint32_t depth, moe_error *err)
{
    moe_grammar *g = w->g;
    if (w->colors[rule] == 2) {
        return MOE_OK;
    }
    if (w->colors[rule] == 1) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "grammar: rule '%.60s' calls itself before it reads a character (left "
                        "recursion): put what it reads first",
                        g->rules[rule].name);
    }
    if (depth > 2000) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "grammar: rules call each other too deeply");
    }
    uint8_t *called = moe_calloc(g->n_rules, 1);
    if (called == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a grammar");
    }
    w->colors[rule] = 1;
    (void)reaches_end(w, rule, called);
    int status = MOE_OK;
    for (uint32_t i = 0; i < g->n_rules && status == MOE_OK; i++) {
        status = called[i] ? find_circle(w, i, depth + 1, err) : MOE_OK;
    }
    w->colors[rule] = 2;
    free(called);
    return status;
}

int moe_grammar_check(moe_grammar *g, moe_error *err)
{
    for (uint32_t i = 0; i < g->n_rules; i++) {
        if (g->rules[i].start == UINT32_MAX) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "grammar: rule '%.60s' is used and not defined",
                            g->rules[i].name);
        }
    }
    walk w = {.g = g,
              .seen = moe_calloc(g->n_code, sizeof *w.seen),
              .stack = moe_calloc(2 * (size_t)g->n_code + 2, sizeof *w.stack),
              .colors = moe_calloc(g->n_rules, 1)};
    int status = w.seen != NULL && w.stack != NULL && w.colors != NULL
                     ? MOE_OK
                     : moe_fail(err, MOE_ERR_MEMORY, "no memory for a grammar");
    if (status == MOE_OK) {
        find_nullable(&w);
    }
    for (uint32_t i = 0; i < g->n_rules && status == MOE_OK; i++) {
        status = find_circle(&w, i, 0, err);
    }
    free(w.seen);
    free(w.stack);
    free(w.colors);
    return status;
}
