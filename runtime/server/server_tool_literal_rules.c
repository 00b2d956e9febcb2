/* SPDX-License-Identifier: MIT */
/* Writes the grammar of arguments that are literals (Python's or Gemma's, see
 * server_tool_format.h), following the tool's schema. Python's values are like JSON except True,
 * False and None; Gemma writes keys and strings in a form of its own. */
#include "server_tool_literal_rules.h"

#include <stdio.h>
#include <string.h>

#include "server_memory.h"

enum { DEEPEST = 5, MOST_NAME = 64 };

static bool has_type(struct json_object *schema, const char *type)
{
    struct json_object *given = json_object_object_get(schema, "type");
    return json_object_is_type(given, json_type_string) &&
           strcmp(json_object_get_string(given), type) == 0;
}

static bool is_python(const server_rules_text *g)
{
    return g->rules->format->quote.size == 0;
}

/* ---- Values ---- */

/* Adds the rules for a value of any type; they are added only once per grammar. */
static void add_any(server_rules_text *g)
{
    char text[32];
    if (g->has_any) {
        return;
    }
    g->has_any = true;
    if (is_python(g)) {
        server_rules_add(
            g, "any-text ::= \"\\\"\" ([^\"\\\\\\x00-\\x1F] | \"\\\\\" [\"\\\\nrt])* \"\\\"\"\n"
               "any-key ::= any-text\n"
               "any-word ::= \"True\" | \"False\" | \"None\"\n");
    } else {
        server_rules_add_text(g, g->rules->format->quote, text);
        server_rules_add(g, "any-text ::= ");
        server_rules_add_literal(g, g->rules->format->quote);
        server_rules_add(g, text);
        server_rules_add(g, " ");
        server_rules_add_literal(g, g->rules->format->quote);
        server_rules_add(g, "\nany-key ::= [a-zA-Z_] [a-zA-Z0-9_]{0,63}\n"
                            "any-word ::= \"true\" | \"false\" | \"null\"\n");
    }
    server_rules_add(
        g,
        "any-number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,17}) (\".\" [0-9]{1,17})?\n"
        "any-list ::= \"[\" (any-value (\",\" any-value)*)? \"]\"\n"
        "any-object ::= \"{\" (any-key \":\" any-value (\",\" any-key \":\" any-value)*)? \"}\"\n"
        "any-value ::= any-text | any-number | any-word | any-list | any-object\n");
}

/* Adds the text as a literal, within the quotes that the format uses. */
static void add_quoted_text(server_rules_text *g, const char *text)
{
    if (is_python(g)) {
        struct json_object *value = json_object_new_string(text);
        server_rules_add_quoted(g, server_span_of(json_object_to_json_string_ext(
                                       value, JSON_C_TO_STRING_NOSLASHESCAPE)));
        json_object_put(value);
        return;
    }
    server_rules_add_literal(g, g->rules->format->quote);
    server_rules_add_quoted(g, server_span_of(text));
    server_rules_add_literal(g, g->rules->format->quote);
}

static bool add_value(server_rules_text *g, struct json_object *parameters,
                      struct json_object *schema, const char *name, unsigned depth, bool strict);

/* Adds the rule NAME for the members of an object: its properties in order, of which those that
 * are not required may be left out. */
static bool add_members(server_rules_text *g, struct json_object *parameters,
                        struct json_object *schema, const char *name, unsigned depth, bool strict)
{
    struct json_object *properties = json_object_object_get(schema, "properties");
    char text[4 * MOST_NAME];
    size_t n = 0, i = 0;
    if (json_object_is_type(properties, json_type_object)) {
        json_object_object_foreach(properties, key, value)
        {
            snprintf(text, MOST_NAME, "%.48s-%zu", name, n++);
            if (!add_value(g, parameters, value, text, depth + 1, strict)) {
                return false;
            }
            server_rules_add(g, text);
            server_rules_add(g, "-pair ::= ");
            server_rules_add_quoted(g, server_span_of(key));
            server_rules_add_quoted(g, depth == 0 ? g->rules->format->value_open
                                                  : server_span_of(":"));
            server_rules_add(g, text);
            server_rules_add(g, "\n");
        }
    }
    /* The rule first-I matches the members from property I on; more-I matches the same after an
     * earlier member, so it begins with a comma. */
    snprintf(text, sizeof text, "%.48s-first-%zu ::= \"\"\n%.48s-more-%zu ::= \"\"\n", name, n,
             name, n);
    server_rules_add(g, text);
    struct json_object *required = json_object_object_get(schema, "required");
    size_t n_required =
        json_object_is_type(required, json_type_array) ? json_object_array_length(required) : 0;
    if (!server_work_step(g->rules->allowance, (uint64_t)n * (n_required + 1), g->error)) {
        return false;
    }
    if (n > 0) {
        json_object_object_foreach(properties, key, value)
        {
            (void)value;
            bool must = server_rules_is_required(schema, key);
            const char *const parts[] = {"first", "more"};
            for (size_t k = 0; k < 2; k++) {
                snprintf(text, sizeof text, "%.48s-%s-%zu ::= %s%.48s-%zu-pair %.48s-more-%zu",
                         name, parts[k], i, k == 1 ? "\",\" \" \"? " : "", name, i, name, i + 1);
                server_rules_add(g, text);
                snprintf(text, sizeof text, " | %.48s-%s-%zu", name, parts[k], i + 1);
                server_rules_add(g, must ? "" : text);
                server_rules_add(g, "\n");
            }
            i++;
        }
    }
    snprintf(text, sizeof text, "%.48s ::= %.48s-first-0\n", name, name);
    server_rules_add(g, text);
    return true;
}

static bool add_choices(server_rules_text *g, struct json_object *choices, const char *name)
{
    server_rules_add(g, name);
    server_rules_add(g, " ::= ");
    for (size_t i = 0; i < json_object_array_length(choices); i++) {
        server_rules_add(g, i > 0 ? "| " : "");
        add_quoted_text(g, json_object_get_string(json_object_array_get_idx(choices, i)));
    }
    server_rules_add(g, "\n");
    return true;
}

static bool add_list(server_rules_text *g, struct json_object *parameters,
                     struct json_object *schema, const char *name, unsigned depth, bool strict)
{
    char item[MOST_NAME];
    snprintf(item, sizeof item, "%.48s-i", name);
    bool added =
        add_value(g, parameters, json_object_object_get(schema, "items"), item, depth + 1, strict);
    char text[4 * MOST_NAME];
    snprintf(text, sizeof text, "%.48s ::= \"[\" (%.48s (\",\" \" \"? %.48s)*)? \"]\"\n", name,
             item, item);
    server_rules_add(g, text);
    return added;
}

/* Adds the rule NAME for a value with this schema. */
static bool add_value(server_rules_text *g, struct json_object *parameters,
                      struct json_object *schema, const char *name, unsigned depth, bool strict)
{
    struct json_object *choices = json_object_object_get(schema, "enum");
    bool has_choices =
        json_object_is_type(choices, json_type_array) && json_object_array_length(choices) > 0;
    bool is_scalar = has_type(schema, "integer") || has_type(schema, "number");
    bool is_plain = !has_choices && json_object_object_get(schema, "const") == NULL;
    char text[2 * MOST_NAME];
    add_any(g);
    if (has_type(schema, "string") && has_choices) {
        return add_choices(g, choices, name);
    }
    if (is_plain && depth <= DEEPEST && !is_python(g) && has_type(schema, "array")) {
        return add_list(g, parameters, schema, name, depth, strict);
    }
    if (is_plain && depth <= DEEPEST && !is_python(g) && has_type(schema, "object") &&
        json_object_object_get(schema, "properties") != NULL) {
        snprintf(text, MOST_NAME, "%.48s-o", name);
        bool added = add_members(g, parameters, schema, text, depth, strict);
        server_rules_add(g, name);
        server_rules_add(g, " ::= \"{\" ");
        server_rules_add(g, text);
        server_rules_add(g, " \"}\"\n");
        return added;
    }
    bool by_schema = is_scalar || (is_python(g) && json_object_object_get(schema, "type") != NULL &&
                                   !has_type(schema, "boolean") && !has_type(schema, "null"));
    if (by_schema) {
        struct json_object *whole = server_rules_whole(parameters, schema);
        snprintf(text, MOST_NAME, "%.48s-s", name);
        bool added = server_rules_add_schema(g, whole, text, strict);
        json_object_put(whole);
        server_rules_add(g, name);
        server_rules_add(g, " ::= ");
        server_rules_add(g, text);
        server_rules_add(g, "-root\n");
        return added;
    }
    server_rules_add(g, name);
    server_rules_add(g, has_type(schema, "boolean") && is_python(g) ? " ::= \"True\" | \"False\"\n"
                        : has_type(schema, "boolean")               ? " ::= \"true\" | \"false\"\n"
                        : has_type(schema, "string")                ? " ::= any-text\n"
                        : has_type(schema, "object")                ? " ::= any-object\n"
                        : has_type(schema, "array")                 ? " ::= any-list\n"
                                                                    : " ::= any-value\n");
    return true;
}

bool server_rules_add_literals(server_rules_text *g, struct json_object *parameters, size_t number,
                               bool strict)
{
    char name[MOST_NAME];
    snprintf(name, sizeof name, "t%zu", number);
    if (!add_members(g, parameters, parameters, name, 0, strict)) {
        return false;
    }
    server_rules_add_name(g, "arguments", number);
    server_rules_add(g, " ::= ");
    server_rules_add(g, name);
    server_rules_add(g, "\n");
    return true;
}
