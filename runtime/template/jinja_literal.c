/* SPDX-License-Identifier: MIT */
#include "runtime/template/jinja_literal.h"

#include <stdlib.h>
#include <string.h>

static unsigned digit_of(char ch)
{
    return ch >= '0' && ch <= '9'   ? (unsigned)(ch - '0')
           : ch >= 'a' && ch <= 'f' ? (unsigned)(ch - 'a') + 10
           : ch >= 'A' && ch <= 'F' ? (unsigned)(ch - 'A') + 10
                                    : 99;
}

static size_t read_code(jinja_context *c, jinja_text text, size_t at, size_t n, jinja_builder *b)
{
    uint32_t u = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned digit = at + i < text.size ? digit_of(text.data[at + i]) : 99;
        if (digit > 15) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "an escape in a string lacks digits");
        }
        u = u << 4 | digit;
    }
    if (u > 0x10ffff || (u >= 0xd800 && u < 0xe000)) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "an escape in a string is no character");
    }
    jinja_add_char(b, u, JINJA_MARKUP);
    return at + n;
}

/* Reads the escape sequence whose first byte behind the backslash is at `at`. Returns the
 * position behind it. */
static size_t read_escape(jinja_context *c, jinja_text text, size_t at, jinja_builder *b)
{
    static const char from[] = "\\'\"abfnrtv";
    static const char to[] = "\\'\"\a\b\f\n\r\t\v";
    char kind = text.data[at++];
    const char *found = strchr(from, kind);
    if (kind == '\0' || kind == '\n') {
        if (kind == '\0') {
            jinja_add_bytes(b, "\\\0", 2, JINJA_MARKUP);
        }
        return at;
    }
    if (found != NULL) {
        jinja_add_bytes(b, &to[found - from], 1, JINJA_MARKUP);
        return at;
    }
    if (kind == 'x' || kind == 'u' || kind == 'U') {
        return read_code(c, text, at, kind == 'x' ? 2 : kind == 'u' ? 4 : 8, b);
    }
    if (kind >= '0' && kind <= '7') {
        uint32_t u = (uint32_t)(kind - '0');
        for (int i = 1; i < 3 && at < text.size && text.data[at] >= '0' && text.data[at] <= '7';
             i++) {
            u = u << 3 | (uint32_t)(text.data[at++] - '0');
        }
        jinja_add_char(b, u, JINJA_MARKUP);
        return at;
    }
    jinja_add_bytes(b, "\\", 1, JINJA_MARKUP);
    return at - 1; /* the character stands for itself */
}

jinja_value jinja_read_string_literal(jinja_context *c, jinja_text source, size_t at, size_t *end)
{
    char quote = source.data[at++];
    size_t close = at;
    bool has_escapes = false;
    while (close < source.size && source.data[close] != quote) {
        bool escape = source.data[close] == '\\';
        has_escapes = has_escapes || escape;
        close += escape ? 2 : 1;
    }
    if (close >= source.size) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "a string has no end");
    }
    *end = close + 1;
    jinja_text text = jinja_part(source, at, close);
    if (!has_escapes) {
        return jinja_string(c, text);
    }
    jinja_builder b = jinja_build(c);
    for (size_t i = 0; i < text.size;) {
        if (text.data[i] == '\\') {
            i = read_escape(c, text, i + 1, &b);
        } else {
            jinja_add_bytes(&b, &text.data[i++], 1, JINJA_MARKUP);
        }
    }
    return jinja_string(c, jinja_built(&b));
}

static size_t skip_digits(jinja_text source, size_t at)
{
    while (at < source.size && ((source.data[at] >= '0' && source.data[at] <= '9') ||
                                (source.data[at] == '_' && at + 1 < source.size &&
                                 digit_of(source.data[at + 1]) < 10))) {
        at++;
    }
    return at;
}

static bool is_digit_at(jinja_text source, size_t at)
{
    return at < source.size && source.data[at] >= '0' && source.data[at] <= '9';
}

static jinja_value read_integer(jinja_context *c, const char *digits, unsigned base)
{
    int64_t number = 0;
    for (const char *p = digits; *p != '\0'; p++) {
        if (__builtin_mul_overflow(number, (int64_t)base, &number) ||
            __builtin_add_overflow(number, (int64_t)digit_of(*p), &number)) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "a number of more than 64 bits");
        }
    }
    return jinja_int(number);
}

jinja_value jinja_read_number_literal(jinja_context *c, jinja_text source, size_t at, bool plain,
                                      size_t *end)
{
    char digits[64];
    size_t from = at;
    unsigned base = 10;
    bool is_float = false;
    char second = at + 1 < source.size ? (char)(source.data[at + 1] | 32) : '\0';
    if (source.data[at] == '0' && (second == 'x' || second == 'o' || second == 'b')) {
        base = second == 'x' ? 16 : second == 'o' ? 8 : 2;
        from = at += 2;
        while (at < source.size && (digit_of(source.data[at]) < base || source.data[at] == '_')) {
            at++;
        }
    } else {
        at = skip_digits(source, at);
        if (!plain && at < source.size && source.data[at] == '.' && is_digit_at(source, at + 1)) {
            is_float = true;
            at = skip_digits(source, at + 1);
        }
        size_t exponent = at + 1;
        if (!plain && at < source.size && (source.data[at] | 32) == 'e') {
            exponent += exponent < source.size &&
                        (source.data[exponent] == '+' || source.data[exponent] == '-');
            if (is_digit_at(source, exponent)) {
                is_float = true;
                at = skip_digits(source, exponent);
            }
        }
    }
    size_t n = 0;
    for (size_t i = from; i < at; i++) {
        if (source.data[i] != '_') {
            if (n == sizeof digits - 1) {
                jinja_fail(c, MOE_ERR_UNSUPPORTED, "a number of more than 64 bits");
            }
            digits[n++] = source.data[i];
        }
    }
    digits[n] = '\0';
    *end = at;
    return is_float ? jinja_float(strtod(digits, NULL)) : read_integer(c, digits, base);
}
