/* SPDX-License-Identifier: MIT */
#include "server_tool_literals.h"

#include <stdio.h>
#include <string.h>

#include "cli_json.h"

enum { DEEPEST = 32 };

typedef struct reading {
    const server_tool_format *format;
    server_span text;
    cli_buffer *json;
    unsigned depth;
} reading;

static bool add(reading *r, const char *text)
{
    return cli_buffer_append(r->json, text, strlen(text));
}

bool server_json_escape(cli_buffer *json, server_span text)
{
    static const char named[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    bool stored = true;
    size_t begin = 0;
    for (size_t i = 0; i < text.size && stored; i++) {
        unsigned char c = (unsigned char)text.data[i];
        const char *found = c == 0 ? NULL : strchr(named, c);
        if (c >= 0x20 && found == NULL) {
            continue;
        }
        char escape[8];
        if (found != NULL) {
            snprintf(escape, sizeof escape, "\\%c", letters[found - named]);
        } else {
            snprintf(escape, sizeof escape, "\\u%04x", c);
        }
        stored = (i == begin || cli_buffer_append(json, text.data + begin, i - begin)) &&
                 cli_buffer_append(json, escape, strlen(escape));
        begin = i + 1;
    }
    return stored &&
           (begin >= text.size || cli_buffer_append(json, text.data + begin, text.size - begin));
}

/* ---- Texts ---- */

/* Reads a string in the format's own quotes. Returns the position behind it. */
static size_t read_quoted(reading *r, size_t at)
{
    server_span quote = r->format->quote;
    at += quote.size;
    const char *found = memmem(r->text.data + at, r->text.size - at, quote.data, quote.size);
    size_t end = found == NULL ? r->text.size : (size_t)(found - r->text.data);
    server_span inside = server_span_cut(r->text, at, end);
    inside.size -= found == NULL ? server_begun(inside, quote) : 0;
    if (!server_json_escape(r->json, inside)) {
        return SERVER_TEXT_DIFFERS;
    }
    if (found == NULL) {
        return SERVER_TEXT_SHORT;
    }
    return add(r, "\"") ? end + quote.size : SERVER_TEXT_DIFFERS;
}

/* Whether a quote here ends the string: what follows must be able to follow a value. Models do
 * not escape all quotes within strings. */
static size_t is_ending(reading *r, size_t at)
{
    size_t next = server_skip_space(r->text, at + 1);
    return next == r->text.size ? SERVER_TEXT_SHORT : strchr(",)]}:", r->text.data[next]) != NULL;
}

/* Appends the character that the escape at this position stands for. Returns the position behind
 * the escape. */
static size_t read_escape(reading *r, size_t at)
{
    static const char from[] = "nrtbf'\"\\/", to[] = "\n\r\t\b\f'\"\\/";
    if (at + 1 >= r->text.size) {
        return SERVER_TEXT_SHORT;
    }
    char c = r->text.data[at + 1];
    if (c == 'u' || c == 'x') { /* as in JSON */
        size_t digits = c == 'u' ? 4 : 2;
        char escape[8] = "\\u00";
        if (at + 2 + digits > r->text.size) {
            return SERVER_TEXT_SHORT;
        }
        for (size_t i = 0; i < digits; i++) {
            char digit = r->text.data[at + 2 + i];
            if (strchr("0123456789abcdefABCDEF", digit) == NULL || digit == '\0') {
                return SERVER_TEXT_DIFFERS;
            }
            escape[6 - digits + i] = digit;
        }
        return cli_buffer_append(r->json, escape, 6) ? at + 2 + digits : SERVER_TEXT_DIFFERS;
    }
    const char *found = c == '\0' ? NULL : memchr(from, c, sizeof from - 1);
    bool stored = found != NULL ? server_json_escape(r->json, (server_span){to + (found - from), 1})
                                : server_json_escape(r->json, server_span_cut(r->text, at, at + 2));
    return stored ? at + 2 : SERVER_TEXT_DIFFERS;
}

/* Reads a string in Python's quotes. Returns the position behind it. */
static size_t read_python(reading *r, size_t at)
{
    char quote = r->text.data[at++];
    while (at < r->text.size) {
        size_t end = at;
        while (end < r->text.size && r->text.data[end] != quote && r->text.data[end] != '\\') {
            end++;
        }
        if (!server_json_escape(r->json, server_span_cut(r->text, at, end))) {
            return SERVER_TEXT_DIFFERS;
        }
        at = end;
        if (at < r->text.size && r->text.data[at] == '\\') {
            at = read_escape(r, at);
        } else if (at < r->text.size) {
            size_t ends = is_ending(r, at);
            if (ends == SERVER_TEXT_SHORT) {
                return ends;
            }
            bool stored =
                ends ? add(r, "\"") : server_json_escape(r->json, (server_span){&quote, 1});
            at++;
            if (ends || !stored) {
                return stored ? at : SERVER_TEXT_DIFFERS;
            }
        }
        if (at > r->text.size) {
            return at;
        }
    }
    return SERVER_TEXT_SHORT;
}

static bool is_quote(const reading *r, size_t at)
{
    server_span quote = r->format->quote;
    char c = r->text.data[at];
    return quote.size == 0 ? c == '"' || c == '\''
                           : r->text.size - at >= quote.size &&
                                 memcmp(r->text.data + at, quote.data, quote.size) == 0;
}

static size_t read_text(reading *r, size_t at)
{
    return !add(r, "\"")               ? SERVER_TEXT_DIFFERS
           : r->format->quote.size > 0 ? read_quoted(r, at)
                                       : read_python(r, at);
}

/* ---- Values ---- */

static size_t read_value(reading *r, size_t at);

static bool is_json_number(server_span word)
{
    struct json_object *value = NULL;
    struct json_tokener *tokener = json_tokener_new();
    if (tokener != NULL && (word.data[0] == '-' || (word.data[0] >= '0' && word.data[0] <= '9'))) {
        json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
        (void)json_tokener_parse_ex(tokener, word.data, (int)word.size);
        value = json_tokener_parse_ex(tokener, " ", 1);
    }
    bool is_number =
        json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double);
    json_object_put(value);
    json_tokener_free(tokener);
    return is_number;
}

/* Reads a number, True, None and the like, or, in Gemma's form, a string without quotes. */
static size_t read_word(reading *r, size_t at)
{
    static const char *const words[][2] = {{"True", "true"},   {"true", "true"}, {"False", "false"},
                                           {"false", "false"}, {"None", "null"}, {"null", "null"}};
    size_t end = at;
    while (end < r->text.size && strchr(",)]}:\n", r->text.data[end]) == NULL) {
        end++;
    }
    if (end == r->text.size) {
        return SERVER_TEXT_SHORT;
    }
    server_span word = server_span_trim(server_span_cut(r->text, at, end));
    if (word.size == 0) {
        return SERVER_TEXT_DIFFERS;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (server_span_is(word, words[i][0])) {
            return add(r, words[i][1]) ? end : SERVER_TEXT_DIFFERS;
        }
    }
    bool stored = is_json_number(word) ? cli_buffer_append(r->json, word.data, word.size)
                  : r->format->quote.size == 0
                      ? false
                      : add(r, "\"") && server_json_escape(r->json, word) && add(r, "\"");
    return stored ? end : SERVER_TEXT_DIFFERS;
}

/* Reads a member's key and the sign behind it. */
static size_t read_key(reading *r, size_t at, const char *assign)
{
    size_t end;
    if (is_quote(r, at)) {
        end = read_text(r, at);
    } else {
        end = server_name_end(r->text, at);
        if (end == r->text.size) {
            return SERVER_TEXT_SHORT;
        }
        if (end == at || !add(r, "\"") ||
            !server_json_escape(r->json, server_span_cut(r->text, at, end)) || !add(r, "\"")) {
            return SERVER_TEXT_DIFFERS;
        }
    }
    return end > r->text.size ? end : server_match(r->text, end, server_span_of(assign), NULL);
}

/* Reads items up to the character `close`; they have keys if `assign` is not NULL. */
static size_t read_items(reading *r, size_t at, char close, const char *assign)
{
    for (bool first = true;; first = false) {
        at = server_skip_space(r->text, at);
        if (at < r->text.size && r->text.data[at] == ',' && !first) {
            at = server_skip_space(r->text, at + 1);
        } else if (at < r->text.size && r->text.data[at] != close && !first) {
            return SERVER_TEXT_DIFFERS;
        }
        if (at == r->text.size) {
            return SERVER_TEXT_SHORT;
        }
        if (r->text.data[at] == close) {
            return at + 1;
        }
        /* The format's quote has several characters, of which only the first have arrived. */
        if (r->format->quote.size > 1 && server_begun(server_span_cut(r->text, at, r->text.size),
                                                      r->format->quote) == r->text.size - at) {
            return SERVER_TEXT_SHORT;
        }
        if (!first && !add(r, ",")) {
            return SERVER_TEXT_DIFFERS;
        }
        if (assign != NULL) {
            at = read_key(r, at, assign);
            if (at > r->text.size || !add(r, ":")) {
                return at > r->text.size ? at : SERVER_TEXT_DIFFERS;
            }
        }
        at = read_value(r, server_skip_space(r->text, at));
        if (at > r->text.size) {
            return at;
        }
    }
}

static size_t read_group(reading *r, size_t at, char close, const char *assign)
{
    bool is_list = assign == NULL;
    if (r->depth == DEEPEST || !add(r, is_list ? "[" : "{")) {
        return SERVER_TEXT_DIFFERS;
    }
    r->depth++;
    size_t end = read_items(r, at, close, assign);
    r->depth--;
    return end > r->text.size || add(r, is_list ? "]" : "}") ? end : SERVER_TEXT_DIFFERS;
}

static size_t read_value(reading *r, size_t at)
{
    if (at == r->text.size) {
        return SERVER_TEXT_SHORT;
    }
    if (r->format->quote.size > 1 && server_begun(server_span_cut(r->text, at, r->text.size),
                                                  r->format->quote) == r->text.size - at) {
        return SERVER_TEXT_SHORT;
    }
    if (is_quote(r, at)) {
        return read_text(r, at);
    }
    switch (r->text.data[at]) {
    case '[':
        return read_group(r, at + 1, ']', NULL);
    case '(':
        return r->format->quote.size > 0 ? SERVER_TEXT_DIFFERS : read_group(r, at + 1, ')', NULL);
    case '{':
        return read_group(r, at + 1, '}', ":");
    default:
        return read_word(r, at);
    }
}

size_t server_literal_arguments(const server_tool_format *format, server_span text, size_t at,
                                cli_buffer *json)
{
    reading r = {format, text, json, 0};
    return read_group(&r, at, format->object_close.data[0], format->quote.size > 0 ? ":" : "=");
}
