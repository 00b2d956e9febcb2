/* SPDX-License-Identifier: MIT */
/* Compiles the text of a GBNF grammar (llama.cpp's notation) into a program of instructions
 * (grammar_program.h) in one pass over the text. For `item{3}` the reader goes back and reads the
 * item three times. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/grammar/gbnf_text.h"

#define NO_LIMIT UINT32_MAX

/* How much work each part of the text counts for, in steps. A class costs more per range because
 * its ranges are sorted. */
enum { STEPS_OF_RANGE = 8, STEPS_OF_ITEM = 8, STEPS_OF_NAME = 4 };

static int too_large(const moe_gbnf_text *r)
{
    if (r->g->allowance != NULL && r->g->allowance->refused != MOE_OK) {
        return moe_allowance_fail(r->g->allowance, r->err, "the grammar");
    }
    return moe_gbnf_wrong(r, "the grammar is too large (or memory is short): repeat and nest less");
}

static bool is_name(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static int read_literal(moe_gbnf_text *r)
{
    int status = MOE_OK;
    r->at++;
    while (status == MOE_OK && moe_gbnf_peek(r, 0) != '"') {
        uint32_t c = 0;
        if (r->at >= r->size || moe_gbnf_peek(r, 0) == '\n') {
            return moe_gbnf_wrong(r, "a text in quotes has no end");
        }
        status = moe_gbnf_read_char(r, &c);
        if (status == MOE_OK && !(moe_grammar_step(r->g, 1) && moe_grammar_emit_char(r->g, c))) {
            status = too_large(r);
        }
    }
    r->at++;
    return status;
}

static int read_class(moe_gbnf_text *r)
{
    moe_char_set set = {.n = 0};
    r->at++;
    if (moe_gbnf_peek(r, 0) == '^') {
        set.negated = true;
        r->at++;
    }
    while (moe_gbnf_peek(r, 0) != ']') {
        uint32_t lo = 0, hi = 0;
        if (r->at >= r->size || moe_gbnf_peek(r, 0) == '\n') {
            return moe_gbnf_wrong(r, "a class of characters has no end");
        }
        int status =
            moe_grammar_step(r->g, STEPS_OF_RANGE) ? moe_gbnf_read_char(r, &lo) : too_large(r);
        hi = lo;
        if (status == MOE_OK && moe_gbnf_peek(r, 0) == '-' && moe_gbnf_peek(r, 1) != ']') {
            r->at++;
            status = r->at < r->size ? moe_gbnf_read_char(r, &hi)
                                     : moe_gbnf_wrong(r, "a class has no end");
        }
        if (status != MOE_OK) {
            return status;
        }
        if (hi < lo || !moe_char_set_add(&set, lo, hi)) {
            return moe_gbnf_wrong(r, hi < lo ? "a range of characters ends before it begins"
                                             : "a class has more than 256 ranges");
        }
    }
    r->at++;
    if (!moe_char_set_close(&set)) {
        return moe_gbnf_wrong(r, "a class has more than 256 ranges");
    }
    if (set.n == 0) {
        return moe_gbnf_wrong(r, "a class of characters is empty");
    }
    uint32_t code = r->g->n_code;
    if (!moe_grammar_emit_set(r->g, &set)) {
        return too_large(r);
    }
    return r->g->n_code > code ? MOE_OK : moe_gbnf_wrong(r, "a class of characters is empty");
}

/* ---- Rules ---- */

static uint32_t bucket_of(const char *name, size_t size)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    }
    return hash % MOE_GRAMMAR_BUCKETS;
}

static bool grow_rules(moe_grammar *g)
{
    if (g->n_rules < g->rules_capacity) {
        return true;
    }
    if (g->n_rules >= MOE_GRAMMAR_MOST_RULES) {
        return false;
    }
    uint32_t capacity = g->rules_capacity * 2 + 32;
    moe_grammar_rule *bigger =
        moe_allowance_grow(g->allowance, g->rules, g->rules_capacity, capacity, sizeof *bigger);
    if (bigger != NULL) {
        g->bytes += (capacity - g->rules_capacity) * sizeof *bigger;
        g->rules = bigger;
        g->rules_capacity = capacity;
    }
    return bigger != NULL;
}

/* Sets *out to the number of the rule with that name. Creates an undefined rule if there is none
 * yet, because a rule may be used above its definition. */
static int find_rule(moe_gbnf_text *r, const char *name, size_t size, uint32_t *out)
{
    moe_grammar *g = r->g;
    uint32_t bucket = bucket_of(name, size);
    for (uint32_t i = g->buckets[bucket]; i != UINT32_MAX; i = g->rules[i].next) {
        if (!moe_grammar_step(g, STEPS_OF_NAME)) {
            return too_large(r);
        }
        if (g->rules[i].size == size && memcmp(g->rules[i].name, name, size) == 0) {
            *out = i;
            return MOE_OK;
        }
    }
    char *copy = grow_rules(g) && moe_grammar_take(g, size + 1) ? moe_calloc(size + 1, 1) : NULL;
    if (copy == NULL) {
        return too_large(r);
    }
    memcpy(copy, name, size);
    *out = g->n_rules;
    g->rules[g->n_rules] = (moe_grammar_rule){
        .name = copy, .size = (uint32_t)size, .start = UINT32_MAX, .next = g->buckets[bucket]};
    g->buckets[bucket] = g->n_rules++;
    return MOE_OK;
}

static int read_name(moe_gbnf_text *r, uint32_t *out)
{
    size_t begin = r->at;
    while (is_name(moe_gbnf_peek(r, 0))) {
        r->at++;
    }
    if (r->at == begin || r->at - begin > 200) {
        return moe_gbnf_wrong(r, "a rule's name of 1 to 200 letters, digits, - and _ is expected");
    }
    return moe_grammar_step(r->g, r->at - begin) ? find_rule(r, r->text + begin, r->at - begin, out)
                                                 : too_large(r);
}

/* ---- Expressions ---- */

static int read_alternatives(moe_gbnf_text *r, uint32_t depth);

static bool emit_any(moe_grammar *g)
{
    moe_char_set set = {.n = 0, .negated = true};
    return moe_char_set_close(&set) && moe_grammar_emit_set(g, &set);
}

/* <[ID]> */
static int read_token(moe_gbnf_text *r)
{
    uint32_t id = 0;
    r->at += 2;
    for (uint32_t i = 0; moe_gbnf_peek(r, 0) >= '0' && moe_gbnf_peek(r, 0) <= '9' && i < 8; i++) {
        id = id * 10 + (uint32_t)(moe_gbnf_peek(r, 0) - '0');
        r->at++;
    }
    if (moe_gbnf_peek(r, 0) != ']' || moe_gbnf_peek(r, 1) != '>' || id >= 1u << 24) {
        return moe_gbnf_wrong(r, "a token is written <[ID]>, with a number below 16777216");
    }
    r->at += 2;
    const uint8_t bytes[] = {MOE_GRAMMAR_CONTROL, (uint8_t)(id >> 16), (uint8_t)(id >> 8),
                             (uint8_t)id};
    for (uint32_t i = 0; i < 4; i++) {
        if (!moe_grammar_emit(
                r->g, (moe_grammar_code){.op = MOE_GRAMMAR_BYTE, .lo = bytes[i], .hi = bytes[i]})) {
            return too_large(r);
        }
    }
    return MOE_OK;
}

static int read_item(moe_gbnf_text *r, uint32_t depth)
{
    unsigned char c = moe_gbnf_peek(r, 0);
    uint32_t rule;
    if (!moe_grammar_step(r->g, STEPS_OF_ITEM)) {
        return too_large(r);
    }
    if (c == '"') {
        return read_literal(r);
    }
    if (c == '[') {
        return read_class(r);
    }
    if (c == '.') {
        r->at++;
        return emit_any(r->g) ? MOE_OK : too_large(r);
    }
    if (c == '<' && moe_gbnf_peek(r, 1) == '[') {
        return read_token(r);
    }
    if (c == '(') {
        if (depth == MOE_GRAMMAR_MOST_NESTING) {
            return moe_gbnf_wrong(r, "groups are nested more than 64 deep");
        }
        r->at++;
        int status = read_alternatives(r, depth + 1);
        if (status == MOE_OK && moe_gbnf_peek(r, 0) != ')') {
            status = moe_gbnf_wrong(r, "a group has no end");
        }
        r->at++;
        return status;
    }
    int status = read_name(r, &rule);
    if (status == MOE_OK &&
        !moe_grammar_emit(r->g, (moe_grammar_code){.op = MOE_GRAMMAR_CALL, .a = rule})) {
        status = too_large(r);
    }
    return status;
}

/* Reads a repetition operator (`?`, `*`, `+`, `{m,n}`) behind an item, and sets how often the item
 * may come. *found is false if there is no operator. */
static int read_count(moe_gbnf_text *r, uint32_t *least, uint32_t *most, bool *found)
{
    unsigned char c = moe_gbnf_peek(r, 0);
    *found = c == '*' || c == '+' || c == '?' || c == '{';
    *least = c == '+';
    *most = c == '?' ? 1 : NO_LIMIT;
    if (!*found) {
        return MOE_OK;
    }
    r->at++;
    if (c != '{') {
        return MOE_OK;
    }
    uint32_t numbers[2] = {0, NO_LIMIT};
    bool comma = false;
    for (uint32_t i = 0; i < 2; i++) {
        moe_gbnf_skip_space(r, false);
        bool digits = moe_gbnf_peek(r, 0) >= '0' && moe_gbnf_peek(r, 0) <= '9';
        if (digits) {
            numbers[i] = 0;
        }
        while (moe_gbnf_peek(r, 0) >= '0' && moe_gbnf_peek(r, 0) <= '9' && numbers[i] < 1000000) {
            numbers[i] = numbers[i] * 10 + (uint32_t)(moe_gbnf_peek(r, 0) - '0');
            r->at++;
        }
        moe_gbnf_skip_space(r, false);
        if (i == 0 && moe_gbnf_peek(r, 0) == ',') {
            comma = true;
            r->at++;
        } else if (i == 0) {
            numbers[1] = digits ? numbers[0] : NO_LIMIT;
            break;
        }
    }
    *least = numbers[0];
    *most = numbers[1];
    if (moe_gbnf_peek(r, 0) != '}' || (!comma && *most == NO_LIMIT) || *most < *least) {
        return moe_gbnf_wrong(r, "a number of times is written {3}, {2,} or {2,5}");
    }
    r->at++;
    return *least <= MOE_GRAMMAR_MOST_REPEATS &&
                   (*most == NO_LIMIT || *most <= MOE_GRAMMAR_MOST_REPEATS)
               ? MOE_OK
               : moe_gbnf_wrong(r, "more than 2000 repetitions");
}

/* Moves the cursor back to the item's first byte and compiles the item once more. */
static int repeat_item(moe_gbnf_text *r, size_t begin, uint32_t depth)
{
    r->at = begin;
    return read_item(r, depth);
}

/* Compiles item{least,most}: the item `least` times, then optional copies of it, or a loop if there
 * is no upper bound. */
static int emit_repeats(moe_gbnf_text *r, size_t begin, uint32_t depth, uint32_t least,
                        uint32_t most)
{
    moe_grammar *g = r->g;
    size_t end = r->at;
    int status = MOE_OK;
    uint32_t last_split = UINT32_MAX; /* list, linked by b, of splits to the end */
    for (uint32_t i = 0; i < least && status == MOE_OK; i++) {
        status = repeat_item(r, begin, depth);
    }
    uint32_t n_more = most == NO_LIMIT ? 1 : most - least;
    for (uint32_t i = 0; i < n_more && status == MOE_OK; i++) {
        uint32_t at = g->n_code;
        if (!moe_grammar_emit(
                g, (moe_grammar_code){.op = MOE_GRAMMAR_SPLIT, .a = at + 1, .b = last_split})) {
            return too_large(r);
        }
        last_split = at;
        status = repeat_item(r, begin, depth);
        if (status == MOE_OK && most == NO_LIMIT &&
            !moe_grammar_emit(g, (moe_grammar_code){.op = MOE_GRAMMAR_JUMP, .a = at})) {
            return too_large(r);
        }
    }
    while (status == MOE_OK && last_split != UINT32_MAX) {
        uint32_t before = g->code[last_split].b;
        g->code[last_split].b = g->n_code;
        last_split = before;
    }
    r->at = end;
    return status;
}

static int read_sequence(moe_gbnf_text *r, uint32_t depth)
{
    for (;;) {
        moe_gbnf_skip_space(r, depth > 0);
        unsigned char c = moe_gbnf_peek(r, 0);
        if (!moe_grammar_step(r->g, 1)) {
            return too_large(r);
        }
        if (r->at >= r->size || c == '|' || c == ')' || c == '\n' || c == '\r') {
            return MOE_OK;
        }
        size_t begin = r->at;
        uint32_t code = r->g->n_code;
        uint32_t least, most;
        bool found = false;
        int status = read_item(r, depth);
        size_t behind = r->at;
        moe_gbnf_skip_space(r, depth > 0);
        status = status == MOE_OK ? read_count(r, &least, &most, &found) : status;
        if (status == MOE_OK && found) {
            r->g->n_code = code;
            status = emit_repeats(r, begin, depth, least, most);
        } else if (status == MOE_OK) {
            r->at = behind;
        }
        if (status != MOE_OK) {
            return status;
        }
    }
}

/* Whether another alternative follows. Outside brackets it may begin on the next line. */
static bool another_follows(moe_gbnf_text *r, uint32_t depth)
{
    size_t at = r->at;
    moe_gbnf_skip_space(r, true);
    if (moe_gbnf_peek(r, 0) == '|') {
        r->at++;
        moe_gbnf_skip_space(r, true);
        return true;
    }
    r->at = depth > 0 ? r->at : at;
    return false;
}

/* Notes that an alternative begins at the current end of the code. */
static bool add_start(moe_gbnf_text *r)
{
    if (r->n_starts == r->starts_capacity) {
        size_t capacity = 2 * r->starts_capacity + 64;
        uint32_t *bigger = moe_allowance_grow(r->g->allowance, r->starts, r->starts_capacity,
                                              capacity, sizeof *bigger);
        if (bigger == NULL) {
            return false;
        }
        r->starts = bigger;
        r->starts_capacity = capacity;
    }
    r->starts[r->n_starts++] = r->g->n_code;
    return true;
}

static int read_alternatives(moe_gbnf_text *r, uint32_t depth)
{
    const size_t first = r->n_starts;
    moe_gbnf_skip_space(r, true);
    do {
        MOE_TRY(add_start(r) ? read_sequence(r, depth) : too_large(r));
    } while (another_follows(r, depth));
    const size_t n = r->n_starts - first;
    r->n_starts = first;
    return n == 1 || moe_grammar_join_alternatives(r->g, r->starts + first, n) ? MOE_OK
                                                                               : too_large(r);
}

static int read_rule(moe_gbnf_text *r)
{
    uint32_t rule;
    int status = read_name(r, &rule);
    moe_gbnf_skip_space(r, false);
    if (status != MOE_OK) {
        return status;
    }
    if (moe_gbnf_peek(r, 0) != ':' || moe_gbnf_peek(r, 1) != ':' || moe_gbnf_peek(r, 2) != '=') {
        return moe_gbnf_wrong(r, "'::=' is expected after a rule's name");
    }
    if (r->g->rules[rule].start != UINT32_MAX) {
        return moe_gbnf_wrong(r, "a rule is defined twice");
    }
    r->at += 3;
    r->g->rules[rule].start = r->g->n_code;
    status = read_alternatives(r, 0);
    moe_gbnf_skip_space(r, false);
    if (status == MOE_OK && r->at < r->size && moe_gbnf_peek(r, 0) != '\n' &&
        moe_gbnf_peek(r, 0) != '\r') {
        status = moe_gbnf_wrong(r, "the end of a rule is expected");
    }
    if (status == MOE_OK && !moe_grammar_emit(r->g, (moe_grammar_code){.op = MOE_GRAMMAR_RETURN})) {
        status = too_large(r);
    }
    return status;
}

static int read_grammar(moe_gbnf_text *r, const char *start)
{
    uint32_t root = 0;
    int status = find_rule(r, "root", 4, &root);
    status = status == MOE_OK ? find_rule(r, start, strlen(start), &r->g->root) : status;
    moe_gbnf_skip_space(r, true);
    while (status == MOE_OK && r->at < r->size) {
        status = read_rule(r);
        moe_gbnf_skip_space(r, true);
    }
    if (status == MOE_OK && r->g->rules[root].start == UINT32_MAX) {
        return moe_fail(r->err, MOE_ERR_ARGUMENT, "grammar: it has no rule 'root'");
    }
    return status == MOE_OK ? moe_grammar_check(r->g, r->err) : status;
}

int moe_grammar_read(moe_grammar **out, const char *text, size_t size, const char *start,
                     moe_allowance *allowance, moe_error *err)
{
    const uint64_t before = moe_allowance_now(allowance);
    *out = NULL;
    const uint64_t own = sizeof(moe_grammar) + size + 1;
    moe_grammar *g = moe_allowance_take(allowance, own) ? moe_calloc(1, sizeof *g) : NULL;
    if (g == NULL) {
        return moe_allowance_fail(allowance, err, "a grammar");
    }
    g->allowance = allowance;
    g->bytes = own;
    atomic_init(&g->references, 1);
    memset(g->buckets, 0xff, sizeof g->buckets);
    g->most_code = MOE_GRAMMAR_MOST_CODE +
                   (uint32_t)(size < MOE_GRAMMAR_MOST_TEXT ? size : MOE_GRAMMAR_MOST_TEXT);
    moe_gbnf_text r = {.text = text, .size = size, .g = g, .err = err};
    int status = read_grammar(&r, start);
    free(r.starts);
    moe_allowance_give(allowance, status == MOE_OK ? r.starts_capacity * sizeof *r.starts : 0);
    g->size = size;
    g->text = status == MOE_OK ? moe_calloc(size + 1, 1) : NULL;
    if (status == MOE_OK && g->text == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory for a grammar");
    }
    if (status != MOE_OK) {
        moe_grammar_close(&g);
        moe_allowance_give(allowance, moe_allowance_now(allowance) - before);
        return status;
    }
    moe_grammar_fit(g);
    g->allowance = NULL;
    memcpy(g->text, text, size);
    *out = g;
    return MOE_OK;
}

int moe_grammar_create(moe_grammar **out, const char *text, size_t size, moe_error *err)
{
    return moe_grammar_create_within(out, text, size, NULL, err);
}

int moe_grammar_create_within(moe_grammar **out, const char *text, size_t size,
                              moe_allowance *allowance, moe_error *err)
{
    if (out != NULL) {
        *out = NULL;
    }
    return out == NULL || text == NULL ? moe_fail_null(err, "moe_grammar_create", "out or text")
                                       : moe_grammar_read(out, text, size, "root", allowance, err);
}
