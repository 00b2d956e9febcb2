/* SPDX-License-Identifier: MIT */
#include "server_tool_source.h"

#include <string.h>
#include <sys/random.h>

struct json_object *server_tool_json(server_span text)
{
    struct json_tokener *tokener = json_tokener_new_ex(SERVER_DEEPEST_ARGUMENTS);
    struct json_object *value = NULL;
    text = server_span_trim(text);
    if (tokener != NULL && text.size > 0) {
        json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
        value = json_tokener_parse_ex(tokener, text.data, (int)text.size);
        /* The text ends within a number, so more digits could follow; the terminating byte shows
         * the parser that the number is complete. */
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

void server_tool_make_id(server_tool_call *call)
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

void server_tool_call_free(server_tool_call *call)
{
    cli_buffer_free(&call->name);
    cli_buffer_free(&call->arguments);
}
