/* SPDX-License-Identifier: MIT */
/* Writes the grammar of an answer that may contain tool calls. Between the literals of the model's
 * format stand the tools' names, and arguments that follow the tools' schemas:
 *
 *   root   ::= thought? calls                       if the request demands a call
 *            | thought? (calls | form-root)         if an answer without calls must have a form
 *            | thought? text calls?                 else; text does not contain the mark of a call
 *   calls  ::= section_open call (between call)* section_close
 *   call   ::= call-0 | call-1 ..                   one for each tool
 *   call-0 ::= call_open "NAME" after_name arguments call_close
 *
 * If the answer stands between marks (answer_close), its closing mark comes before section_open,
 * and reasoning is left to moe_chat_grammar_create(). A control token in a literal is written
 * <[ID]>, because it has no text. */
#include "server_tool_grammar.h"

#include <stdio.h>
#include <string.h>

#include "server_memory.h"
#include "server_tool_literal_rules.h"
#include "server_tool_tags.h"

enum { MOST_CALLS = 16 };

/* ---- Arguments by tags ---- */

static bool is_text(struct json_object *schema)
{
    struct json_object *type = json_object_object_get(schema, "type");
    return type == NULL ? json_object_object_get(schema, "$ref") == NULL &&
                              json_object_object_get(schema, "anyOf") == NULL
                        : json_object_is_type(type, json_type_string) &&
                              strcmp(json_object_get_string(type), "string") == 0;
}

/* Adds a rule for the value of an argument: one of listed texts, any text, or JSON according to
 * its schema. Sets name[] to the rule's name. */
static bool add_value_rule(server_rules_text *g, struct json_object *parameters,
                           struct json_object *schema, const char *prefix, bool strict,
                           char name[64])
{
    struct json_object *choices = json_object_object_get(schema, "enum");
    if (is_text(schema) && json_object_is_type(choices, json_type_array)) {
        snprintf(name, 64, "%.40s-choice", prefix);
        server_rules_add(g, name);
        server_rules_add(g, " ::= ");
        for (size_t i = 0; i < json_object_array_length(choices); i++) {
            server_rules_add(g, i > 0 ? "| " : "");
            server_rules_add_quoted(
                g, server_span_of(json_object_get_string(json_object_array_get_idx(choices, i))));
        }
        server_rules_add(g, "\n");
        return true;
    }
    if (is_text(schema)) {
        server_rules_add_text(g, server_span_trim(g->rules->format->value_close), name);
        return true;
    }
    struct json_object *whole = server_rules_whole(parameters, schema);
    snprintf(name, 64, "%.40s-root", prefix);
    bool added = server_rules_add_schema(g, whole, prefix, strict);
    json_object_put(whole);
    return added;
}

/* Sets what the special bytes of the literals around an argument stand for. */
static void set_words(server_rules_text *g, const char *key, struct json_object *schema)
{
    static const char *const types[][2] = {{"integer", "number"},  {"number", "number"},
                                           {"boolean", "boolean"}, {"object", "object"},
                                           {"array", "array"},     {"null", "null"}};
    struct json_object *type = json_object_object_get(schema, "type");
    const char *given =
        json_object_is_type(type, json_type_string) ? json_object_get_string(type) : "";
    g->key = key;
    g->word = is_text(schema) ? "true" : "false";
    g->type = is_text(schema) ? "string" : "";
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(given, types[i][0]) == 0) {
            g->type = types[i][1];
        }
    }
}

/* Adds the key as the template writes it. */
static void add_key(server_rules_text *g, const char *key)
{
    cli_buffer text = {NULL, 0, 0};
    g->failed |= !server_write_key(g->rules->format, server_span_of(key), &text);
    server_rules_add_quoted(g, (server_span){text.size == 0 ? "" : text.data, text.size});
    cli_buffer_free(&text);
}

/* Adds the rule arguments-NUMBER: the tool's arguments as keys and values between tags. */
static bool add_tagged(server_rules_text *g, struct json_object *parameters, size_t number,
                       bool strict)
{
    const server_tool_format *f = g->rules->format;
    struct json_object *properties = json_object_object_get(parameters, "properties");
    char prefix[48], name[64], rule[64];
    size_t n = 0;
    if (json_object_is_type(properties, json_type_object)) {
        json_object_object_foreach(properties, key, schema)
        {
            snprintf(prefix, sizeof prefix, "t%zu-p%zu", number, n++);
            if (!add_value_rule(g, parameters, schema, prefix, strict, name)) {
                return false;
            }
            server_rules_add(g, prefix);
            server_rules_add(g, "-pair ::= ");
            server_rules_add_literal(g, f->key_open);
            add_key(g, key);
            set_words(g, key, schema);
            server_rules_add_literal(g, f->value_open);
            server_rules_add(g, name);
            server_rules_add(g, " ");
            server_rules_add_literal(g, f->value_close);
            server_rules_add(g, "\n");
        }
    }
    size_t n_required =
        json_object_is_type(json_object_object_get(parameters, "required"), json_type_array)
            ? json_object_array_length(json_object_object_get(parameters, "required"))
            : 0;
    if (!server_work_step(g->rules->allowance, (uint64_t)n * n_required, g->error)) {
        return false;
    }
    server_rules_add_name(g, "arguments", number);
    server_rules_add(g, " ::= \"\"");
    size_t i = 0;
    if (n > 0) {
        json_object_object_foreach(properties, key, schema)
        {
            (void)schema;
            snprintf(rule, sizeof rule, " t%zu-p%zu-pair%s", number, i++,
                     server_rules_is_required(parameters, key) ? "" : "?");
            server_rules_add(g, rule);
        }
    }
    server_rules_add(g, "\n");
    return true;
}

/* ---- Calls ---- */

static bool add_call(server_rules_text *g, struct json_object *function, size_t number)
{
    const server_tool_format *f = g->rules->format;
    struct json_object *parameters = json_object_object_get(function, "parameters");
    bool strict = json_object_get_boolean(json_object_object_get(function, "strict"));
    char prefix[32];
    snprintf(prefix, sizeof prefix, "t%zu", number);
    g->tool = json_object_get_string(json_object_object_get(function, "name"));
    bool by_parts = f->kind == SERVER_TOOLS_TAGGED || f->kind == SERVER_TOOLS_LITERALS;
    bool added = f->kind == SERVER_TOOLS_TAGGED ? add_tagged(g, parameters, number, strict)
                 : by_parts ? server_rules_add_literals(g, parameters, number, strict)
                            : server_rules_add_schema(g, parameters, prefix, strict);
    if (!added) {
        return false;
    }
    server_rules_add_name(g, "call", number);
    server_rules_add(g, " ::= ");
    server_rules_add_literal(g, f->call_open);
    server_rules_add_literal(g, f->object_open);
    server_rules_add_literal(g, f->name_prefix);
    server_rules_add_quoted(
        g, server_span_of(json_object_get_string(json_object_object_get(function, "name"))));
    server_rules_add_literal(g, f->after_name);
    if (by_parts) {
        server_rules_add_name(g, "arguments", number);
    } else {
        server_rules_add(g, prefix);
        server_rules_add(g, "-root");
    }
    server_rules_add(g, " ");
    server_rules_add_literal(g, f->object_close);
    server_rules_add_literal(g, f->call_close);
    server_rules_add(g, "\n");
    return true;
}

static void add_calls(server_rules_text *g, server_span section)
{
    const server_tool_format *f = g->rules->format;
    server_rules_add(g, "calls ::= ");
    server_rules_add_literal(g, f->answer_close);
    server_rules_add_literal(g, section);
    server_rules_add(g, "call ");
    if (f->several && g->rules->several) {
        char most[16];
        server_rules_add(g, "(");
        server_rules_add_literal(g, f->between);
        server_rules_add(g, "call)");
        snprintf(most, sizeof most, "{0,%d} ", MOST_CALLS - 1);
        server_rules_add(g, most);
    }
    server_rules_add_literal(g, f->section_close);
    server_rules_add(g, "\n");
}

/* Adds the root rule. It allows reasoning at the beginning, because the prompt may have opened
 * it, or the model may write some before its answer. */
static void add_root(server_rules_text *g)
{
    const char *open, *close;
    const server_tool_format *f = g->rules->format;
    bool inside = moe_chat_prompt_marks(g->rules->prompt, &open, &close);
    const bool is_framed = f->answer_close.size > 0;
    close = is_framed ? "" : close;
    char name[32];
    if (*close != '\0') {
        server_rules_add_text(g, server_span_of(close), name);
        server_rules_add(g, "thought ::= ");
        if (!inside) {
            server_rules_add_literal(g, server_span_of(open));
        }
        server_rules_add(g, name);
        server_rules_add(g, " ");
        server_rules_add_literal(g, server_span_of(close));
        server_rules_add(g, "[ \\n]{0,2} ");
        if (f->kind == SERVER_TOOLS_CHANNELS) {
            server_rules_add_literal(g, server_span_of("<|start|>assistant"));
        }
        server_rules_add(g, "\n");
    }
    server_span section = f->section_open;
    /* Some templates write an empty reasoning section before calls. */
    size_t thought = *close == '\0' ? SERVER_TEXT_DIFFERS : server_span_find(section, 0, close);
    if (thought != SERVER_TEXT_DIFFERS) {
        section = server_span_cut(section, thought + strlen(close), section.size);
    }
    while (!is_framed && section.size > 0 && (section.data[0] == '\n' || section.data[0] == ' ') &&
           f->kind != SERVER_TOOLS_CHANNELS) {
        section = server_span_cut(section, 1, section.size);
    }
    add_calls(g, section);
    char text[32] = "";
    if (!g->rules->must_call && g->rules->form == NULL) {
        server_rules_add_text(g,
                              server_span_trim(is_framed          ? f->answer_close
                                               : section.size > 0 ? section
                                                                  : f->call_open),
                              text);
    }
    server_rules_add(g, "root ::= ");
    server_rules_add(g, *close == '\0' ? "" : inside ? "thought " : "thought? ");
    server_rules_add(g, text);
    server_rules_add(g, g->rules->must_call      ? "calls\n"
                        : g->rules->form != NULL ? "(calls | form-root)\n"
                                                 : " calls?\n");
}

bool server_tool_grammar(const server_tool_rules *rules, cli_buffer *out, server_error *error)
{
    server_rules_text g = {.rules = rules, .error = error};
    if (!server_work_take(rules->allowance, 2 * SERVER_RULES_MOST_TEXT, error)) {
        return false;
    }
    cli_buffer calls = {NULL, 0, 0};
    bool added = true;
    size_t n = 0;
    for (size_t i = 0; i < json_object_array_length(rules->tools) && added; i++) {
        struct json_object *function =
            json_object_object_get(json_object_array_get_idx(rules->tools, i), "function");
        const char *name = json_object_get_string(json_object_object_get(function, "name"));
        if (rules->name == NULL || strcmp(name, rules->name) == 0) {
            char rule[32];
            snprintf(rule, sizeof rule, "%scall-%zu", n++ > 0 ? " | " : "", i);
            g.failed |= !cli_buffer_append(&calls, rule, strlen(rule));
            added = add_call(&g, function, i);
        }
    }
    server_rules_add(&g, "call ::= ");
    server_rules_add_bytes(&g, calls.data, calls.size);
    server_rules_add(&g, "\n");
    cli_buffer_free(&calls);
    add_root(&g);
    if (rules->form != NULL) {
        g.tool = "response_format";
        added = added && server_rules_add_schema(&g, rules->form, "form", false);
    }
    *out = g.out;
    if (added && g.failed) {
        return server_fail(error, 413, "request_too_large", "tools",
                           "'tools': the grammar of their calls is longer than %d bytes, or memory "
                           "is short: describe fewer tools, or simpler ones.",
                           SERVER_RULES_MOST_TEXT);
    }
    return added;
}
