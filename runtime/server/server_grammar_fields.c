/* SPDX-License-Identifier: MIT */
/* Fields that prescribe the form of an answer: `grammar` and `response_format`. */
#include <string.h>

#include <moe/grammar.h>

#include "server_memory.h"
#include "server_values.h"

/* Compiles the grammar and sets it as the request's. An error names the field that is being
 * read. */
static bool set_grammar(server_reading *r, const char *text, size_t size)
{
    moe_error err = {""};
    if (r->request->job->grammar != NULL) {
        return server_wrong(r, "the only one of 'grammar', 'json_schema' and 'response_format'");
    }
    int status = moe_grammar_create_within(&r->request->job->grammar, text, size,
                                           &r->request->allowance, &err);
    return status == MOE_OK || server_work_fail(r->error, status, r->name, &err);
}

/* Sets the grammar of a JSON schema. If a keyword cannot be enforced: with strict this is an error,
 * otherwise the keyword is ignored and the client is told. */
static bool set_schema(server_reading *r, const char *schema, size_t size, bool strict)
{
    char *text, *dropped = NULL;
    moe_error err = {""};
    r->request->has_form = true;
    const uint64_t before = r->request->allowance.bytes_now;
    int status = moe_json_schema_grammar_loose(&text, strict ? NULL : &dropped, schema, size,
                                               &r->request->allowance, &err);
    if (status != MOE_OK) {
        return server_work_fail(r->error, status, r->name, &err);
    }
    if (dropped != NULL) {
        server_note_dropped(r->request->dropped, r->name, dropped);
        moe_free(dropped);
    }
    const uint64_t bytes = r->request->allowance.bytes_now - before;
    bool set = set_grammar(r, text, strlen(text));
    moe_free(text);
    r->request->allowance.bytes_now -= bytes;
    return set;
}

bool server_read_grammar(server_reading *r, struct json_object *value)
{
    return json_object_is_type(value, json_type_string)
               ? set_grammar(r, json_object_get_string(value),
                             (size_t)json_object_get_string_len(value))
               : server_wrong(r, "a string, a grammar in GBNF");
}

static bool read_schema(server_reading *r, struct json_object *value, bool strict)
{
    const char *text = json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN |
                                                                 JSON_C_TO_STRING_NOSLASHESCAPE);
    if (!json_object_is_type(value, json_type_object)) {
        return server_wrong(r, "a JSON schema, which is an object");
    }
    r->request->form = value;
    return text != NULL
               ? set_schema(r, text, strlen(text), strict)
               : server_fail(r->error, 503, "overloaded", NULL, "out of memory for the request");
}

bool server_read_json_schema(server_reading *r, struct json_object *value)
{
    return read_schema(r, value, false);
}

/* Reads {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema":
 * {"schema": ..}}. The schema may also stand directly beside "type". */
bool server_read_response_format(server_reading *r, struct json_object *value)
{
    struct json_object *type = NULL, *wrapped = NULL, *schema = NULL, *strict = NULL;
    if (!json_object_is_type(value, json_type_object) ||
        !json_object_object_get_ex(value, "type", &type)) {
        return server_wrong(r, "an object with 'type'");
    }
    if (server_is_text(type, "text")) {
        return true;
    }
    if (server_is_text(type, "json_object")) {
        static const char any_object[] = "{\"type\": \"object\"}";
        return set_schema(r, any_object, sizeof any_object - 1, true);
    }
    if (!server_is_text(type, "json_schema")) {
        return server_wrong(r, "of type 'text', 'json_object' or 'json_schema'");
    }
    json_object_object_get_ex(value, "json_schema", &wrapped);
    json_object_object_get_ex(wrapped == NULL ? value : wrapped, "schema", &schema);
    json_object_object_get_ex(wrapped == NULL ? value : wrapped, "strict", &strict);
    return schema != NULL ? read_schema(r, schema, json_object_get_boolean(strict))
                          : server_wrong(r, "with 'json_schema', an object that has 'schema'");
}
