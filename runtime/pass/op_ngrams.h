/* SPDX-License-Identifier: MIT */
/* A table of n-grams (runtime/model/ngram_table.h) in a pass. */
#ifndef MOE_PASS_OP_NGRAMS_H
#define MOE_PASS_OP_NGRAMS_H

#include "runtime/pass/pass.h"

#define MOE_NGRAM_TENSOR "per_layer_token_embd.weight"

/* Stores the rows' tokens, and requests the table's rows that they read. Does nothing in models
 * without such a table. */
int moe_ngrams_begin(const moe_runner *runner, const moe_pass *pass, moe_error *err);
/* Requests the table's rows that the tokens first .. end - 1 of a timeline will read. */
void moe_ngrams_foresee(const moe_runner *runner, const int32_t *tokens, uint32_t first,
                        uint32_t end);

#endif
