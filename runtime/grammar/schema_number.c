/* SPDX-License-Identifier: MIT */
/* Writes numbers between two bounds as a grammar. Integers become a few ranges of digits for each
 * length; 7 to 23, for example, becomes
 *   [7-9] | "1" [0-9] | "2" [0-3]
 * Multiples of a number follow the remainder from digit to digit. The digits of fractions are
 * compared with those of the bounds, one by one. */
#include "runtime/grammar/schema_number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/grammar/schema_value.h"

enum { MOST_DIGITS = 18, MOST_FACTOR = 100, MOST_FRACTION = 15 };

#define LARGEST INT64_C(999999999999999999)

/* ---- Digits ---- */

typedef struct digits {
    moe_schema_writer *w;
    moe_schema_piece *out;
    uint32_t factor;                              /* 1: any */
    uint32_t rules[MOST_DIGITS + 1][MOST_FACTOR]; /* number + 1: digits left, remainder */
} digits;

static void add(digits *d, moe_schema_piece *out, const char *text)
{
    moe_schema_add(d->w, out, text);
}

/* Adds n digits that may have any value as long as the number is a multiple of the factor.
 * `remainder` is the remainder of the digits before them. False: no n digits do this. */
static bool add_free(digits *d, moe_schema_piece *out, unsigned n, uint32_t remainder)
{
    char text[32];
    if (n == 0) {
        add(d, out, remainder == 0 ? "\"\"" : "");
        return remainder == 0;
    }
    if (d->factor == 1) {
        snprintf(text, sizeof text, "[0-9]{%u}", n);
        add(d, out, text);
        return true;
    }
    if (d->rules[n][remainder] == 0) {
        char name[16];
        moe_schema_piece rule = {NULL, 0, 0};
        bool any = false;
        for (uint32_t digit = 0; digit < 10; digit++) {
            moe_schema_piece rest = {NULL, 0, 0};
            if (moe_schema_step(d->w, 1) &&
                add_free(d, &rest, n - 1, (remainder * 10 + digit) % d->factor)) {
                snprintf(text, sizeof text, "%s\"%" PRIu32 "\" ", any ? " | " : "", digit);
                add(d, &rule, text);
                moe_schema_add_bytes(d->w, &rule, rest.data, rest.size);
                any = true;
            }
            moe_schema_drop(d->w, &rest);
        }
        if (any) {
            d->rules[n][remainder] = ++d->w->n_rules;
            moe_schema_finish_rule(d->w, &rule, name, d->rules[n][remainder] - 1);
        } else {
            d->rules[n][remainder] = UINT32_MAX;
            moe_schema_drop(d->w, &rule);
        }
    }
    if (d->rules[n][remainder] == UINT32_MAX) {
        return false;
    }
    snprintf(text, sizeof text, "r%" PRIu32, d->rules[n][remainder] - 1);
    add(d, out, text);
    return true;
}

/* Adds numbers with n further digits, whose first digit is from a to b and whose other digits are
 * arbitrary. */
static bool add_span(digits *d, moe_schema_piece *out, char a, char b, unsigned n,
                     uint32_t remainder, bool any)
{
    char text[32];
    if (d->factor == 1 && a <= b) {
        snprintf(text, sizeof text, "%s[%c-%c] ", any ? " | " : "", a, b);
        add(d, out, text);
        (void)add_free(d, out, n, 0);
        return true;
    }
    for (char c = a; c <= b; c++) {
        moe_schema_piece rest = {NULL, 0, 0};
        if (add_free(d, &rest, n, (remainder * 10 + (uint32_t)(c - '0')) % d->factor)) {
            snprintf(text, sizeof text, "%s\"%c\" ", any ? " | " : "", c);
            add(d, out, text);
            moe_schema_add_bytes(d->w, out, rest.data, rest.size);
            any = true;
        }
        moe_schema_drop(d->w, &rest);
    }
    return any;
}

/* Adds the numbers from a to b, two texts of the same length. False: no such number is a multiple
 * of the factor. */
static bool add_between(digits *d, moe_schema_piece *out, const char *a, const char *b,
                        uint32_t remainder)
{
    size_t n = strlen(a);
    const char *zeros = "000000000000000000", *nines = "999999999999999999";
    if (n == 0 || (strspn(a, "0") == n && strspn(b, "9") == n)) {
        return add_free(d, out, (unsigned)n, remainder);
    }
    const struct {
        char digit;
        const char *from, *to;
    } ends[] = {{*a, a + 1, *a == *b ? b + 1 : nines + MOST_DIGITS - (n - 1)},
                {*b, zeros + MOST_DIGITS - (n - 1), b + 1}};
    bool any = false;
    add(d, out, "(");
    for (size_t i = 0; i < (*a == *b ? 1 : 2) && moe_schema_step(d->w, 1); i++) {
        char text[16];
        moe_schema_piece rest = {NULL, 0, 0};
        uint32_t next = (remainder * 10 + (uint32_t)(ends[i].digit - '0')) % d->factor;
        if (add_between(d, &rest, ends[i].from, ends[i].to, next)) {
            snprintf(text, sizeof text, "%s\"%c\" ", any ? " | " : "", ends[i].digit);
            add(d, out, text);
            moe_schema_add_bytes(d->w, out, rest.data, rest.size);
            any = true;
        }
        moe_schema_drop(d->w, &rest);
    }
    any = add_span(d, out, (char)(*a + 1), (char)(*b - 1), (unsigned)n - 1, remainder, any);
    add(d, out, ")");
    return any;
}

/* Adds alternatives for the integers from least to most, with least >= 0. */
static bool add_positive(digits *d, moe_schema_piece *out, int64_t least, int64_t most, bool any)
{
    int64_t from = 0, to = 9;
    while (from <= most && from <= LARGEST && d->w->status == MOE_OK) {
        int64_t a = least > from ? least : from, b = most < to ? most : to;
        if (a <= b) {
            char first[24], last[24];
            moe_schema_piece some = {NULL, 0, 0};
            snprintf(first, sizeof first, "%" PRId64, a);
            snprintf(last, sizeof last, "%" PRId64, b);
            if (add_between(d, &some, first, last, 0)) {
                add(d, out, any ? " | " : "");
                moe_schema_add_bytes(d->w, out, some.data, some.size);
                any = true;
            }
            moe_schema_drop(d->w, &some);
        }
        from = to + 1;
        to = to <= LARGEST / 10 ? to * 10 + 9 : LARGEST;
    }
    return any;
}

/* Adds the integers from least to most that are multiples of factor, as one group. */
static bool add_integers(moe_schema_writer *w, moe_schema_piece *out, int64_t least, int64_t most,
                         uint32_t factor)
{
    digits *d = moe_allowance_grow(w->allowance, NULL, 0, 1, sizeof *d);
    if (d == NULL) {
        moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
        return false;
    }
    *d = (digits){.w = w, .out = out, .factor = factor};
    moe_schema_add(w, out, "(");
    bool any = false;
    if (least < 0) {
        moe_schema_piece some = {NULL, 0, 0};
        if (add_positive(d, &some, most < 0 ? -most : 1, -least, false)) {
            moe_schema_add(w, out, "\"-\" (");
            moe_schema_add_bytes(w, out, some.data, some.size);
            moe_schema_add(w, out, ")");
            any = true;
        }
        moe_schema_drop(w, &some);
    }
    any = most < 0 ? any : add_positive(d, out, least < 0 ? 0 : least, most, any);
    moe_schema_add(w, out, ")");
    free(d);
    moe_allowance_give(w->allowance, sizeof *d);
    return any;
}

/* ---- Bounds ---- */

typedef struct bounds {
    bool has_least, has_most;
    double least, most;
    bool over, under; /* the bound itself is out */
} bounds;

static bounds find_bounds(struct json_object *plain)
{
    struct json_object *least = json_object_object_get(plain, "minimum"),
                       *most = json_object_object_get(plain, "maximum");
    struct json_object *over = json_object_object_get(plain, "exclusiveMinimum");
    struct json_object *under = json_object_object_get(plain, "exclusiveMaximum");
    bounds b = {.has_least = moe_schema_is_number(least), .has_most = moe_schema_is_number(most)};
    b.least = b.has_least ? json_object_get_double(least) : 0;
    b.most = b.has_most ? json_object_get_double(most) : 0;
    if (moe_schema_is_number(over) && (!b.has_least || json_object_get_double(over) >= b.least)) {
        b.least = json_object_get_double(over);
        b.has_least = b.over = true;
    }
    if (moe_schema_is_number(under) && (!b.has_most || json_object_get_double(under) <= b.most)) {
        b.most = json_object_get_double(under);
        b.has_most = b.under = true;
    }
    return b;
}

static bool write_integers(moe_schema_writer *w, const bounds *b, int64_t factor,
                           moe_schema_piece *out)
{
    double least = b->has_least ? ceil(b->least) : -(double)LARGEST;
    double most = b->has_most ? floor(b->most) : (double)LARGEST;
    least += b->over && least == b->least;
    most -= b->under && most == b->most;
    least = least < -(double)LARGEST ? -(double)LARGEST : least;
    most = most > (double)LARGEST ? (double)LARGEST : most;
    if (least > most) {
        return false;
    }
    int64_t from = least <= -(double)LARGEST ? -LARGEST : (int64_t)least;
    int64_t to = most >= (double)LARGEST ? LARGEST : (int64_t)most;
    if (factor > MOST_FACTOR) { /* listed, if they are few */
        int64_t first = from / factor + (from > 0 && from % factor != 0), n = to / factor - first;
        first -= from < 0 && from % factor != 0 && first * factor > from + factor;
        if (n > 1000) {
            moe_schema_note(w, "multipleOf");
            factor = 1;
        } else {
            bool any = false;
            moe_schema_add(w, out, "(");
            for (int64_t k = first; k * factor <= to; k++) {
                char text[48];
                snprintf(text, sizeof text, "%s\"%" PRId64 "\"", any ? " | " : "", k * factor);
                moe_schema_add(w, out, k * factor >= from ? text : "");
                any |= k * factor >= from;
            }
            moe_schema_add(w, out, ")");
            return any;
        }
    }
    return add_integers(w, out, from, to, (uint32_t)factor);
}

/* ---- Fractions ---- */

/* Appends the class "[a-b]". If `any` is true, an alternative stands before it, and a "|" is put
 * between them. */
static void put_digits(moe_schema_writer *w, moe_schema_piece *out, bool any, char a, char b)
{
    char text[64];
    snprintf(text, sizeof text, "%s[%c-%c]", any ? " | " : "", a, b);
    moe_schema_add(w, out, text);
}

/* The digits behind the decimal point of the lower and the upper bound. NULL: there is no such
 * bound. Digits behind the end of the text count as zeros. */
typedef struct fraction {
    const char *low, *high;
    bool over, under; /* not equal to it */
} fraction;

/* Adds the digits of a fraction within the bounds, from one position on. At the first position at
 * least one digit must follow. False: no digits are possible. */
static bool add_digits(moe_schema_writer *w, moe_schema_piece *out, fraction f, bool first)
{
    bool low_done = f.low == NULL || *f.low == '\0'; /* what is left of it is zeros */
    bool over = f.low != NULL && f.over;
    if (f.high != NULL && *f.high == '\0') {
        moe_schema_add(w, out, first ? "\"0\"{1,15}" : "\"0\"{0,15}");
        return low_done && !over && !f.under;
    }
    if (low_done && f.high == NULL) {
        moe_schema_add(w, out, over ? "[0-9]{0,15} [1-9]" : first ? "[0-9]{1,15}" : "[0-9]{0,15}");
        return true;
    }
    const char a = low_done ? '0' : *f.low, b = f.high == NULL ? '9' : *f.high;
    const char *low = low_done ? f.low : f.low + 1, *high = f.high == NULL ? NULL : f.high + 1;
    const struct {
        char digit;
        fraction rest;
    } edges[] = {{a, {low, a == b ? high : NULL, f.over, a == b && f.under}},
                 {b, {NULL, high, false, f.under}}};
    bool any = low_done && !over && !first;
    moe_schema_add(w, out, any ? "(\"\"" : "(");
    for (size_t i = 0; i < (a == b ? 1 : 2) && moe_schema_step(w, 1); i++) {
        moe_schema_piece rest = {NULL, 0, 0};
        if (add_digits(w, &rest, edges[i].rest, false)) {
            put_digits(w, out, any, edges[i].digit, edges[i].digit);
            moe_schema_add(w, out, " ");
            moe_schema_add_bytes(w, out, rest.data, rest.size);
            any = true;
        }
        moe_schema_drop(w, &rest);
    }
    if (b - a > 1) {
        put_digits(w, out, any, (char)(a + 1), (char)(b - 1));
        moe_schema_add(w, out, " [0-9]{0,15}");
        any = true;
    }
    moe_schema_add(w, out, ")");
    return any;
}

/* Splits a bound into its integer part and the digits behind the decimal point. False: the bound is
 * too large. */
static bool split(double value, int64_t *whole, char *rest, size_t size)
{
    char text[64];
    value = fabs(value);
    if (value >= 1e15) {
        return false;
    }
    snprintf(text, sizeof text, "%.15g", value);
    if (strchr(text, 'e') != NULL) {
        snprintf(text, sizeof text, "%.15f", value);
    }
    char *point = strchr(text, '.');
    *whole = strtoll(text, NULL, 10);
    snprintf(rest, size, "%s", point == NULL ? "" : point + 1);
    for (size_t n = strlen(rest); n > 0 && rest[n - 1] == '0'; n--) {
        rest[n - 1] = '\0';
    }
    return true;
}

/* Adds an alternative for numbers with this integer part whose fraction is within the bounds f.
 * `any` says whether an alternative stands before it. Returns whether there is now at least one. */
static bool add_edge(moe_schema_writer *w, moe_schema_piece *out, int64_t whole, fraction f,
                     bool any)
{
    char text[48];
    moe_schema_piece some = {NULL, 0, 0};
    bool alone = (f.low == NULL || (*f.low == '\0' && !f.over)) &&
                 !(f.high != NULL && *f.high == '\0' && f.under);
    bool more = add_digits(w, &some, f, true);
    if (alone || more) {
        snprintf(text, sizeof text, "%s\"%" PRId64 "\" ", any ? " | " : "", whole);
        moe_schema_add(w, out, text);
    }
    if (more) {
        moe_schema_add(w, out, "(\".\" ");
        moe_schema_add_bytes(w, out, some.data, some.size);
        moe_schema_add(w, out, alone ? ")?" : ")");
    }
    moe_schema_drop(w, &some);
    return any || alone || more;
}

/* Adds alternatives for the numbers from least to most, with least >= 0. `any` as in add_edge().
 * Returns whether there is now at least one alternative. */
static bool add_reals(moe_schema_writer *w, moe_schema_piece *out, const bounds *b, bool any)
{
    int64_t from, to = LARGEST;
    char low[32], high[32] = "";
    if (!split(b->least, &from, low, sizeof low) ||
        (b->has_most && !split(b->most, &to, high, sizeof high))) {
        moe_schema_note(w, "a minimum or maximum of this size");
        moe_schema_add(w, out, any ? " | number" : "number");
        return true;
    }
    if (b->has_most && from == to) {
        return add_edge(w, out, from, (fraction){low, high, b->over, b->under}, any);
    }
    any = add_edge(w, out, from, (fraction){low, NULL, b->over, false}, any);
    if (b->has_most) {
        any = add_edge(w, out, to, (fraction){NULL, high, false, b->under}, any);
    }
    moe_schema_piece some = {NULL, 0, 0};
    if (from + 1 <= to - b->has_most && add_integers(w, &some, from + 1, to - b->has_most, 1)) {
        moe_schema_add(w, out, any ? " | " : "");
        moe_schema_add_bytes(w, out, some.data, some.size);
        moe_schema_add(w, out, " (\".\" [0-9]{1,15})?");
        any = true;
    }
    moe_schema_drop(w, &some);
    return any;
}

static bool write_reals(moe_schema_writer *w, const bounds *b, moe_schema_piece *out)
{
    const bool below = b->has_most && b->most < 0, above = b->has_least && b->least >= 0;
    const bounds minus = {.has_most = b->has_least,
                          .least = below ? -b->most : 0,
                          .most = -b->least,
                          .over = below ? b->under : true,
                          .under = b->over};
    const bounds plus = {.has_most = b->has_most,
                         .least = above ? b->least : 0,
                         .most = b->most,
                         .over = above && b->over,
                         .under = b->under};
    moe_schema_piece negative = {NULL, 0, 0};
    if (b->has_least && b->has_most && b->least > b->most) {
        return false;
    }
    bool any = !above && add_reals(w, &negative, &minus, false);
    moe_schema_add(w, out, any ? "(\"-\" (" : "(");
    moe_schema_add_bytes(w, out, any ? negative.data : "", any ? negative.size : 0);
    moe_schema_add(w, out, any ? ")" : "");
    moe_schema_drop(w, &negative);
    any = below ? any : add_reals(w, out, &plus, any);
    moe_schema_add(w, out, ")");
    return any;
}

/* Returns the number of decimals that multiples of the factor have, if the factor is 0.1, 0.01 and
 * so on; 0 for all other factors. */
static unsigned decimals(double factor)
{
    double scale = 1;
    for (unsigned n = 1; n <= 9; n++) {
        scale *= 10;
        if (fabs(factor * scale - 1) < 1e-9) {
            return n;
        }
    }
    return 0;
}

bool moe_schema_write_number(moe_schema_writer *w, struct json_object *plain, bool integer,
                             moe_schema_piece *out)
{
    struct json_object *times = json_object_object_get(plain, "multipleOf");
    double factor = moe_schema_is_number(times) ? json_object_get_double(times) : 0;
    bounds b = find_bounds(plain);
    bool is_bounded = b.has_least || b.has_most;
    bool is_whole = factor >= 1 && factor == floor(factor) && factor < 1e9;
    unsigned n = is_whole || factor <= 0 ? 0 : decimals(factor);
    if (integer && n > 0) {
        factor = 0; /* each integer is a multiple */
    }
    if (!integer && n > 0 && !is_bounded) {
        char text[64];
        snprintf(text, sizeof text, "(\"-\"? (\"0\" | [1-9] [0-9]{0,15}) (\".\" [0-9]{1,%u})?)", n);
        moe_schema_add(w, out, text);
        return true;
    }
    if (factor > 0 && !is_whole) {
        moe_schema_note(w, "multipleOf");
        factor = 0;
    }
    if (integer || is_whole) {
        if (!is_bounded && factor == 0) {
            moe_schema_add(w, out, "integer");
            return true;
        }
        return write_integers(w, &b, factor > 0 ? (int64_t)factor : 1, out);
    }
    if (!is_bounded) {
        moe_schema_add(w, out, "number");
        return true;
    }
    return write_reals(w, &b, out);
}
