/* SPDX-License-Identifier: MIT */
/* "%s" % value, as Python has it: %s %r %d %i %u %x %X %o %e %f %g %c %%, with flags, width and
 * precision, and %(name)s of a dict. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/template/jinja_evaluate.h"

typedef struct formatter {
    jinja_context *c;
    jinja_text format;
    size_t at;
    jinja_value args;
    size_t n_taken;
} formatter;

typedef struct spec {
    char flags[8];
    int width, precision; /* -1: none */
    char kind;
} spec;

__attribute__((noreturn)) static void fail(const formatter *f, const char *what)
{
    jinja_fail(f->c, MOE_ERR_UNSUPPORTED, "a format with %%: %s", what);
}

static char next_char(formatter *f)
{
    if (f->at == f->format.size) {
        fail(f, "it ends too early");
    }
    return f->format.data[f->at++];
}

static jinja_value next_value(formatter *f)
{
    if (f->args.kind == JINJA_TUPLE) {
        if (f->n_taken == f->args.list->n) {
            fail(f, "too few values");
        }
        return f->args.list->items[f->n_taken++];
    }
    if (f->n_taken++ > 0) {
        fail(f, "too few values");
    }
    return f->args;
}

static int read_int(formatter *f)
{
    int number = -1;
    while (f->at < f->format.size && f->format.data[f->at] >= '0' && f->format.data[f->at] <= '9') {
        number = (number < 0 ? 0 : number * 10) + (f->format.data[f->at++] - '0');
        if (number > 1000) {
            fail(f, "a width of more than 1000");
        }
    }
    return number;
}

static void add_padded(jinja_builder *b, jinja_text text, const spec *s)
{
    int64_t pad = s->width - (int64_t)jinja_length(b->c, text);
    bool left = strchr(s->flags, '-') != NULL;
    if (left) {
        jinja_add(b, text);
    }
    for (; pad > 0; pad--) {
        jinja_add_string(b, " ");
    }
    if (!left) {
        jinja_add(b, text);
    }
}

static void add_number(formatter *f, jinja_builder *b, const spec *s, jinja_value value)
{
    char format[32];
    char out[1500];
    bool is_float = strchr("eEfFgG", s->kind) != NULL;
    if (!jinja_is_number(value) || (!is_float && s->kind != 'd' && value.kind == JINJA_FLOAT)) {
        fail(f, "a number is needed");
    }
    int n = snprintf(format, sizeof format, "%%%s*.*", s->flags);
    int precision = s->precision;
    int width = s->width < 0 ? 0 : s->width;
    if (is_float) {
        snprintf(format + n, sizeof format - (size_t)n, "%c", s->kind);
        snprintf(out, sizeof out, format, width, precision, jinja_as_double(value));
    } else {
        double number = jinja_as_double(value);
        if (!(number > -9.2e18 && number < 9.2e18)) {
            fail(f, "a number of more than 64 bits");
        }
        int64_t integer = value.kind == JINJA_FLOAT ? (int64_t)number : jinja_as_integer(value);
        snprintf(format + n, sizeof format - (size_t)n, "%s%c", "ll", s->kind);
        snprintf(out, sizeof out, format, width, precision, (long long)integer);
    }
    jinja_add_string(b, out);
}

static void add_one(formatter *f, jinja_builder *b, const spec *s, jinja_value value)
{
    jinja_builder text = jinja_build(f->c);
    switch (s->kind) {
    case 's':
        jinja_add(&text, jinja_to_text(f->c, value));
        break;
    case 'r':
        jinja_add_repr(&text, value);
        break;
    case 'd':
    case 'x':
    case 'X':
    case 'o':
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        add_number(f, b, s, value);
        return;
    default:
        fail(f, "an unknown kind of value");
    }
    jinja_text built = jinja_built(&text);
    if (s->precision >= 0) {
        built = jinja_part(built, 0, jinja_byte_of(f->c, built, (size_t)s->precision));
    }
    add_padded(b, built, s);
}

static jinja_value named_value(formatter *f)
{
    size_t from = f->at;
    while (next_char(f) != ')') {
    }
    if (f->args.kind != JINJA_DICT) {
        fail(f, "a name needs a dict");
    }
    jinja_text name = jinja_part(f->format, from, f->at - 1);
    jinja_value key = {.kind = JINJA_STRING, .text = &name};
    const jinja_value *found = jinja_dict_get(f->c, f->args.dict, key);
    if (found == NULL) {
        fail(f, "the dict lacks a name");
    }
    return *found;
}

static void add_spec(formatter *f, jinja_builder *b)
{
    spec s = {.width = -1, .precision = -1};
    jinja_value value = {.kind = JINJA_ABSENT};
    char ch = next_char(f);
    if (ch == '(') {
        value = named_value(f);
        ch = next_char(f);
    }
    for (size_t n = 0; strchr("-+ #0", ch) != NULL && ch != '\0'; ch = next_char(f)) {
        if (n < sizeof s.flags - 1 && strchr(s.flags, ch) == NULL) {
            s.flags[n++] = ch;
        }
    }
    f->at--;
    s.width = read_int(f);
    ch = next_char(f);
    if (ch == '.') {
        s.precision = read_int(f);
        s.precision = s.precision < 0 ? 0 : s.precision;
        ch = next_char(f);
    }
    while (ch == 'l' || ch == 'h' || ch == 'L') {
        ch = next_char(f);
    }
    s.kind = ch == 'i' || ch == 'u' ? 'd' : ch;
    if (ch == '%') {
        jinja_add(b, jinja_part(f->format, f->at - 1, f->at));
        return;
    }
    add_one(f, b, &s, value.kind == JINJA_ABSENT ? next_value(f) : value);
}

jinja_text jinja_format(jinja_context *c, jinja_text format, jinja_value args)
{
    formatter f = {.c = c, .format = format, .args = args};
    jinja_builder b = jinja_build(c);
    while (f.at < format.size) {
        size_t next = jinja_find(c, format, jinja_text_of("%", JINJA_DATA), f.at);
        next = next == SIZE_MAX ? format.size : next;
        jinja_add(&b, jinja_part(format, f.at, next));
        f.at = next;
        if (next < format.size) {
            f.at++;
            add_spec(&f, &b);
        }
    }
    bool unused = args.kind == JINJA_TUPLE
                      ? f.n_taken < args.list->n
                      : f.n_taken == 0 && args.kind != JINJA_DICT && args.kind != JINJA_LIST;
    if (unused) {
        fail(&f, "too many values");
    }
    return jinja_built(&b);
}
