/* SPDX-License-Identifier: MIT */
#include "runtime/template/jinja_value.h"

#include <math.h>
#include <string.h>

jinja_value jinja_string(jinja_context *c, jinja_text text)
{
    jinja_text *kept = jinja_alloc(c, 1, sizeof *kept);
    *kept = text;
    return (jinja_value){.kind = JINJA_STRING, .text = kept};
}

jinja_value jinja_new_list(jinja_context *c, jinja_kind kind)
{
    return (jinja_value){.kind = kind, .list = jinja_alloc(c, 1, sizeof(jinja_list))};
}

void jinja_list_add(jinja_context *c, jinja_list *list, jinja_value item)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity == 0 ? 4 : list->capacity * 2;
        jinja_value *grown = jinja_alloc(c, capacity, sizeof *grown);
        if (list->n > 0) {
            memcpy(grown, list->items, list->n * sizeof *grown);
        }
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->n++] = item;
}

jinja_value jinja_copy_list(jinja_context *c, const jinja_list *list)
{
    jinja_value copy = jinja_new_list(c, JINJA_LIST);
    for (size_t i = 0; i < list->n; i++) {
        jinja_list_add(c, copy.list, list->items[i]);
    }
    return copy;
}

jinja_value jinja_new_dict(jinja_context *c)
{
    return (jinja_value){.kind = JINJA_DICT, .dict = jinja_alloc(c, 1, sizeof(jinja_dict))};
}

static jinja_value *find_entry(jinja_context *c, const jinja_dict *dict, jinja_value key)
{
    jinja_charge(c, dict->n / 8 + 1);
    for (size_t i = 0; i < dict->n; i++) {
        if (jinja_equal(c, dict->entries[i].key, key)) {
            return &dict->entries[i].value;
        }
    }
    return NULL;
}

void jinja_dict_set(jinja_context *c, jinja_dict *dict, jinja_value key, jinja_value value)
{
    if (key.kind == JINJA_LIST || key.kind == JINJA_DICT) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "a %s cannot be a key", jinja_kind_name(key.kind));
    }
    jinja_value *old = find_entry(c, dict, key);
    if (old != NULL) {
        *old = value;
        return;
    }
    if (dict->n == dict->capacity) {
        size_t capacity = dict->capacity == 0 ? 4 : dict->capacity * 2;
        jinja_entry *grown = jinja_alloc(c, capacity, sizeof *grown);
        if (dict->n > 0) {
            memcpy(grown, dict->entries, dict->n * sizeof *grown);
        }
        dict->entries = grown;
        dict->capacity = capacity;
    }
    dict->entries[dict->n++] = (jinja_entry){key, value};
}

const jinja_value *jinja_dict_get(jinja_context *c, const jinja_dict *dict, jinja_value key)
{
    return find_entry(c, dict, key);
}

const char *jinja_kind_name(jinja_kind kind)
{
    static const char *const names[] = {
        [JINJA_ABSENT] = "nothing",
        [JINJA_UNDEFINED] = "undefined",
        [JINJA_NONE] = "none",
        [JINJA_BOOL] = "bool",
        [JINJA_INT] = "int",
        [JINJA_BIG] = "int of more than 64 bits",
        [JINJA_FLOAT] = "float",
        [JINJA_STRING] = "str",
        [JINJA_LIST] = "list",
        [JINJA_TUPLE] = "tuple",
        [JINJA_ITERATOR] = "generator",
        [JINJA_DICT] = "dict",
        [JINJA_NAMESPACE] = "namespace",
        [JINJA_LOOP] = "loop",
        [JINJA_FUNCTION] = "function",
        [JINJA_METHOD] = "method",
        [JINJA_MACRO] = "macro",
        [JINJA_CYCLER] = "cycler",
        [JINJA_JOINER] = "joiner",
    };
    return names[kind];
}

bool jinja_truth(jinja_value value)
{
    switch (value.kind) {
    case JINJA_ABSENT:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return value.truth;
    case JINJA_INT:
        return value.integer != 0;
    case JINJA_FLOAT:
        return value.number != 0;
    case JINJA_STRING:
        return value.text->size > 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return value.list->n > 0;
    case JINJA_DICT:
        return value.dict->n > 0;
    default:
        return true;
    }
}

bool jinja_is_integer(jinja_value value)
{
    return value.kind == JINJA_INT || value.kind == JINJA_BOOL;
}

bool jinja_is_number(jinja_value value)
{
    return jinja_is_integer(value) || value.kind == JINJA_FLOAT;
}

double jinja_as_double(jinja_value value)
{
    return value.kind == JINJA_FLOAT ? value.number : (double)jinja_as_integer(value);
}

int64_t jinja_as_integer(jinja_value value)
{
    return value.kind == JINJA_BOOL ? value.truth : value.integer;
}

static bool equal_lists(jinja_context *c, const jinja_list *a, const jinja_list *b)
{
    if (a->n != b->n) {
        return false;
    }
    for (size_t i = 0; i < a->n; i++) {
        if (!jinja_equal(c, a->items[i], b->items[i])) {
            return false;
        }
    }
    return true;
}

static bool equal_dicts(jinja_context *c, const jinja_dict *a, const jinja_dict *b)
{
    if (a->n != b->n) {
        return false;
    }
    for (size_t i = 0; i < a->n; i++) {
        const jinja_value *other = jinja_dict_get(c, b, a->entries[i].key);
        if (other == NULL || !jinja_equal(c, a->entries[i].value, *other)) {
            return false;
        }
    }
    return true;
}

bool jinja_equal(jinja_context *c, jinja_value a, jinja_value b)
{
    if (jinja_is_number(a) && jinja_is_number(b)) {
        return jinja_is_integer(a) && jinja_is_integer(b)
                   ? jinja_as_integer(a) == jinja_as_integer(b)
                   : jinja_as_double(a) == jinja_as_double(b);
    }
    if (a.kind != b.kind) {
        return false;
    }
    bool same;
    switch (a.kind) {
    case JINJA_ABSENT:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return true;
    case JINJA_STRING:
    case JINJA_BIG:
        jinja_charge(c, a.text->size / 64);
        return jinja_text_equal(*a.text, *b.text);
    case JINJA_LIST:
    case JINJA_TUPLE:
        jinja_enter(c);
        same = equal_lists(c, a.list, b.list);
        jinja_leave(c);
        return same;
    case JINJA_DICT:
        jinja_enter(c);
        same = equal_dicts(c, a.dict, b.dict);
        jinja_leave(c);
        return same;
    default:
        return a.list == b.list;
    }
}

int jinja_compare(jinja_context *c, jinja_value a, jinja_value b)
{
    if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(c, a.kind == JINJA_UNDEFINED ? a : b);
    }
    if (jinja_is_integer(a) && jinja_is_integer(b)) {
        int64_t x = jinja_as_integer(a);
        int64_t y = jinja_as_integer(b);
        return (x > y) - (x < y);
    }
    if (jinja_is_number(a) && jinja_is_number(b)) {
        double x = jinja_as_double(a);
        double y = jinja_as_double(b);
        return (x > y) - (x < y);
    }
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        jinja_charge(c, a.text->size / 64);
        return jinja_text_compare(*a.text, *b.text);
    }
    if (a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE)) {
        for (size_t i = 0; i < a.list->n && i < b.list->n; i++) {
            if (!jinja_equal(c, a.list->items[i], b.list->items[i])) {
                jinja_enter(c);
                int order = jinja_compare(c, a.list->items[i], b.list->items[i]);
                jinja_leave(c);
                return order;
            }
        }
        return (a.list->n > b.list->n) - (a.list->n < b.list->n);
    }
    jinja_fail(c, MOE_ERR_UNSUPPORTED, "%s and %s have no order", jinja_kind_name(a.kind),
               jinja_kind_name(b.kind));
}

bool jinja_contains(jinja_context *c, jinja_value container, jinja_value item)
{
    if (container.kind == JINJA_STRING) {
        if (item.kind != JINJA_STRING) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "'in' of a string needs a string, not %s",
                       jinja_kind_name(item.kind));
        }
        return jinja_find(c, *container.text, *item.text, 0) != SIZE_MAX;
    }
    if (container.kind == JINJA_DICT) {
        if (item.kind == JINJA_LIST || item.kind == JINJA_DICT) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "a %s cannot be a key", jinja_kind_name(item.kind));
        }
        return jinja_dict_get(c, container.dict, item) != NULL;
    }
    const jinja_list *list = jinja_iterate(c, container);
    for (size_t i = 0; i < list->n; i++) {
        jinja_charge(c, 1);
        if (jinja_equal(c, list->items[i], item)) {
            return true;
        }
    }
    return false;
}

static jinja_list *characters_of(jinja_context *c, jinja_text text)
{
    jinja_list *list = jinja_new_list(c, JINJA_LIST).list;
    uint32_t u;
    for (size_t at = 0; at < text.size;) {
        size_t n = jinja_char_at(text, at, &u);
        jinja_list_add(c, list, jinja_string(c, jinja_part(text, at, at + n)));
        at += n;
    }
    return list;
}

jinja_list *jinja_iterate(jinja_context *c, jinja_value value)
{
    jinja_list *list;
    switch (value.kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
        return value.list;
    case JINJA_ITERATOR:
        list = jinja_new_list(c, JINJA_LIST).list;
        *list = *value.list;
        *value.list = (jinja_list){0};
        return list;
    case JINJA_STRING:
        return characters_of(c, *value.text);
    case JINJA_DICT:
        list = jinja_new_list(c, JINJA_LIST).list;
        for (size_t i = 0; i < value.dict->n; i++) {
            jinja_list_add(c, list, value.dict->entries[i].key);
        }
        return list;
    case JINJA_UNDEFINED:
        return jinja_new_list(c, JINJA_LIST).list;
    default:
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "%s cannot be walked through",
                   jinja_kind_name(value.kind));
    }
}

int64_t jinja_count(jinja_context *c, jinja_value value)
{
    switch (value.kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
        return (int64_t)value.list->n;
    case JINJA_STRING:
        return (int64_t)jinja_length(c, *value.text);
    case JINJA_DICT:
        return (int64_t)value.dict->n;
    case JINJA_UNDEFINED:
        return 0;
    default:
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "%s has no length", jinja_kind_name(value.kind));
    }
}

void jinja_fail_undefined(jinja_context *c, jinja_value value)
{
    jinja_fail(c, MOE_ERR_UNSUPPORTED, "'%.80s' is undefined",
               value.missing == NULL ? "value" : value.missing);
}

static size_t name_index(const char *names, const char *name)
{
    size_t size = strlen(name);
    for (size_t i = 0; *names != '\0'; i++) {
        size_t n = strcspn(names, " ");
        if (n == size && memcmp(names, name, n) == 0) {
            return i;
        }
        names += n + (names[n] == ' ');
    }
    return SIZE_MAX;
}

void jinja_bind(jinja_context *c, const char *what, const jinja_args *args, const char *names,
                size_t least, jinja_value *out)
{
    size_t n = 0;
    for (const char *p = names; *p != '\0'; p += strcspn(p, " "), p += *p == ' ') {
        out[n++] = (jinja_value){.kind = JINJA_ABSENT};
    }
    if (args->n > n) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "%s takes %zu arguments, not %zu", what, n, args->n);
    }
    for (size_t i = 0; i < args->n; i++) {
        out[i] = args->values[i];
    }
    for (size_t i = 0; i < args->n_named; i++) {
        size_t index = name_index(names, args->names[i]);
        if (index == SIZE_MAX || out[index].kind != JINJA_ABSENT) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "%s does not take the argument %.60s%s", what,
                       args->names[i], index == SIZE_MAX ? "" : " twice");
        }
        out[index] = args->named[i];
    }
    for (size_t i = 0; i < least; i++) {
        if (out[i].kind == JINJA_ABSENT) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "%s needs at least %zu arguments", what, least);
        }
    }
}

int64_t jinja_need_integer(jinja_context *c, const char *what, jinja_value value)
{
    if (value.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(c, value);
    }
    if (!jinja_is_integer(value)) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "%s needs an integer, not %s", what,
                   jinja_kind_name(value.kind));
    }
    return jinja_as_integer(value);
}

jinja_text jinja_need_text(jinja_context *c, const char *what, jinja_value value)
{
    if (value.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(c, value);
    }
    if (value.kind != JINJA_STRING) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "%s needs a string, not %s", what,
                   jinja_kind_name(value.kind));
    }
    return *value.text;
}
