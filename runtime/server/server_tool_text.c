/* SPDX-License-Identifier: MIT */
#include "server_tool_text.h"

#include <string.h>

server_span server_span_of(const char *text)
{
    return (server_span){text == NULL ? "" : text, text == NULL ? 0 : strlen(text)};
}

server_span server_span_cut(server_span text, size_t from, size_t to)
{
    return to > from ? (server_span){text.data + from, to - from} : (server_span){"", 0};
}

size_t server_span_find(server_span text, size_t from, const char *word)
{
    if (from > text.size || text.data == NULL) {
        return SERVER_TEXT_DIFFERS;
    }
    const char *found = memmem(text.data + from, text.size - from, word, strlen(word));
    return found == NULL ? SERVER_TEXT_DIFFERS : (size_t)(found - text.data);
}

bool server_span_is(server_span text, const char *word)
{
    return text.size == strlen(word) && memcmp(text.data, word, text.size) == 0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

server_span server_span_trim(server_span text)
{
    while (text.size > 0 && is_space(text.data[0])) {
        text.data++;
        text.size--;
    }
    while (text.size > 0 && is_space(text.data[text.size - 1])) {
        text.size--;
    }
    return text;
}

bool server_is_blank(server_span text)
{
    return server_span_trim(text).size == 0;
}

/* ---- The common beginning and end of two texts ---- */

static bool opens(char c)
{
    return c == '<' || c == '[';
}

static bool closes(char c)
{
    return c == '>' || c == ']';
}

size_t server_common_start(server_span a, server_span b)
{
    size_t n = 0;
    while (n < a.size && n < b.size && a.data[n] == b.data[n]) {
        n++;
    }
    if (n == a.size && n == b.size) {
        return n;
    }
    /* The common part must not end within a tag or within a character. */
    for (size_t i = n; i > 0 && !closes(a.data[i - 1]); i--) {
        if (opens(a.data[i - 1])) {
            return i - 1;
        }
    }
    while (n > 0 && n < a.size && ((unsigned char)a.data[n] & 0xC0) == 0x80) {
        n--;
    }
    return n;
}

size_t server_common_end(server_span a, server_span b)
{
    size_t n = 0;
    while (n < a.size && n < b.size && a.data[a.size - 1 - n] == b.data[b.size - 1 - n]) {
        n++;
    }
    static const char sep[] = "<|sep|>";
    const char *shared = a.data + a.size - n;
    if (n >= sizeof sep - 1 && memcmp(shared, sep, sizeof sep - 1) == 0) {
        return n - (sizeof sep - 1);
    }
    for (size_t i = 0; i < n && !opens(shared[i]); i++) {
        if (closes(shared[i])) {
            return n - i - 1;
        }
    }
    while (n > 0 && n < a.size && ((unsigned char)a.data[a.size - n] & 0xC0) == 0x80) {
        n--;
    }
    return n;
}

/* ---- Matching ---- */

size_t server_skip_space(server_span text, size_t at)
{
    while (at < text.size && is_space(text.data[at])) {
        at++;
    }
    return at;
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == '/';
}

size_t server_name_end(server_span text, size_t at)
{
    while (at < text.size && is_name(text.data[at])) {
        at++;
    }
    return at;
}

/* Matches what a special byte of a literal stands for: an id, a word, a key, or a number with or
 * without a colon. The number may be missing. Returns the position behind it. */
static size_t match_special(server_span text, size_t at, char what, server_span *id)
{
    size_t begin = at;
    if (what == SERVER_TOOL_NUMBER) {
        at += at < text.size && text.data[at] == ':';
        while (at > begin && at < text.size && text.data[at] >= '0' && text.data[at] <= '9') {
            at++;
        }
    } else {
        while (at < text.size && (is_name(text.data[at]) || text.data[at] == ':')) {
            at++;
        }
    }
    if (at == text.size) {
        return SERVER_TEXT_SHORT;
    }
    if (id != NULL && what != SERVER_TOOL_INDEX) {
        *id = server_span_cut(text, begin, at);
    }
    return at;
}

size_t server_match(server_span text, size_t at, server_span literal, server_span *id)
{
    size_t last = literal.size;
    while (last > 0 && is_space(literal.data[last - 1])) {
        last--;
    }
    for (size_t i = 0; i < last; i++) {
        char c = literal.data[i];
        if (is_space(c)) {
            continue;
        }
        at = server_skip_space(text, at);
        if (at == text.size) {
            return SERVER_TEXT_SHORT;
        }
        if (server_tool_is_mark(c)) {
            at = match_special(text, at, c, id);
            if (at == SERVER_TEXT_SHORT) {
                return at;
            }
        } else if (text.data[at++] != c) {
            return SERVER_TEXT_DIFFERS;
        }
    }
    for (size_t i = last; i < literal.size && at < text.size && text.data[at] == literal.data[i];
         i++) {
        at++;
    }
    return at;
}

size_t server_begun(server_span text, server_span literal)
{
    size_t n = text.size + 1 < literal.size ? text.size : literal.size - (literal.size > 0);
    while (n > 0 && memcmp(text.data + text.size - n, literal.data, n) != 0) {
        n--;
    }
    return n;
}

/* ---- JSON ---- */

static size_t string_end(server_span text, size_t at)
{
    for (at++; at < text.size; at++) {
        if (text.data[at] == '\\') {
            at++;
        } else if (text.data[at] == '"') {
            return at + 1;
        }
    }
    return SERVER_TEXT_SHORT;
}

size_t server_json_end(server_span text, size_t at)
{
    size_t depth = 0;
    if (at >= text.size) {
        return SERVER_TEXT_SHORT;
    }
    if (text.data[at] != '{' && text.data[at] != '[' && text.data[at] != '"') {
        return SERVER_TEXT_DIFFERS;
    }
    while (at < text.size) {
        char c = text.data[at];
        if (c == '"') {
            at = string_end(text, at);
            if (at == SERVER_TEXT_SHORT) {
                return at;
            }
        } else {
            depth += c == '{' || c == '[';
            depth -= depth > 0 && (c == '}' || c == ']');
            at++;
        }
        if (depth == 0) {
            return at;
        }
    }
    return SERVER_TEXT_SHORT;
}
