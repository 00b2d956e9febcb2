/* SPDX-License-Identifier: MIT */
#include "runtime/grammar/schema_value.h"

#include <math.h>

#include "runtime/grammar/schema_regex.h"

static size_t length_of(struct json_object *array)
{
    return json_object_is_type(array, json_type_array) ? json_object_array_length(array) : 0;
}

static const char *type_of(struct json_object *value)
{
    switch (json_object_get_type(value)) {
    case json_type_null:
        return "null";
    case json_type_boolean:
        return "boolean";
    case json_type_int:
        return "integer";
    case json_type_double:
        return json_object_get_double(value) == floor(json_object_get_double(value)) ? "integer"
                                                                                     : "number";
    case json_type_string:
        return "string";
    case json_type_array:
        return "array";
    default:
        return "object";
    }
}

static bool is_word(struct json_object *value, const char *word)
{
    return json_object_is_type(value, json_type_string) &&
           strcmp(json_object_get_string(value), word) == 0;
}

bool moe_schema_has_type(struct json_object *plain, const char *type)
{
    struct json_object *types = json_object_object_get(plain, "type");
    bool is_integer = strcmp(type, "integer") == 0;
    bool found = types == NULL || is_word(types, type) || (is_integer && is_word(types, "number"));
    for (size_t i = 0; i < length_of(types) && !found; i++) {
        struct json_object *one = json_object_array_get_idx(types, i);
        found = is_word(one, type) || (is_integer && is_word(one, "number"));
    }
    return found;
}

bool moe_schema_is_number(struct json_object *value)
{
    return json_object_is_type(value, json_type_int) ||
           json_object_is_type(value, json_type_double);
}

static bool within(struct json_object *plain, double value)
{
    static const struct {
        const char *key;
        int sign;
        bool exclusive;
    } bounds[] = {{"minimum", 1, false},
                  {"exclusiveMinimum", 1, true},
                  {"maximum", -1, false},
                  {"exclusiveMaximum", -1, true}};
    for (size_t i = 0; i < 4; i++) {
        struct json_object *bound = json_object_object_get(plain, bounds[i].key);
        double over = moe_schema_is_number(bound)
                          ? (value - json_object_get_double(bound)) * bounds[i].sign
                          : 1;
        if (over < 0 || (over == 0 && bounds[i].exclusive)) {
            return false;
        }
    }
    struct json_object *factor = json_object_object_get(plain, "multipleOf");
    double times = moe_schema_is_number(factor) ? value / json_object_get_double(factor) : 1;
    return fabs(times - round(times)) < 1e-9;
}

static size_t characters(const char *text)
{
    size_t n = 0;
    for (; *text != '\0'; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n;
}

/* ---- Arrays and objects ---- */

static bool has_any(struct json_object *schema, const char *const *keys)
{
    while (*keys != NULL && json_object_object_get(schema, *keys) == NULL) {
        keys++;
    }
    return *keys != NULL;
}

/* Whether a schema, which need not be plain, allows the value. Returns false, too, if the schema's
 * own keywords do not decide it. */
static bool fits(moe_schema_writer *w, struct json_object *schema, struct json_object *value)
{
    static const char *const others[] = {"$ref", "$dynamicRef", "anyOf", "oneOf",  "allOf",
                                         "not",  "if",          "const", "format", NULL};
    return json_object_is_type(schema, json_type_boolean)
               ? json_object_get_boolean(schema)
               : json_object_is_type(schema, json_type_object) && !has_any(schema, others) &&
                     moe_schema_allows(w, schema, value);
}

static bool is_count_within(struct json_object *plain, const char *least, const char *most,
                            size_t n)
{
    struct json_object *low = json_object_object_get(plain, least),
                       *high = json_object_object_get(plain, most);
    return (low == NULL || (double)n >= json_object_get_double(low)) &&
           (high == NULL || (double)n <= json_object_get_double(high));
}

static bool is_unique(moe_schema_writer *w, struct json_object *array)
{
    for (size_t i = 0; i < length_of(array); i++) {
        for (size_t k = 0; k < i && moe_schema_step(w, 8); k++) {
            if (json_object_equal(json_object_array_get_idx(array, i),
                                  json_object_array_get_idx(array, k))) {
                return false;
            }
        }
    }
    return true;
}

static bool allows_array(moe_schema_writer *w, struct json_object *plain, struct json_object *array)
{
    static const char *const odd[] = {"maxContains", "unevaluatedItems", NULL};
    struct json_object *front = json_object_object_get(plain, "prefixItems"),
                       *items = json_object_object_get(plain, "items"),
                       *contained = json_object_object_get(plain, "contains"),
                       *least = json_object_object_get(plain, "minContains");
    const size_t n = length_of(array);
    size_t n_contained = 0;
    if (!is_count_within(plain, "minItems", "maxItems", n) || (n > 0 && has_any(plain, odd)) ||
        (json_object_get_boolean(json_object_object_get(plain, "uniqueItems")) &&
         !is_unique(w, array))) {
        return false;
    }
    for (size_t i = 0; i < n && moe_schema_step(w, 8); i++) {
        struct json_object *one = json_object_array_get_idx(array, i);
        struct json_object *schema =
            i < length_of(front) ? json_object_array_get_idx(front, i) : items;
        if (schema != NULL && !fits(w, schema, one)) {
            return false;
        }
        n_contained += contained != NULL && fits(w, contained, one);
    }
    return contained == NULL ||
           (double)n_contained >= (least == NULL ? 1 : json_object_get_double(least));
}

static bool allows_object(moe_schema_writer *w, struct json_object *plain,
                          struct json_object *object)
{
    static const char *const odd[] = {"patternProperties",     "propertyNames",
                                      "dependentRequired",     "dependentSchemas",
                                      "unevaluatedProperties", NULL};
    struct json_object *listed = json_object_object_get(plain, "properties"),
                       *others = json_object_object_get(plain, "additionalProperties"),
                       *required = json_object_object_get(plain, "required");
    const size_t n = (size_t)json_object_object_length(object);
    bool allowed = is_count_within(plain, "minProperties", "maxProperties", n) &&
                   (n == 0 || !has_any(plain, odd));
    for (size_t i = 0; i < length_of(required) && allowed && moe_schema_step(w, 8); i++) {
        struct json_object *key = json_object_array_get_idx(required, i);
        allowed = json_object_object_get_ex(object, json_object_get_string(key), NULL);
    }
    json_object_object_foreach(object, key, member)
    {
        struct json_object *schema = NULL;
        if (!json_object_object_get_ex(listed, key, &schema)) {
            schema = others;
        }
        allowed = allowed && moe_schema_step(w, 8) && (schema == NULL || fits(w, schema, member));
    }
    return allowed;
}

bool moe_schema_allows(moe_schema_writer *w, struct json_object *plain, struct json_object *value)
{
    struct json_object *choices = json_object_object_get(plain, "enum");
    bool found = choices == NULL;
    for (size_t i = 0; i < length_of(choices) && !found && moe_schema_step(w, 8); i++) {
        found = json_object_equal(json_object_array_get_idx(choices, i), value);
    }
    if (!found || !moe_schema_has_type(plain, type_of(value))) {
        return false;
    }
    if (moe_schema_is_number(value)) {
        return within(plain, json_object_get_double(value));
    }
    if (json_object_is_type(value, json_type_array)) {
        return allows_array(w, plain, value);
    }
    if (json_object_is_type(value, json_type_object)) {
        return allows_object(w, plain, value);
    }
    if (!json_object_is_type(value, json_type_string)) {
        return true;
    }
    const char *text = json_object_get_string(value);
    struct json_object *least = json_object_object_get(plain, "minLength"),
                       *most = json_object_object_get(plain, "maxLength");
    struct json_object *pattern = json_object_object_get(plain, "pattern");
    size_t n = characters(text);
    return (least == NULL || (int64_t)n >= json_object_get_int64(least)) &&
           (most == NULL || (int64_t)n <= json_object_get_int64(most)) &&
           (!json_object_is_type(pattern, json_type_string) ||
            moe_schema_regex_matches(w, json_object_get_string(pattern), text));
}
