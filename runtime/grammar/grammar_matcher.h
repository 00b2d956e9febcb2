/* SPDX-License-Identifier: MIT */
/* Follows a grammar's program byte by byte, as an automaton that is built while it is used.
 *
 * A state is the set of all places where the grammar may be. A place is an instruction that reads a
 * byte, together with a stack of return addresses. Stacks are linked lists that share their tails,
 * and equal stacks are stored once, so a place is just two numbers. A state is created when it is
 * first reached, and then remembers where each byte leads; most bytes therefore cost one look into
 * a table.
 *
 * The tables are bounded. moe_matcher_tidy() empties them when they are half full. It keeps one
 * state, under a new number; the numbers of all other states become invalid. If a table fills up
 * before that, the matcher is marked exhausted: every byte then leads to MOE_MATCH_DEAD. */
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

/* Kinds of characters. Most grammars treat all characters of a kind alike. MOE_CHAR_MANY stands for
 * all well-formed characters of several bytes. */
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
    /* For each kind, the state behind any character of that kind: see moe_matcher_step_kind(). */
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
/* The state before the first byte. */
uint32_t moe_matcher_start(moe_matcher *matcher);
/* The state behind the byte; MOE_MATCH_DEAD if the grammar does not allow the byte here. */
uint32_t moe_matcher_step(moe_matcher *matcher, uint32_t state, uint8_t byte);
/* The kind of an ASCII character. */
moe_char_kind moe_char_kind_of(uint8_t byte);
/* Returns the size in bytes of the multi-byte UTF-8 character at the beginning of the text. The
 * text may end before the character does. 0: the text begins with no such character. */
uint32_t moe_char_well_formed(const uint8_t *text, size_t size);
/* Returns the state that every character of the kind leads to. MOE_MATCH_DEAD: no first byte of
 * such a character can be read. MOE_MATCH_MIXED: not all of them lead to the same state. */
uint32_t moe_matcher_step_kind(moe_matcher *matcher, uint32_t state, moe_char_kind kind);
bool moe_matcher_is_complete(const moe_matcher *matcher, uint32_t state);
/* Empties the tables if they are at least half full. Returns true if it did; *state then has a new
 * number. */
bool moe_matcher_tidy(moe_matcher *matcher, uint32_t *state);

#endif
