/* SPDX-License-Identifier: MIT */
/* A grammar of an answer with reasoning that may come before it. */
#ifndef MOE_GRAMMAR_REASONED_GRAMMAR_H
#define MOE_GRAMMAR_REASONED_GRAMMAR_H

#include "runtime/grammar/grammar_program.h"

/* A mark that a model writes: a text, or a control token if the vocabulary has the text as one. */
typedef struct moe_grammar_mark {
    const char *text;
    int32_t token; /* < 0: the text is no control token */
} moe_grammar_mark;

/* What matches: reasoning up to the first closing mark, white space, the answer. The opening mark
 * begins the text, which may do without reasoning; or is_open: reasoning has begun already. The
 * first character of the closing mark must not occur in it again. */
int moe_grammar_after_reasoning(moe_grammar **out, const moe_grammar *answer, moe_grammar_mark open,
                                moe_grammar_mark close, bool is_open, moe_allowance *allowance,
                                moe_error *err);

#endif
