/* SPDX-License-Identifier: MIT */
/* From a JSON schema to a grammar's text. Each subschema that is not plain becomes a rule; a $ref
 * becomes the rule of what it points to, once, so schemas may be recursive. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>
#include <moe/grammar.h>

#include "runtime/base/error.h"
#include "runtime/grammar/schema_enum.h"
#include "runtime/grammar/schema_keywords.h"
#include "runtime/grammar/schema_text.h"

enum { DEEPEST_JSON = 64, STEPS_OF_NAME = 16 };

/* The rules that every grammar has. A space may follow punctuation, as models write JSON. */
static const char basics[] =
    "ws ::= \" \"? | \"\\n\" [ \\t]{0,16}\n"
    "char ::= [^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4})\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "digits ::= [0-9]{1,20}\n"
    "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,18})\n"
    "number ::= integer (\".\" digits)? ([eE] [-+]? [0-9]{1,3})?\n"
    "boolean ::= \"true\" | \"false\"\n"
    "null ::= \"null\"\n"
    "member ::= string ws \":\" ws value\n"
    "object ::= \"{\" ws (member (ws \",\" ws member)* ws)? \"}\"\n"
    "array ::= \"[\" ws (value (ws \",\" ws value)* ws)? \"]\"\n"
    "value ::= object | array | string | number | boolean | null\n";

static struct json_object *get(struct json_object *schema, const char *key)
{
    struct json_object *value = NULL;
    json_object_object_get_ex(schema, key, &value);
    return value;
}

static int64_t get_count(moe_schema_writer *w, struct json_object *schema, const char *key,
                         int64_t missing)
{
    struct json_object *value = get(schema, key);
    if (value == NULL) {
        return missing;
    }
    int64_t n = json_object_get_int64(value);
    if (!json_object_is_type(value, json_type_int) || n < 0 || n > 2000) {
        moe_schema_fail(w, MOE_ERR_UNSUPPORTED, "a whole number from 0 to 2000 is expected for ",
                        key);
        return missing;
    }
    return n;
}

static void write_schema(moe_schema_writer *w, struct json_object *schema, moe_schema_piece *out);

/* Writes the schema and makes it a rule, so that it can be used more than once. */
static void write_rule(moe_schema_writer *w, struct json_object *schema, char name[16])
{
    moe_schema_piece p = {NULL, 0, 0};
    uint32_t number = w->n_rules++;
    write_schema(w, schema, &p);
    moe_schema_finish_rule(w, &p, name, number);
}

static void add_repeats(moe_schema_writer *w, moe_schema_piece *out, int64_t least, int64_t most)
{
    char text[48];
    if (most < 0) {
        snprintf(text, sizeof text, "{%" PRId64 ",}", least);
    } else {
        snprintf(text, sizeof text, "{%" PRId64 ",%" PRId64 "}", least, most);
    }
    if (most >= 0 && most < least) {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "a least number is above the most", "");
    }
    moe_schema_add(w, out, text);
}

static void write_string(moe_schema_writer *w, struct json_object *schema, moe_schema_piece *out)
{
    int64_t least = get_count(w, schema, "minLength", 0);
    int64_t most = get_count(w, schema, "maxLength", -1);
    if (least == 0 && most < 0) {
        moe_schema_add(w, out, "string");
        return;
    }
    moe_schema_add(w, out, "\"\\\"\" char");
    add_repeats(w, out, least, most);
    moe_schema_add(w, out, " \"\\\"\"");
}

/* Items with a schema each, then any number of one schema. */
static void write_array(moe_schema_writer *w, struct json_object *schema, moe_schema_piece *out)
{
    char name[16] = "value";
    struct json_object *first = get(schema, "prefixItems");
    struct json_object *items = get(schema, "items");
    bool more = !json_object_is_type(items, json_type_boolean) || json_object_get_boolean(items);
    size_t n_first =
        json_object_is_type(first, json_type_array) ? json_object_array_length(first) : 0;
    int64_t least = get_count(w, schema, "minItems", 0);
    int64_t most = get_count(w, schema, "maxItems", -1);
    if (n_first > 0 && (least > 0 || most >= 0)) {
        moe_schema_fail(w, MOE_ERR_UNSUPPORTED,
                        "prefixItems does not go with minItems and maxItems", "");
    }
    if (items != NULL && !json_object_is_type(items, json_type_boolean)) {
        write_rule(w, items, name);
    }
    moe_schema_add(w, out, "\"[\" ws ");
    for (size_t i = 0; i < n_first; i++) {
        char item[16];
        write_rule(w, json_object_array_get_idx(first, i), item);
        moe_schema_add(w, out, i > 0 ? "ws \",\" ws " : "");
        moe_schema_add(w, out, item);
        moe_schema_add(w, out, " ");
    }
    if (n_first > 0 && more && items != NULL) {
        moe_schema_add(w, out, "(ws \",\" ws ");
        moe_schema_add(w, out, name);
        moe_schema_add(w, out, ")* ");
    } else if (n_first == 0 && more && most != 0) {
        moe_schema_add(w, out, least == 0 ? "(" : "");
        moe_schema_add(w, out, name);
        moe_schema_add(w, out, " (ws \",\" ws ");
        moe_schema_add(w, out, name);
        moe_schema_add(w, out, ")");
        add_repeats(w, out, least == 0 ? 0 : least - 1, most < 0 ? -1 : most - 1);
        moe_schema_add(w, out, least == 0 ? ")? " : " ");
    }
    moe_schema_add(w, out, "ws \"]\"");
}

/* ---- Objects ---- */

/* The names of required, as keys of an object, each of a property; NULL: memory is short, or an
 * error. */
static struct json_object *find_required(moe_schema_writer *w, struct json_object *schema,
                                         struct json_object *properties)
{
    struct json_object *required = get(schema, "required");
    struct json_object *names = json_object_new_object();
    size_t n =
        json_object_is_type(required, json_type_array) ? json_object_array_length(required) : 0;
    for (size_t i = 0; i < n && moe_schema_step(w, STEPS_OF_NAME); i++) {
        const char *name = json_object_get_string(json_object_array_get_idx(required, i));
        if (name == NULL || properties == NULL || get(properties, name) == NULL) {
            moe_schema_fail(w, MOE_ERR_UNSUPPORTED,
                            "required names what is no property: ", name == NULL ? "null" : name);
        } else if (names == NULL || json_object_object_add(names, name, NULL) != 0) {
            moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
        }
    }
    return names;
}

/* A rule for what may follow from property `i` on, as the first member or after others. It is built
 * from the last property to the first: what follows each is a rule already.
 *   first(i) ::= member(i) more(i+1) | first(i+1)      the second part if it is optional
 *   more(i)  ::= "," member(i) more(i+1) | more(i+1) */
static void write_members(moe_schema_writer *w, struct json_object *required_names,
                          struct json_object *properties, const char *extra, char first[16])
{
    char more[16];
    size_t n = (size_t)json_object_object_length(properties);
    const char **keys = calloc(n + 1, sizeof *keys);
    size_t at = 0;
    if (keys == NULL) {
        moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
        return;
    }
    json_object_object_foreach(properties, key, value)
    {
        (void)value;
        keys[at++] = key;
    }
    moe_schema_piece p = {NULL, 0, 0}, q = {NULL, 0, 0};
    if (extra != NULL) {
        moe_schema_add(w, &p, extra);
        moe_schema_add(w, &p, " (ws \",\" ws ");
        moe_schema_add(w, &p, extra);
        moe_schema_add(w, &p, ")* | \"\"");
        moe_schema_add(w, &q, "(ws \",\" ws ");
        moe_schema_add(w, &q, extra);
        moe_schema_add(w, &q, ")*");
    }
    moe_schema_finish_rule(w, &p, first, w->n_rules++);
    moe_schema_finish_rule(w, &q, more, w->n_rules++);
    for (size_t i = n; i-- > 0 && w->status == MOE_OK;) {
        char member[16], first_now[16], more_now[16];
        uint32_t number = w->n_rules++;
        moe_schema_piece m = {NULL, 0, 0};
        struct json_object *quoted = json_object_new_string(keys[i]);
        moe_schema_add_value(w, &m, quoted);
        json_object_put(quoted);
        moe_schema_add(w, &m, " ws \":\" ws ");
        char rule[16];
        write_rule(w, get(properties, keys[i]), rule);
        moe_schema_add(w, &m, rule);
        moe_schema_finish_rule(w, &m, member, number);
        bool required = json_object_object_get_ex(required_names, keys[i], NULL);
        (void)moe_schema_step(w, STEPS_OF_NAME);
        char text[128];
        snprintf(text, sizeof text, "%s %s%s%s", member, more, required ? "" : " | ",
                 required ? "" : first);
        moe_schema_add(w, &p, text);
        snprintf(text, sizeof text, "ws \",\" ws %s %s%s%s", member, more, required ? "" : " | ",
                 required ? "" : more);
        moe_schema_add(w, &q, text);
        moe_schema_finish_rule(w, &p, first_now, w->n_rules++);
        moe_schema_finish_rule(w, &q, more_now, w->n_rules++);
        memcpy(first, first_now, 16);
        memcpy(more, more_now, 16);
    }
    free(keys);
    moe_schema_drop(w, &p);
    moe_schema_drop(w, &q);
}

static void write_object(moe_schema_writer *w, struct json_object *schema, moe_schema_piece *out)
{
    struct json_object *properties = get(schema, "properties");
    struct json_object *additional = get(schema, "additionalProperties");
    bool closed = additional == NULL
                      ? properties != NULL && json_object_object_length(properties) > 0
                      : json_object_is_type(additional, json_type_boolean) &&
                            !json_object_get_boolean(additional);
    char extra[32] = "member";
    char first[16] = "";
    if (properties != NULL && !json_object_is_type(properties, json_type_object)) {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "properties must be an object", "");
        return;
    }
    struct json_object *required = find_required(w, schema, properties);
    if (!closed && json_object_is_type(additional, json_type_object)) {
        char rule[16];
        moe_schema_piece p = {NULL, 0, 0};
        write_rule(w, additional, rule);
        moe_schema_add(w, &p, "string ws \":\" ws ");
        moe_schema_add(w, &p, rule);
        moe_schema_finish_rule(w, &p, rule, w->n_rules++);
        snprintf(extra, sizeof extra, "%s", rule);
    }
    struct json_object *none = properties == NULL ? json_object_new_object() : NULL;
    write_members(w, required, properties == NULL ? none : properties, closed ? NULL : extra,
                  first);
    json_object_put(none);
    json_object_put(required);
    moe_schema_add(w, out, "\"{\" ws ");
    moe_schema_add(w, out, first);
    moe_schema_add(w, out, " ws \"}\"");
}

/* ---- Schemas ---- */

/* What "#/a/b" points to; NULL, with an error. */
static struct json_object *find_ref(moe_schema_writer *w, const char *ref)
{
    struct json_object *at = w->root;
    if (ref[0] != '#' || (ref[1] != '\0' && ref[1] != '/')) {
        moe_schema_fail(w, MOE_ERR_UNSUPPORTED, "$ref points outside the schema: ", ref);
        return NULL;
    }
    const char *rest = ref + 1;
    while (*rest == '/' && at != NULL) {
        char key[256];
        size_t n = 0;
        for (rest++; *rest != '\0' && *rest != '/' && n + 1 < sizeof key; rest++) {
            char c = *rest;
            if (c == '~' && (rest[1] == '0' || rest[1] == '1')) {
                c = *++rest == '0' ? '~' : '/';
            }
            key[n++] = c;
        }
        key[n] = '\0';
        at = json_object_is_type(at, json_type_object) ? get(at, key) : NULL;
    }
    if (at == NULL || *rest != '\0') {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "$ref points to nothing: ", ref);
        return NULL;
    }
    return at;
}

static void write_ref(moe_schema_writer *w, const char *ref, moe_schema_piece *out)
{
    char name[16];
    struct json_object *target = find_ref(w, ref);
    if (!moe_schema_step(w, w->n_refs / 4)) {
        return;
    }
    for (uint32_t i = 0; i < w->n_refs && target != NULL; i++) {
        if (w->refs[i].target == target) {
            snprintf(name, sizeof name, "r%" PRIu32, w->refs[i].rule);
            moe_schema_add(w, out, name);
            return;
        }
    }
    if (target == NULL || w->n_refs == MOE_SCHEMA_MOST_REFS) {
        moe_schema_fail(w, MOE_ERR_UNSUPPORTED, "too many $ref", "");
        return;
    }
    uint32_t number = w->n_rules++;
    w->refs[w->n_refs].target = target;
    w->refs[w->n_refs++].rule = number;
    moe_schema_piece p = {NULL, 0, 0};
    write_schema(w, target, &p);
    moe_schema_finish_rule(w, &p, name, number);
    moe_schema_add(w, out, name);
}

static void write_alternatives(moe_schema_writer *w, struct json_object *list,
                               moe_schema_piece *out, const char *keyword)
{
    size_t n = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    if (n == 0 || (strcmp(keyword, "allOf") == 0 && n > 1)) {
        moe_schema_fail(w, MOE_ERR_UNSUPPORTED,
                        n == 0 ? "an array of schemas is expected for "
                               : "more than one entry is not supported in ",
                        keyword);
    }
    moe_schema_add(w, out, "(");
    for (size_t i = 0; i < n && w->status == MOE_OK; i++) {
        char name[16];
        moe_schema_add(w, out, i > 0 ? " | " : "");
        write_rule(w, json_object_array_get_idx(list, i), name);
        moe_schema_add(w, out, name);
    }
    moe_schema_add(w, out, ")");
}

static void write_type(moe_schema_writer *w, const char *type, struct json_object *schema,
                       moe_schema_piece *out)
{
    static const char *const plain[] = {"integer", "number", "boolean", "null", NULL};
    if (moe_schema_is_listed(type, plain)) {
        moe_schema_add(w, out, type);
    } else if (strcmp(type, "string") == 0) {
        write_string(w, schema, out);
    } else if (strcmp(type, "array") == 0) {
        write_array(w, schema, out);
    } else if (strcmp(type, "object") == 0) {
        write_object(w, schema, out);
    } else {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "there is no such type: ", type);
    }
}

static void write_types(moe_schema_writer *w, struct json_object *types, struct json_object *schema,
                        moe_schema_piece *out)
{
    size_t n = json_object_array_length(types);
    if (n == 0) {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "type is an empty array", "");
    }
    moe_schema_add(w, out, "(");
    for (size_t i = 0; i < n; i++) {
        const char *type = json_object_get_string(json_object_array_get_idx(types, i));
        moe_schema_add(w, out, i > 0 ? " | " : "");
        write_type(w, type == NULL ? "" : type, schema, out);
    }
    moe_schema_add(w, out, ")");
}

static void write_schema(moe_schema_writer *w, struct json_object *schema, moe_schema_piece *out)
{
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    if (!moe_schema_step(w, 1)) {
        return;
    }
    if (json_object_is_type(schema, json_type_boolean) && json_object_get_boolean(schema)) {
        moe_schema_add(w, out, "value");
        return;
    }
    if (!json_object_is_type(schema, json_type_object)) {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "a schema must be an object, or true", "");
        return;
    }
    moe_schema_check_keywords(w, schema);
    struct json_object *ref = get(schema, "$ref");
    struct json_object *type = get(schema, "type");
    if (ref != NULL) {
        const char *text = json_object_get_string(ref);
        write_ref(w, text == NULL ? "" : text, out);
        return;
    }
    if (get(schema, "const") != NULL || json_object_object_get_ex(schema, "const", NULL)) {
        moe_schema_add_value(w, out, get(schema, "const"));
        return;
    }
    if (get(schema, "enum") != NULL) {
        moe_schema_write_enum(w, get(schema, "enum"), out);
        return;
    }
    for (int i = 0; i < 3; i++) {
        if (get(schema, choices[i]) != NULL) {
            if (get(schema, "properties") != NULL) {
                moe_schema_fail(w, MOE_ERR_UNSUPPORTED, "properties do not go with ", choices[i]);
            }
            write_alternatives(w, get(schema, choices[i]), out, choices[i]);
            return;
        }
    }
    if (json_object_is_type(type, json_type_array)) {
        write_types(w, type, schema, out);
    } else if (type != NULL) {
        const char *text = json_object_get_string(type);
        write_type(w, text == NULL ? "" : text, schema, out);
    } else if (get(schema, "properties") != NULL) {
        write_object(w, schema, out);
    } else if (get(schema, "items") != NULL) {
        write_array(w, schema, out);
    } else {
        moe_schema_add(w, out, "value");
    }
}

/* The most that json-c takes for a text: an object with its table, an array, a value with its
 * place; and its strings. */
static uint64_t json_bytes(const char *text, size_t size)
{
    uint64_t bytes = size + 112;
    bool quoted = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        i += quoted && c == '\\';
        quoted = quoted != (c == '"');
        bytes += quoted ? 0 : c == '{' ? 832 : c == '[' ? 224 : c == ',' || c == ':' ? 112 : 0;
    }
    return bytes;
}

static struct json_object *parse(const char *text, size_t size, moe_error *err)
{
    struct json_tokener *tokener = json_tokener_new_ex(DEEPEST_JSON);
    struct json_object *root = NULL;
    if (tokener == NULL) {
        moe_fail(err, MOE_ERR_MEMORY, "out of memory for a JSON schema");
        return NULL;
    }
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    if (size < MOE_SCHEMA_MOST_BYTES) {
        root = json_tokener_parse_ex(tokener, text, (int)size);
    }
    if (root == NULL || json_tokener_get_error(tokener) != json_tokener_success) {
        json_object_put(root);
        root = NULL;
        moe_fail(err, MOE_ERR_ARGUMENT, "a JSON schema must be one JSON object of less than 1 MiB");
    }
    json_tokener_free(tokener);
    return root;
}

/* Writes the grammar of w->root. */
static void write_grammar(moe_schema_writer *w)
{
    char name[16];
    moe_schema_piece all = {NULL, 0, 0};
    moe_schema_add(w, &all, basics);
    w->text = all.data;
    w->size = all.size;
    w->capacity = all.capacity;
    write_rule(w, w->root, name);
    all = (moe_schema_piece){w->text, w->size, w->capacity};
    moe_schema_add(w, &all, "root ::= ");
    moe_schema_add(w, &all, name);
    moe_schema_add(w, &all, "\n");
    w->text = all.data;
    w->size = all.size;
    w->capacity = all.capacity;
}

int moe_json_schema_grammar(char **grammar, const char *schema, size_t size, moe_error *err)
{
    return moe_json_schema_grammar_within(grammar, schema, size, NULL, err);
}

int moe_json_schema_grammar_within(char **grammar, const char *schema, size_t size,
                                   moe_allowance *allowance, moe_error *err)
{
    if (grammar != NULL) {
        *grammar = NULL;
    }
    if (grammar == NULL || schema == NULL) {
        return moe_fail_null(err, "moe_json_schema_grammar", "grammar or schema");
    }
    const uint64_t bytes = json_bytes(schema, size) + sizeof(moe_schema_writer);
    moe_schema_writer *w = moe_allowance_take(allowance, bytes) ? calloc(1, sizeof *w) : NULL;
    if (w == NULL) {
        return moe_allowance_fail(allowance, err, "a JSON schema");
    }
    w->err = err;
    w->allowance = allowance;
    w->root = parse(schema, size, err);
    w->status = w->root == NULL ? MOE_ERR_ARGUMENT : MOE_OK;
    if (w->root != NULL) {
        write_grammar(w);
    }
    int status = w->status;
    json_object_put(w->root);
    if (status == MOE_OK) {
        *grammar = w->text;
    } else {
        free(w->text);
        moe_allowance_give(allowance, w->capacity);
    }
    free(w);
    moe_allowance_give(allowance, bytes);
    return status;
}
