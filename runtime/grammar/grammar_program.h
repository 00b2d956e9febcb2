/* SPDX-License-Identifier: MIT */
/* A compiled grammar: rules as programs that read bytes.
 *
 *   BYTE lo hi   reads a byte from lo to hi; the next instruction follows
 *   SPLIT a b    goes on at both
 *   JUMP a
 *   CALL rule    goes on at the rule's first instruction, and after its RETURN here
 *   RETURN
 *
 * Text is UTF-8: a class of characters is compiled to the bytes that encode it. A control token
 * has no text; as a symbol of grammars it is the byte 0xFF, which UTF-8 never has, and three bytes
 * of its number. */
#ifndef MOE_GRAMMAR_PROGRAM_H
#define MOE_GRAMMAR_PROGRAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/grammar.h>
#include <moe/status.h>

#include "runtime/base/allowance_charge.h"

enum {
    MOE_GRAMMAR_MOST_CODE = 1 << 17, /* instructions, besides one for each byte of the text, */
    MOE_GRAMMAR_MOST_TEXT = 1 << 22, /* ... of which so many count */
    MOE_GRAMMAR_MOST_RULES = 4096,
    MOE_GRAMMAR_MOST_REPEATS = 2000,
    MOE_GRAMMAR_MOST_NESTING = 64,
    MOE_GRAMMAR_CONTROL = 0xff,
    MOE_GRAMMAR_BUCKETS = 512,
    MOE_GRAMMAR_MOST_STEPS = 16000000, /* of reading: bytes, white space and what is repeated too */
};

typedef enum moe_grammar_op {
    MOE_GRAMMAR_BYTE,
    MOE_GRAMMAR_SPLIT,
    MOE_GRAMMAR_JUMP,
    MOE_GRAMMAR_CALL,
    MOE_GRAMMAR_RETURN
} moe_grammar_op;

typedef struct moe_grammar_code {
    uint8_t op;
    uint8_t lo, hi;
    uint32_t a, b;
} moe_grammar_code;

typedef struct moe_grammar_rule {
    char *name;
    uint32_t size;  /* of the name */
    uint32_t start; /* UINT32_MAX: not defined yet */
    bool nullable;  /* it may read nothing */
    uint32_t next;  /* of the same bucket; UINT32_MAX: none */
} moe_grammar_rule;

struct moe_grammar {
    _Atomic unsigned references;
    moe_grammar_code *code;
    uint32_t n_code, code_capacity, most_code;
    moe_grammar_rule *rules;
    uint32_t n_rules, rules_capacity;
    uint32_t buckets[MOE_GRAMMAR_BUCKETS]; /* rules by their names' hashes */
    uint32_t root;
    char *text; /* that it was read from */
    size_t size;
    moe_allowance *allowance; /* while it is read; NULL: any */
    uint64_t bytes;           /* that it takes */
    uint64_t n_steps;         /* of reading it */
};

/* Like moe_grammar_create(), but texts must match the rule with the name `start`. The grammar must
 * still have a rule `root`. */
int moe_grammar_read(moe_grammar **out, const char *text, size_t size, const char *start,
                     moe_allowance *allowance, moe_error *err);

moe_grammar *moe_grammar_hold(moe_grammar *grammar);

/* Counts n steps of work while a grammar is read. False: the limit is exceeded, or the caller's
 * allowance forbids it. */
bool moe_grammar_step(moe_grammar *grammar, uint64_t n);
/* Charges the grammar's memory to the caller's allowance. False: the allowance does not permit
 * it. */
bool moe_grammar_take(moe_grammar *grammar, uint64_t bytes);

/* Appends an instruction; false: the grammar is too large, or memory is short. */
bool moe_grammar_emit(moe_grammar *grammar, moe_grammar_code code);

/* Combines the n alternatives (at least two) at the end of the code into one group. Alternative i
 * begins at starts[i] and ends where the next one begins. False: as in moe_grammar_emit(), or too
 * many steps. */
bool moe_grammar_join_alternatives(moe_grammar *grammar, const uint32_t *starts, size_t n);

/* Shrinks the allocations to what the program uses. */
void moe_grammar_fit(moe_grammar *grammar);

/* A set of characters as ranges. After moe_char_set_close() they are in ascending order and do not
 * touch. */
typedef struct moe_char_set {
    struct {
        uint32_t lo, hi;
    } ranges[256];
    uint32_t n;
    bool negated;
} moe_char_set;

/* Adds the characters from lo to hi. False: the set has too many ranges. */
bool moe_char_set_add(moe_char_set *set, uint32_t lo, uint32_t hi);
/* Sorts the ranges, joins those that overlap, and inverts the set if it is negated. */
bool moe_char_set_close(moe_char_set *set);
/* Appends code that reads one character of the set. The set must be closed and not empty. */
bool moe_grammar_emit_set(moe_grammar *grammar, const moe_char_set *set);
/* Appends code that reads exactly the character c. */
bool moe_grammar_emit_char(moe_grammar *grammar, uint32_t c);

/* Checks that every rule that is called is defined, and that no rule calls itself before it has
 * read a byte. Sets `nullable` for each rule. */
int moe_grammar_check(moe_grammar *grammar, moe_error *err);

#endif
