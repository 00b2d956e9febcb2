/* SPDX-License-Identifier: MIT */
#include "runtime/grammar/schema_merge.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/grammar/schema_regex.h"
#include "runtime/grammar/schema_value.h"

enum {
    DEEPEST = 24,
    MOST_ALTERNATIVES = 64,
    BYTES_OF_MEMBER = 160,
    BYTES_OF_OBJECT = 1024,
    STEPS_OF_KEYWORD = 16
};

static bool has(struct json_object *schema, const char *key)
{
    return json_object_object_get_ex(schema, key, NULL);
}

/* ---- New JSON objects, which the writer releases at its end ---- */

static struct json_object *keep(moe_schema_writer *w, struct json_object *made, size_t members)
{
    const uint64_t bytes = BYTES_OF_OBJECT + BYTES_OF_MEMBER * (uint64_t)members;
    if (made == NULL || !moe_schema_step(w, 1 + members) ||
        !moe_allowance_take(w->allowance, bytes) || json_object_array_add(w->kept, made) != 0) {
        moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
        json_object_put(made);
        return NULL;
    }
    w->kept_bytes += bytes;
    return made;
}

static struct json_object *new_object(moe_schema_writer *w)
{
    return keep(w, json_object_new_object(), 0);
}

static struct json_object *new_array(moe_schema_writer *w)
{
    return keep(w, json_object_new_array(), 0);
}

static void put(moe_schema_writer *w, struct json_object *object, const char *key,
                struct json_object *value)
{
    if (object == NULL || !moe_schema_step(w, 1) ||
        json_object_object_add(object, key, json_object_get(value)) != 0) {
        moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
    }
}

static void append(moe_schema_writer *w, struct json_object *array, struct json_object *value)
{
    if (array == NULL || !moe_schema_step(w, 1) ||
        json_object_array_add(array, json_object_get(value)) != 0) {
        moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
    }
}

static size_t length_of(struct json_object *array)
{
    return json_object_is_type(array, json_type_array) ? json_object_array_length(array) : 0;
}

/* Returns the new object {key: value}; if value is NULL, its value is an empty object. */
static struct json_object *wrap(moe_schema_writer *w, const char *key, struct json_object *value)
{
    struct json_object *object = new_object(w);
    put(w, object, key, value);
    return object;
}

static struct json_object *pair(moe_schema_writer *w, struct json_object *a, struct json_object *b)
{
    struct json_object *array = new_array(w);
    append(w, array, a);
    append(w, array, b);
    return array;
}

/* ---- References ---- */

struct json_object *moe_schema_find(moe_schema_writer *w, const char *ref)
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
            unsigned int hex;
            char c = *rest;
            if (c == '%' && sscanf(rest + 1, "%2x", &hex) == 1 && rest[1] != '\0' &&
                rest[2] != '\0') {
                c = (char)hex;
                rest += 2;
            }
            if (c == '~' && (rest[1] == '0' || rest[1] == '1')) {
                c = *++rest == '0' ? '~' : '/';
            }
            key[n++] = c;
        }
        key[n] = '\0';
        at = json_object_is_type(at, json_type_object) ? json_object_object_get(at, key)
             : json_object_is_type(at, json_type_array)
                 ? json_object_array_get_idx(at, strtoul(key, NULL, 10))
                 : NULL;
    }
    if (at == NULL || *rest != '\0') {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "$ref points to nothing: ", ref);
        return NULL;
    }
    return at;
}

/* ---- Merging two schemas: a value must be valid by both ---- */

static bool is_word(struct json_object *value, const char *word)
{
    return json_object_is_type(value, json_type_string) &&
           strcmp(json_object_get_string(value), word) == 0;
}

static struct json_object *both_types(moe_schema_writer *w, struct json_object *a,
                                      struct json_object *b)
{
    static const char *const types[] = {"string", "number",  "integer", "object",
                                        "array",  "boolean", "null"};
    struct json_object *a_schema = wrap(w, "type", a), *b_schema = wrap(w, "type", b);
    struct json_object *out = new_array(w);
    for (size_t i = 0; i < 7 && w->status == MOE_OK; i++) {
        bool listed =
            moe_schema_has_type(a_schema, types[i]) && moe_schema_has_type(b_schema, types[i]);
        bool is_covered = strcmp(types[i], "integer") == 0 && length_of(out) > 0 &&
                          is_word(json_object_array_get_idx(out, length_of(out) - 1), "number");
        if (listed && !is_covered) {
            append(w, out, keep(w, json_object_new_string(types[i]), 0));
        }
    }
    return out;
}

/* Returns whichever of the two values of this keyword (a bound) allows less. */
static struct json_object *stricter(const char *key, struct json_object *a, struct json_object *b)
{
    bool takes_most = strncmp(key, "min", 3) == 0 || strcmp(key, "exclusiveMinimum") == 0;
    return (json_object_get_double(a) > json_object_get_double(b)) == takes_most ? a : b;
}

static struct json_object *both_lists(moe_schema_writer *w, struct json_object *a,
                                      struct json_object *b)
{
    struct json_object *out = new_array(w);
    for (size_t i = 0; i < length_of(a); i++) {
        append(w, out, json_object_array_get_idx(a, i));
    }
    for (size_t i = 0; i < length_of(b); i++) {
        append(w, out, json_object_array_get_idx(b, i));
    }
    return out;
}

static struct json_object *both_enums(moe_schema_writer *w, struct json_object *a,
                                      struct json_object *b)
{
    struct json_object *out = new_array(w);
    for (size_t i = 0; i < length_of(a); i++) {
        for (size_t k = 0; k < length_of(b) && moe_schema_step(w, 8); k++) {
            if (json_object_equal(json_object_array_get_idx(a, i),
                                  json_object_array_get_idx(b, k))) {
                append(w, out, json_object_array_get_idx(a, i));
                break;
            }
        }
    }
    return out;
}

/* Returns the schema {allOf: [a, b]}. NULL stands for a schema that allows everything. */
static struct json_object *all_of(moe_schema_writer *w, struct json_object *a,
                                  struct json_object *b)
{
    return a == NULL ? b : b == NULL || a == b ? a : wrap(w, "allOf", pair(w, a, b));
}

/* Returns what a schema demands of a property that it does not list: its additionalProperties.
 * NULL: it demands nothing, or a pattern of the schema covers the key. */
static struct json_object *unlisted(moe_schema_writer *w, struct json_object *schema,
                                    const char *key)
{
    struct json_object *patterns = json_object_object_get(schema, "patternProperties");
    if (json_object_is_type(patterns, json_type_object)) {
        json_object_object_foreach(patterns, pattern, value)
        {
            (void)value;
            if (moe_schema_regex_matches(w, pattern, key)) {
                return NULL;
            }
        }
    }
    return json_object_object_get(schema, "additionalProperties");
}

static struct json_object *both_properties(moe_schema_writer *w, struct json_object *a,
                                           struct json_object *b)
{
    struct json_object *out = new_object(w);
    struct json_object *const sides[] = {a, b};
    for (size_t i = 0; i < 2; i++) {
        struct json_object *mine = json_object_object_get(sides[i], "properties");
        struct json_object *theirs = json_object_object_get(sides[1 - i], "properties");
        if (!json_object_is_type(mine, json_type_object)) {
            continue;
        }
        json_object_object_foreach(mine, key, value)
        {
            if (!has(out, key) && w->status == MOE_OK) {
                struct json_object *other = has(theirs, key) ? json_object_object_get(theirs, key)
                                                             : unlisted(w, sides[1 - i], key);
                put(w, out, key, all_of(w, value, other));
            }
        }
    }
    return out;
}

static struct json_object *both_patterns(moe_schema_writer *w, struct json_object *a,
                                         struct json_object *b)
{
    struct json_object *out = new_object(w);
    struct json_object *const sides[] = {a, b};
    for (size_t i = 0; i < 2; i++) {
        if (json_object_is_type(sides[i], json_type_object)) {
            json_object_object_foreach(sides[i], key, value)
            {
                put(w, out, key, all_of(w, json_object_object_get(out, key), value));
            }
        }
    }
    return out;
}

/* Merges two lists of alternatives: the result has an alternative for each pair of one from a and
 * one from b. */
static struct json_object *both_alternatives(moe_schema_writer *w, struct json_object *a,
                                             struct json_object *b)
{
    struct json_object *out = new_array(w);
    if (length_of(a) * length_of(b) > MOST_ALTERNATIVES) {
        moe_schema_note(w, "anyOf");
        return a;
    }
    for (size_t i = 0; i < length_of(a); i++) {
        for (size_t k = 0; k < length_of(b) && w->status == MOE_OK; k++) {
            append(w, out,
                   all_of(w, json_object_array_get_idx(a, i), json_object_array_get_idx(b, k)));
        }
    }
    return out;
}

/* Merges the values of a keyword that both schemas have. If both values cannot be enforced
 * together, keeps one and reports this. */
static struct json_object *both_values(moe_schema_writer *w, const char *key, struct json_object *a,
                                       struct json_object *b)
{
    static const char *const bounds[] = {
        "minimum",  "maximum",  "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength",
        "minItems", "maxItems", "minProperties",    "maxProperties",    NULL};
    static const char *const schemas[] = {"items", "propertyNames", "additionalProperties", NULL};
    if (json_object_equal(a, b)) {
        return a;
    }
    if (moe_schema_is_listed(key, bounds)) {
        return stricter(key, a, b);
    }
    if (moe_schema_is_listed(key, schemas)) {
        return all_of(w, a, b);
    }
    if (strcmp(key, "multipleOf") == 0 && json_object_is_type(a, json_type_int) &&
        json_object_is_type(b, json_type_int)) {
        int64_t x = json_object_get_int64(a), y = json_object_get_int64(b), p = x, q = y;
        while (q > 0) {
            int64_t r = p % q;
            p = q;
            q = r;
        }
        return p > 0 && x < 1000000 && y < 1000000 && y > 0
                   ? keep(w, json_object_new_int64(x / p * y), 0)
                   : a;
    }
    if (strcmp(key, "type") == 0) {
        return both_types(w, a, b);
    }
    if (strcmp(key, "enum") == 0) {
        return both_enums(w, a, b);
    }
    if (strcmp(key, "required") == 0) {
        return both_lists(w, a, b);
    }
    if (strcmp(key, "anyOf") == 0) {
        return both_alternatives(w, a, b);
    }
    if (strcmp(key, "patternProperties") == 0) {
        return both_patterns(w, a, b);
    }
    if (strcmp(key, "uniqueItems") == 0) {
        return json_object_get_boolean(a) ? a : b;
    }
    moe_schema_note(w, key);
    return a;
}

/* Merges two lists of prefixItems. Where one list is shorter, that schema's `items` holds. */
static struct json_object *both_fronts(moe_schema_writer *w, struct json_object *a,
                                       struct json_object *b)
{
    struct json_object *first = json_object_object_get(a, "prefixItems"),
                       *second = json_object_object_get(b, "prefixItems");
    struct json_object *out = new_array(w);
    size_t n = length_of(first) > length_of(second) ? length_of(first) : length_of(second);
    for (size_t i = 0; i < n && w->status == MOE_OK; i++) {
        struct json_object *x = i < length_of(first) ? json_object_array_get_idx(first, i)
                                                     : json_object_object_get(a, "items");
        struct json_object *y = i < length_of(second) ? json_object_array_get_idx(second, i)
                                                      : json_object_object_get(b, "items");
        append(w, out, all_of(w, x, y));
    }
    return out;
}

/* Whether no value can be valid, because a lower bound exceeds the upper one or a list of allowed
 * values is empty. */
static bool is_empty(struct json_object *s)
{
    static const char *const pairs[][2] = {
        {"minLength", "maxLength"}, {"minItems", "maxItems"}, {"minProperties", "maxProperties"}};
    struct json_object *types = json_object_object_get(s, "type"),
                       *choices = json_object_object_get(s, "enum");
    for (size_t i = 0; i < 3; i++) {
        struct json_object *least = json_object_object_get(s, pairs[i][0]),
                           *most = json_object_object_get(s, pairs[i][1]);
        if (least != NULL && most != NULL &&
            json_object_get_int64(least) > json_object_get_int64(most)) {
            return true;
        }
    }
    return (json_object_is_type(types, json_type_array) && length_of(types) == 0) ||
           (json_object_is_type(choices, json_type_array) && length_of(choices) == 0);
}

struct json_object *moe_schema_both(moe_schema_writer *w, struct json_object *a,
                                    struct json_object *b)
{
    struct json_object *out = new_object(w);
    struct json_object *const sides[] = {a, b};
    for (size_t i = 0; i < 2 && out != NULL; i++) {
        json_object_object_foreach(sides[i], key, value)
        {
            if (!moe_schema_step(w, 4)) {
                return NULL;
            }
            if (strcmp(key, "properties") == 0 || strcmp(key, "prefixItems") == 0) {
                continue;
            }
            if (has(sides[1 - i], key)) {
                if (i == 0) {
                    put(w, out, key, both_values(w, key, value, json_object_object_get(b, key)));
                }
            } else {
                put(w, out, key, value);
            }
        }
    }
    if (has(a, "properties") || has(b, "properties")) {
        put(w, out, "properties", both_properties(w, a, b));
    }
    if (has(a, "prefixItems") || has(b, "prefixItems")) {
        put(w, out, "prefixItems", both_fronts(w, a, b));
    }
    return w->status != MOE_OK || is_empty(out) ? NULL : out;
}

/* ---- Plain schemas (schema_merge.h) ---- */

/* Reports keywords that restrict values but that the grammar does not enforce. Any keyword that is
 * not known counts as an annotation. */
static void check_keywords(moe_schema_writer *w, struct json_object *schema)
{
    static const char *const dropped[] = {"not",           "maxContains",      "unevaluatedItems",
                                          "$dynamicRef",   "$recursiveRef",    "contentEncoding",
                                          "contentSchema", "contentMediaType", NULL};
    json_object_object_foreach(schema, key, value)
    {
        if (moe_schema_step(w, STEPS_OF_KEYWORD) && value != NULL &&
            moe_schema_is_listed(key, dropped)) {
            moe_schema_note(w, key);
        }
    }
}

static struct json_object *plain_at(moe_schema_writer *w, struct json_object *schema,
                                    unsigned depth);

/* Merges the schema into `out`. Returns NULL if no value is valid by both. */
static struct json_object *add_schema(moe_schema_writer *w, struct json_object *out,
                                      struct json_object *schema, unsigned depth)
{
    struct json_object *more = out == NULL ? NULL : plain_at(w, schema, depth + 1);
    return more == NULL ? NULL : moe_schema_both(w, out, more);
}

/* If the condition only says that one property has one of some values, returns the property's name
 * and sets *values. Otherwise returns NULL. */
static const char *condition_of(struct json_object *condition, struct json_object **values)
{
    const char *name = NULL;
    struct json_object *properties = json_object_object_get(condition, "properties");
    bool only = json_object_is_type(properties, json_type_object) &&
                json_object_object_length(properties) == 1;
    json_object_object_foreach(condition, keyword, given)
    {
        (void)given;
        only &= strcmp(keyword, "properties") == 0 || strcmp(keyword, "required") == 0 ||
                strcmp(keyword, "type") == 0;
    }
    if (only) {
        json_object_object_foreach(properties, key, value)
        {
            name = json_object_object_length(value) == 1 ? key : NULL;
            *values = has(value, "const") ? json_object_object_get(value, "const")
                                          : json_object_object_get(value, "enum");
            name = has(value, "const") || has(value, "enum") ? name : NULL;
            only = has(value, "const");
        }
    }
    return name;
}

static bool is_required(struct json_object *schema, const char *name)
{
    struct json_object *list = json_object_object_get(schema, "required");
    for (size_t i = 0; i < length_of(list); i++) {
        if (is_word(json_object_array_get_idx(list, i), name)) {
            return true;
        }
    }
    return false;
}

/* Returns the list of values that the property may have by the schema `base`, or NULL if it has no
 * such list. */
static struct json_object *choices_of(moe_schema_writer *w, struct json_object *base,
                                      const char *name, unsigned depth)
{
    struct json_object *property =
        json_object_object_get(json_object_object_get(base, "properties"), name);
    struct json_object *plain = property == NULL ? NULL : plain_at(w, property, depth + 1);
    if (plain != NULL && is_word(json_object_object_get(plain, "type"), "boolean") &&
        !has(plain, "enum")) {
        return pair(w, keep(w, json_object_new_boolean(false), 0),
                    keep(w, json_object_new_boolean(true), 0));
    }
    return json_object_object_get(plain, "enum");
}

/* Returns a schema for the values for which the condition is false, or NULL if no schema can
 * express this. */
static struct json_object *negation(moe_schema_writer *w, struct json_object *base,
                                    struct json_object *condition, unsigned depth)
{
    struct json_object *values = NULL, *rest = new_array(w), *out;
    const char *name = condition_of(condition, &values);
    struct json_object *choices = name == NULL ? NULL : choices_of(w, base, name, depth);
    bool is_list =
        name != NULL &&
        has(json_object_object_get(json_object_object_get(condition, "properties"), name), "enum");
    if (!json_object_is_type(choices, json_type_array) || w->status != MOE_OK) {
        return NULL;
    }
    for (size_t i = 0; i < length_of(choices); i++) {
        struct json_object *choice = json_object_array_get_idx(choices, i);
        bool found = !is_list && json_object_equal(choice, values);
        for (size_t k = 0; is_list && k < length_of(values) && moe_schema_step(w, 8); k++) {
            found |= json_object_equal(choice, json_object_array_get_idx(values, k));
        }
        if (!found) {
            append(w, rest, choice);
        }
    }
    bool none = length_of(rest) == 0;
    out = wrap(
        w, "properties",
        wrap(w, name, none ? keep(w, json_object_new_boolean(false), 0) : wrap(w, "enum", rest)));
    if (!is_required(condition, name)) { /* the condition holds for values that lack it */
        struct json_object *names = new_array(w);
        append(w, names, keep(w, json_object_new_string(name), 0));
        put(w, out, "required", names);
    }
    return out;
}

/* Writes if/then/else as two alternatives: condition and `then`, or opposite of the condition and
 * `else`. If the opposite cannot be expressed, the second alternative takes values that satisfy
 * both `then` and `else`, for which the condition does not matter. */
static struct json_object *add_condition(moe_schema_writer *w, struct json_object *out,
                                         struct json_object *schema, unsigned depth)
{
    struct json_object *condition = json_object_object_get(schema, "if");
    struct json_object *then = json_object_object_get(schema, "then"),
                       *other = json_object_object_get(schema, "else");
    if (out == NULL || condition == NULL || (then == NULL && other == NULL)) {
        return out;
    }
    if (json_object_is_type(condition, json_type_boolean)) {
        struct json_object *side = json_object_get_boolean(condition) ? then : other;
        return side == NULL ? out : add_schema(w, out, side, depth);
    }
    struct json_object *holds = all_of(w, condition, then);
    struct json_object *opposite = negation(w, out, condition, depth);
    struct json_object *fails = all_of(w, opposite != NULL ? opposite : then, other);
    struct json_object *both = new_array(w);
    append(w, both, holds);
    append(w, both, fails != NULL ? fails : new_object(w));
    return add_schema(w, out, wrap(w, "anyOf", both), depth);
}

/* Merges dependentRequired and dependentSchemas: if a property is present, others must be present,
 * or a schema must hold. */
static struct json_object *add_dependents(moe_schema_writer *w, struct json_object *out,
                                          struct json_object *dependents, unsigned depth)
{
    if (out == NULL || !json_object_is_type(dependents, json_type_object)) {
        return out;
    }
    json_object_object_foreach(dependents, key, value)
    {
        struct json_object *names = new_array(w);
        append(w, names, keep(w, json_object_new_string(key), 0));
        bool is_list = json_object_is_type(value, json_type_array);
        struct json_object *needs =
            wrap(w, "required", is_list ? both_lists(w, names, value) : names);
        struct json_object *lacks =
            wrap(w, "properties", wrap(w, key, keep(w, json_object_new_boolean(false), 0)));
        struct json_object *either = pair(w, is_list ? needs : all_of(w, needs, value), lacks);
        out = out == NULL ? NULL : add_schema(w, out, wrap(w, "anyOf", either), depth);
    }
    return out;
}

/* Copies the keywords that need no merging. Keywords of older drafts get the names that newer
 * drafts use. */
static struct json_object *copy_members(moe_schema_writer *w, struct json_object *schema)
{
    static const char *const apart[] = {"$ref",
                                        "allOf",
                                        "if",
                                        "then",
                                        "else",
                                        "dependentRequired",
                                        "dependentSchemas",
                                        "dependencies",
                                        "nullable",
                                        "const",
                                        "oneOf",
                                        "$defs",
                                        "definitions",
                                        "description",
                                        "title",
                                        "default",
                                        "examples",
                                        NULL};
    struct json_object *out = new_object(w);
    json_object_object_foreach(schema, key, value)
    {
        bool is_flag = json_object_is_type(value, json_type_boolean);
        if (moe_schema_is_listed(key, apart) || value == NULL) {
            continue;
        }
        if (strcmp(key, "items") == 0 && json_object_is_type(value, json_type_array)) {
            put(w, out, "prefixItems", value);
        } else if (strcmp(key, "additionalItems") == 0) {
            if (json_object_is_type(json_object_object_get(schema, "items"), json_type_array)) {
                put(w, out, "items", value);
            }
        } else if (strncmp(key, "exclusiveM", 10) == 0 && is_flag) {
            const char *bound = strcmp(key, "exclusiveMinimum") == 0 ? "minimum" : "maximum";
            if (json_object_get_boolean(value) && json_object_object_get(schema, bound) != NULL) {
                put(w, out, key, json_object_object_get(schema, bound));
            }
        } else if (strcmp(key, "unevaluatedProperties") == 0) {
            continue; /* plain_at() copies it */
        } else {
            put(w, out, key, value);
        }
    }
    if (has(schema, "const")) {
        struct json_object *list = new_array(w);
        append(w, list, json_object_object_get(schema, "const"));
        out = moe_schema_both(w, out, wrap(w, "enum", list));
    }
    return out;
}

static struct json_object *plain_at(moe_schema_writer *w, struct json_object *schema,
                                    unsigned depth)
{
    if (json_object_is_type(schema, json_type_boolean)) {
        return json_object_get_boolean(schema) ? new_object(w) : NULL;
    }
    if (!json_object_is_type(schema, json_type_object)) {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "a schema must be an object, true or false", "");
        return NULL;
    }
    if (depth == DEEPEST) {
        moe_schema_fail(w, MOE_ERR_UNSUPPORTED, "schemas are combined too deeply", "");
    }
    if (!moe_schema_step(w, 4)) {
        return NULL;
    }
    check_keywords(w, schema);
    struct json_object *out = copy_members(w, schema),
                       *ref = json_object_object_get(schema, "$ref");
    if (ref != NULL && out != NULL) {
        const char *text = json_object_get_string(ref);
        struct json_object *target = moe_schema_find(w, text == NULL ? "" : text);
        out = target == NULL ? NULL : add_schema(w, out, target, depth);
    }
    struct json_object *all = json_object_object_get(schema, "allOf");
    for (size_t i = 0; i < length_of(all) && out != NULL; i++) {
        out = add_schema(w, out, json_object_array_get_idx(all, i), depth);
    }
    if (has(schema, "oneOf") && out != NULL) {
        out = moe_schema_both(w, out, wrap(w, "anyOf", json_object_object_get(schema, "oneOf")));
    }
    out = add_condition(w, out, schema, depth);
    out = add_dependents(w, out, json_object_object_get(schema, "dependentRequired"), depth);
    out = add_dependents(w, out, json_object_object_get(schema, "dependentSchemas"), depth);
    out = add_dependents(w, out, json_object_object_get(schema, "dependencies"), depth);
    if (out != NULL && has(schema, "unevaluatedProperties") && !has(out, "additionalProperties")) {
        if (has(out, "anyOf")) {
            /* additionalProperties would also forbid the properties that an alternative lists. */
            moe_schema_note(w, "unevaluatedProperties");
        } else {
            put(w, out, "additionalProperties",
                json_object_object_get(schema, "unevaluatedProperties"));
        }
    }
    bool nullable = json_object_get_boolean(json_object_object_get(schema, "nullable"));
    if (nullable && out != NULL && has(out, "type")) {
        struct json_object *null = wrap(w, "type", keep(w, json_object_new_string("null"), 0));
        out = wrap(w, "anyOf", pair(w, out, null));
    }
    return w->status != MOE_OK || (out != NULL && is_empty(out)) ? NULL : out;
}

struct json_object *moe_schema_plain(moe_schema_writer *w, struct json_object *schema)
{
    return plain_at(w, schema, 0);
}

bool moe_schema_has_others(struct json_object *plain)
{
    static const char *const others[] = {"type",
                                         "enum",
                                         "minimum",
                                         "maximum",
                                         "exclusiveMinimum",
                                         "exclusiveMaximum",
                                         "multipleOf",
                                         "minLength",
                                         "maxLength",
                                         "pattern",
                                         "format",
                                         "properties",
                                         "required",
                                         "additionalProperties",
                                         "patternProperties",
                                         "propertyNames",
                                         "minProperties",
                                         "maxProperties",
                                         "items",
                                         "prefixItems",
                                         "minItems",
                                         "maxItems",
                                         "contains",
                                         "uniqueItems",
                                         NULL};
    json_object_object_foreach(plain, key, value)
    {
        (void)value;
        if (moe_schema_is_listed(key, others)) {
            return true;
        }
    }
    return false;
}

struct json_object *moe_schema_without(moe_schema_writer *w, struct json_object *plain,
                                       const char *keyword)
{
    struct json_object *out = new_object(w);
    json_object_object_foreach(plain, key, value)
    {
        if (strcmp(key, keyword) != 0) {
            put(w, out, key, value);
        }
    }
    return out;
}

bool moe_schema_key_differs(moe_schema_writer *w, struct json_object *a, struct json_object *b)
{
    struct json_object *mine = json_object_object_get(a, "properties"),
                       *theirs = json_object_object_get(b, "properties");
    bool differs = false;
    if (!json_object_is_type(mine, json_type_object)) {
        return false;
    }
    json_object_object_foreach(mine, key, value)
    {
        struct json_object *other = json_object_object_get(theirs, key);
        if (other != NULL && is_required(a, key) && is_required(b, key) && w->status == MOE_OK) {
            struct json_object *x = plain_at(w, value, 1), *y = plain_at(w, other, 1);
            differs |= x == NULL || y == NULL || moe_schema_both(w, x, y) == NULL;
        }
    }
    return differs;
}
