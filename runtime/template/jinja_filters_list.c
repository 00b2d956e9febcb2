/* SPDX-License-Identifier: MIT */
/* Filters of lists and dicts. */
#include <string.h>

#include "runtime/template/jinja_evaluate.h"
#include "runtime/template/jinja_order.h"

static jinja_value filter_length(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_bind(c, "length", args, "", 0, NULL);
    return jinja_int(jinja_count(c, value));
}

static jinja_value filter_list(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_bind(c, "list", args, "", 0, NULL);
    return jinja_copy_list(c, jinja_iterate(c, value));
}

static jinja_value filter_first(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_bind(c, "first", args, "", 0, NULL);
    jinja_list *list = jinja_iterate(c, value);
    if (value.kind == JINJA_ITERATOR && list->n > 1) { /* the iterator can still give the rest */
        *value.list = (jinja_list){.items = list->items + 1, .n = list->n - 1};
        value.list->capacity = value.list->n;
    }
    return list->n > 0 ? list->items[0] : jinja_undefined("first of nothing");
}

static jinja_value filter_last(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_bind(c, "last", args, "", 0, NULL);
    if (value.kind == JINJA_ITERATOR) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "a generator has no last item: put 'list' before it");
    }
    const jinja_list *list = jinja_iterate(c, value);
    return list->n > 0 ? list->items[list->n - 1] : jinja_undefined("last of nothing");
}

static jinja_value filter_join(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[2];
    jinja_builder b = jinja_build(c);
    jinja_bind(c, "join", args, "d attribute", 0, a);
    jinja_text between =
        a[0].kind == JINJA_ABSENT ? jinja_text_of("", JINJA_DATA) : jinja_to_text(c, a[0]);
    const jinja_list *list = jinja_iterate(c, value);
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0) {
            jinja_add(&b, between);
        }
        jinja_charge(c, 1);
        jinja_add(&b, jinja_to_text(c, jinja_path(c, list->items[i], a[1])));
    }
    return jinja_string(c, jinja_built(&b));
}

static jinja_value filter_default(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[2];
    jinja_bind(c, "default", args, "default_value boolean", 0, a);
    bool replaced = value.kind == JINJA_UNDEFINED || (jinja_truth(a[1]) && !jinja_truth(value));
    if (!replaced) {
        return value;
    }
    return a[0].kind == JINJA_ABSENT ? jinja_string(c, jinja_text_of("", JINJA_DATA)) : a[0];
}

static jinja_value entry_tuple(jinja_context *c, const jinja_entry *entry)
{
    jinja_value pair = jinja_new_list(c, JINJA_TUPLE);
    jinja_list_add(c, pair.list, entry->key);
    jinja_list_add(c, pair.list, entry->value);
    return pair;
}

static jinja_value filter_items(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value list = jinja_new_list(c, JINJA_ITERATOR);
    jinja_bind(c, "items", args, "", 0, NULL);
    if (value.kind == JINJA_UNDEFINED) {
        return list;
    }
    if (value.kind != JINJA_DICT) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "items needs a dict, not %s",
                   jinja_kind_name(value.kind));
    }
    for (size_t i = 0; i < value.dict->n; i++) {
        jinja_list_add(c, list.list, entry_tuple(c, &value.dict->entries[i]));
    }
    return list;
}

static jinja_value filter_dictsort(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[3];
    jinja_bind(c, "dictsort", args, "case_sensitive by reverse", 0, a);
    if (value.kind != JINJA_DICT) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "dictsort needs a dict, not %s",
                   jinja_kind_name(value.kind));
    }
    bool by_value =
        a[1].kind != JINJA_ABSENT && jinja_text_is(jinja_need_text(c, "dictsort", a[1]), "value");
    jinja_list *list = jinja_new_list(c, JINJA_LIST).list;
    for (size_t i = 0; i < value.dict->n; i++) {
        jinja_list_add(c, list, entry_tuple(c, &value.dict->entries[i]));
    }
    jinja_value key = jinja_int(by_value ? 1 : 0);
    return jinja_sorted(c, list, key, jinja_truth(a[0]), jinja_truth(a[2]));
}

static jinja_value filter_sort(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[3];
    jinja_bind(c, "sort", args, "reverse case_sensitive attribute", 0, a);
    return jinja_sorted(c, jinja_iterate(c, value), a[2], jinja_truth(a[1]), jinja_truth(a[0]));
}

static jinja_value filter_unique(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[2];
    jinja_bind(c, "unique", args, "case_sensitive attribute", 0, a);
    const jinja_list *list = jinja_iterate(c, value);
    jinja_value out = jinja_new_list(c, JINJA_ITERATOR);
    jinja_list *seen = jinja_new_list(c, JINJA_LIST).list;
    for (size_t i = 0; i < list->n; i++) {
        jinja_value key = jinja_order_key(c, list->items[i], a[1], jinja_truth(a[0]));
        if (!jinja_contains(c, (jinja_value){.kind = JINJA_LIST, .list = seen}, key)) {
            jinja_list_add(c, seen, key);
            jinja_list_add(c, out.list, list->items[i]);
        }
    }
    return out;
}

static jinja_value extreme(jinja_context *c, jinja_value value, const jinja_args *args, int sign)
{
    jinja_value a[2];
    jinja_bind(c, "min and max", args, "case_sensitive attribute", 0, a);
    const jinja_list *list = jinja_iterate(c, value);
    jinja_value best = jinja_undefined("an extreme of nothing");
    jinja_value best_key = best;
    for (size_t i = 0; i < list->n; i++) {
        jinja_value key = jinja_order_key(c, list->items[i], a[1], jinja_truth(a[0]));
        if (i == 0 || jinja_compare(c, key, best_key) * sign > 0) {
            best = list->items[i];
            best_key = key;
        }
    }
    return best;
}

static jinja_value filter_min(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return extreme(c, value, args, -1);
}

static jinja_value filter_max(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return extreme(c, value, args, 1);
}

static jinja_value filter_sum(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[2];
    jinja_bind(c, "sum", args, "attribute start", 0, a);
    jinja_value sum = a[1].kind == JINJA_ABSENT ? jinja_int(0) : a[1];
    const jinja_list *list = jinja_iterate(c, value);
    if (sum.kind == JINJA_STRING) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "sum does not add strings: use join");
    }
    for (size_t i = 0; i < list->n; i++) {
        sum = jinja_binary(c, '+', false, sum, jinja_path(c, list->items[i], a[0]));
    }
    return sum;
}

static jinja_value filter_reverse(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_bind(c, "reverse", args, "", 0, NULL);
    if (value.kind == JINJA_STRING) {
        const jinja_value part[3] = {jinja_none(), jinja_none(), jinja_int(-1)};
        return jinja_slice(c, value, part);
    }
    const jinja_list *list = jinja_iterate(c, value);
    jinja_value out = jinja_new_list(c, JINJA_ITERATOR);
    for (size_t i = list->n; i-- > 0;) {
        jinja_list_add(c, out.list, list->items[i]);
    }
    return out;
}

static jinja_value filter_batch(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[2];
    jinja_bind(c, "batch", args, "linecount fill_with", 1, a);
    int64_t size = jinja_need_integer(c, "batch", a[0]);
    const jinja_list *list = jinja_iterate(c, value);
    jinja_value out = jinja_new_list(c, JINJA_ITERATOR);
    jinja_value row = jinja_new_list(c, JINJA_LIST);
    for (size_t i = 0; i < list->n; i++) {
        if ((int64_t)row.list->n == size) {
            jinja_list_add(c, out.list, row);
            row = jinja_new_list(c, JINJA_LIST);
        }
        jinja_list_add(c, row.list, list->items[i]);
    }
    bool fills = a[1].kind != JINJA_ABSENT && a[1].kind != JINJA_NONE;
    while (fills && row.list->n > 0 && (int64_t)row.list->n < size) {
        jinja_list_add(c, row.list, a[1]);
    }
    if (row.list->n > 0) {
        jinja_list_add(c, out.list, row);
    }
    return out;
}

static jinja_value filter_attr(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value name;
    jinja_bind(c, "attr", args, "name", 1, &name);
    if (value.kind == JINJA_DICT) { /* a dict's keys are not attributes */
        jinja_value key = jinja_attribute(c, value, jinja_need_text(c, "attr", name));
        return key.kind == JINJA_METHOD ? key : jinja_undefined("attr");
    }
    return jinja_attribute(c, value, jinja_need_text(c, "attr", name));
}

const jinja_filter *jinja_find_list_filter(const char *name)
{
    static const jinja_filter filters[] = {
        {"length", filter_length},     {"count", filter_length}, {"list", filter_list},
        {"first", filter_first},       {"last", filter_last},    {"join", filter_join},
        {"default", filter_default},   {"d", filter_default},    {"items", filter_items},
        {"dictsort", filter_dictsort}, {"sort", filter_sort},    {"unique", filter_unique},
        {"min", filter_min},           {"max", filter_max},      {"sum", filter_sum},
        {"reverse", filter_reverse},   {"batch", filter_batch},  {"attr", filter_attr},
    };
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (strcmp(filters[i].name, name) == 0) {
            return &filters[i];
        }
    }
    return NULL;
}
