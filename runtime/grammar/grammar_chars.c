/* SPDX-License-Identifier: MIT */
/* Compiles classes of characters to ranges of UTF-8 bytes. A range of characters is cut into pieces
 * that can each be written as one byte range per position. In such a piece, all bytes behind the
 * first position that varies run from 80 to BF. */
#include <stdlib.h>

#include "runtime/grammar/grammar_program.h"

#define LAST_CHAR 0x10ffffu

bool moe_char_set_add(moe_char_set *set, uint32_t lo, uint32_t hi)
{
    if (set->n == sizeof set->ranges / sizeof set->ranges[0]) {
        return false;
    }
    set->ranges[set->n].lo = lo;
    set->ranges[set->n++].hi = hi;
    return true;
}

static int compare(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return x[0] < y[0] ? -1 : x[0] > y[0];
}

bool moe_char_set_close(moe_char_set *set)
{
    moe_char_set out = {.n = 0};
    qsort(set->ranges, set->n, sizeof set->ranges[0], compare);
    uint32_t next = 0; /* the first character behind the ranges so far */
    for (uint32_t i = 0; i < set->n; i++) {
        uint32_t lo = set->ranges[i].lo, hi = set->ranges[i].hi;
        if (set->negated) {
            if (lo > next && !moe_char_set_add(&out, next, lo - 1)) {
                return false;
            }
        } else if (out.n > 0 && lo <= out.ranges[out.n - 1].hi + 1) {
            if (hi > out.ranges[out.n - 1].hi) {
                out.ranges[out.n - 1].hi = hi;
            }
        } else if (!moe_char_set_add(&out, lo, hi)) {
            return false;
        }
        next = hi + 1 > next ? hi + 1 : next;
    }
    if (set->negated && next <= LAST_CHAR && !moe_char_set_add(&out, next, LAST_CHAR)) {
        return false;
    }
    *set = out;
    return true;
}

static uint32_t encode(uint32_t c, uint8_t *out)
{
    static const uint8_t leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    uint32_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (n == 1) {
        out[0] = (uint8_t)c;
        return 1;
    }
    for (uint32_t i = n; i-- > 1;) {
        out[i] = (uint8_t)(0x80 | (c & 0x3f));
        c >>= 6;
    }
    out[0] = (uint8_t)(leads[n] | c);
    return n;
}

bool moe_grammar_emit_char(moe_grammar *g, uint32_t c)
{
    uint8_t bytes[4];
    uint32_t n = encode(c, bytes);
    bool stored = true;
    for (uint32_t i = 0; i < n && stored; i++) {
        stored = moe_grammar_emit(
            g, (moe_grammar_code){.op = MOE_GRAMMAR_BYTE, .lo = bytes[i], .hi = bytes[i]});
    }
    return stored;
}

/* Emits one piece of a class as an alternative: a SPLIT to it and to the next piece, its bytes, and
 * a JUMP to the end of the class. The end is not known yet, so each JUMP holds the position of the
 * JUMP before it (a linked list), and the targets are filled in later. */
static bool emit_piece(moe_grammar *g, uint32_t lo, uint32_t hi, uint32_t *last_jump)
{
    uint8_t first[4], last[4];
    uint32_t n = encode(lo, first);
    (void)encode(hi, last);
    uint32_t at = g->n_code;
    bool stored = moe_grammar_emit(
        g, (moe_grammar_code){.op = MOE_GRAMMAR_SPLIT, .a = at + 1, .b = at + n + 2});
    for (uint32_t i = 0; i < n && stored; i++) {
        stored = moe_grammar_emit(
            g, (moe_grammar_code){.op = MOE_GRAMMAR_BYTE, .lo = first[i], .hi = last[i]});
    }
    stored =
        stored && moe_grammar_emit(g, (moe_grammar_code){.op = MOE_GRAMMAR_JUMP, .a = *last_jump});
    *last_jump = g->n_code - 1;
    return stored;
}

static bool emit_range(moe_grammar *g, uint32_t lo, uint32_t hi, uint32_t *last_jump)
{
    static const uint32_t ends[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, LAST_CHAR};
    if (lo > hi) {
        return true;
    }
    for (uint32_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        if (lo <= ends[i] && hi > ends[i]) {
            return emit_range(g, lo, ends[i], last_jump) &&
                   emit_range(g, ends[i] + 1, hi, last_jump);
        }
    }
    if (lo >= 0xd800 && hi <= 0xdfff) {
        return true; /* surrogates are no characters */
    }
    for (uint32_t bits = 6; bits <= 18 && hi >= 0x80; bits += 6) {
        uint32_t mask = (1u << bits) - 1;
        if ((lo & ~mask) != (hi & ~mask)) {
            if ((lo & mask) != 0) {
                return emit_range(g, lo, lo | mask, last_jump) &&
                       emit_range(g, (lo | mask) + 1, hi, last_jump);
            }
            if ((hi & mask) != mask) {
                return emit_range(g, lo, (hi & ~mask) - 1, last_jump) &&
                       emit_range(g, hi & ~mask, hi, last_jump);
            }
        }
    }
    return emit_piece(g, lo, hi, last_jump);
}

bool moe_grammar_emit_set(moe_grammar *g, const moe_char_set *set)
{
    uint32_t last_jump = UINT32_MAX;
    uint32_t begin = g->n_code;
    bool stored = true;
    for (uint32_t i = 0; i < set->n && stored; i++) {
        stored = emit_range(g, set->ranges[i].lo, set->ranges[i].hi, &last_jump);
    }
    if (!stored || g->n_code == begin) {
        return stored;
    }
    /* No alternative follows the last one, so its SPLIT becomes a JUMP. */
    uint32_t end = g->n_code;
    for (uint32_t jump = last_jump; jump != UINT32_MAX;) {
        uint32_t before = g->code[jump].a;
        g->code[jump].a = end;
        jump = before;
    }
    for (uint32_t i = end; i-- > begin;) {
        if (g->code[i].op == MOE_GRAMMAR_SPLIT) {
            g->code[i] = (moe_grammar_code){.op = MOE_GRAMMAR_JUMP, .a = i + 1};
            break;
        }
    }
    return true;
}
