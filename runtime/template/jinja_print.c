/* SPDX-License-Identifier: MIT */
/* Values as text: as Python's str() and repr() write them. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "runtime/template/jinja_value.h"

void jinja_add_integer(jinja_builder *b, int64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, number);
    jinja_add_string(b, text);
}

/* The fewest digits that restore the number. The program's locale may use another decimal point, so
 * printf() only supplies the digits and the exponent. */
static int shortest_digits(double number, char digits[24], int *exponent)
{
    char text[48];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, number);
        if (strtod(text, NULL) == number) {
            break;
        }
    }
    int n = 0;
    char *p = text;
    for (; *p != 'e' && *p != '\0'; p++) {
        if (*p >= '0' && *p <= '9' && n < 23) {
            digits[n++] = *p;
        }
    }
    *exponent = *p == 'e' ? (int)strtol(p + 1, NULL, 10) : 0;
    return n;
}

void jinja_add_float(jinja_builder *b, double number)
{
    if (isnan(number) || isinf(number)) {
        jinja_add_string(b, isnan(number) ? "nan" : number < 0 ? "-inf" : "inf");
        return;
    }
    char digits[24];
    int exponent;
    int n = shortest_digits(fabs(number), digits, &exponent);
    if (signbit(number)) {
        jinja_add_string(b, "-");
    }
    if (exponent < -4 || exponent >= 16) {
        char tail[16];
        jinja_add_bytes(b, digits, 1, JINJA_DATA);
        if (n > 1) {
            jinja_add_string(b, ".");
            jinja_add_bytes(b, digits + 1, (size_t)n - 1, JINJA_DATA);
        }
        snprintf(tail, sizeof tail, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        jinja_add_string(b, tail);
        return;
    }
    if (exponent < 0) {
        jinja_add_string(b, "0.");
        for (int i = -1; i > exponent; i--) {
            jinja_add_string(b, "0");
        }
        jinja_add_bytes(b, digits, (size_t)n, JINJA_DATA);
        return;
    }
    for (int i = 0; i < n || i <= exponent + 1; i++) {
        if (i == exponent + 1) {
            jinja_add_string(b, ".");
        }
        jinja_add_bytes(b, i < n ? &digits[i] : "0", 1, JINJA_DATA);
    }
}

static bool is_printable(uint32_t u)
{
    if (u < 0x7f) {
        return u >= ' ';
    }
    switch (utf8proc_category((utf8proc_int32_t)u)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

static void add_string_repr(jinja_builder *b, jinja_text text)
{
    bool has_single = text.size > 0 && memchr(text.data, '\'', text.size) != NULL;
    bool has_double = text.size > 0 && memchr(text.data, '"', text.size) != NULL;
    const char *quote = has_single && !has_double ? "\"" : "'";
    uint32_t u;
    jinja_add_string(b, quote);
    for (size_t at = 0; at < text.size;) {
        size_t n = jinja_char_at(text, at, &u);
        char escaped[16] = "";
        if (u == (unsigned char)quote[0] || u == '\\') {
            snprintf(escaped, sizeof escaped, "\\%c", (char)u);
        } else if (u == '\n' || u == '\r' || u == '\t') {
            snprintf(escaped, sizeof escaped, "\\%c", u == '\n' ? 'n' : u == '\r' ? 'r' : 't');
        } else if (!is_printable(u)) {
            snprintf(escaped, sizeof escaped,
                     u < 0x100     ? "\\x%02x"
                     : u < 0x10000 ? "\\u%04x"
                                   : "\\U%08x",
                     u);
        }
        if (escaped[0] != '\0') {
            jinja_add_string(b, escaped);
        } else {
            jinja_add(b, jinja_part(text, at, at + n));
        }
        at += n;
    }
    jinja_add_string(b, quote);
}

static void add_items(jinja_builder *b, const jinja_list *list, const char *open, const char *close)
{
    jinja_add_string(b, open);
    for (size_t i = 0; i < list->n; i++) {
        jinja_add_string(b, i == 0 ? "" : ", ");
        jinja_add_repr(b, list->items[i]);
    }
    jinja_add_string(b, close);
}

static void add_dict(jinja_builder *b, const jinja_dict *dict)
{
    jinja_add_string(b, "{");
    for (size_t i = 0; i < dict->n; i++) {
        jinja_add_string(b, i == 0 ? "" : ", ");
        jinja_add_repr(b, dict->entries[i].key);
        jinja_add_string(b, ": ");
        jinja_add_repr(b, dict->entries[i].value);
    }
    jinja_add_string(b, "}");
}

void jinja_add_repr(jinja_builder *b, jinja_value value)
{
    jinja_enter(b->c);
    switch (value.kind) {
    case JINJA_UNDEFINED:
        jinja_add_string(b, "Undefined");
        break;
    case JINJA_NONE:
        jinja_add_string(b, "None");
        break;
    case JINJA_BOOL:
        jinja_add_string(b, value.truth ? "True" : "False");
        break;
    case JINJA_INT:
        jinja_add_integer(b, value.integer);
        break;
    case JINJA_FLOAT:
        jinja_add_float(b, value.number);
        break;
    case JINJA_BIG:
        jinja_add(b, *value.text);
        break;
    case JINJA_STRING:
        add_string_repr(b, *value.text);
        break;
    case JINJA_LIST:
        add_items(b, value.list, "[", "]");
        break;
    case JINJA_TUPLE:
        add_items(b, value.list, "(", value.list->n == 1 ? ",)" : ")");
        break;
    case JINJA_DICT:
        add_dict(b, value.dict);
        break;
    default:
        jinja_fail(b->c, MOE_ERR_UNSUPPORTED, "a %s cannot be printed",
                   jinja_kind_name(value.kind));
    }
    jinja_leave(b->c);
}

jinja_text jinja_to_text(jinja_context *c, jinja_value value)
{
    if (value.kind == JINJA_STRING) {
        return *value.text;
    }
    if (value.kind == JINJA_UNDEFINED) {
        return jinja_text_of("", JINJA_DATA);
    }
    if (value.kind == JINJA_DICT && value.dict->source != NULL) {
        return *value.dict->source;
    }
    jinja_builder b = jinja_build(c);
    jinja_add_repr(&b, value);
    return jinja_built(&b);
}
