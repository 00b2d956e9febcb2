/* SPDX-License-Identifier: MIT */
/* Converts the arguments of a call from tags to a JSON object, which grows while the arguments
 * arrive. */
#include "server_tool_tags.h"

#include <string.h>

#include "server_tool_literals.h"

static bool is_text_type(struct json_object *schema)
{
    struct json_object *type = NULL;
    json_object_object_get_ex(schema, "type", &type);
    return json_object_is_type(type, json_type_string) &&
           strcmp(json_object_get_string(type), "string") == 0;
}

/* Whether the value is a text: the word before it says so or, if there is none, the tool's schema.
 */
static bool is_text(struct json_object *schema, server_span word)
{
    static const char *const others[] = {"false", "number", "integer", "boolean",
                                         "null",  "object", "array"};
    bool is_other = false;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        is_other |= server_span_is(word, others[i]);
    }
    return server_span_is(word, "true") || server_span_is(word, "string") ||
           (is_text_type(schema) && !is_other);
}

/* Appends a value as JSON. It is a string if it is a text, or no valid JSON. */
static bool add_value(cli_buffer *out, struct json_object *schema, server_span word,
                      server_span text)
{
    const int plain = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
    server_span trimmed = server_span_trim(text);
    const bool is_string = is_text(schema, word);
    const char *written = is_string                          ? NULL
                          : server_span_is(trimmed, "True")  ? "true"
                          : server_span_is(trimmed, "False") ? "false"
                          : server_span_is(trimmed, "null")  ? "null"
                          : server_span_is(trimmed, "None")  ? "null"
                                                             : NULL;
    struct json_object *value = is_string || written != NULL ? NULL : server_tool_json(trimmed);
    if (value != NULL) {
        written = json_object_to_json_string_ext(value, plain);
    }
    bool stored = written != NULL
                      ? cli_buffer_append(out, written, strlen(written))
                      : cli_buffer_append(out, "\"", 1) && server_json_escape(out, text) &&
                            cli_buffer_append(out, "\"", 1);
    json_object_put(value);
    return stored;
}

/* Returns the literal that closes a value, without white space around it and only up to the place
 * where the argument's key occurs in it. Sets *rest to the part from the key on. */
static server_span closing_of(const server_tool_format *f, server_span *rest)
{
    server_span closing = server_span_trim(f->value_close);
    const char *key = memchr(closing.data, SERVER_TOOL_KEY, closing.size);
    size_t at = key == NULL ? closing.size : (size_t)(key - closing.data);
    *rest = server_span_cut(closing, at, closing.size);
    return server_span_cut(closing, 0, at);
}

/* Reads a value up to value_close, and returns the position behind that. White space that belongs
 * to value_close is not part of the value. If value_close has not arrived, *value is the part
 * that cannot change any more. */
static size_t read_value(const server_tool_format *f, server_span text, size_t at,
                         server_span *value)
{
    server_span rest, closing = closing_of(f, &rest);
    size_t leading = (size_t)(closing.data - f->value_close.data);
    const char *found = memmem(text.data + at, text.size - at, closing.data, closing.size);
    size_t end = found == NULL ? text.size : (size_t)(found - text.data);
    size_t next =
        found == NULL ? SERVER_TEXT_SHORT : server_match(text, end + closing.size, rest, NULL);
    *value = server_span_cut(text, at, end);
    if (found == NULL) {
        size_t whole = server_begun(*value, f->value_close), part = server_begun(*value, closing);
        value->size -= whole > part ? whole : part;
    } else if (value->size >= leading && leading > 0 &&
               memcmp(value->data + value->size - leading, f->value_close.data, leading) == 0) {
        value->size -= leading;
    }
    return next;
}

/* Returns where the literal that opens a value begins. Searches only for the literal's beginning: a
 * tag, or the part before white space (of which the model may write more or less), or the part
 * before the word. */
static size_t find_opening(const server_tool_format *f, server_span text, size_t at)
{
    server_span opening = server_span_trim(f->value_open);
    size_t size = 0;
    while (size < opening.size && opening.data[size] != SERVER_TOOL_WORD &&
           server_skip_space(opening, size) == size &&
           (size == 0 || opening.data[size - 1] != '>')) {
        size++;
    }
    const char *found = memmem(text.data + at, text.size - at, opening.data, size);
    return found == NULL ? SERVER_TEXT_SHORT : (size_t)(found - text.data);
}

/* What templates that write a key as an attribute (key="KEY" type="TYPE") replace in it. */
static const char *const escapes[][2] = {{"\"", "&quot;"}, {"&", "&amp;"}};

static bool replace(const server_tool_format *f, server_span key, size_t from, cli_buffer *out)
{
    const bool is_attribute =
        memchr(f->value_open.data, SERVER_TOOL_TYPE, f->value_open.size) != NULL;
    bool stored = true;
    for (size_t at = 0; at < key.size && stored;) {
        const char *text = key.data + at;
        size_t step = 1, size = 1;
        for (size_t i = 0; i < 2 && is_attribute; i++) {
            const size_t n = strlen(escapes[i][from]);
            if (key.size - at >= n && memcmp(key.data + at, escapes[i][from], n) == 0) {
                text = escapes[i][1 - from];
                size = strlen(text);
                step = n;
                break;
            }
        }
        stored = cli_buffer_append(out, text, size);
        at += step;
    }
    return stored;
}

bool server_write_key(const server_tool_format *f, server_span key, cli_buffer *out)
{
    return replace(f, key, 0, out);
}

bool server_read_key(const server_tool_format *f, server_span key, cli_buffer *out)
{
    return replace(f, key, 1, out);
}

/* Reads the argument whose key begins here, and appends it to the call's arguments. */
static size_t read_argument(const server_tool_source *r, server_span text, size_t at,
                            server_tool_call *call)
{
    const server_tool_format *f = r->format;
    server_span tool = {call->name.data, call->name.size}, word = {"", 0}, value = {"", 0};
    size_t opened = find_opening(f, text, at);
    if (opened > text.size) {
        return opened;
    }
    server_span key = server_span_trim(server_span_cut(text, at, opened));
    at = server_match(text, opened, f->value_open, &word);
    if (at > text.size || key.size == 0 || key.size > 255) {
        return at == SERVER_TEXT_SHORT ? at : SERVER_TEXT_DIFFERS;
    }
    cli_buffer *out = &call->arguments, plain = {NULL, 0, 0};
    bool stored = server_read_key(f, key, &plain);
    key = (server_span){plain.data, plain.size};
    struct json_object *schema = stored ? server_tool_property(r->tools, tool, key) : NULL;
    stored = stored && cli_buffer_append(out, out->size == 0 ? "{\"" : ",\"", 2) &&
             server_json_escape(out, key) && cli_buffer_append(out, "\":", 2);
    cli_buffer_free(&plain);
    if (!stored) {
        return SERVER_TEXT_DIFFERS;
    }
    size_t end = read_value(f, text, at, &value);
    if (end == SERVER_TEXT_SHORT && is_text(schema, word)) {
        (void)(cli_buffer_append(out, "\"", 1) && server_json_escape(out, value));
    }
    return end <= text.size && !add_value(out, schema, word, value) ? SERVER_TEXT_DIFFERS : end;
}

/* Matches the literal that opens a key, and returns the position behind it. The literal that
 * closes the call may begin in the same way, but has a slash where the key would be. */
static size_t match_key(const server_tool_format *f, server_span text, size_t at)
{
    size_t next = server_match(text, at, f->key_open, NULL);
    return next == text.size                            ? SERVER_TEXT_SHORT
           : next < text.size && text.data[next] == '/' ? SERVER_TEXT_DIFFERS
                                                        : next;
}

size_t server_tag_arguments(const server_tool_source *r, server_span text, size_t at,
                            server_tool_call *call)
{
    size_t next = match_key(r->format, text, at);
    while (next <= text.size) {
        at = read_argument(r, text, next, call);
        if (at > text.size) {
            return at;
        }
        next = match_key(r->format, text, at);
    }
    /* The text may end within the beginning of another argument. */
    if (next == SERVER_TEXT_SHORT &&
        server_match(text, at, r->format->call_close, NULL) > text.size) {
        return SERVER_TEXT_SHORT;
    }
    bool none = call->arguments.size == 0;
    return cli_buffer_append(&call->arguments, none ? "{}" : "}", none ? 2 : 1)
               ? at
               : SERVER_TEXT_DIFFERS;
}
