/* SPDX-License-Identifier: MIT */
/* Fields of tools: tools, tool_choice, parallel_tool_calls. Whatever interface they come by, the
 * request keeps them as /v1/chat/completions has them. */
#include <string.h>

#include "cli_json.h"
#include "server_reply.h"
#include "server_tool_text.h"
#include "server_values.h"

enum { MOST_TOOLS = 512 };

/* Whether the name consists only of what templates, grammars and clients all accept. */
static bool is_name(struct json_object *name)
{
    server_span text = {"", 0};
    if (json_object_is_type(name, json_type_string)) {
        text =
            (server_span){json_object_get_string(name), (size_t)json_object_get_string_len(name)};
    }
    return text.size > 0 && text.size <= 128 && server_name_end(text, 0) == text.size;
}

/* Converts a function to the form of /v1/chat/completions: name, description and parameters. */
static struct json_object *new_function(struct json_object *from, const char *parameters)
{
    static const char *const kept[] = {"name", "description", "strict"};
    struct json_object *function = json_object_new_object();
    for (size_t i = 0; i < 3; i++) {
        if (json_object_object_get(from, kept[i]) != NULL) {
            cli_json_put(function, kept[i], json_object_get(json_object_object_get(from, kept[i])));
        }
    }
    if (json_object_object_get(from, parameters) != NULL) {
        cli_json_put(function, "parameters",
                     json_object_get(json_object_object_get(from, parameters)));
    } else {
        struct json_object *none = json_object_new_object();
        server_put_text(none, "type", "object");
        cli_json_put(none, "properties", json_object_new_object());
        cli_json_put(function, "parameters", none);
    }
    struct json_object *tool = json_object_new_object();
    server_put_text(tool, "type", "function");
    cli_json_put(tool, "function", function);
    return tool;
}

static bool add_tool(server_reading *r, struct json_object *value, const char *parameters)
{
    bool is_message = (r->request->endpoint & (SERVER_MESSAGES | SERVER_COUNT)) != 0;
    struct json_object *type = json_object_object_get(value, "type");
    struct json_object *function = json_object_object_get(value, "function") == NULL
                                       ? value
                                       : json_object_object_get(value, "function");
    bool is_function = is_message ? type == NULL || server_is_text(type, "custom")
                                  : server_is_text(type, "function");
    if (!is_function) {
        return server_fail(r->error, 400, "unsupported_value", r->name,
                           "'%s' may have functions only: tools that the server would run itself "
                           "are not supported.",
                           r->name);
    }
    struct json_object *schema = json_object_object_get(function, parameters);
    if (!is_name(json_object_object_get(function, "name")) ||
        (schema != NULL && !json_object_is_type(schema, json_type_object))) {
        return server_wrong(r, "functions with a 'name' of letters, digits and _ - . / and "
                               "with parameters that are a JSON schema");
    }
    cli_json_append(r->request->tools, new_function(function, parameters));
    return true;
}

bool server_read_tools(server_reading *r, struct json_object *value)
{
    bool is_message = (r->request->endpoint & (SERVER_MESSAGES | SERVER_COUNT)) != 0;
    size_t n = json_object_is_type(value, json_type_array) ? json_object_array_length(value) : 0;
    if (!json_object_is_type(value, json_type_array) || n > MOST_TOOLS) {
        return server_wrong(r, "an array of at most 512 functions");
    }
    r->request->tools = n == 0 ? NULL : json_object_new_array();
    for (size_t i = 0; i < n; i++) {
        if (!add_tool(r, json_object_array_get_idx(value, i),
                      is_message ? "input_schema" : "parameters")) {
            return false;
        }
    }
    return true;
}

static bool choose(server_reading *r, server_tool_choice choice, struct json_object *name)
{
    r->request->tool_choice = choice;
    r->request->tool_name = name;
    return name == NULL || is_name(name) || server_wrong(r, "with the name of a tool");
}

/* Reads {"type": "allowed_tools", "mode": .., "tools": [..]}; mode and tools may also be within
 * "allowed_tools". */
static bool read_allowed(server_reading *r, struct json_object *value)
{
    struct json_object *inner = json_object_object_get(value, "allowed_tools");
    inner = inner == NULL ? value : inner;
    struct json_object *mode = json_object_object_get(inner, "mode");
    r->request->allowed = json_object_object_get(inner, "tools");
    if (!json_object_is_type(r->request->allowed, json_type_array) ||
        json_object_array_length(r->request->allowed) == 0 ||
        json_object_array_length(r->request->allowed) > MOST_TOOLS ||
        !(server_is_text(mode, "auto") || server_is_text(mode, "required"))) {
        return server_wrong(r, "with a 'mode' of 'auto' or 'required' and 'tools', functions");
    }
    return choose(r, server_is_text(mode, "auto") ? SERVER_TOOL_AUTO : SERVER_TOOL_REQUIRED, NULL);
}

/* Reads `tool_choice`: a word, or an object {"type": "function", "function": {"name": ..}}, in
 * which the name may also stand directly. */
bool server_read_tool_choice(server_reading *r, struct json_object *value)
{
    static const struct {
        const char *word;
        server_tool_choice choice;
    } words[] = {{"auto", SERVER_TOOL_AUTO},
                 {"none", SERVER_TOOL_NONE},
                 {"required", SERVER_TOOL_REQUIRED},
                 {"any", SERVER_TOOL_REQUIRED}};
    bool is_object = json_object_is_type(value, json_type_object);
    struct json_object *type = is_object ? json_object_object_get(value, "type") : value;
    struct json_object *disabled = json_object_object_get(value, "disable_parallel_tool_use");
    r->request->one_call |= json_object_get_boolean(disabled);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (server_is_text(type, words[i].word)) {
            return choose(r, words[i].choice, NULL);
        }
    }
    if (is_object && (server_is_text(type, "function") || server_is_text(type, "tool"))) {
        struct json_object *function = json_object_object_get(value, "function");
        struct json_object *name =
            json_object_object_get(function == NULL ? value : function, "name");
        return choose(r, SERVER_TOOL_REQUIRED, name) && (name != NULL || choose(r, 0, value));
    }
    if (is_object && server_is_text(type, "allowed_tools")) {
        return read_allowed(r, value);
    }
    return server_wrong(r, "'auto', 'none', 'required', or an object that names functions");
}

bool server_read_parallel_calls(server_reading *r, struct json_object *value)
{
    bool several = true;
    bool read = server_get_flag(r, value, &several);
    r->request->one_call |= !several;
    return read;
}

static struct json_object *name_of(struct json_object *tool)
{
    struct json_object *function = json_object_object_get(tool, "function");
    return json_object_object_get(function == NULL ? tool : function, "name");
}

/* Removes the tools that tool_choice does not allow, so that the model does not see them. */
static bool keep_allowed(server_request *request, server_error *error)
{
    struct json_object *kept = json_object_new_array();
    const size_t n_tools = request->tools == NULL ? 0 : json_object_array_length(request->tools);
    size_t n_found = 0;
    const size_t n_allowed = json_object_array_length(request->allowed);
    for (size_t i = 0; i < n_tools; i++) {
        struct json_object *tool = json_object_array_get_idx(request->tools, i);
        const char *name = json_object_get_string(name_of(tool));
        size_t k = 0;
        while (k < n_allowed &&
               !server_is_text(name_of(json_object_array_get_idx(request->allowed, k)), name)) {
            k++;
        }
        if (k < n_allowed) {
            n_found++;
            cli_json_append(kept, json_object_get(tool));
        }
    }
    json_object_put(request->tools);
    request->tools = kept;
    return n_found >= n_allowed ||
           server_fail(error, 400, "invalid_value", "tool_choice",
                       "'tool_choice' allows a function that is not among the 'tools'.");
}

bool server_check_tools(server_request *request, server_error *error)
{
    if (request->allowed != NULL && !keep_allowed(request, error)) {
        return false;
    }
    bool found = request->tool_name == NULL;
    if (request->tools == NULL && request->tool_choice == SERVER_TOOL_REQUIRED) {
        return server_fail(error, 400, "invalid_value", "tool_choice",
                           "'tool_choice' asks for a call, and there are no 'tools'.");
    }
    for (size_t i = 0; !found && i < json_object_array_length(request->tools); i++) {
        found = server_is_text(name_of(json_object_array_get_idx(request->tools, i)),
                               json_object_get_string(request->tool_name));
    }
    return found || server_fail(error, 400, "invalid_value", "tool_choice",
                                "'tool_choice' names a function that is not among the 'tools'.");
}
