/* SPDX-License-Identifier: MIT */
/* Writes a regular expression as a grammar of what stands between the quotes of a JSON string.
 * Where a class of the expression contains quotes, backslashes or control characters, the grammar
 * has their JSON escapes. */
#include "runtime/grammar/schema_regex.h"

#include <stdio.h>
#include <stdlib.h>

#include <moe/grammar.h>

#include "runtime/grammar/grammar_matcher.h"

enum { MOST_RANGES = 128, DEEPEST = 32, LAST_CHAR = 0x10ffff, MOST_REPEATS = 2000 };

typedef struct char_set {
    struct {
        uint32_t from, to;
    } ranges[MOST_RANGES];
    size_t n;
    bool overflows;
} char_set;

typedef struct regex {
    moe_schema_writer *w;
    moe_schema_piece *out;
    const char *at;
    unsigned depth;
    bool failed;
} regex;

static void add(regex *r, const char *text)
{
    moe_schema_add(r->w, r->out, text);
}

/* ---- Sets of characters ---- */

static void add_range(char_set *set, uint32_t from, uint32_t to)
{
    if (set->n == MOST_RANGES) {
        set->overflows = true;
    } else {
        set->ranges[set->n].from = from;
        set->ranges[set->n++].to = to;
    }
}

static int compare(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts the ranges and removes overlaps. */
static void tidy(char_set *set)
{
    size_t n = 0;
    qsort(set->ranges, set->n, sizeof set->ranges[0], compare);
    for (size_t i = 0; i < set->n; i++) {
        if (n > 0 && set->ranges[i].from <= set->ranges[n - 1].to + 1) {
            if (set->ranges[i].to > set->ranges[n - 1].to) {
                set->ranges[n - 1].to = set->ranges[i].to;
            }
        } else {
            set->ranges[n++] = set->ranges[i];
        }
    }
    set->n = n;
}

static void invert(char_set *set)
{
    char_set out = {.n = 0, .overflows = set->overflows};
    uint32_t next = 0;
    tidy(set);
    for (size_t i = 0; i < set->n; i++) {
        if (set->ranges[i].from > next) {
            add_range(&out, next, set->ranges[i].from - 1);
        }
        next = set->ranges[i].to + 1;
    }
    if (next <= LAST_CHAR) {
        add_range(&out, next, LAST_CHAR);
    }
    *set = out;
}

static bool holds(const char_set *set, uint32_t c)
{
    for (size_t i = 0; i < set->n; i++) {
        if (c >= set->ranges[i].from && c <= set->ranges[i].to) {
            return true;
        }
    }
    return false;
}

/* Adds the characters of \d, \w or \s, or all others for \D, \W or \S. False: the letter means
 * something else. */
static bool add_shorthand(char_set *set, char letter)
{
    static const uint32_t digits[][2] = {{'0', '9'}};
    static const uint32_t words[][2] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const uint32_t spaces[][2] = {
        {9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    static const struct {
        char letter;
        const uint32_t (*ranges)[2];
        size_t n;
    } sets[] = {{'d', digits, 1}, {'w', words, 4}, {'s', spaces, 10}};
    for (size_t i = 0; i < 3; i++) {
        if ((letter | 0x20) == sets[i].letter) {
            char_set some = {.n = 0};
            for (size_t k = 0; k < sets[i].n; k++) {
                add_range(&some, sets[i].ranges[k][0], sets[i].ranges[k][1]);
            }
            if (letter != sets[i].letter) {
                invert(&some);
            }
            for (size_t k = 0; k < some.n; k++) {
                add_range(set, some.ranges[k].from, some.ranges[k].to);
            }
            return true;
        }
    }
    return false;
}

static void add_class_range(regex *r, uint32_t from, uint32_t to)
{
    char text[32];
    snprintf(text, sizeof text, "\\U%08X-\\U%08X", from, to);
    if (from <= to) {
        add(r, text);
    }
}

/* Writes the set as a class of the grammar, with JSON's escapes for characters that need them. */
static void write_set(regex *r, char_set *set)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    static const uint32_t apart[][2] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0xd800, 0xdfff}};
    char_set plain = {.n = 0};
    tidy(set);
    for (size_t i = 0; i < set->n; i++) {
        uint32_t from = set->ranges[i].from, to = set->ranges[i].to;
        for (size_t k = 0; k < 4 && from <= to; k++) {
            if (apart[k][1] < from || apart[k][0] > to) {
                continue;
            }
            if (apart[k][0] > from) {
                add_range(&plain, from, apart[k][0] - 1);
            }
            from = apart[k][1] + 1;
        }
        if (from <= to) {
            add_range(&plain, from, to);
        }
    }
    bool first = true;
    add(r, "(");
    if (plain.n > 0) {
        add(r, "[");
        for (size_t i = 0; i < plain.n; i++) {
            add_class_range(r, plain.ranges[i].from, plain.ranges[i].to);
        }
        add(r, "]");
        first = false;
    }
    for (size_t i = 0; escaped[i] != '\0'; i++) {
        if (holds(set, (unsigned char)escaped[i])) {
            char text[16];
            snprintf(text, sizeof text, "%s\"\\\\%s%c\"", first ? "" : " | ",
                     letters[i] == '"' || letters[i] == '\\' ? "\\" : "", letters[i]);
            add(r, text);
            first = false;
        }
    }
    r->failed |= first || set->overflows || plain.overflows; /* nothing can be written */
    add(r, ")");
}

/* ---- Characters ---- */

static uint32_t read_hex(regex *r, size_t n)
{
    uint32_t c = 0;
    for (size_t i = 0; i < n; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *found =
            *r->at == '\0'
                ? NULL
                : strchr(digits, *r->at >= 'A' && *r->at <= 'F' ? *r->at | 0x20 : *r->at);
        r->failed |= found == NULL;
        if (r->failed) {
            return 0;
        }
        c = c * 16 + (uint32_t)(found - digits);
        r->at++;
    }
    return c;
}

/* Reads the rest of an escape, behind its backslash, and returns its character. */
static uint32_t read_escape(regex *r)
{
    static const char letters[] = "nrtfv0", values[] = "\n\r\t\f\v\0";
    char c = *r->at++;
    const char *found = c == '\0' ? NULL : strchr(letters, c);
    if (found != NULL && !(c == '0' && *r->at >= '0' && *r->at <= '9')) {
        return (unsigned char)values[found - letters];
    }
    if (c == 'x' || c == 'u') {
        uint32_t value = read_hex(r, c == 'x' ? 2 : 4);
        r->failed |= value >= 0xd800 && value <= 0xdfff;
        return value;
    }
    bool is_letter = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    r->failed |= is_letter || c == '\0';
    r->at -= c == '\0';
    return (unsigned char)c;
}

/* Reads one UTF-8 character of the expression. */
static uint32_t read_char(regex *r)
{
    unsigned char c = (unsigned char)*r->at++;
    unsigned n = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    uint32_t value = n == 0 ? c : c & (0x3fu >> n);
    for (unsigned i = 0; i < n; i++) {
        r->failed |= (*r->at & 0xc0) != 0x80;
        if (r->failed) {
            return 0;
        }
        value = value << 6 | ((unsigned char)*r->at++ & 0x3f);
    }
    return value;
}

/* Reads the rest of a class, behind its opening bracket. */
static void read_class(regex *r, char_set *set)
{
    bool inverted = *r->at == '^';
    r->at += inverted;
    while (*r->at != ']' && !r->failed) {
        if (*r->at == '\0') {
            r->failed = true;
            return;
        }
        if (*r->at == '\\' && add_shorthand(set, r->at[1])) {
            r->at += 2;
            continue;
        }
        bool escaped = *r->at == '\\';
        r->at += escaped;
        uint32_t from = escaped && *r->at == 'b' ? (r->at++, '\b')
                        : escaped                ? read_escape(r)
                                                 : read_char(r);
        uint32_t to = from;
        if (*r->at == '-' && r->at[1] != ']' && r->at[1] != '\0') {
            r->at++;
            escaped = *r->at == '\\';
            r->at += escaped;
            to = escaped ? read_escape(r) : read_char(r);
        }
        r->failed |= to < from;
        add_range(set, from, to);
    }
    r->at += *r->at == ']';
    if (inverted) {
        invert(set);
    }
}

/* ---- Expressions ---- */

static void read_alternatives(regex *r);

static void read_atom(regex *r)
{
    char_set set = {.n = 0};
    char c = *r->at;
    if (c == '(') {
        r->at++;
        if (r->at[0] == '?') {
            bool plain = r->at[1] == ':';
            r->failed |= !plain;
            r->at += plain ? 2 : 1;
        }
        r->failed |= ++r->depth > DEEPEST;
        add(r, "(");
        read_alternatives(r);
        add(r, ")");
        r->depth--;
        r->failed |= *r->at != ')';
        r->at += *r->at == ')';
        return;
    }
    r->at += c != '\0' && (unsigned char)c < 0x80;
    if (c == '[') {
        read_class(r, &set);
    } else if (c == '.') {
        static const uint32_t ends[] = {'\n', '\r', 0x2028, 0x2029};
        for (size_t i = 0; i < 4; i++) {
            add_range(&set, ends[i], ends[i]);
        }
        invert(&set);
    } else if (c == '\\' && add_shorthand(&set, *r->at)) {
        r->at++;
    } else {
        r->failed |= c == '\0' || strchr("^$*+?{}", c) != NULL;
        uint32_t one = c == '\\'                  ? read_escape(r)
                       : (unsigned char)c >= 0x80 ? read_char(r)
                                                  : (unsigned char)c;
        add_range(&set, one, one);
    }
    if (!r->failed) {
        write_set(r, &set);
    }
}

/* Reads a repetition behind an item: * + ? {2} {2,} or {2,5}. A "?" behind it (not greedy) makes no
 * difference here. */
static void read_repeats(regex *r)
{
    char text[48] = "";
    char c = *r->at;
    if (c == '*' || c == '+' || c == '?') {
        r->at++;
        snprintf(text, sizeof text, "%c", c);
    } else if (c == '{') {
        char *end;
        unsigned long least = strtoul(r->at + 1, &end, 10), most = least;
        r->failed |= end == r->at + 1;
        bool open = *end == ',' && end[1] == '}';
        if (*end == ',' && !open) {
            most = strtoul(end + 1, &end, 10);
        }
        end += open;
        r->failed |= *end != '}' || least > MOST_REPEATS || most > MOST_REPEATS || most < least;
        if (r->failed) {
            return;
        }
        r->at = end + 1;
        snprintf(text, sizeof text, open ? "{%lu,}" : "{%lu,%lu}", least, most);
    }
    if (text[0] != '\0') {
        r->at += *r->at == '?';
        add(r, text);
        r->failed |= *r->at != '\0' && strchr("*+?{", *r->at) != NULL;
    }
    add(r, " ");
}

/* Reads one alternative. In an outermost alternative without ^ or $, any text may stand before or
 * behind the match. */
static void read_sequence(regex *r)
{
    bool outer = r->depth == 0;
    bool begins = outer && *r->at == '^';
    bool ends = false;
    r->at += begins;
    add(r, outer && !begins ? "char* " : "\"\" ");
    while (*r->at != '\0' && *r->at != '|' && *r->at != ')' && !r->failed && !ends &&
           moe_schema_step(r->w, 8)) {
        ends = outer && *r->at == '$' && (r->at[1] == '\0' || r->at[1] == '|');
        if (!ends) {
            read_atom(r);
            read_repeats(r);
        }
        r->at += ends;
    }
    add(r, outer && !ends ? "char*" : "");
}

static void read_alternatives(regex *r)
{
    read_sequence(r);
    while (*r->at == '|' && !r->failed && r->w->status == MOE_OK) {
        r->at++;
        add(r, " | ");
        read_sequence(r);
    }
}

bool moe_schema_add_regex(moe_schema_writer *w, moe_schema_piece *out, const char *text)
{
    moe_schema_piece written = {NULL, 0, 0};
    regex r = {.w = w, .out = &written, .at = text};
    /* Most expressions have the form ^(..)$: one group, with ^ and $ around it. */
    read_alternatives(&r);
    bool whole = !r.failed && *r.at == '\0' && w->status == MOE_OK;
    if (whole) {
        moe_schema_add(w, out, "(");
        moe_schema_add_bytes(w, out, written.data, written.size);
        moe_schema_add(w, out, ")");
    }
    moe_schema_drop(w, &written);
    return whole;
}

/* ---- Matching ---- */

static bool follow(const moe_grammar *grammar, const char *text)
{
    moe_matcher m;
    if (moe_matcher_init(&m, grammar, NULL) != MOE_OK) {
        return true;
    }
    uint32_t at = moe_matcher_start(&m);
    for (; *text != '\0' && at != MOE_MATCH_DEAD; text++) {
        (void)moe_matcher_tidy(&m, &at);
        at = moe_matcher_step(&m, at, (unsigned char)*text);
    }
    bool matches = at != MOE_MATCH_DEAD && moe_matcher_is_complete(&m, at);
    moe_matcher_free(&m);
    return matches;
}

bool moe_schema_regex_matches(moe_schema_writer *w, const char *regex_text, const char *text)
{
    moe_schema_piece p = {NULL, 0, 0};
    moe_grammar *grammar = NULL;
    bool matches = true;
    moe_schema_add(w, &p, "char ::= [^\"\\\\\\x00-\\x1F] | \"\\\\\" [\"\\\\bfnrt]\nroot ::= ");
    bool whole = moe_schema_add_regex(w, &p, regex_text);
    struct json_object *quoted = json_object_new_string(text);
    if (whole && quoted != NULL && moe_schema_step(w, 16 * p.size) &&
        moe_grammar_create_within(&grammar, p.data, p.size, w->allowance, NULL) == MOE_OK) {
        size_t size;
        const char *json =
            json_object_to_json_string_length(quoted, JSON_C_TO_STRING_NOSLASHESCAPE, &size);
        char *inside = json == NULL ? NULL : strndup(json + 1, size - 2);
        matches = inside == NULL || follow(grammar, inside);
        free(inside);
        moe_allowance_give(w->allowance, moe_grammar_bytes(grammar));
        moe_grammar_close(&grammar);
    }
    json_object_put(quoted);
    moe_schema_drop(w, &p);
    return matches;
}

/* ---- Formats ---- */

#define DIGITS_28 "(0[1-9]|1\\d|2[0-8])"
#define LEAP      "((\\d\\d(0[48]|[2468][048]|[13579][26]))|(([02468][048]|[13579][26])00))"
#define DATE                                                                                       \
    "((\\d{4}-((0[1-9]|1[0-2])-" DIGITS_28 "|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31))|"      \
    "(" LEAP "-02-29))"
#define TIME  "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?([zZ]|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define PCHAR "([a-zA-Z0-9_.~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
#define OCTET "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"

const char *moe_schema_format(const char *format)
{
    static const char *const formats[][2] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "[tT]" TIME "$"},
        {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
        {"email", "^[a-zA-Z0-9_+-]+(\\.[a-zA-Z0-9_+-]+){0,8}@" LABEL "(\\." LABEL "){1,8}$"},
        {"ipv4", "^" OCTET "(\\." OCTET "){3}$"},
        {"hostname", "^" LABEL "(\\." LABEL "){0,8}$"},
        {"uri",
         "^[a-zA-Z][a-zA-Z0-9+.-]*:(//([a-zA-Z0-9_.~!$&'()*+,;=:-]*@)?[a-zA-Z0-9.-]*(:\\d{0,5})?"
         "(/" PCHAR "*)*|/(" PCHAR "+(/" PCHAR "*)*)?|" PCHAR "+(/" PCHAR "*)*)?"
         "(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?$"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(formats[i][0], format) == 0) {
            return formats[i][1];
        }
    }
    return NULL;
}
