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

bool moe_grammar_emit(moe_grammar *g, moe_grammar_code code)
{
    if (g->n_code == g->code_capacity) {
        uint32_t capacity = g->code_capacity * 2 + 256;
        moe_grammar_code *bigger = g->n_code < MOE_GRAMMAR_MOST_CODE
                                       ? moe_realloc_array(g->code, capacity, sizeof *bigger)
                                       : NULL;
        if (bigger == NULL) {
            return false;
        }
        g->code = bigger;
        g->code_capacity = capacity;
    }
    g->code[g->n_code++] = code;
    return true;
}
