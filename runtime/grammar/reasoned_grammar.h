/* SPDX-License-Identifier: MIT */
/* Makes the grammar of a text in which reasoning may come before the answer that a given grammar
 * describes. */
#ifndef MOE_GRAMMAR_REASONED_GRAMMAR_H
#define MOE_GRAMMAR_REASONED_GRAMMAR_H

#include "runtime/grammar/grammar_program.h"

/* A mark around reasoning, such as "</think>". It is a control token if the vocabulary has one with
 * this text, and ordinary text otherwise. */
typedef struct moe_grammar_mark {
    const char *text;
    int32_t token; /* < 0: the text is no control token */
} moe_grammar_mark;

/* Creates a grammar that matches reasoning, the closing mark, white space and an answer. Without
 * is_open, the text begins with the opening mark or, if there is no reasoning, with the answer.
 * With is_open, the prompt has already opened the reasoning. The first character of the closing
 * mark must occur in it only once. */
int moe_grammar_after_reasoning(moe_grammar **out, const moe_grammar *answer, moe_grammar_mark open,
                                moe_grammar_mark close, bool is_open, moe_allowance *allowance,
                                moe_error *err);
/* Creates a grammar that matches what `before` and `behind`, parts of a rule's text, say around an
 * answer. */
int moe_grammar_between(moe_grammar **out, const moe_grammar *answer, const char *before,
                        const char *behind, moe_allowance *allowance, moe_error *err);

#endif
