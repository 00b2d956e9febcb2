/* SPDX-License-Identifier: MIT */
/* "{} {0:>5} {name!r}".format(...), as in Python: fields by number or by name, !s and !r, and fill,
 * alignment, sign, width, comma, precision and the kinds d x X o b e f g s. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/template/jinja_evaluate.h"

typedef struct braces {
    jinja_context *c;
    jinja_text format;
    size_t at;
    const jinja_args *args;
    size_t n_taken;   /* fields without a number */
    bool has_numbers; /* a field had a number: then all must have one */
    jinja_builder out;
} braces;

typedef struct braces_spec {
    jinja_text fill; /* one character */
    char align;      /* '<', '>', '^', '='; 0: the default of the value's kind */
    char sign;
    bool zeros; /* between the sign and the digits */
    bool comma;
    int64_t width, precision; /* -1: none */
    char kind;                /* 0: the default of the value */
} braces_spec;

__attribute__((noreturn)) static void fail(const braces *b, const char *what)
{
    jinja_fail(b->c, MOE_ERR_UNSUPPORTED, "format(): %s", what);
}

static char peek(const braces *b)
{
    if (b->at == b->format.size) {
        fail(b, "it ends within a field");
    }
    return b->format.data[b->at];
}

static int64_t read_number(braces *b)
{
    int64_t number = -1;
    while (b->at < b->format.size && b->format.data[b->at] >= '0' && b->format.data[b->at] <= '9') {
        number = (number < 0 ? 0 : number * 10) + (b->format.data[b->at++] - '0');
        if (number > 1000) {
            fail(b, "a number of more than 1000");
        }
    }
    return number;
}

static jinja_value by_place(braces *b, int64_t number)
{
    bool numbered = number >= 0;
    if (b->has_numbers != numbered && b->n_taken > 0) {
        fail(b, "fields with and without numbers");
    }
    b->has_numbers = numbered;
    size_t place = numbered ? (size_t)number : b->n_taken;
    b->n_taken++;
    if (place >= b->args->n) {
        fail(b, "too few values");
    }
    return b->args->values[place];
}

static jinja_value read_field(braces *b)
{
    int64_t number = read_number(b);
    size_t from = b->at;
    while (strchr("!:}", peek(b)) == NULL) {
        if (strchr("{.[", peek(b)) != NULL) {
            fail(b, "a field of a value is not supported");
        }
        b->at++;
    }
    size_t size = b->at - from;
    if (size == 0) {
        return by_place(b, number);
    }
    for (size_t i = 0; i < b->args->n_named && number < 0; i++) {
        const char *name = b->args->names[i];
        if (strlen(name) == size && memcmp(name, b->format.data + from, size) == 0) {
            return b->args->named[i];
        }
    }
    fail(b, "there is no value of that name");
}

static bool is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

static braces_spec read_spec(braces *b)
{
    braces_spec s = {.fill = jinja_text_of(" ", JINJA_DATA), .width = -1, .precision = -1};
    uint32_t codepoint;
    (void)peek(b);
    size_t step = jinja_char_at(b->format, b->at, &codepoint);
    if (b->at + step < b->format.size && is_align(b->format.data[b->at + step])) {
        s.fill = jinja_part(b->format, b->at, b->at + step);
        b->at += step;
    }
    if (is_align(peek(b))) {
        s.align = b->format.data[b->at++];
    }
    if (peek(b) == '+' || peek(b) == '-' || peek(b) == ' ') {
        s.sign = b->format.data[b->at++];
    }
    if (peek(b) == '0' && s.align == 0) {
        s.fill = jinja_text_of("0", JINJA_DATA);
        s.zeros = true;
    }
    s.width = read_number(b);
    if (peek(b) == ',') {
        s.comma = true;
        b->at++;
    }
    if (peek(b) == '.') {
        b->at++;
        s.precision = read_number(b);
        if (s.precision < 0) {
            fail(b, "a point without digits");
        }
    }
    if (peek(b) != '}') {
        s.kind = b->format.data[b->at++];
    }
    if (peek(b) != '}') {
        fail(b, "a format that is not supported");
    }
    return s;
}

/* Appends sign and text, with the fill characters that the width requires before, between or
 * behind them. */
static void add_padded(braces *b, const braces_spec *s, jinja_text sign, jinja_text text,
                       char default_align)
{
    char align = s->align != 0 ? s->align : default_align;
    int64_t length = (int64_t)(jinja_length(b->c, sign) + jinja_length(b->c, text));
    int64_t n = s->width > length ? s->width - length : 0;
    int64_t before = align == '<' ? 0 : align == '^' ? n / 2 : n;
    if (align == '=') {
        jinja_add(&b->out, sign);
    }
    for (int64_t i = 0; i < before; i++) {
        jinja_add(&b->out, s->fill);
    }
    if (align != '=') {
        jinja_add(&b->out, sign);
    }
    jinja_add(&b->out, text);
    for (int64_t i = before; i < n; i++) {
        jinja_add(&b->out, s->fill);
    }
}

static void put_commas(char *digits, size_t size)
{
    size_t whole = strspn(digits, "0123456789");
    for (size_t at = whole; at > 3;) {
        at -= 3;
        size_t n = strlen(digits);
        if (n + 1 < size) {
            memmove(digits + at + 1, digits + at, n - at + 1);
            digits[at] = ',';
        }
    }
}

static void add_number(braces *b, const braces_spec *s, bool negative, char *digits, size_t size)
{
    const char *sign = negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
    if (s->comma) {
        if (s->zeros) {
            fail(b, "zeros with commas are not supported");
        }
        put_commas(digits, size);
    }
    add_padded(b, s, jinja_text_of(sign, JINJA_DATA), jinja_text_of(digits, JINJA_DATA),
               s->zeros ? '=' : '>');
}

static void add_integer(braces *b, const braces_spec *s, int64_t number)
{
    char digits[128];
    size_t n = 0;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    unsigned base = s->kind == 'b' ? 2 : s->kind == 'o' ? 8 : 10;
    base = s->kind == 'x' || s->kind == 'X' ? 16 : base;
    if (s->precision >= 0 || (s->comma && base != 10)) {
        fail(b, "a format that integers do not have");
    }
    do {
        digits[n++] = (s->kind == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[rest % base];
        rest /= base;
    } while (rest > 0);
    digits[n] = '\0';
    for (size_t i = 0; i < n / 2; i++) {
        char swapped = digits[i];
        digits[i] = digits[n - 1 - i];
        digits[n - 1 - i] = swapped;
    }
    add_number(b, s, number < 0, digits, sizeof digits);
}

static void add_float(braces *b, const braces_spec *s, double number)
{
    enum { SIZE = 2048 };
    char kinds[8];
    char *text = jinja_alloc(b->c, 1, SIZE);
    bool negative = number < 0 || (number == 0 && 1 / number < 0);
    if (s->kind == 0 && s->precision >= 0) {
        fail(b, "a precision without a kind is not supported");
    }
    if (s->kind == 0) {
        jinja_builder plain = jinja_build(b->c);
        jinja_add_float(&plain, negative ? -number : number);
        snprintf(text, SIZE, "%.*s", (int)plain.size, plain.data);
    } else {
        snprintf(kinds, sizeof kinds, "%%.*%c", s->kind);
        snprintf(text, SIZE, kinds, (int)(s->precision < 0 ? 6 : s->precision),
                 negative ? -number : number);
    }
    add_number(b, s, negative, text, SIZE);
}

static void add_text(braces *b, const braces_spec *s, jinja_text text)
{
    if (s->align == '=' || s->sign != 0 || s->comma) {
        fail(b, "a format that texts do not have");
    }
    if (s->precision >= 0 && (int64_t)jinja_length(b->c, text) > s->precision) {
        text = jinja_part(text, 0, jinja_byte_of(b->c, text, (size_t)s->precision));
    }
    add_padded(b, s, jinja_text_of("", JINJA_DATA), text, '<');
}

static void add_value(braces *b, const braces_spec *s, jinja_value value)
{
    const bool plain = s->width < 0 && s->precision < 0 && s->align == 0 && s->sign == 0 &&
                       !s->comma && s->kind == 0;
    if (plain) {
        jinja_add(&b->out, jinja_to_text(b->c, value));
    } else if (value.kind == JINJA_STRING && (s->kind == 0 || s->kind == 's')) {
        add_text(b, s, *value.text);
    } else if (jinja_is_integer(value) && (s->kind == 0 || strchr("dxXob", s->kind) != NULL)) {
        add_integer(b, s, jinja_as_integer(value));
    } else if (jinja_is_number(value) && (s->kind == 0 || strchr("eEfFgG", s->kind) != NULL)) {
        add_float(b, s, jinja_as_double(value));
    } else {
        fail(b, "a format that the value does not have");
    }
}

static void add_field(braces *b)
{
    braces_spec spec = {.width = -1, .precision = -1};
    jinja_value value = read_field(b);
    if (peek(b) == '!') {
        b->at++;
        char how = peek(b);
        if (how == 'r') {
            jinja_builder shown = jinja_build(b->c);
            jinja_add_repr(&shown, value);
            value = jinja_string(b->c, jinja_built(&shown));
        } else if (how == 's') {
            value = jinja_string(b->c, jinja_to_text(b->c, value));
        } else {
            fail(b, "a conversion that is not supported");
        }
        b->at++;
    }
    if (peek(b) == ':') {
        b->at++;
        spec = read_spec(b);
    }
    if (peek(b) != '}') {
        fail(b, "a field that does not end");
    }
    b->at++;
    add_value(b, &spec, value);
}

jinja_value jinja_format_braces(jinja_context *c, jinja_text format, const jinja_args *args)
{
    braces b = {.c = c, .format = format, .args = args, .out = jinja_build(c)};
    while (b.at < format.size) {
        char here = format.data[b.at];
        if (here != '{' && here != '}') {
            size_t from = b.at;
            while (b.at < format.size && format.data[b.at] != '{' && format.data[b.at] != '}') {
                b.at++;
            }
            jinja_add(&b.out, jinja_part(format, from, b.at));
        } else if (b.at + 1 < format.size && format.data[b.at + 1] == here) {
            jinja_add(&b.out, jinja_part(format, b.at, b.at + 1));
            b.at += 2;
        } else if (here == '}') {
            fail(&b, "a '}' alone");
        } else {
            b.at++;
            jinja_charge(c, 1);
            add_field(&b);
        }
    }
    return jinja_string(c, jinja_built(&b.out));
}
