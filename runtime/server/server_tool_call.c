/* SPDX-License-Identifier: MIT */
/* Parses one tool call in the format that was learned from the template (server_tool_format.h).
 * Models do not write white space exactly as their templates do, so white space around the
 * format's literals is ignored. */
#include <stdlib.h>
#include <string.h>

#include "server_tool_call.h"
#include "server_tool_literals.h"
#include "server_tool_tags.h"

/* ---- JSON ---- */

/* Stores the text as the call's arguments if it is a JSON object, or a JSON string that contains
 * one. */
static bool take_arguments(server_tool_call *call, server_span text)
{
    struct json_object *value = server_tool_json(text);
    bool taken = false;
    if (json_object_is_type(value, json_type_string)) {
        server_span inner = {json_object_get_string(value),
                             (size_t)json_object_get_string_len(value)};
        struct json_object *object = server_tool_json(inner);
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

/* Returns the position behind a JSON value of any type within an object. */
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

static void take_id(server_tool_call *call, server_span id)
{
    if (id.size > 0 && id.size < sizeof call->id) {
        memcpy(call->id, id.data, id.size);
        call->id[id.size] = '\0';
    }
}

/* If the member is the call's name or id, stores it. */
static bool take_member(const server_tool_source *r, server_span object, server_span key,
                        size_t value, size_t next, server_tool_call *call)
{
    server_span text = server_span_cut(object, value + 1, next - 1);
    if (object.data[value] != '"') {
        return true;
    }
    if (is_key(key, r->format->name_key, "name", "name") && call->name.size == 0) {
        return text.size > 0 && server_name_end(text, 0) == text.size &&
               cli_buffer_append(&call->name, text.data, text.size);
    }
    if (server_span_is(key, "id") || server_span_is(key, "tool_call_id")) {
        take_id(call, text);
    }
    return true;
}

/* Stores the name and arguments that a complete JSON object holds. */
static bool take_object(const server_tool_source *r, server_span object, server_tool_call *call)
{
    server_span arguments = {"{}", 2};
    for (size_t at = server_skip_space(object, 1); at < object.size && object.data[at] == '"';) {
        size_t end = server_json_end(object, at);
        size_t colon = end < object.size ? server_skip_space(object, end) : object.size;
        size_t value = colon < object.size ? server_skip_space(object, colon + 1) : object.size;
        size_t next = value < object.size ? value_end(object, value) : object.size;
        if (next >= object.size || object.data[colon] != ':') {
            return false;
        }
        server_span key = server_span_cut(object, at + 1, end - 1);
        if (is_key(key, r->format->arguments_key, "arguments", "parameters")) {
            arguments = server_span_cut(object, value, next);
        } else if (!take_member(r, object, key, value, next, call)) {
            return false;
        }
        at = server_skip_space(object, next);
        at = at < object.size && object.data[at] == ',' ? server_skip_space(object, at + 1) : at;
    }
    if (server_span_is(server_span_trim(arguments), "null")) {
        arguments = server_span_of("{}");
    }
    return call->name.size > 0 && take_arguments(call, arguments);
}

/* ---- A call that has not ended ---- */

/* Stores the part of the arguments that has arrived, if it can still become a JSON object. */
static void begin_arguments(server_tool_call *call, server_span text)
{
    struct json_tokener *tokener = json_tokener_new_ex(SERVER_DEEPEST_ARGUMENTS);
    if (tokener != NULL && text.size > 1 && text.data[0] == '{') {
        json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
        json_object_put(json_tokener_parse_ex(tokener, text.data, (int)text.size));
        if (json_tokener_get_error(tokener) == json_tokener_continue) {
            (void)cli_buffer_append(&call->arguments, text.data, text.size);
        }
    }
    json_tokener_free(tokener);
}

/* Reads the name and arguments of an incomplete object. Not if the format has an id behind the
 * object, because the id would then be missing. */
static void begin_object(const server_tool_source *r, server_span object, server_tool_call *call)
{
    const server_tool_format *f = r->format;
    bool id_follows = memchr(f->object_close.data, SERVER_TOOL_ID, f->object_close.size) != NULL;
    for (size_t at = server_skip_space(object, 1);
         !id_follows && at < object.size && object.data[at] == '"';) {
        size_t end = server_json_end(object, at);
        size_t colon = end < object.size ? server_skip_space(object, end) : object.size;
        size_t value = colon < object.size ? server_skip_space(object, colon + 1) : object.size;
        size_t next = value < object.size ? value_end(object, value) : object.size;
        if (value >= object.size) {
            return;
        }
        server_span key = server_span_cut(object, at + 1, end - 1);
        if (is_key(key, f->arguments_key, "arguments", "parameters")) {
            if (next == SERVER_TEXT_SHORT && call->name.size > 0) {
                begin_arguments(call, server_span_cut(object, value, object.size));
            }
            return;
        }
        if (next > object.size) {
            return;
        }
        take_member(r, object, key, value, next, call);
        at = server_skip_space(object, next);
        at = at < object.size && object.data[at] == ',' ? server_skip_space(object, at + 1) : at;
    }
}

/* ---- Parsing a call ---- */

bool server_tool_is_bare(const server_tool_format *f)
{
    bool has_tag = memchr(f->section_open.data, '<', f->section_open.size) != NULL ||
                   server_span_trim(f->section_open).size >= SERVER_SHORTEST_TRIGGER;
    return (f->kind == SERVER_TOOLS_JSON || f->kind == SERVER_TOOLS_LITERALS) && !has_tag &&
           server_span_trim(f->call_open).size < SERVER_SHORTEST_TRIGGER;
}

/* Skips the text that may precede a call without a mark of its own (white space, the beginning of
 * a list). Returns the position behind it. */
static size_t skip_bare(const server_tool_format *f, server_span text, size_t at, bool first)
{
    size_t next = first && f->may_open.size > 0 ? server_match(text, at, f->may_open, NULL)
                                                : SERVER_TEXT_DIFFERS;
    if (next == SERVER_TEXT_SHORT) {
        return next;
    }
    at = next <= text.size ? next : at;
    while (at < text.size && strchr(",;[ \n", text.data[at]) != NULL && text.data[at] != '\0') {
        at++;
    }
    return at == text.size ? SERVER_TEXT_SHORT : at;
}

/* Matches the literal. A model may leave out tags at its beginning, so the rest of the literal
 * from any of its tags on is accepted, too. Returns the position behind it. */
static size_t match_tags(server_span text, size_t at, server_span literal, server_span *id)
{
    size_t found = server_match(text, at, literal, id);
    bool is_short = found == SERVER_TEXT_SHORT; /* the literal may still arrive completely */
    for (size_t i = 1; i < literal.size && found > text.size && !is_short; i++) {
        char c = literal.data[i];
        if (c == '<' || c == '[') {
            found = server_match(text, at, server_span_cut(literal, i, literal.size), id);
            is_short |= found == SERVER_TEXT_SHORT;
        }
    }
    return found <= text.size ? found : is_short ? SERVER_TEXT_SHORT : SERVER_TEXT_DIFFERS;
}

/* Matches the literals that open a call, and returns the position behind them. A model may leave
 * out what opens the section, or some of its tags. */
static size_t match_opening(const server_tool_format *f, server_span text, size_t at, bool first,
                            server_span *id)
{
    bool is_short = false, is_open = false;
    size_t next = at;
    if (first && f->may_open.size > 0) {
        next = server_match(text, at, f->may_open, NULL);
        is_open = next <= text.size;
        is_short = next == SERVER_TEXT_SHORT;
        next = is_open ? next : at;
    }
    server_span before = first ? f->section_open : f->between;
    if (!server_is_blank(before)) {
        size_t begin = next;
        next =
            first ? match_tags(text, begin, before, NULL) : server_match(text, begin, before, NULL);
        is_short |= next == SERVER_TEXT_SHORT;
        if (next > text.size && first && !is_open && server_is_blank(f->call_open)) {
            return is_short ? SERVER_TEXT_SHORT : next;
        }
        next = next <= text.size ? next : begin;
    }
    size_t opened = match_tags(text, next, f->call_open, id);
    return opened <= text.size || !is_short ? opened : SERVER_TEXT_SHORT;
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
    if (end == SERVER_TEXT_SHORT) {
        begin_object(r, server_span_cut(text, at, text.size), call);
    }
    if (end <= text.size && !take_object(r, server_span_cut(text, at, end), call)) {
        return SERVER_TEXT_DIFFERS;
    }
    return end;
}

/* Parses an object of arguments. If it is incomplete, stores the part that has arrived. */
static size_t parse_arguments(server_span text, size_t at, server_tool_call *call)
{
    at = server_skip_space(text, at);
    size_t end =
        at < text.size && text.data[at] != '{' ? SERVER_TEXT_DIFFERS : server_json_end(text, at);
    if (end == SERVER_TEXT_SHORT) {
        begin_arguments(call, server_span_cut(text, at, text.size));
    }
    return end <= text.size && !take_arguments(call, server_span_cut(text, at, end))
               ? SERVER_TEXT_DIFFERS
               : end;
}

/* Parses arguments by tags, or all of them as one object between the block's literals. */
static size_t parse_tagged(const server_tool_source *r, server_span text, size_t at,
                           server_tool_call *call)
{
    const server_tool_format *f = r->format;
    size_t block =
        f->block_open.size == 0 ? SERVER_TEXT_DIFFERS : server_match(text, at, f->block_open, NULL);
    if (block <= text.size) {
        size_t end = parse_arguments(text, block, call);
        return end <= text.size ? server_match(text, end, f->block_close, NULL) : end;
    }
    bool is_block = block == SERVER_TEXT_SHORT &&
                    server_match(text, at, f->key_open, NULL) == SERVER_TEXT_DIFFERS &&
                    server_match(text, at, f->call_close, NULL) == SERVER_TEXT_DIFFERS;
    return is_block ? block : server_tag_arguments(r, text, at, call);
}

/* Parses a name, followed by an object or by arguments. */
static size_t parse_named(const server_tool_source *r, server_span text, size_t at,
                          server_tool_call *call)
{
    const server_tool_format *f = r->format;
    server_span id = {"", 0};
    size_t begin = at = server_skip_space(text, at);
    size_t end = server_name_end(text, at);
    if (end == text.size) {
        return SERVER_TEXT_SHORT;
    }
    size_t prefix = server_match(text, at, f->name_prefix, NULL);
    at = prefix <= end ? prefix : at;
    if (end == at || !cli_buffer_append(&call->name, text.data + at, end - at)) {
        return SERVER_TEXT_DIFFERS;
    }
    size_t next = match_tags(text, end, f->after_name, &id);
    if (next > text.size) {
        return next;
    }
    if (f->has_name) { /* the id as the model wrote it: functions.NAME:0 */
        id = (server_span){text.data + begin, end - begin + id.size};
    }
    take_id(call, id);
    return f->kind == SERVER_TOOLS_TAGGED ? parse_tagged(r, text, next, call)
           : f->kind == SERVER_TOOLS_LITERALS
               ? server_literal_arguments(f, text, next, &call->arguments)
               : parse_arguments(text, next, call);
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
    body += sizeof behind - 1;
    size_t name_end = server_name_end(text, to);
    if (name_end == to || !cli_buffer_append(&call->name, text.data + to, name_end - to)) {
        return SERVER_TEXT_DIFFERS;
    }
    size_t end = parse_arguments(text, body, call);
    size_t closed = server_span_find(text, end <= text.size ? end : body, last);
    if (end > text.size || (closed == SERVER_TEXT_DIFFERS && !ends)) {
        return closed == SERVER_TEXT_DIFFERS && end != SERVER_TEXT_DIFFERS ? SERVER_TEXT_SHORT
                                                                           : SERVER_TEXT_DIFFERS;
    }
    return closed == SERVER_TEXT_DIFFERS ? text.size : closed + sizeof last - 1;
}

/* Parses a call behind its opening literals. */
static size_t parse_body(const server_tool_source *r, server_span text, size_t at,
                         server_tool_call *call)
{
    const server_tool_format *f = r->format;
    size_t begin = server_skip_space(text, at);
    /* Models whose format is LITERALS sometimes write JSON instead. */
    bool is_object =
        f->kind == SERVER_TOOLS_JSON || (f->kind == SERVER_TOOLS_LITERALS && f->quote.size == 0 &&
                                         begin < text.size && text.data[begin] == '{');
    return is_object ? parse_object(r, text, at, call) : parse_named(r, text, at, call);
}

size_t server_tool_parse(const server_tool_source *r, server_span text, size_t at, bool first,
                         bool ends, server_tool_call *call)
{
    const server_tool_format *f = r->format;
    size_t end;
    if (f->kind == SERVER_TOOLS_CHANNELS) {
        end = parse_message(text, at, ends, call);
    } else {
        server_span id = {"", 0};
        at = server_tool_is_bare(f) ? skip_bare(f, text, at, first)
                                    : match_opening(f, text, at, first, &id);
        if (at > text.size) {
            return at;
        }
        take_id(call, id);
        end = parse_body(r, text, at, call);
        if (end > text.size) {
            return end;
        }
        size_t closed = server_match(text, end, f->call_close, NULL);
        if (closed == SERVER_TEXT_SHORT && !ends) {
            return closed;
        }
        /* At the end of the answer, the literal that closes the call may be missing. */
        end = closed <= text.size              ? closed
              : closed == SERVER_TEXT_SHORT    ? text.size
              : f->kind == SERVER_TOOLS_TAGGED ? SERVER_TEXT_DIFFERS
                                               : end;
        if (server_tool_is_bare(f) && end <= text.size &&
            !server_tool_is_known(r->tools, (server_span){call->name.data, call->name.size})) {
            return SERVER_TEXT_DIFFERS;
        }
    }
    if (end <= text.size) {
        server_tool_make_id(call);
    }
    return end;
}
