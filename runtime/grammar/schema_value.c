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
