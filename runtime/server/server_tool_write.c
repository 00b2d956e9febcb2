/* SPDX-License-Identifier: MIT */
/* Writes tool calls of earlier turns in the form in which the model writes calls. */
#include <string.h>

#include "server_tool_literals.h"

static bool add(cli_buffer *out, server_span text)
{
    return text.size == 0 || cli_buffer_append(out, text.data, text.size);
}

static bool add_json(cli_buffer *out, struct json_object *value)
{
    const char *text = json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN |
                                                                 JSON_C_TO_STRING_NOSLASHESCAPE);
    return text != NULL && cli_buffer_append(out, text, strlen(text));
}

static bool add_literal(const server_tool_format *f, struct json_object *value, cli_buffer *out);

/* Writes the members of an object: each as its key, the format's sign and its value. */
static bool add_members(const server_tool_format *f, struct json_object *object, bool are_named,
                        cli_buffer *out)
{
    bool first = true, stored = true;
    json_object_object_foreach(object, key, value)
    {
        struct json_object *quoted = json_object_new_string(key);
        stored = stored && add(out, server_span_of(first ? "" : ", ")) &&
                 (are_named ? add(out, server_span_of(key)) : add_literal(f, quoted, out)) &&
                 add(out, are_named ? f->value_open : server_span_of(": ")) &&
                 add_literal(f, value, out);
        json_object_put(quoted);
        first = false;
    }
    return stored;
}

static bool add_literal(const server_tool_format *f, struct json_object *value, cli_buffer *out)
{
    bool stored = true;
    switch (json_object_get_type(value)) {
    case json_type_null:
        return add(out, server_span_of("None"));
    case json_type_boolean:
        return add(out, server_span_of(json_object_get_boolean(value) ? "True" : "False"));
    case json_type_array:
        stored = add(out, server_span_of("["));
        for (size_t i = 0; i < json_object_array_length(value) && stored; i++) {
            stored = add(out, server_span_of(i > 0 ? ", " : "")) &&
                     add_literal(f, json_object_array_get_idx(value, i), out);
        }
        return stored && add(out, server_span_of("]"));
    case json_type_object:
        return add(out, server_span_of("{")) && add_members(f, value, false, out) &&
               add(out, server_span_of("}"));
    default:
        return add_json(out, value);
    }
}

static bool add_call(const server_tool_format *f, struct json_object *call, cli_buffer *out)
{
    struct json_object *function = NULL, *name = NULL, *arguments = NULL;
    json_object_object_get_ex(call, "function", &function);
    json_object_object_get_ex(function, "name", &name);
    json_object_object_get_ex(function, "arguments", &arguments);
    struct json_object *object = json_object_is_type(arguments, json_type_string)
                                     ? json_tokener_parse(json_object_get_string(arguments))
                                     : json_object_get(arguments);
    const server_span parts[] = {f->call_open, f->object_open,
                                 server_span_of(json_object_get_string(name)), f->after_name};
    bool stored = json_object_is_type(object, json_type_object) || object == NULL;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && stored; i++) {
        stored = add(out, parts[i]);
    }
    stored =
        stored && (f->kind == SERVER_TOOLS_JSON
                       ? object == NULL ? add(out, server_span_of("{}")) : add_json(out, object)
                       : object == NULL || add_members(f, object, true, out));
    json_object_put(object);
    return stored && add(out, f->object_close) && add(out, f->call_close);
}

bool server_write_calls(const server_tool_format *f, struct json_object *calls, cli_buffer *out)
{
    bool stored = add(out, f->section_open);
    for (size_t i = 0; i < json_object_array_length(calls) && stored; i++) {
        stored = add(out, i > 0 ? f->between : server_span_of("")) &&
                 add_call(f, json_object_array_get_idx(calls, i), out);
    }
    return stored && add(out, f->section_close);
}
