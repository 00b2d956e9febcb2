/* SPDX-License-Identifier: MIT */
/* Converts a JSON schema to the text of a GBNF grammar. A subschema that is more than a type
 * becomes a rule. Each target of a $ref becomes one rule, which may refer to itself, so schemas may
 * be recursive. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>
#include <moe/grammar.h>

#include "runtime/base/error.h"
#include "runtime/grammar/schema_merge.h"
#include "runtime/grammar/schema_number.h"
#include "runtime/grammar/schema_parts.h"
#include "runtime/grammar/schema_value.h"

enum { DEEPEST_JSON = 64 };

/* Rules that every such grammar contains. They allow white space behind punctuation, because models
 * write JSON with it. */
static const char basics[] =
    "ws ::= \" \"? | \"\\n\" [ \\t]{0,16}\n"
    "char ::= [^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4})\n"
    "plain-char ::= [^\"\\\\\\x00-\\x1F] | \"\\\\\" [\"\\\\bfnrt]\n"
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

/* ---- References ---- */

/* Writes a rule for the target of the reference, unless there is one already. Sets `name` to the
 * rule's name. False: the target allows no value. */
static bool write_ref(moe_schema_writer *w, const char *ref, char name[16])
{
    struct json_object *target = moe_schema_find(w, ref);
    if (target == NULL || !moe_schema_step(w, w->n_refs / 4)) {
        return false;
    }
    for (uint32_t i = 0; i < w->n_refs; i++) {
        if (w->refs[i].target == target) {
            snprintf(name, 16, "r%" PRIu32, w->refs[i].rule);
            return true;
        }
    }
    if (w->n_refs == MOE_SCHEMA_MOST_REFS) {
        moe_schema_fail(w, MOE_ERR_UNSUPPORTED, "too many $ref", "");
        return false;
    }
    uint32_t number = w->n_rules++;
    w->refs[w->n_refs].target = target;
    w->refs[w->n_refs++].rule = number;
    char inner[16];
    moe_schema_piece p = {NULL, 0, 0};
    bool valid = moe_schema_write_rule(w, target, inner);
    moe_schema_add(w, &p, inner);
    moe_schema_finish_rule(w, &p, name, number);
    return valid;
}

/* ---- Values by type ---- */

static bool write_type(moe_schema_writer *w, const char *type, struct json_object *plain,
                       moe_schema_piece *out)
{
    if (strcmp(type, "boolean") == 0 || strcmp(type, "null") == 0) {
        moe_schema_add(w, out, type);
        return true;
    }
    if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0) {
        return moe_schema_write_number(w, plain, type[0] == 'i', out);
    }
    if (strcmp(type, "string") == 0) {
        moe_schema_write_string(w, plain, out);
        return true;
    }
    if (strcmp(type, "array") == 0) {
        return moe_schema_write_array(w, plain, out);
    }
    if (strcmp(type, "object") == 0) {
        return moe_schema_write_object(w, plain, out);
    }
    moe_schema_fail(w, MOE_ERR_ARGUMENT, "there is no such type: ", type);
    return false;
}

static bool write_types(moe_schema_writer *w, struct json_object *types, struct json_object *plain,
                        moe_schema_piece *out)
{
    bool any = false;
    moe_schema_add(w, out, "(");
    for (size_t i = 0; i < json_object_array_length(types) && w->status == MOE_OK; i++) {
        const char *type = json_object_get_string(json_object_array_get_idx(types, i));
        moe_schema_piece one = {NULL, 0, 0};
        if (write_type(w, type == NULL ? "" : type, plain, &one)) {
            moe_schema_add(w, out, any ? " | " : "");
            moe_schema_add_bytes(w, out, one.data, one.size);
            any = true;
        }
        moe_schema_drop(w, &one);
    }
    moe_schema_add(w, out, ")");
    return any;
}

/* If the schema has no `type`, returns the type to which its other keywords apply (for example
 * "string" for minLength). NULL: there is none. */
static const char *type_meant(struct json_object *plain)
{
    static const struct {
        const char *key, *type;
    } keys[] = {{"properties", "object"},
                {"required", "object"},
                {"additionalProperties", "object"},
                {"patternProperties", "object"},
                {"propertyNames", "object"},
                {"minProperties", "object"},
                {"maxProperties", "object"},
                {"items", "array"},
                {"prefixItems", "array"},
                {"minItems", "array"},
                {"maxItems", "array"},
                {"contains", "array"},
                {"uniqueItems", "array"},
                {"minLength", "string"},
                {"maxLength", "string"},
                {"pattern", "string"},
                {"format", "string"},
                {"minimum", "number"},
                {"maximum", "number"},
                {"exclusiveMinimum", "number"},
                {"exclusiveMaximum", "number"},
                {"multipleOf", "number"}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (json_object_object_get_ex(plain, keys[i].key, NULL)) {
            return keys[i].type;
        }
    }
    return NULL;
}

/* ---- Schemas ---- */

static bool write_plain(moe_schema_writer *w, struct json_object *plain, moe_schema_piece *out);

/* Whether no value can match both schemas, because their types differ, or because both require the
 * same property but with different values. */
static bool are_apart(moe_schema_writer *w, struct json_object *a, struct json_object *b)
{
    static const char *const types[] = {"string", "number",  "integer", "object",
                                        "array",  "boolean", "null"};
    bool share = false;
    if (a == NULL || b == NULL) {
        return true;
    }
    for (size_t i = 0; i < 7; i++) {
        share |= moe_schema_has_type(a, types[i]) && moe_schema_has_type(b, types[i]);
    }
    return !share || moe_schema_both(w, a, b) == NULL || moe_schema_key_differs(w, a, b);
}

/* oneOf allows values that match exactly one alternative. The grammar cannot enforce this, so it is
 * reported, unless no value can match two alternatives. */
static void check_one_of(moe_schema_writer *w, struct json_object *list)
{
    size_t n = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    bool apart = n <= 32;
    for (size_t i = 0; i < n && apart; i++) {
        struct json_object *a = moe_schema_plain(w, json_object_array_get_idx(list, i));
        for (size_t k = i + 1; k < n && apart && w->status == MOE_OK; k++) {
            apart = are_apart(w, a, moe_schema_plain(w, json_object_array_get_idx(list, k)));
        }
    }
    if (!apart && w->status == MOE_OK) {
        moe_schema_note(w, "oneOf");
    }
}

static bool write_alternatives(moe_schema_writer *w, struct json_object *plain,
                               moe_schema_piece *out)
{
    struct json_object *list = json_object_object_get(plain, "anyOf");
    bool others = moe_schema_has_others(plain), any = false;
    size_t n = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    if (n == 0) {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "an array of schemas is expected for anyOf", "");
    }
    struct json_object *base = others ? moe_schema_without(w, plain, "anyOf") : NULL;
    moe_schema_add(w, out, "(");
    for (size_t i = 0; i < n && w->status == MOE_OK; i++) {
        char name[16];
        struct json_object *one = json_object_array_get_idx(list, i);
        if (others) {
            struct json_object *more = moe_schema_plain(w, one);
            one = more == NULL ? NULL : moe_schema_both(w, base, more);
        }
        if (one != NULL && moe_schema_write_rule(w, one, name)) {
            moe_schema_add(w, out, any ? " | " : "");
            moe_schema_add(w, out, name);
            any = true;
        }
    }
    moe_schema_add(w, out, ")");
    return any;
}

static bool write_plain(moe_schema_writer *w, struct json_object *plain, moe_schema_piece *out)
{
    struct json_object *type = json_object_object_get(plain, "type");
    if (json_object_object_get(plain, "anyOf") != NULL) {
        return write_alternatives(w, plain, out);
    }
    if (json_object_object_get(plain, "enum") != NULL) {
        return moe_schema_write_choices(w, plain, out);
    }
    if (json_object_is_type(type, json_type_array)) {
        return write_types(w, type, plain, out);
    }
    const char *meant = type == NULL ? type_meant(plain) : json_object_get_string(type);
    if (meant == NULL) {
        moe_schema_add(w, out, "value");
        return true;
    }
    return write_type(w, meant, plain, out);
}

/* Whether the schema is only a reference: it has no other keyword that restricts values. */
static bool is_reference(struct json_object *schema)
{
    static const char *const rest[] = {"$ref",     "title",     "description", "default",
                                       "examples", "example",   "$comment",    "deprecated",
                                       "readOnly", "writeOnly", "$defs",       "definitions",
                                       "$schema",  "$id",       NULL};
    bool only = json_object_object_get(schema, "$ref") != NULL;
    if (only) {
        json_object_object_foreach(schema, key, value)
        {
            (void)value;
            only = only && moe_schema_is_listed(key, rest);
        }
    }
    return only;
}

static bool write_rule(moe_schema_writer *w, struct json_object *schema, char name[16])
{
    moe_schema_piece p = {NULL, 0, 0};
    name[0] = '\0';
    if (!moe_schema_step(w, 1)) {
        return false;
    }
    if (++w->depth > MOE_SCHEMA_DEEPEST) {
        moe_schema_fail(w, MOE_ERR_UNSUPPORTED, "it is nested too deeply", "");
        return false;
    }
    bool valid;
    if (json_object_is_type(schema, json_type_object) && is_reference(schema)) {
        const char *text = json_object_get_string(json_object_object_get(schema, "$ref"));
        valid = write_ref(w, text == NULL ? "" : text, name);
        w->depth--;
        return valid;
    }
    if (json_object_is_type(schema, json_type_object)) {
        if (json_object_object_get(schema, "oneOf") != NULL) {
            check_one_of(w, json_object_object_get(schema, "oneOf"));
        }
    }
    uint32_t number = w->n_rules++;
    struct json_object *plain = moe_schema_plain(w, schema);
    valid = plain != NULL && write_plain(w, plain, &p);
    if (valid && w->status == MOE_OK) {
        moe_schema_finish_rule(w, &p, name, number);
    }
    moe_schema_drop(w, &p);
    w->depth--;
    return valid && w->status == MOE_OK;
}

/* Returns an upper bound of the memory that json-c takes for the text, in bytes: a fixed amount per
 * object, array and value, and the strings. */
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

/* Writes the grammar of the whole schema. */
static void write_grammar(moe_schema_writer *w)
{
    char name[16];
    moe_schema_piece all = {NULL, 0, 0};
    moe_schema_add(w, &all, basics);
    w->text = all.data;
    w->size = all.size;
    w->capacity = all.capacity;
    if (!moe_schema_write_rule(w, w->root, name)) {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "no value is valid by it", "");
        return;
    }
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
    return moe_json_schema_grammar_loose(grammar, NULL, schema, size, allowance, err);
}

int moe_json_schema_grammar_loose(char **grammar, char **dropped, const char *schema, size_t size,
                                  moe_allowance *allowance, moe_error *err)
{
    if (grammar != NULL) {
        *grammar = NULL;
    }
    if (dropped != NULL) {
        *dropped = NULL;
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
    w->is_loose = dropped != NULL;
    w->write_rule = write_rule;
    w->kept = json_object_new_array();
    w->root = parse(schema, size, err);
    w->status = w->root == NULL ? MOE_ERR_ARGUMENT : w->kept == NULL ? MOE_ERR_MEMORY : MOE_OK;
    if (w->status == MOE_OK) {
        write_grammar(w);
    }
    int status = w->status;
    if (status == MOE_OK && dropped != NULL && w->notes[0] != '\0') {
        *dropped = strdup(w->notes);
        status = *dropped == NULL ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
    }
    json_object_put(w->root);
    json_object_put(w->kept);
    moe_allowance_give(allowance, w->kept_bytes);
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
