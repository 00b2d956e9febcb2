/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "runtime/template/jinja_json.h"

typedef struct reader {
    jinja_context *c;
    const char *what;
    const char *start, *at, *end;
} reader;

__attribute__((noreturn)) static void fail(const reader *r)
{
    jinja_fail(r->c, MOE_ERR_ARGUMENT, "%.60s: no valid JSON at byte %zu", r->what,
               (size_t)(r->at - r->start));
}

static void skip_space(reader *r)
{
    while (r->at < r->end &&
           (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) {
        r->at++;
    }
}

static bool take(reader *r, char expected)
{
    skip_space(r);
    if (r->at < r->end && *r->at == expected) {
        r->at++;
        return true;
    }
    return false;
}

static bool take_word(reader *r, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) >= n && memcmp(r->at, word, n) == 0) {
        r->at += n;
        return true;
    }
    return false;
}

static uint32_t read_hex(reader *r)
{
    uint32_t u = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        char d = r->at < r->end ? *r->at : ' ';
        if (d >= '0' && d <= '9') {
            u = u << 4 | (uint32_t)(d - '0');
        } else if ((d | 32) >= 'a' && (d | 32) <= 'f') {
            u = u << 4 | (uint32_t)((d | 32) - 'a' + 10);
        } else {
            fail(r);
        }
    }
    return u;
}

static void read_escape(reader *r, jinja_builder *b)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    char kind = r->at < r->end ? *r->at++ : '\0';
    const char *found = kind == '\0' ? NULL : strchr(from, kind);
    if (found != NULL) {
        jinja_add_bytes(b, &to[found - from], 1, JINJA_DATA);
        return;
    }
    if (kind != 'u') {
        fail(r);
    }
    uint32_t u = read_hex(r);
    if (u >= 0xd800 && u < 0xdc00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
        const char *back = r->at;
        r->at += 2;
        uint32_t low = read_hex(r);
        if (low >= 0xdc00 && low < 0xe000) {
            u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
        } else {
            r->at = back;
        }
    }
    if (u >= 0xd800 && u < 0xe000) {
        u = 0xfffd; /* half of a surrogate pair */
    }
    jinja_add_char(b, u, JINJA_DATA);
}

static jinja_value read_string(reader *r)
{
    jinja_builder b = jinja_build(r->c);
    const char *from = r->at;
    for (;;) {
        if (r->at == r->end) {
            fail(r);
        }
        if (*r->at == '"' && b.size == 0) { /* shares the bytes of the text */
            jinja_text text = {.data = from, .size = (size_t)(r->at - from)};
            r->at++;
            return jinja_string(r->c, text);
        }
        if (*r->at == '"' || *r->at == '\\') {
            jinja_add_bytes(&b, from, (size_t)(r->at - from), JINJA_DATA);
            if (*r->at++ == '"') {
                return jinja_string(r->c, jinja_built(&b));
            }
            read_escape(r, &b);
            from = r->at;
            continue;
        }
        r->at++;
    }
}

static jinja_value read_number(reader *r)
{
    char digits[64];
    const char *from = r->at;
    bool is_integer = true;
    while (r->at < r->end && strchr("+-0123456789.eE", *r->at) != NULL && *r->at != '\0') {
        is_integer = is_integer && strchr(".eE", *r->at) == NULL;
        r->at++;
    }
    size_t n = (size_t)(r->at - from);
    if (n == 0 || (n == 1 && *from == '-') || n >= 4096) {
        fail(r);
    }
    int64_t integer = 0;
    bool fits = is_integer;
    for (size_t i = from[0] == '-'; is_integer && i < n; i++) {
        if (from[i] < '0' || from[i] > '9') {
            fail(r);
        }
        fits = fits && !__builtin_mul_overflow(integer, 10, &integer) &&
               !__builtin_sub_overflow(integer, from[i] - '0', &integer);
    }
    if (fits && (from[0] == '-' || integer != INT64_MIN)) {
        return jinja_int(from[0] == '-' ? integer : -integer);
    }
    if (is_integer || n >= sizeof digits) {
        jinja_value big = jinja_string(r->c, (jinja_text){.data = from, .size = n});
        big.kind = JINJA_BIG;
        return big;
    }
    memcpy(digits, from, n);
    digits[n] = '\0';
    char *end;
    double number = strtod(digits, &end);
    if (*end != '\0') {
        fail(r);
    }
    return jinja_float(number);
}

static jinja_value read_value(reader *r);

static jinja_value read_list(reader *r)
{
    jinja_value list = jinja_new_list(r->c, JINJA_LIST);
    if (take(r, ']')) {
        return list;
    }
    do {
        jinja_list_add(r->c, list.list, read_value(r));
    } while (take(r, ','));
    if (!take(r, ']')) {
        fail(r);
    }
    return list;
}

static jinja_value read_dict(reader *r)
{
    jinja_value dict = jinja_new_dict(r->c);
    if (take(r, '}')) {
        return dict;
    }
    do {
        if (!take(r, '"')) {
            fail(r);
        }
        jinja_value key = read_string(r);
        if (!take(r, ':')) {
            fail(r);
        }
        jinja_dict_set(r->c, dict.dict, key, read_value(r));
    } while (take(r, ','));
    if (!take(r, '}')) {
        fail(r);
    }
    return dict;
}

static jinja_value read_value(reader *r)
{
    jinja_value value;
    jinja_enter(r->c);
    skip_space(r);
    if (take(r, '{')) {
        value = read_dict(r);
    } else if (take(r, '[')) {
        value = read_list(r);
    } else if (take(r, '"')) {
        value = read_string(r);
    } else if (take_word(r, "true")) {
        value = jinja_bool(true);
    } else if (take_word(r, "false")) {
        value = jinja_bool(false);
    } else if (take_word(r, "null")) {
        value = jinja_none();
    } else {
        value = read_number(r);
    }
    jinja_leave(r->c);
    return value;
}

jinja_value jinja_read_json(jinja_context *c, const char *what, const char *text, size_t size)
{
    reader r = {.c = c, .what = what, .start = text, .at = text, .end = text + size};
    jinja_value value = read_value(&r);
    skip_space(&r);
    if (r.at != r.end) {
        fail(&r);
    }
    return value;
}

bool jinja_try_json_object(jinja_context *c, const char *text, size_t size, jinja_value *out)
{
    jmp_buf outer;
    moe_error *volatile err = c->err;
    const unsigned depth = c->depth;
    memcpy(&outer, &c->failed, sizeof outer);
    c->err = NULL;
    bool failed = setjmp(c->failed) != 0;
    if (!failed) {
        *out = jinja_read_json(c, "arguments", text, size);
    }
    memcpy(&c->failed, &outer, sizeof outer);
    c->err = err;
    if (failed) {
        c->depth = depth;
        c->status = MOE_OK;
        return false;
    }
    return out->kind == JINJA_DICT;
}
