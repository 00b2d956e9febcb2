/* SPDX-License-Identifier: MIT */
#include "runtime/grammar/grammar_program.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"

moe_grammar *moe_grammar_hold(moe_grammar *grammar)
{
    if (grammar != NULL) {
        atomic_fetch_add(&grammar->references, 1);
    }
    return grammar;
}

void moe_grammar_close(moe_grammar **grammar_ptr)
{
    moe_grammar *grammar = grammar_ptr != NULL ? *grammar_ptr : NULL;
    if (grammar == NULL) {
        return;
    }
    *grammar_ptr = NULL;
    if (atomic_fetch_sub(&grammar->references, 1) > 1) {
        return;
    }
    for (uint32_t i = 0; i < grammar->n_rules; i++) {
        free(grammar->rules[i].name);
    }
    free(grammar->rules);
    free(grammar->code);
    free(grammar->text);
    free(grammar);
}

size_t moe_grammar_bytes(const moe_grammar *grammar)
{
    return grammar == NULL ? 0 : (size_t)grammar->bytes;
}

bool moe_grammar_step(moe_grammar *g, uint64_t n)
{
    g->n_steps += n;
    return g->n_steps <= MOE_GRAMMAR_MOST_STEPS && moe_allowance_step(g->allowance, n);
}

bool moe_grammar_take(moe_grammar *g, uint64_t bytes)
{
    bool taken = moe_allowance_take(g->allowance, bytes);
    g->bytes += taken ? bytes : 0;
    return taken;
}

bool moe_grammar_emit(moe_grammar *g, moe_grammar_code code)
{
    if (g->n_code == g->code_capacity) {
        uint32_t capacity = g->code_capacity * 2 + 256;
        moe_grammar_code *bigger = g->n_code < g->most_code
                                       ? moe_allowance_grow(g->allowance, g->code, g->code_capacity,
                                                            capacity, sizeof *bigger)
                                       : NULL;
        if (bigger == NULL) {
            return false;
        }
        g->bytes += (capacity - g->code_capacity) * sizeof *bigger;
        g->code = bigger;
        g->code_capacity = capacity;
    }
    g->code[g->n_code++] = code;
    return true;
}

void moe_grammar_fit(moe_grammar *g)
{
    size_t spare = (g->code_capacity - g->n_code) * sizeof *g->code;
    moe_grammar_code *fitting = moe_realloc_array(g->code, g->n_code, sizeof *fitting);
    if (fitting != NULL) {
        g->code = fitting;
        g->code_capacity = g->n_code;
        g->bytes -= spare;
        moe_allowance_give(g->allowance, spare);
    }
}
