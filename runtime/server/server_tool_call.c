/* SPDX-License-Identifier: MIT */
/* Reads one call of a tool, in the format that was learned. Models do not write white space as
 * their templates do, so none counts between the format's characters. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cli_json.h"
#include "server_tool_call.h"

enum { DEEPEST_JSON = 64 };

/* ---- JSON ---- */

static struct json_object *parse_json(server_span text)
{
    struct json_tokener *tokener = json_tokener_new_ex(DEEPEST_JSON);
    struct json_object *value = NULL;
    text = server_span_trim(text);
    if (tokener != NULL && text.size > 0) {
        json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
        value = json_tokener_parse_ex(tokener, text.data, (int)text.size);
        /* A number may go on: what follows tells its end. */
        if (json_tokener_get_error(tokener) == json_tokener_continue) {
            value = json_tokener_parse_ex(tokener, " ", 1);
        } else if (json_tokener_get_parse_end(tokener) < text.size) {
            json_object_put(value);
            value = NULL;
        }
        if (json_tokener_get_error(tokener) != json_tokener_success) {
            json_object_put(value);
            value = NULL;
        }
    }
    json_tokener_free(tokener);
    return value;
}

/* Keeps the text if it is an object, or a text that holds one. */
static bool take_arguments(server_tool_call *call, server_span text)
{
    struct json_object *value = parse_json(text);
    bool taken = false;
    if (json_object_is_type(value, json_type_string)) {
        server_span inner = {json_object_get_string(value),
                             (size_t)json_object_get_string_len(value)};
        struct json_object *object = parse_json(inner);
        taken = json_object_is_type(object, json_type_object) &&
                cli_buffer_append(&call->arguments, inner.data, inner.size);
        json_object_put(object);
    } else if (json_object_is_type(value, json_type_object)) {
        text = server_span_trim(text);
        taken = cli_buffer_append(&call->arguments, text.data, text.size);
    }
    json_object_put(value);
    return taken;
}

static bool is_key(server_span key, server_span learned, const char *usual, const char *other)
{
    bool same = key.size == learned.size && memcmp(key.data, learned.data, key.size) == 0;
    return same || server_span_is(key, usual) || server_span_is(key, other);
}

/* The place behind a value of any kind within an object. */
static size_t value_end(server_span text, size_t at)
{
    size_t end = server_json_end(text, at);
    if (end == SERVER_TEXT_DIFFERS) {
        end = at;
        while (end < text.size && text.data[end] != ',' && text.data[end] != '}') {
            end++;
        }
    }
    return end;
}

/* Takes name and arguments out of an object. */
static bool take_object(const server_tool_source *r, server_span object, server_tool_call *call)
{
    server_span name = {"", 0}, arguments = {"{}", 2};
    const server_tool_format *f = r->format;
    for (size_t at = server_skip_space(object, 1); at < object.size && object.data[at] == '"';) {
        size_t end = server_json_end(object, at);
        size_t colon = end < object.size ? server_skip_space(object, end) : object.size;
        size_t value = colon < object.size ? server_skip_space(object, colon + 1) : object.size;
        size_t next = value < object.size ? value_end(object, value) : object.size;
        if (next >= object.size || object.data[colon] != ':') {
            return false;
        }
        server_span key = server_span_cut(object, at + 1, end - 1);
        if (is_key(key, f->name_key, "name", "name") && object.data[value] == '"') {
            name = server_span_cut(object, value + 1, next - 1);
        } else if (is_key(key, f->arguments_key, "arguments", "parameters")) {
            arguments = server_span_cut(object, value, next);
        } else if (server_span_is(key, "id") && object.data[value] == '"' &&
                   next - value - 2 < sizeof call->id) {
            memcpy(call->id, object.data + value + 1, next - value - 2);
        }
        at = server_skip_space(object, next);
        at = at < object.size && object.data[at] == ',' ? server_skip_space(object, at + 1) : at;
    }
    bool named = name.size > 0 && server_name_end(name, 0) == name.size;
    if (server_span_is(server_span_trim(arguments), "null")) {
        arguments = server_span_of("{}");
    }
    return named && cli_buffer_append(&call->name, name.data, name.size) &&
           take_arguments(call, arguments);
}

/* ---- Arguments by tags ---- */

struct json_object *server_tool_property(struct json_object *tools, server_span tool,
                                         server_span key)
{
    for (size_t i = 0; tools != NULL && i < json_object_array_length(tools); i++) {
        struct json_object *function = NULL, *name = NULL, *parameters = NULL, *properties = NULL;
        json_object_object_get_ex(json_object_array_get_idx(tools, i), "function", &function);
        json_object_object_get_ex(function, "name", &name);
        const char *text = name == NULL ? "" : json_object_get_string(name);
        if (!server_span_is(tool, text)) {
            continue;
        }
        json_object_object_get_ex(function, "parameters", &parameters);
        json_object_object_get_ex(parameters, "properties", &properties);
        if (json_object_is_type(properties, json_type_object)) {
            json_object_object_foreach(properties, property, schema)
            {
                if (server_span_is(key, property)) {
                    return schema;
                }
            }
        }
    }
    return NULL;
}

bool server_tool_is_known(struct json_object *tools, server_span name)
{
    for (size_t i = 0; tools != NULL && i < json_object_array_length(tools); i++) {
        struct json_object *function = NULL, *given = NULL;
        json_object_object_get_ex(json_object_array_get_idx(tools, i), "function", &function);
        json_object_object_get_ex(function, "name", &given);
        if (given != NULL && server_span_is(name, json_object_get_string(given))) {
            return true;
        }
    }
    return false;
}

static bool is_text_type(struct json_object *schema)
{
    struct json_object *type = NULL;
    json_object_object_get_ex(schema, "type", &type);
    return json_object_is_type(type, json_type_string) &&
           strcmp(json_object_get_string(type), "string") == 0;
}

/* A value is a text where the tool says so, or where it is nothing else. */
static struct json_object *new_value(struct json_object *schema, server_span text)
{
    server_span trimmed = server_span_trim(text);
    struct json_object *value = NULL;
    if (!is_text_type(schema)) {
        value = server_span_is(trimmed, "True")    ? json_object_new_boolean(true)
                : server_span_is(trimmed, "False") ? json_object_new_boolean(false)
                                                   : parse_json(trimmed);
        if (server_span_is(trimmed, "null") || server_span_is(trimmed, "None")) {
            return NULL;
        }
    }
    return value != NULL ? value : cli_json_new_text(text.data, text.size);
}

/* The value from a place on: up to value_close, without the white space that belongs to it. */
static size_t read_value(const server_tool_format *f, server_span text, size_t at,
                         server_span *value)
{
    server_span closing = server_span_trim(f->value_close);
    size_t leading = (size_t)(closing.data - f->value_close.data);
    const char *found = memmem(text.data + at, text.size - at, closing.data, closing.size);
    if (found == NULL) {
        return SERVER_TEXT_SHORT;
    }
    size_t end = (size_t)(found - text.data);
    *value = server_span_cut(text, at, end);
    if (value->size >= leading && leading > 0 &&
        memcmp(value->data + value->size - leading, f->value_close.data, leading) == 0) {
        value->size -= leading;
    }
    return end + closing.size;
}

static size_t read_argument(const server_tool_source *r, server_span text, size_t at,
                            server_span tool, struct json_object *arguments)
{
    const server_tool_format *f = r->format;
    server_span opening = server_span_trim(f->value_open), value = {"", 0};
    const char *found = memmem(text.data + at, text.size - at, opening.data, opening.size);
    if (found == NULL) {
        return SERVER_TEXT_SHORT;
    }
    server_span key = server_span_trim(server_span_cut(text, at, (size_t)(found - text.data)));
    at = server_match(text, (size_t)(found - text.data), f->value_open, NULL);
    size_t end = at <= text.size ? read_value(f, text, at, &value) : SERVER_TEXT_SHORT;
    if (end <= text.size) {
        char name[256];
        if (key.size == 0 || key.size >= sizeof name) {
            return SERVER_TEXT_DIFFERS;
        }
        memcpy(name, key.data, key.size);
        name[key.size] = '\0';
        struct json_object *schema = server_tool_property(r->tools, tool, key);
        json_object_object_add(arguments, name, new_value(schema, value));
    }
    return end;
}

/* Arguments until what follows is none. */
static size_t read_arguments(const server_tool_source *r, server_span text, size_t at,
                             server_tool_call *call)
{
    const int plain = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
    server_span tool = {call->name.data, call->name.size};
    struct json_object *arguments = json_object_new_object();
    size_t next = server_match(text, at, r->format->key_open, NULL);
    while (next <= text.size) {
        size_t end = read_argument(r, text, next, tool, arguments);
        at = end <= text.size ? end : at;
        next = end <= text.size ? server_match(text, end, r->format->key_open, NULL) : end;
        if (end > text.size) {
            json_object_put(arguments);
            return end;
        }
    }
    /* What has come may be the beginning of another argument. */
    if (next == SERVER_TEXT_SHORT &&
        server_match(text, at, r->format->call_close, NULL) > text.size) {
        json_object_put(arguments);
        return SERVER_TEXT_SHORT;
    }
    const char *written = json_object_to_json_string_ext(arguments, plain);
    bool stored = written != NULL && cli_buffer_append(&call->arguments, written, strlen(written));
    json_object_put(arguments);
    return stored ? at : SERVER_TEXT_DIFFERS;
}

/* ---- A call ---- */

/* The place behind what opens a call. A model may leave out what a section begins with, or some of
 * its tags. */
static size_t match_opening(const server_tool_format *f, server_span text, size_t at, bool first)
{
    bool is_short = false;
    size_t next = at;
    if (first && !server_is_blank(f->section_open)) {
        next = server_match(text, at, f->section_open, NULL);
        is_short = next == SERVER_TEXT_SHORT;
        if (next > text.size && server_is_blank(f->call_open)) {
            return next;
        }
        next = next <= text.size ? next : at;
    }
    size_t opened = server_match(text, next, f->call_open, NULL);
    is_short |= opened == SERVER_TEXT_SHORT;
    for (size_t i = 1; i < f->call_open.size && opened > text.size; i++) {
        char c = f->call_open.data[i];
        if (c == '<' || c == '[') {
            opened =
                server_match(text, next, server_span_cut(f->call_open, i, f->call_open.size), NULL);
            is_short |= opened == SERVER_TEXT_SHORT;
        }
    }
    return opened <= text.size ? opened : is_short ? SERVER_TEXT_SHORT : SERVER_TEXT_DIFFERS;
}

static size_t parse_object(const server_tool_source *r, server_span text, size_t at,
                           server_tool_call *call)
{
    while (at < text.size &&
           (text.data[at] == ',' || text.data[at] == ';' || text.data[at] == '[' ||
            text.data[at] == ' ' || text.data[at] == '\n')) {
        at++;
    }
    if (at == text.size) {
        return SERVER_TEXT_SHORT;
    }
    size_t end = text.data[at] == '{' ? server_json_end(text, at) : SERVER_TEXT_DIFFERS;
    if (end <= text.size && !take_object(r, server_span_cut(text, at, end), call)) {
        return SERVER_TEXT_DIFFERS;
    }
    return end;
}

/* A name, and the object or the arguments behind it. */
static size_t parse_named(const server_tool_source *r, server_span text, size_t at,
                          server_tool_call *call)
{
    server_span id = {"", 0};
    at = server_skip_space(text, at);
    size_t end = server_name_end(text, at);
    if (end == text.size) {
        return SERVER_TEXT_SHORT;
    }
    if (end == at || !cli_buffer_append(&call->name, text.data + at, end - at)) {
        return SERVER_TEXT_DIFFERS;
    }
    size_t next = server_match(text, end, r->format->after_name, &id);
    if (next > text.size) {
        return next;
    }
    if (r->format->has_name) { /* functions.NAME:0, as it is written */
        const char *begin = text.data + at;
        while (begin > text.data && begin[-1] != '|' && begin[-1] != '>' && begin[-1] != ' ' &&
               begin[-1] != '\n') {
            begin--;
        }
        id = (server_span){begin, (size_t)(text.data + end - begin) + id.size};
    }
    if (id.size > 0 && id.size < sizeof call->id) {
        memcpy(call->id, id.data, id.size);
    }
    if (r->format->kind == SERVER_TOOLS_TAGGED) {
        return read_arguments(r, text, next, call);
    }
    next = server_skip_space(text, next);
    end = next < text.size && text.data[next] != '{' ? SERVER_TEXT_DIFFERS
                                                     : server_json_end(text, next);
    return end <= text.size && !take_arguments(call, server_span_cut(text, next, end))
               ? SERVER_TEXT_DIFFERS
               : end;
}

/* <|start|>.. to=functions.NAME ..<|message|>{..}<|call|> */
static size_t parse_message(server_span text, size_t at, bool ends, server_tool_call *call)
{
    static const char target[] = "to=functions.", behind[] = "<|message|>", last[] = "<|call|>";
    size_t body = server_span_find(text, at, behind);
    size_t to = server_span_find(text, at, target);
    if (body == SERVER_TEXT_DIFFERS) {
        return SERVER_TEXT_SHORT;
    }
    if (to > body) {
        return SERVER_TEXT_DIFFERS;
    }
    to += sizeof target - 1;
    body = server_skip_space(text, body + sizeof behind - 1);
    size_t name_end = server_name_end(text, to);
    size_t end = server_json_end(text, body);
    size_t closed = server_span_find(text, end <= text.size ? end : body, last);
    if (end > text.size || (closed == SERVER_TEXT_DIFFERS && !ends)) {
        return closed == SERVER_TEXT_DIFFERS ? SERVER_TEXT_SHORT : SERVER_TEXT_DIFFERS;
    }
    bool taken = name_end > to && cli_buffer_append(&call->name, text.data + to, name_end - to) &&
                 take_arguments(call, server_span_cut(text, body, end));
    size_t next = closed == SERVER_TEXT_DIFFERS ? text.size : closed + sizeof last - 1;
    return taken ? next : SERVER_TEXT_DIFFERS;
}

static void make_id(server_tool_call *call)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    unsigned char bytes[9] = {0};
    if (call->id[0] == '\0') {
        if (getrandom(bytes, sizeof bytes, 0) < 0) {
            bytes[0] = (unsigned char)call->name.size;
        }
        for (size_t i = 0; i < sizeof bytes; i++) {
            call->id[i] = letters[bytes[i] % (sizeof letters - 1)];
        }
    }
}

size_t server_tool_parse(const server_tool_source *r, server_span text, size_t at, bool first,
                         bool ends, server_tool_call *call)
{
    const server_tool_format *f = r->format;
    size_t end;
    if (f->kind == SERVER_TOOLS_CHANNELS) {
        end = parse_message(text, at, ends, call);
    } else {
        bool bare = f->kind == SERVER_TOOLS_JSON && server_is_blank(f->call_open);
        at = bare && !first ? at : match_opening(f, text, at, first);
        if (at > text.size) {
            return at;
        }
        end = f->kind == SERVER_TOOLS_JSON ? parse_object(r, text, at, call)
                                           : parse_named(r, text, at, call);
        if (end > text.size) {
            return end;
        }
        size_t closed = server_match(text, end, f->call_close, NULL);
        if (closed == SERVER_TEXT_SHORT && !ends) {
            return closed;
        }
        /* At the end of the text what closes the call may be missing. */
        end = closed <= text.size              ? closed
              : closed == SERVER_TEXT_SHORT    ? text.size
              : f->kind == SERVER_TOOLS_TAGGED ? SERVER_TEXT_DIFFERS
                                               : end;
        if (bare && end <= text.size &&
            !server_tool_is_known(r->tools, (server_span){call->name.data, call->name.size})) {
            return SERVER_TEXT_DIFFERS;
        }
    }
    if (end <= text.size) {
        make_id(call);
    }
    return end;
}

void server_tool_call_free(server_tool_call *call)
{
    cli_buffer_free(&call->name);
    cli_buffer_free(&call->arguments);
}
