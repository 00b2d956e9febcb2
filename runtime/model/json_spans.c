/* SPDX-License-Identifier: MIT */
#include "runtime/model/json_spans.h"

#include <stdint.h>
#include <string.h>

static size_t skip_space(moe_string_view text, size_t at)
{
    while (at < text.size && strchr(" \t\r\n", text.data[at]) != NULL && text.data[at] != '\0') {
        at++;
    }
    return at;
}

/* Returns the offset behind the string that begins at `at`; 0 if it does not end. */
static size_t skip_string(moe_string_view text, size_t at)
{
    for (at++; at < text.size; at++) {
        if (text.data[at] == '"') {
            return at + 1;
        }
        at += text.data[at] == '\\';
    }
    return 0;
}

/* Returns the offset behind the value that begins at `at`; 0 if there is no whole value. */
static size_t skip_value(moe_string_view text, size_t at)
{
    size_t depth = 0;
    while (at < text.size) {
        char c = text.data[at];
        if (c == '"') {
            at = skip_string(text, at);
            if (at == 0) {
                return 0;
            }
        } else if (c == '{' || c == '[') {
            depth++;
            at++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) {
                return 0;
            }
            depth--;
            at++;
        } else if (depth == 0) { /* a word such as true, or a number */
            size_t start = at;
            while (at < text.size && strchr(",:]} \t\r\n", text.data[at]) == NULL) {
                at++;
            }
            return at > start ? at : 0;
        } else {
            at++;
        }
        if (depth == 0) {
            return at;
        }
    }
    return 0;
}

static moe_string_view part(moe_string_view text, size_t start, size_t end)
{
    return (moe_string_view){text.data + start, end - start};
}

/* Returns where the next member or element begins, in an object or array whose first character is
 * `open`; 0 after the last. */
static size_t next_item(moe_string_view value, char open, size_t at)
{
    if (value.size == 0 || value.data[0] != open) {
        return 0;
    }
    if (at == 0) {
        at = skip_space(value, 1);
        return at < value.size && value.data[at] != '}' && value.data[at] != ']' ? at : 0;
    }
    at = skip_space(value, at);
    return at < value.size && value.data[at] == ',' ? skip_space(value, at + 1) : 0;
}

bool moe_json_member(moe_string_view object, const char *name, moe_string_view *value)
{
    const size_t n = strlen(name);
    object = part(object, skip_space(object, 0), object.size);
    for (size_t at = 0; (at = next_item(object, '{', at)) != 0;) {
        size_t end = at < object.size && object.data[at] == '"' ? skip_string(object, at) : 0;
        if (end == 0) {
            return false;
        }
        bool found = end - at == n + 2 && memcmp(object.data + at + 1, name, n) == 0;
        size_t colon = skip_space(object, end);
        if (colon >= object.size || object.data[colon] != ':') {
            return false;
        }
        size_t start = skip_space(object, colon + 1);
        at = skip_value(object, start);
        if (at == 0) {
            return false;
        }
        if (found) {
            *value = part(object, start, at);
            return true;
        }
    }
    return false;
}

bool moe_json_element(moe_string_view array, size_t *at, moe_string_view *value)
{
    size_t start = next_item(array, '[', *at);
    size_t end = start != 0 ? skip_value(array, start) : 0;
    if (end == 0) {
        return false;
    }
    *at = end;
    *value = part(array, start, end);
    return true;
}

bool moe_json_is(moe_string_view value, const char *word)
{
    return value.size == strlen(word) && memcmp(value.data, word, value.size) == 0;
}

bool moe_json_is_text(moe_string_view value, const char *text)
{
    return value.size == strlen(text) + 2 && value.data[0] == '"' &&
           memcmp(value.data + 1, text, value.size - 2) == 0;
}

/* Reads the four hexadecimal digits at `at`; UINT32_MAX if there are no such digits. */
static uint32_t read_hex(moe_string_view value, size_t at)
{
    uint32_t number = 0;
    if (at + 4 > value.size) {
        return UINT32_MAX;
    }
    for (size_t i = at; i < at + 4; i++) {
        char c = value.data[i];
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16) {
            return UINT32_MAX;
        }
        number = number * 16 + digit;
    }
    return number;
}

static size_t write_utf8(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t leads[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6) {
        out[i] = (char)(0x80 | (c & 0x3F));
    }
    out[0] = (char)(leads[n] | c);
    return n;
}

/* Decodes "\uXXXX", which may be half of a surrogate pair; returns the bytes read, 0 if it is
 * wrong. */
static size_t read_unicode(moe_string_view value, size_t at, uint32_t *c)
{
    *c = read_hex(value, at + 2);
    if (*c == UINT32_MAX || *c == 0 || (*c >= 0xDC00 && *c < 0xE000)) {
        return 0;
    }
    if (*c < 0xD800 || *c > 0xDBFF) {
        return 6;
    }
    bool pair = at + 8 <= value.size && value.data[at + 6] == '\\' && value.data[at + 7] == 'u';
    uint32_t low = pair ? read_hex(value, at + 8) : 0;
    if (low < 0xDC00 || low > 0xDFFF) {
        return 0;
    }
    *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
    return 12;
}

bool moe_json_text(moe_string_view value, char *out, size_t capacity)
{
    static const char escapes[] = "\"\\/bfnrt";
    static const char meanings[] = "\"\\/\b\f\n\r\t";
    size_t n = 0;
    if (value.size < 2 || value.data[0] != '"') {
        return false;
    }
    for (size_t at = 1; at + 1 < value.size;) {
        if (n + 5 > capacity || value.data[at] == '\0') {
            return false;
        }
        if (value.data[at] != '\\') {
            out[n++] = value.data[at++];
            continue;
        }
        const char *escape = memchr(escapes, value.data[at + 1], sizeof escapes - 1);
        uint32_t c = escape != NULL ? (uint8_t)meanings[escape - escapes] : 0;
        size_t read = escape != NULL              ? 2
                      : value.data[at + 1] == 'u' ? read_unicode(value, at, &c)
                                                  : 0;
        if (read == 0) {
            return false;
        }
        n += write_utf8(c, out + n);
        at += read;
    }
    out[n] = '\0';
    return true;
}
