/* SPDX-License-Identifier: MIT */
/* Literals of the format, between them the tools' names, and the arguments by their schemas:
 *
 *   root   ::= thought? calls
 *   calls  ::= section_open call (between call)* section_close
 *   call   ::= call-0 | call-1 ..                     one for each tool
 *   call-0 ::= call_open "NAME" after_name arguments call_close
 *
 * A control token in a literal is <[ID]>, because no text spells it. */
#include "server_tool_grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/grammar.h>

#include "server_memory.h"

enum { LONGEST_ENDING = 32, MOST_CALLS = 16, MOST_TEXT = 1 << 20 };

typedef struct grammar_text {
    const server_tool_rules *rules;
    server_error *error;
    cli_buffer out;
    bool failed; /* memory was short, or the text is too long */
    unsigned n_endings;
} grammar_text;

static void add_bytes(grammar_text *g, const char *bytes, size_t size)
{
    g->failed = g->failed || size > MOST_TEXT - g->out.size ||
                (size > 0 && !cli_buffer_append(&g->out, bytes, size));
}

static void add(grammar_text *g, const char *text)
{
    add_bytes(g, text, strlen(text));
}

static void add_name(grammar_text *g, const char *word, size_t number)
{
    char text[48];
    snprintf(text, sizeof text, "%s-%zu", word, number);
    add(g, text);
}

/* ---- Literals ---- */

static void add_quoted(grammar_text *g, server_span text)
{
    char escape[8];
    add(g, "\"");
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c == '"' || c == '\\' || c < 0x20) {
            snprintf(escape, sizeof escape, "\\x%02X", c);
            add(g, escape);
        } else {
            add_bytes(g, text.data + i, 1);
        }
    }
    add(g, "\" ");
}

/* The token of a tag, if the text has it as a control token, else -1. */
static int32_t control_token(const moe_engine *engine, server_span tag)
{
    int32_t *tokens = NULL, found = -1;
    size_t n = 0, size = 0;
    if (moe_tokenize(engine, tag.data, tag.size, MOE_TOKENIZE_PARSE_SPECIAL, &tokens, &n, NULL) !=
        MOE_OK) {
        return -1;
    }
    if (n == 1 && moe_token_piece(engine, tokens[0], false, &size) != NULL && size == 0) {
        const char *piece = moe_token_piece(engine, tokens[0], true, &size);
        found = size == tag.size && memcmp(piece, tag.data, size) == 0 ? tokens[0] : -1;
    }
    moe_free(tokens);
    return found;
}

static size_t tag_end(server_span text, size_t at)
{
    char close = text.data[at] == '<' ? '>' : text.data[at] == '[' ? ']' : '\0';
    const char *end = close == '\0' ? NULL : memchr(text.data + at, close, text.size - at);
    return end == NULL ? at : (size_t)(end - text.data) + 1;
}

/* A literal of the format: texts, control tokens, ids and numbers. */
static void add_literal(grammar_text *g, server_span text)
{
    size_t begin = 0;
    for (size_t i = 0; i < text.size;) {
        char c = text.data[i];
        bool special = c == SERVER_TOOL_ID || c == SERVER_TOOL_NUMBER;
        size_t end = special ? i + 1 : tag_end(text, i);
        int32_t token = !special && end > i
                            ? control_token(g->rules->engine, server_span_cut(text, i, end))
                            : -1;
        if (!special && token < 0) {
            i++;
            continue;
        }
        if (i > begin) {
            add_quoted(g, server_span_cut(text, begin, i));
        }
        if (token >= 0 && moe_token_is_end(g->rules->engine, token)) {
            begin = i = end; /* the text ends there by itself */
            continue;
        }
        char rule[48];
        snprintf(rule, sizeof rule, "<[%d]> ", (int)token);
        add(g, c == SERVER_TOOL_ID       ? "[a-zA-Z0-9]{9} "
               : c == SERVER_TOOL_NUMBER ? "\":\" [0-9]{1,3} "
                                         : rule);
        begin = i = end;
    }
    if (text.size > begin) {
        add_quoted(g, server_span_cut(text, begin, text.size));
    }
}

/* ---- Texts up to a mark ---- */

/* How much of the word is matched behind `matched` characters and c. */
static size_t follow_word(server_span word, size_t matched, char c)
{
    for (size_t n = matched + 1; n > 0; n--) {
        if (word.data[n - 1] == c && memcmp(word.data, word.data + matched + 1 - n, n - 1) == 0) {
            return n;
        }
    }
    return 0;
}

static void add_class_char(grammar_text *g, char c)
{
    char text[8];
    snprintf(text, sizeof text, "\\x%02X", (unsigned char)c);
    add(g, text);
}

/* Rules for a text that does not have the word in it: one for each number of characters matched.
 * Returns the number of the rules; their names are until-NUMBER-MATCHED. */
static unsigned add_until(grammar_text *g, server_span word)
{
    unsigned number = g->n_endings++;
    char name[48];
    size_t n = word.size < LONGEST_ENDING ? word.size : LONGEST_ENDING;
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "until-%u-%zu ::= \"\"", number, i);
        add(g, name);
        for (size_t k = 0; k < n; k++) {
            size_t next = follow_word(word, i, word.data[k]);
            if (memchr(word.data, word.data[k], k) != NULL || next == 0 || next == n) {
                continue; /* told already, goes back to the beginning, or is the word */
            }
            add(g, " | [");
            add_class_char(g, word.data[k]);
            snprintf(name, sizeof name, "] until-%u-%zu", number, next);
            add(g, name);
        }
        add(g, " | [^\\x00");
        for (size_t k = 0; k < n; k++) {
            if (memchr(word.data, word.data[k], k) == NULL &&
                follow_word(word, i, word.data[k]) > 0) {
                add_class_char(g, word.data[k]);
            }
        }
        snprintf(name, sizeof name, "] until-%u-0\n", number);
        add(g, name);
    }
    return number;
}

/* A rule for any text up to the mark; its name goes to name[]. A mark that is no plain text cannot
 * be written as text. */
static void add_text_rule(grammar_text *g, server_span mark, char name[32])
{
    bool plain = mark.size > 0 && control_token(g->rules->engine, mark) < 0;
    for (size_t i = 0; i < mark.size; i++) {
        plain = plain && (unsigned char)mark.data[i] < 0x80;
    }
    if (plain) {
        snprintf(name, 32, "until-%u-0", add_until(g, mark));
    } else {
        snprintf(name, 32, "anything-%u", g->n_endings++);
        add(g, name);
        add(g, " ::= [^\\x00]*\n");
    }
}

/* ---- Schemas ---- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

/* Appends the rules with names of their own: NAME becomes PREFIX-NAME. */
static void add_renamed(grammar_text *g, const char *rules, const char *prefix)
{
    for (const char *at = rules; *at != '\0';) {
        const char *begin = at;
        if (*at == '"' || *at == '[') {
            char close = *at == '"' ? '"' : ']';
            for (at++; *at != '\0' && *at != close; at++) {
                at += *at == '\\' && at[1] != '\0';
            }
            at += *at != '\0';
        } else if (*at == '{') { /* repetitions */
            at += strcspn(at, "}");
        } else if (is_word(*at)) {
            add(g, prefix);
            add(g, "-");
            while (is_word(*at)) {
                at++;
            }
        } else {
            at++;
        }
        add_bytes(g, begin, (size_t)(at - begin));
    }
    add(g, "\n");
}

/* Adds the rules of a schema as PREFIX-root. Without strict a schema that cannot be followed gives
 * any object. */
static bool add_schema(grammar_text *g, struct json_object *schema, const char *prefix, bool strict)
{
    static const char any[] = "{\"type\": \"object\"}";
    char *rules = NULL;
    moe_error err = {""};
    const char *text =
        schema == NULL ? any : json_object_to_json_string_ext(schema, JSON_C_TO_STRING_PLAIN);
    moe_allowance *allowance = g->rules->allowance;
    const uint64_t before = allowance->bytes_now;
    size_t size = text == NULL ? 0 : strlen(text);
    /* The text, in a buffer that doubles. */
    if (!server_work_take(allowance, 2 * size, g->error) ||
        !server_work_step(allowance, size, g->error)) {
        return false;
    }
    int status = text == NULL ? MOE_ERR_MEMORY
                              : moe_json_schema_grammar_within(&rules, text, size, allowance, &err);
    if (status == MOE_ERR_UNSUPPORTED && !strict) {
        status = moe_json_schema_grammar_within(&rules, any, sizeof any - 1, allowance, &err);
    }
    if (status != MOE_OK) {
        return server_work_fail(g->error, status, "tools", &err);
    }
    add_renamed(g, rules, prefix);
    moe_free(rules);
    allowance->bytes_now = before;
    return true;
}

/* ---- Arguments by tags ---- */

static struct json_object *get(struct json_object *object, const char *key)
{
    struct json_object *value = NULL;
    json_object_object_get_ex(object, key, &value);
    return value;
}

static bool is_required(struct json_object *parameters, const char *key)
{
    struct json_object *list = get(parameters, "required");
    for (size_t i = 0;
         json_object_is_type(list, json_type_array) && i < json_object_array_length(list); i++) {
        const char *text = json_object_get_string(json_object_array_get_idx(list, i));
        if (text != NULL && strcmp(text, key) == 0) {
            return true;
        }
    }
    return false;
}

/* What a value may be: one of some texts, any text, or JSON by its schema. Fills in name[]. */
static bool add_value_rule(grammar_text *g, struct json_object *parameters,
                           struct json_object *schema, const char *prefix, bool strict,
                           char name[64])
{
    struct json_object *type = get(schema, "type"), *choices = get(schema, "enum");
    bool is_text = type == NULL ? get(schema, "$ref") == NULL && get(schema, "anyOf") == NULL
                                : json_object_is_type(type, json_type_string) &&
                                      strcmp(json_object_get_string(type), "string") == 0;
    if (is_text && json_object_is_type(choices, json_type_array)) {
        snprintf(name, 64, "%.40s-choice", prefix);
        add(g, name);
        add(g, " ::= ");
        for (size_t i = 0; i < json_object_array_length(choices); i++) {
            add(g, i > 0 ? "| " : "");
            add_quoted(
                g, server_span_of(json_object_get_string(json_object_array_get_idx(choices, i))));
        }
        add(g, "\n");
        return true;
    }
    if (is_text) {
        add_text_rule(g, server_span_trim(g->rules->format->value_close), name);
        return true;
    }
    /* References point into the whole schema. */
    struct json_object *whole = json_object_new_object();
    json_object_object_foreach(schema, key, value)
    {
        json_object_object_add(whole, key, json_object_get(value));
    }
    static const char *const shared[] = {"$defs", "definitions"};
    for (size_t i = 0; i < 2; i++) {
        if (get(parameters, shared[i]) != NULL && get(schema, shared[i]) == NULL) {
            json_object_object_add(whole, shared[i], json_object_get(get(parameters, shared[i])));
        }
    }
    snprintf(name, 64, "%.40s-root", prefix);
    bool added = add_schema(g, whole, prefix, strict);
    json_object_put(whole);
    return added;
}

/* The rule arguments-NUMBER of a tool, by tags. */
static bool add_tagged(grammar_text *g, struct json_object *parameters, size_t number, bool strict)
{
    const server_tool_format *f = g->rules->format;
    struct json_object *properties = get(parameters, "properties");
    char prefix[48], name[64], rule[64];
    size_t n = 0;
    if (json_object_is_type(properties, json_type_object)) {
        json_object_object_foreach(properties, key, schema)
        {
            snprintf(prefix, sizeof prefix, "t%zu-p%zu", number, n++);
            if (!add_value_rule(g, parameters, schema, prefix, strict, name)) {
                return false;
            }
            add(g, prefix);
            add(g, "-pair ::= ");
            add_literal(g, f->key_open);
            add_quoted(g, server_span_of(key));
            add_literal(g, f->value_open);
            add(g, name);
            add(g, " ");
            add_literal(g, f->value_close);
            add(g, "\n");
        }
    }
    size_t n_required = json_object_is_type(get(parameters, "required"), json_type_array)
                            ? json_object_array_length(get(parameters, "required"))
                            : 0;
    if (!server_work_step(g->rules->allowance, (uint64_t)n * n_required, g->error)) {
        return false;
    }
    add_name(g, "arguments", number);
    add(g, " ::= \"\"");
    size_t i = 0;
    if (n > 0) {
        json_object_object_foreach(properties, key, schema)
        {
            (void)schema;
            snprintf(rule, sizeof rule, " t%zu-p%zu-pair%s", number, i++,
                     is_required(parameters, key) ? "" : "?");
            add(g, rule);
        }
    }
    add(g, "\n");
    return true;
}

/* ---- Calls ---- */

static bool add_call(grammar_text *g, struct json_object *function, size_t number)
{
    const server_tool_format *f = g->rules->format;
    struct json_object *parameters = get(function, "parameters");
    bool strict = json_object_get_boolean(get(function, "strict"));
    char prefix[32];
    snprintf(prefix, sizeof prefix, "t%zu", number);
    bool added = f->kind == SERVER_TOOLS_TAGGED ? add_tagged(g, parameters, number, strict)
                                                : add_schema(g, parameters, prefix, strict);
    if (!added) {
        return false;
    }
    add_name(g, "call", number);
    add(g, " ::= ");
    add_literal(g, f->call_open);
    add_literal(g, f->object_open);
    add_quoted(g, server_span_of(json_object_get_string(get(function, "name"))));
    add_literal(g, f->after_name);
    if (f->kind == SERVER_TOOLS_TAGGED) {
        add_name(g, "arguments", number);
    } else {
        add(g, prefix);
        add(g, "-root");
    }
    add(g, " ");
    add_literal(g, f->object_close);
    add_literal(g, f->call_close);
    add(g, "\n");
    return true;
}

/* A prompt may have opened reasoning, and a model may write some first. */
static void add_root(grammar_text *g)
{
    const char *open, *close;
    const server_tool_format *f = g->rules->format;
    bool inside = moe_chat_prompt_marks(g->rules->prompt, &open, &close);
    char name[32];
    if (*close != '\0') {
        add_text_rule(g, server_span_of(close), name);
        add(g, "thought ::= ");
        if (!inside) {
            add_literal(g, server_span_of(open));
        }
        add(g, name);
        add(g, " ");
        add_literal(g, server_span_of(close));
        add(g, "[ \\n]{0,2} ");
        if (f->kind == SERVER_TOOLS_CHANNELS) {
            add_literal(g, server_span_of("<|start|>assistant"));
        }
        add(g, "\n");
    }
    add(g, "root ::= ");
    add(g, *close == '\0' ? "" : inside ? "thought " : "thought? ");
    server_span section = f->section_open;
    while (section.size > 0 && (section.data[0] == '\n' || section.data[0] == ' ') &&
           f->kind != SERVER_TOOLS_CHANNELS) {
        section = server_span_cut(section, 1, section.size);
    }
    add_literal(g, section);
    add(g, "call ");
    if (f->several && g->rules->several) {
        char most[16];
        add(g, "(");
        add_literal(g, f->between);
        add(g, "call)");
        snprintf(most, sizeof most, "{0,%d} ", MOST_CALLS - 1);
        add(g, most);
    }
    add_literal(g, f->section_close);
    add(g, "\n");
}

bool server_tool_grammar(const server_tool_rules *rules, cli_buffer *out, server_error *error)
{
    grammar_text g = {.rules = rules, .error = error};
    if (!server_work_take(rules->allowance, 2 * MOST_TEXT, error)) {
        return false;
    }
    cli_buffer calls = {NULL, 0, 0};
    bool added = true;
    size_t n = 0;
    for (size_t i = 0; i < json_object_array_length(rules->tools) && added; i++) {
        struct json_object *function = get(json_object_array_get_idx(rules->tools, i), "function");
        const char *name = json_object_get_string(get(function, "name"));
        if (rules->name == NULL || strcmp(name, rules->name) == 0) {
            char rule[32];
            snprintf(rule, sizeof rule, "%scall-%zu", n++ > 0 ? " | " : "", i);
            g.failed |= !cli_buffer_append(&calls, rule, strlen(rule));
            added = add_call(&g, function, i);
        }
    }
    add(&g, "call ::= ");
    add_bytes(&g, calls.data, calls.size);
    add(&g, "\n");
    cli_buffer_free(&calls);
    add_root(&g);
    *out = g.out;
    if (added && g.failed) {
        return server_fail(error, 413, "request_too_large", "tools",
                           "'tools': the grammar of their calls is longer than %d bytes, or memory "
                           "is short: describe fewer tools, or simpler ones.",
                           MOST_TEXT);
    }
    return added;
}
