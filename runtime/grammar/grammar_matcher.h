/* SPDX-License-Identifier: MIT */
/* Follows a grammar byte by byte.
 *
 * A state is a set of places that the grammar may be at: each an instruction that reads a byte, and
 * a stack of returns. Stacks are lists that share their tails and are made once, so a place is two
 * numbers. States are made when they are first reached, and remember where each byte leads (a
 * lazily built automaton); most bytes then cost one look into a table.
 *
 * Tables are bounded. moe_matcher_tidy() empties them when they are half full, and keeps one state;
 * the numbers of all others are void then. If the rest fills up nevertheless, the matcher is
 * exhausted: every byte leads to MOE_MATCH_DEAD. */
#ifndef MOE_GRAMMAR_MATCHER_H
#define MOE_GRAMMAR_MATCHER_H

#include "runtime/grammar/grammar_program.h"

enum {
    MOE_MATCH_UNKNOWN = 0,
    MOE_MATCH_DEAD = 1, /* no text that begins so matches */
    MOE_MATCH_FIRST = 2,
    MOE_MATCH_MIXED = UINT16_MAX, /* of several characters: not one state behind all of them */
    MOE_MATCH_MOST_STATES = 4096,
    MOE_MATCH_MOST_PLACES = 1 << 16, /* of all states */
    MOE_MATCH_MOST_STACKS = 1 << 15,
    MOE_MATCH_MOST_VISITS = 1 << 14, /* of one closure, so that a step is bounded */
};

typedef struct moe_match_place {
    uint32_t code;  /* the index of a BYTE instruction; UINT32_MAX: the text is complete */
    uint32_t stack; /* 0: empty */
} moe_match_place;

/* Kinds of characters that grammars rarely tell apart. MANY: all well-formed ones of several bytes.
 */
typedef enum moe_char_kind {
    MOE_CHAR_LOWER,
    MOE_CHAR_UPPER,
    MOE_CHAR_DIGIT,
    MOE_CHAR_SPACE,
    MOE_CHAR_MARK,
    MOE_CHAR_QUOTE,
    MOE_CHAR_BACKSLASH,
    MOE_CHAR_LINE, /* tabs and ends of lines */
    MOE_CHAR_CONTROL,
    MOE_CHAR_MANY,
    MOE_CHAR_KINDS
} moe_char_kind;

typedef struct moe_match_state {
    uint32_t first, n; /* places */
    bool complete;
    uint16_t *next; /* [256]; NULL until a byte was asked for */
    /* The state behind each character of a kind: see moe_matcher_step_kind(). */
    uint16_t behind[MOE_CHAR_KINDS];
} moe_match_state;

typedef struct moe_matcher {
    const moe_grammar *grammar;
    moe_match_state *states;
    uint32_t n_states, states_capacity;
    moe_match_place *places;
    uint32_t n_places, places_capacity;
    struct {
        uint32_t back, below; /* where a call returns to; the stack under it */
    } * stacks;               /* [0] is the empty one */
    uint32_t n_stacks, stacks_capacity;
    uint32_t *state_slots; /* hash tables: number + 1 */
    uint32_t *stack_slots;
    moe_match_place *visits; /* scratch of a closure: a hash table and the list of its entries */
    uint32_t *visit_slots;
    uint32_t n_visits;
    uint64_t n_followed; /* visits of all closures so far */
    moe_match_place *reached;
    uint32_t n_reached;
    bool exhausted;
} moe_matcher;

int moe_matcher_init(moe_matcher *matcher, const moe_grammar *grammar, moe_error *err);
void moe_matcher_free(moe_matcher *matcher);
/* The state before any byte. */
uint32_t moe_matcher_start(moe_matcher *matcher);
/* The state behind the byte; MOE_MATCH_DEAD: there is none. */
uint32_t moe_matcher_step(moe_matcher *matcher, uint32_t state, uint8_t byte);
/* The kind of a byte below 128. */
moe_char_kind moe_char_kind_of(uint8_t byte);
/* Returns the size of the character of several bytes with which the text begins, also if the text
 * ends within it; 0: there is no such character. */
uint32_t moe_char_well_formed(const uint8_t *text, size_t size);
/* Returns the state that every character of the kind leads to. MOE_MATCH_DEAD: no first byte of
 * such a character can be read. MOE_MATCH_MIXED: not all of them lead to the same state. */
uint32_t moe_matcher_step_kind(moe_matcher *matcher, uint32_t state, moe_char_kind kind);
bool moe_matcher_is_complete(const moe_matcher *matcher, uint32_t state);
/* Empties the tables if they are half full. True: it did, and *state has a new number. */
bool moe_matcher_tidy(moe_matcher *matcher, uint32_t *state);

#endif
