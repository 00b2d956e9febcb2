/* SPDX-License-Identifier: MIT */
#include "runtime/grammar/grammar_matcher.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define STATE_SLOTS (2u * MOE_MATCH_MOST_STATES)
#define STACK_SLOTS (2u * MOE_MATCH_MOST_STACKS)
#define VISIT_SLOTS (2u * MOE_MATCH_MOST_VISITS)
#define COMPLETE    UINT32_MAX

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a * UINT64_C(0x9e3779b97f4a7c15)) ^ (b + UINT64_C(0x2545f4914f6cdd1d));
    x ^= x >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 32);
}

static void empty(moe_matcher *m)
{
    for (uint32_t i = MOE_MATCH_FIRST; i < m->n_states; i++) {
        free(m->states[i].next);
    }
    memset(m->states, 0, m->states_capacity * sizeof *m->states);
    memset(m->state_slots, 0, STATE_SLOTS * sizeof *m->state_slots);
    memset(m->stack_slots, 0, STACK_SLOTS * sizeof *m->stack_slots);
    m->n_states = MOE_MATCH_FIRST;
    m->n_places = 0;
    m->n_stacks = 1;
}

int moe_matcher_init(moe_matcher *m, const moe_grammar *grammar, moe_error *err)
{
    *m = (moe_matcher){
        .grammar = grammar, .states_capacity = 64, .places_capacity = 1024, .stacks_capacity = 256};
    m->states = moe_calloc(m->states_capacity, sizeof *m->states);
    m->places = moe_calloc(m->places_capacity, sizeof *m->places);
    m->stacks = moe_calloc(m->stacks_capacity, sizeof *m->stacks);
    m->state_slots = moe_calloc(STATE_SLOTS, sizeof *m->state_slots);
    m->stack_slots = moe_calloc(STACK_SLOTS, sizeof *m->stack_slots);
    m->visits = moe_calloc(MOE_MATCH_MOST_VISITS, sizeof *m->visits);
    m->visit_slots = moe_calloc(VISIT_SLOTS, sizeof *m->visit_slots);
    m->reached = moe_calloc(MOE_MATCH_MOST_VISITS, sizeof *m->reached);
    if (m->states == NULL || m->places == NULL || m->stacks == NULL || m->state_slots == NULL ||
        m->stack_slots == NULL || m->visits == NULL || m->visit_slots == NULL ||
        m->reached == NULL) {
        moe_matcher_free(m);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to follow a grammar");
    }
    empty(m);
    return MOE_OK;
}

void moe_matcher_free(moe_matcher *m)
{
    for (uint32_t i = MOE_MATCH_FIRST; i < m->n_states; i++) {
        free(m->states[i].next);
    }
    free(m->states);
    free(m->places);
    free(m->stacks);
    free(m->state_slots);
    free(m->stack_slots);
    free(m->visits);
    free(m->visit_slots);
    free(m->reached);
    *m = (moe_matcher){.grammar = NULL};
}

/* Grows an array so that it holds n elements, but never more than `most`. False: n is larger, or
 * memory is short. */
static bool grow(void *array_ptr, uint32_t *capacity, uint32_t n, uint32_t most, size_t size)
{
    void **array = array_ptr;
    if (n <= *capacity) {
        return true;
    }
    uint32_t bigger = *capacity * 2 < n ? n : *capacity * 2;
    void *moved = n <= most ? moe_realloc_array(*array, bigger, size) : NULL;
    if (moved != NULL) {
        *array = moved;
        *capacity = bigger;
    }
    return moved != NULL;
}

/* ---- Stacks ---- */

/* Returns the number of the stack that has the return address `back` on top of the stack `below`.
 * Equal stacks are stored once. 0: the tables are full. */
static uint32_t push(moe_matcher *m, uint32_t back, uint32_t below)
{
    uint32_t at = (uint32_t)mix(back, below) % STACK_SLOTS;
    while (m->stack_slots[at] != 0) {
        uint32_t stack = m->stack_slots[at] - 1;
        if (m->stacks[stack].back == back && m->stacks[stack].below == below) {
            return stack;
        }
        at = (at + 1) % STACK_SLOTS;
    }
    if (!grow(&m->stacks, &m->stacks_capacity, m->n_stacks + 1, MOE_MATCH_MOST_STACKS,
              sizeof *m->stacks)) {
        m->exhausted = true;
        return 0;
    }
    m->stacks[m->n_stacks].back = back;
    m->stacks[m->n_stacks].below = below;
    m->stack_slots[at] = m->n_stacks + 1;
    return m->n_stacks++;
}

/* ---- Closures: following a place through SPLIT, JUMP, CALL and RETURN up to all instructions that
 * read a byte ---- */

static void visit(moe_matcher *m, uint32_t code, uint32_t stack)
{
    uint32_t at = (uint32_t)mix(code, stack) % VISIT_SLOTS;
    while (m->visit_slots[at] != 0) {
        const moe_match_place *seen = &m->visits[m->visit_slots[at] - 1];
        if (seen->code == code && seen->stack == stack) {
            return;
        }
        at = (at + 1) % VISIT_SLOTS;
    }
    if (m->n_visits == MOE_MATCH_MOST_VISITS) {
        m->exhausted = true;
        return;
    }
    m->visits[m->n_visits++] = (moe_match_place){code, stack};
    m->visit_slots[at] = m->n_visits;
}

static void clear_visits(moe_matcher *m)
{
    m->n_followed += m->n_visits;
    for (uint32_t i = 0; i < m->n_visits; i++) {
        uint32_t at = (uint32_t)mix(m->visits[i].code, m->visits[i].stack) % VISIT_SLOTS;
        while (m->visit_slots[at] != 0) {
            m->visit_slots[at] = 0;
            at = (at + 1) % VISIT_SLOTS;
        }
    }
    m->n_visits = 0;
}

/* Follows jumps from this instruction on, and returns the first one that is no jump. */
static uint32_t skip_jumps(const moe_grammar *g, uint32_t at)
{
    while (g->code[at].op == MOE_GRAMMAR_JUMP) {
        at = g->code[at].a;
    }
    return at;
}

static void call(moe_matcher *m, uint32_t at, uint32_t stack)
{
    const moe_grammar *g = m->grammar;
    uint32_t back = skip_jumps(g, at + 1);
    /* A call just before RETURN (a tail call) needs no return address of its own. */
    bool is_last = g->code[back].op == MOE_GRAMMAR_RETURN;
    uint32_t pushed = is_last ? stack : push(m, back, stack);
    if (!m->exhausted) {
        visit(m, g->rules[g->code[at].a].start, pushed);
    }
}

/* Follows all places on the list of visits, without reading. Collects the places that read a byte
 * in m->reached. */
static void close_over(moe_matcher *m)
{
    const moe_grammar *g = m->grammar;
    m->n_reached = 0;
    for (uint32_t i = 0; i < m->n_visits && !m->exhausted; i++) {
        moe_match_place place = m->visits[i];
        if (place.code == COMPLETE) {
            m->reached[m->n_reached++] = place;
            continue;
        }
        const moe_grammar_code *c = &g->code[place.code];
        switch (c->op) {
        case MOE_GRAMMAR_BYTE:
            m->reached[m->n_reached++] = place;
            break;
        case MOE_GRAMMAR_SPLIT:
            visit(m, c->a, place.stack);
            visit(m, c->b, place.stack);
            break;
        case MOE_GRAMMAR_JUMP:
            visit(m, c->a, place.stack);
            break;
        case MOE_GRAMMAR_CALL:
            call(m, place.code, place.stack);
            break;
        default:
            if (place.stack == 0) {
                visit(m, COMPLETE, 0);
            } else {
                visit(m, m->stacks[place.stack].back, m->stacks[place.stack].below);
            }
        }
    }
    clear_visits(m);
}

/* ---- States ---- */

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(moe_match_place));
}

static bool same(const moe_matcher *m, uint32_t state)
{
    return m->states[state].n == m->n_reached &&
           memcmp(m->places + m->states[state].first, m->reached,
                  m->n_reached * sizeof *m->reached) == 0;
}

/* Returns the number of the state whose places are those in m->reached. Creates the state if it is
 * new. */
static uint32_t state_of_reached(moe_matcher *m)
{
    if (m->n_reached == 0 || m->exhausted) {
        return MOE_MATCH_DEAD;
    }
    qsort(m->reached, m->n_reached, sizeof *m->reached, compare);
    uint64_t hash = m->n_reached;
    for (uint32_t i = 0; i < m->n_reached; i++) {
        hash = mix(hash, (uint64_t)m->reached[i].code << 32 | m->reached[i].stack);
    }
    uint32_t at = (uint32_t)hash % STATE_SLOTS;
    while (m->state_slots[at] != 0) {
        if (same(m, m->state_slots[at] - 1)) {
            return m->state_slots[at] - 1;
        }
        at = (at + 1) % STATE_SLOTS;
    }
    uint32_t before = m->states_capacity;
    if (!grow(&m->states, &m->states_capacity, m->n_states + 1, MOE_MATCH_MOST_STATES,
              sizeof *m->states) ||
        !grow(&m->places, &m->places_capacity, m->n_places + m->n_reached, MOE_MATCH_MOST_PLACES,
              sizeof *m->places)) {
        m->exhausted = true;
        return MOE_MATCH_DEAD;
    }
    memset(m->states + before, 0, (m->states_capacity - before) * sizeof *m->states);
    memcpy(m->places + m->n_places, m->reached, m->n_reached * sizeof *m->reached);
    moe_match_state *state = &m->states[m->n_states];
    *state = (moe_match_state){.first = m->n_places, .n = m->n_reached};
    for (uint32_t i = 0; i < m->n_reached; i++) {
        state->complete |= m->reached[i].code == COMPLETE;
    }
    m->n_places += m->n_reached;
    m->state_slots[at] = m->n_states + 1;
    return m->n_states++;
}

uint32_t moe_matcher_start(moe_matcher *m)
{
    visit(m, m->grammar->rules[m->grammar->root].start, 0);
    close_over(m);
    return state_of_reached(m);
}

uint32_t moe_matcher_step(moe_matcher *m, uint32_t state, uint8_t byte)
{
    if (state < MOE_MATCH_FIRST) {
        return MOE_MATCH_DEAD;
    }
    if (m->states[state].next == NULL) {
        m->states[state].next = moe_calloc(256, sizeof *m->states[state].next);
        if (m->states[state].next == NULL) {
            m->exhausted = true;
            return MOE_MATCH_DEAD;
        }
    }
    if (m->states[state].next[byte] != MOE_MATCH_UNKNOWN) {
        return m->states[state].next[byte];
    }
    /* Other bytes that exactly the same places can read lead to the same state. Finds the range
     * around this byte, so that all of it is filled in at once. */
    uint32_t lo = 0, hi = 255;
    for (uint32_t i = 0; i < m->states[state].n; i++) {
        moe_match_place place = m->places[m->states[state].first + i];
        if (place.code == COMPLETE) {
            continue;
        }
        const moe_grammar_code *c = &m->grammar->code[place.code];
        if (byte < c->lo) {
            hi = c->lo - 1u < hi ? c->lo - 1u : hi;
        } else if (byte > c->hi) {
            lo = c->hi + 1u > lo ? c->hi + 1u : lo;
        } else {
            lo = c->lo > lo ? c->lo : lo;
            hi = c->hi < hi ? c->hi : hi;
            visit(m, place.code + 1, place.stack);
        }
    }
    close_over(m);
    uint32_t to = state_of_reached(m);
    for (uint32_t b = lo; b <= hi; b++) {
        m->states[state].next[b] = (uint16_t)to;
    }
    return to;
}

/* ---- Kinds of characters ---- */

moe_char_kind moe_char_kind_of(uint8_t byte)
{
    return byte == '"'                    ? MOE_CHAR_QUOTE
           : byte == '\\'                 ? MOE_CHAR_BACKSLASH
           : byte == ' '                  ? MOE_CHAR_SPACE
           : byte >= '0' && byte <= '9'   ? MOE_CHAR_DIGIT
           : byte >= 'a' && byte <= 'z'   ? MOE_CHAR_LOWER
           : byte >= 'A' && byte <= 'Z'   ? MOE_CHAR_UPPER
           : byte >= '\t' && byte <= '\r' ? MOE_CHAR_LINE
           : byte < ' ' || byte == 0x7f   ? MOE_CHAR_CONTROL
                                          : MOE_CHAR_MARK;
}

/* Merges the target state of one more character into the common target `all`. It is
 * MOE_MATCH_UNKNOWN before the first character, and MOE_MATCH_MIXED as soon as two targets
 * differ. */
static uint32_t join(uint32_t all, uint32_t to)
{
    return all == MOE_MATCH_UNKNOWN || all == to ? to : MOE_MATCH_MIXED;
}

/* Returns the state behind the last n_more bytes of a character, if all such bytes lead to the same
 * state. The next byte is from lo to hi, the others are any continuation bytes. */
static uint32_t step_tails(moe_matcher *m, uint32_t state, uint32_t n_more, uint8_t lo, uint8_t hi)
{
    uint32_t all = MOE_MATCH_UNKNOWN, before = MOE_MATCH_UNKNOWN;
    for (uint32_t byte = lo; byte <= hi; byte++) {
        const uint32_t to = moe_matcher_step(m, state, (uint8_t)byte);
        if (to == before) {
            continue;
        }
        before = to;
        const uint32_t end = to == MOE_MATCH_DEAD ? MOE_MATCH_MIXED
                             : n_more == 1        ? to
                                                  : step_tails(m, to, n_more - 1, 0x80, 0xbf);
        all = join(all, end);
        if (all == MOE_MATCH_MIXED) {
            return all;
        }
    }
    return all;
}

/* Well-formed UTF-8: leading bytes (first to last), the number of bytes that follow, and the range
 * that the second byte must be in. */
static const struct {
    uint8_t first, last, n_more, lo, hi;
} leads[] = {{0xc2, 0xdf, 1, 0x80, 0xbf}, {0xe0, 0xe0, 2, 0xa0, 0xbf}, {0xe1, 0xec, 2, 0x80, 0xbf},
             {0xed, 0xed, 2, 0x80, 0x9f}, {0xee, 0xef, 2, 0x80, 0xbf}, {0xf0, 0xf0, 3, 0x90, 0xbf},
             {0xf1, 0xf3, 3, 0x80, 0xbf}, {0xf4, 0xf4, 3, 0x80, 0x8f}};

enum { N_LEADS = sizeof leads / sizeof leads[0] };

static uint32_t step_many(moe_matcher *m, uint32_t state)
{
    uint32_t all = MOE_MATCH_UNKNOWN;
    for (size_t i = 0; i < N_LEADS; i++) {
        uint32_t before = MOE_MATCH_UNKNOWN;
        for (uint32_t lead = leads[i].first; lead <= leads[i].last; lead++) {
            const uint32_t to = moe_matcher_step(m, state, (uint8_t)lead);
            if (to == before) {
                continue;
            }
            before = to;
            all = join(all, to == MOE_MATCH_DEAD
                                ? to
                                : step_tails(m, to, leads[i].n_more, leads[i].lo, leads[i].hi));
            if (all == MOE_MATCH_MIXED) {
                return all;
            }
        }
    }
    return all;
}

static uint32_t step_ascii(moe_matcher *m, uint32_t state, moe_char_kind kind)
{
    uint32_t all = MOE_MATCH_UNKNOWN;
    for (uint32_t byte = 0; byte < 128; byte++) {
        if (moe_char_kind_of((uint8_t)byte) != kind) {
            continue;
        }
        all = join(all, moe_matcher_step(m, state, (uint8_t)byte));
        if (all == MOE_MATCH_MIXED) {
            return all;
        }
    }
    return all;
}

uint32_t moe_matcher_step_kind(moe_matcher *m, uint32_t state, moe_char_kind kind)
{
    if (state < MOE_MATCH_FIRST) {
        return MOE_MATCH_DEAD;
    }
    if (m->states[state].behind[kind] == MOE_MATCH_UNKNOWN) {
        const uint32_t to =
            kind == MOE_CHAR_MANY ? step_many(m, state) : step_ascii(m, state, kind);
        m->states[state].behind[kind] = (uint16_t)to;
    }
    return m->states[state].behind[kind];
}

uint32_t moe_char_well_formed(const uint8_t *text, size_t size)
{
    size_t i = 0;
    while (i < N_LEADS && (text[0] < leads[i].first || text[0] > leads[i].last)) {
        i++;
    }
    if (i == N_LEADS || (size > 1 && (text[1] < leads[i].lo || text[1] > leads[i].hi))) {
        return 0;
    }
    uint32_t n = size > 1 ? 2 : 1;
    while (n < size && n <= leads[i].n_more && (text[n] & 0xc0) == 0x80) {
        n++;
    }
    return n == size || n == leads[i].n_more + 1u ? n : 0;
}

bool moe_matcher_is_complete(const moe_matcher *m, uint32_t state)
{
    return state >= MOE_MATCH_FIRST && m->states[state].complete;
}

/* ---- Emptying the tables ---- */

/* Copies the return addresses of a stack into an array, the top one first. */
static uint32_t *list_of(const moe_matcher *m, uint32_t stack, uint32_t *n)
{
    *n = 0;
    for (uint32_t s = stack; s != 0; s = m->stacks[s].below) {
        ++*n;
    }
    uint32_t *list = moe_calloc(*n + 1, sizeof *list);
    uint32_t i = 0;
    for (uint32_t s = stack; s != 0 && list != NULL; s = m->stacks[s].below) {
        list[i++] = m->stacks[s].back;
    }
    return list;
}

bool moe_matcher_tidy(moe_matcher *m, uint32_t *state)
{
    if (m->n_states < MOE_MATCH_MOST_STATES / 2 && m->n_places < MOE_MATCH_MOST_PLACES / 2 &&
        m->n_stacks < MOE_MATCH_MOST_STACKS / 2) {
        return false;
    }
    uint32_t n = *state >= MOE_MATCH_FIRST ? m->states[*state].n : 0;
    uint32_t **lists = moe_calloc(n + 1, sizeof *lists);
    uint32_t *sizes = moe_calloc(n + 1, sizeof *sizes);
    bool kept = lists != NULL && sizes != NULL;
    for (uint32_t i = 0; i < n && kept; i++) {
        m->reached[i] = m->places[m->states[*state].first + i];
        lists[i] = list_of(m, m->reached[i].stack, &sizes[i]);
        kept = lists[i] != NULL;
    }
    empty(m);
    for (uint32_t i = 0; i < n && kept; i++) {
        uint32_t stack = 0;
        for (uint32_t k = sizes[i]; k-- > 0;) {
            stack = push(m, lists[i][k], stack);
        }
        m->reached[i].stack = stack;
    }
    m->n_reached = n;
    m->exhausted |= !kept;
    *state = state_of_reached(m);
    for (uint32_t i = 0; i < n && lists != NULL; i++) {
        free(lists[i]);
    }
    free(lists);
    free(sizes);
    return true;
}
