/* SPDX-License-Identifier: MIT */
#include "server_tool_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/grammar.h>

#include "server_memory.h"

enum { LONGEST_ENDING = 32 };

void server_rules_add_bytes(server_rules_text *g, const char *bytes, size_t size)
{
    g->failed = g->failed || size > SERVER_RULES_MOST_TEXT - g->out.size ||
                (size > 0 && !cli_buffer_append(&g->out, bytes, size));
}

void server_rules_add(server_rules_text *g, const char *text)
{
    server_rules_add_bytes(g, text, strlen(text));
}

void server_rules_add_name(server_rules_text *g, const char *word, size_t number)
{
    char text[48];
    snprintf(text, sizeof text, "%s-%zu", word, number);
    server_rules_add(g, text);
}

/* ---- Literals ---- */

void server_rules_add_quoted(server_rules_text *g, server_span text)
{
    char escape[8];
    server_rules_add(g, "\"");
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c == '"' || c == '\\' || c < 0x20) {
            snprintf(escape, sizeof escape, "\\x%02X", c);
            server_rules_add(g, escape);
        } else {
            server_rules_add_bytes(g, text.data + i, 1);
        }
    }
    server_rules_add(g, "\" ");
}

/* Returns the control token whose text is this tag; -1: there is none. */
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

/* Adds a literal of the format. It may contain control tokens, and special bytes for ids and
 * numbers. */
void server_rules_add_literal(server_rules_text *g, server_span text)
{
    size_t begin = 0;
    for (size_t i = 0; i < text.size;) {
        char c = text.data[i];
        bool special = server_tool_is_mark(c);
        size_t end = special ? i + 1 : tag_end(text, i);
        int32_t token = !special && end > i
                            ? control_token(g->rules->engine, server_span_cut(text, i, end))
                            : -1;
        if (!special && token < 0) {
            i++;
            continue;
        }
        if (i > begin) {
            server_rules_add_quoted(g, server_span_cut(text, begin, i));
        }
        if (token >= 0 && moe_token_is_end(g->rules->engine, token)) {
            begin = i = end; /* the text ends at this token, so no rule is needed */
            continue;
        }
        char rule[48];
        snprintf(rule, sizeof rule, "<[%d]> ", (int)token);
        if (c == SERVER_TOOL_WORD || c == SERVER_TOOL_KEY) {
            server_rules_add_quoted(g, server_span_of(c == SERVER_TOOL_WORD ? g->word : g->key));
        } else if (c == SERVER_TOOL_TYPE && g->type[0] != '\0') {
            server_rules_add_quoted(g, server_span_of(g->type));
        } else {
            server_rules_add(g,
                             c == SERVER_TOOL_ID       ? "[a-zA-Z0-9]{9} "
                             : c == SERVER_TOOL_NUMBER ? "\":\" [0-9]{1,3} "
                             : c == SERVER_TOOL_INDEX  ? "[0-9]{1,3} "
                             : c == SERVER_TOOL_TYPE
                                 ? "(\"number\" | \"boolean\" | \"object\" | \"array\" | \"null\") "
                                 : rule);
        }
        begin = i = end;
    }
    if (text.size > begin) {
        server_rules_add_quoted(g, server_span_cut(text, begin, text.size));
    }
}

/* ---- Any text up to a mark ---- */

/* Returns how many characters of the word are matched after the character c, if `matched` of them
 * were matched before it. */
static size_t follow_word(server_span word, size_t matched, char c)
{
    for (size_t n = matched + 1; n > 0; n--) {
        if (word.data[n - 1] == c && memcmp(word.data, word.data + matched + 1 - n, n - 1) == 0) {
            return n;
        }
    }
    return 0;
}

static void add_class_char(server_rules_text *g, char c)
{
    char text[8];
    snprintf(text, sizeof text, "\\x%02X", (unsigned char)c);
    server_rules_add(g, text);
}

/* Adds rules for texts that do not contain the word, one for each number of characters that are
 * matched so far (an automaton). They are named until-NUMBER-MATCHED. Returns NUMBER. */
static unsigned add_until(server_rules_text *g, server_span word)
{
    unsigned number = g->n_endings++;
    char name[48];
    size_t n = word.size < LONGEST_ENDING ? word.size : LONGEST_ENDING;
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "until-%u-%zu ::= \"\"", number, i);
        server_rules_add(g, name);
        for (size_t k = 0; k < n; k++) {
            size_t next = follow_word(word, i, word.data[k]);
            if (memchr(word.data, word.data[k], k) != NULL || next == 0 || next == n) {
                continue; /* has a rule already, leads back to the start, or completes the word */
            }
            server_rules_add(g, " | [");
            add_class_char(g, word.data[k]);
            snprintf(name, sizeof name, "] until-%u-%zu", number, next);
            server_rules_add(g, name);
        }
        server_rules_add(g, " | [^\\x00");
        for (size_t k = 0; k < n; k++) {
            if (memchr(word.data, word.data[k], k) == NULL &&
                follow_word(word, i, word.data[k]) > 0) {
                add_class_char(g, word.data[k]);
            }
        }
        snprintf(name, sizeof name, "] until-%u-0\n", number);
        server_rules_add(g, name);
    }
    return number;
}

/* Adds a rule for any text up to the mark, and sets name[] to its name. If the mark is a control
 * token, empty, or not ASCII, the rule allows any text, because text cannot contain the mark or
 * the mark is not watched for. */
void server_rules_add_text(server_rules_text *g, server_span mark, char name[32])
{
    bool plain = mark.size > 0 && control_token(g->rules->engine, mark) < 0;
    for (size_t i = 0; i < mark.size; i++) {
        plain = plain && (unsigned char)mark.data[i] < 0x80;
    }
    if (plain) {
        snprintf(name, 32, "until-%u-0", add_until(g, mark));
    } else {
        snprintf(name, 32, "anything-%u", g->n_endings++);
        server_rules_add(g, name);
        server_rules_add(g, " ::= [^\\x00]*\n");
    }
}

/* ---- Schemas ---- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

/* Appends rules with their names prefixed: NAME becomes PREFIX-NAME. */
static void add_renamed(server_rules_text *g, const char *rules, const char *prefix)
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
            server_rules_add(g, prefix);
            server_rules_add(g, "-");
            while (is_word(*at)) {
                at++;
            }
        } else {
            at++;
        }
        server_rules_add_bytes(g, begin, (size_t)(at - begin));
    }
    server_rules_add(g, "\n");
}

/* Adds the rules of a schema, of which the first is PREFIX-root. Without `strict`, a schema that
 * is not supported becomes any object. */
bool server_rules_add_schema(server_rules_text *g, struct json_object *schema, const char *prefix,
                             bool strict)
{
    static const char any[] = "{\"type\": \"object\"}";
    char *rules = NULL;
    moe_error err = {""};
    const char *text =
        schema == NULL ? any : json_object_to_json_string_ext(schema, JSON_C_TO_STRING_PLAIN);
    moe_allowance *allowance = g->rules->allowance;
    const uint64_t before = allowance->bytes_now;
    size_t size = text == NULL ? 0 : strlen(text);
    /* The text of the schema, in a buffer that doubles when it grows. */
    if (!server_work_take(allowance, 2 * size, g->error) ||
        !server_work_step(allowance, size, g->error)) {
        return false;
    }
    char *dropped = NULL;
    int status = text == NULL ? MOE_ERR_MEMORY
                              : moe_json_schema_grammar_loose(&rules, strict ? NULL : &dropped,
                                                              text, size, allowance, &err);
    if (status == MOE_ERR_UNSUPPORTED && !strict) {
        server_note_dropped(g->rules->dropped, g->tool, "the whole schema");
        status = moe_json_schema_grammar_within(&rules, any, sizeof any - 1, allowance, &err);
    }
    if (dropped != NULL) {
        server_note_dropped(g->rules->dropped, g->tool, dropped);
        moe_free(dropped);
    }
    if (status != MOE_OK) {
        return server_work_fail(g->error, status, "tools", &err);
    }
    add_renamed(g, rules, prefix);
    moe_free(rules);
    allowance->bytes_now = before;
    return true;
}

/* ---- Parts of schemas ---- */

struct json_object *server_rules_whole(struct json_object *parameters, struct json_object *schema)
{
    static const char *const shared[] = {"$defs", "definitions"};
    struct json_object *whole = json_object_new_object();
    if (json_object_is_type(schema, json_type_object)) {
        json_object_object_foreach(schema, key, value)
        {
            json_object_object_add(whole, key, json_object_get(value));
        }
    }
    for (size_t i = 0; i < 2; i++) {
        if (json_object_object_get(parameters, shared[i]) != NULL &&
            json_object_object_get(schema, shared[i]) == NULL) {
            json_object_object_add(whole, shared[i],
                                   json_object_get(json_object_object_get(parameters, shared[i])));
        }
    }
    return whole;
}

bool server_rules_is_required(struct json_object *parameters, const char *key)
{
    struct json_object *list = json_object_object_get(parameters, "required");
    for (size_t i = 0;
         json_object_is_type(list, json_type_array) && i < json_object_array_length(list); i++) {
        const char *text = json_object_get_string(json_object_array_get_idx(list, i));
        if (text != NULL && strcmp(text, key) == 0) {
            return true;
        }
    }
    return false;
}
