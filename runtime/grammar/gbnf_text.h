/* SPDX-License-Identifier: MIT */
/* The text of a GBNF grammar, with a cursor from which the reader takes characters. */
#ifndef MOE_GRAMMAR_GBNF_TEXT_H
#define MOE_GRAMMAR_GBNF_TEXT_H

#include "runtime/grammar/grammar_program.h"

typedef struct moe_gbnf_text {
    const char *text;
    size_t size, at;
    moe_grammar *g;
    moe_error *err;
    /* Where each alternative begins in the code, for all groups that are still open. */
    uint32_t *starts;
    size_t n_starts, starts_capacity;
} moe_gbnf_text;

/* Returns MOE_ERR_ARGUMENT; the message has the cursor's line. */
int moe_gbnf_wrong(const moe_gbnf_text *r, const char *what);
/* The byte `ahead` bytes behind the cursor; 0 at the end of the text. */
unsigned char moe_gbnf_peek(const moe_gbnf_text *r, size_t ahead);
/* Skips spaces and comments, and line ends, too, if `lines` is true. */
void moe_gbnf_skip_space(moe_gbnf_text *r, bool lines);
/* Reads one character of the text, which may be written as an escape such as \n or \x41. */
int moe_gbnf_read_char(moe_gbnf_text *r, uint32_t *out);

#endif
