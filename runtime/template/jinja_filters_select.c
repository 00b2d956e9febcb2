/* SPDX-License-Identifier: MIT */
/* map, select, reject and similar filters, and the lookup of filters and tests by name. */
#include <string.h>

#include "runtime/template/jinja_evaluate.h"
#include "runtime/template/jinja_order.h"

jinja_value jinja_apply_filter(jinja_context *c, const char *name, jinja_value value,
                               const jinja_args *args)
{
    static const jinja_filter *(*const tables[])(const char *) = {
        jinja_find_text_filter, jinja_find_list_filter, jinja_find_select_filter,
        jinja_find_number_filter};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        const jinja_filter *filter = tables[i](name);
        if (filter != NULL) {
            return filter->call(c, value, args);
        }
    }
    jinja_fail(c, MOE_ERR_UNSUPPORTED, "no filter named '%.60s'", name);
}

bool jinja_apply_test(jinja_context *c, const char *name, jinja_value value, const jinja_args *args)
{
    const jinja_test *test = jinja_find_test(name);
    if (test == NULL) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "no test named '%.60s'", name);
    }
    return test->call(c, value, args);
}

/* Returns the arguments without the first n. */
static jinja_args rest_of(const jinja_args *args, size_t n)
{
    jinja_args rest = *args;
    n = n < args->n ? n : args->n;
    rest.values = rest.n > 0 ? rest.values + n : rest.values;
    rest.n -= n;
    return rest;
}

static const char *name_argument(jinja_context *c, const jinja_args *args, size_t at,
                                 const char *what)
{
    if (args->n <= at) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "%s needs a name", what);
    }
    jinja_text name = jinja_need_text(c, what, args->values[at]);
    return jinja_intern(c, name.data, name.size);
}

static jinja_value map_attribute(jinja_context *c, const jinja_list *list, const jinja_args *args)
{
    jinja_value a[2];
    jinja_value out = jinja_new_list(c, JINJA_ITERATOR);
    jinja_args named = *args;
    named.n = 0;
    jinja_bind(c, "map", &named, "attribute default", 1, a);
    for (size_t i = 0; i < list->n; i++) {
        jinja_value value = jinja_path(c, list->items[i], a[0]);
        if (value.kind == JINJA_UNDEFINED && a[1].kind != JINJA_ABSENT) {
            value = a[1];
        }
        jinja_list_add(c, out.list, value);
    }
    return out;
}

static jinja_value filter_map(jinja_context *c, jinja_value value, const jinja_args *args)
{
    if (!jinja_truth(value)) {
        return jinja_new_list(c, JINJA_ITERATOR);
    }
    const jinja_list *list = jinja_iterate(c, value);
    if (args->n == 0) {
        return map_attribute(c, list, args);
    }
    const char *name = name_argument(c, args, 0, "map");
    jinja_args rest = rest_of(args, 1);
    jinja_value out = jinja_new_list(c, JINJA_ITERATOR);
    for (size_t i = 0; i < list->n; i++) {
        jinja_enter(c);
        jinja_list_add(c, out.list, jinja_apply_filter(c, name, list->items[i], &rest));
        jinja_leave(c);
    }
    return out;
}

/* Keeps the items whose value (or attribute, with by_attribute) passes the named test. */
static jinja_value keep(jinja_context *c, jinja_value value, const jinja_args *args,
                        bool by_attribute, bool wanted)
{
    jinja_value path = {.kind = JINJA_ABSENT};
    size_t at = 0;
    if (by_attribute) {
        if (args->n == 0) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "selectattr and rejectattr need an attribute");
        }
        path = args->values[at++];
    }
    const char *name = args->n > at ? name_argument(c, args, at, "select") : NULL;
    jinja_args rest = rest_of(args, at + 1);
    jinja_value out = jinja_new_list(c, JINJA_ITERATOR);
    if (!jinja_truth(value)) { /* none and undefined have no items */
        return out;
    }
    const jinja_list *list = jinja_iterate(c, value);
    for (size_t i = 0; i < list->n; i++) {
        jinja_value tested = jinja_path(c, list->items[i], path);
        jinja_enter(c);
        bool passes = name == NULL ? jinja_truth(tested) : jinja_apply_test(c, name, tested, &rest);
        jinja_leave(c);
        if (passes == wanted) {
            jinja_list_add(c, out.list, list->items[i]);
        }
    }
    return out;
}

static jinja_value filter_select(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return keep(c, value, args, false, true);
}

static jinja_value filter_reject(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return keep(c, value, args, false, false);
}

static jinja_value filter_selectattr(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return keep(c, value, args, true, true);
}

static jinja_value filter_rejectattr(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return keep(c, value, args, true, false);
}

static jinja_value filter_groupby(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[3];
    jinja_bind(c, "groupby", args, "attribute default case_sensitive", 1, a);
    if (a[1].kind != JINJA_ABSENT) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "groupby with a default is not supported");
    }
    jinja_value sorted = jinja_sorted(c, jinja_iterate(c, value), a[0], jinja_truth(a[2]), false);
    jinja_value out = jinja_new_list(c, JINJA_LIST);
    jinja_value last = {.kind = JINJA_ABSENT};
    jinja_value group = last;
    for (size_t i = 0; i < sorted.list->n; i++) {
        jinja_value item = sorted.list->items[i];
        jinja_value key = jinja_order_key(c, item, a[0], jinja_truth(a[2]));
        if (i == 0 || !jinja_equal(c, key, last)) {
            jinja_value pair = jinja_new_list(c, JINJA_TUPLE);
            group = jinja_new_list(c, JINJA_LIST);
            jinja_list_add(c, pair.list, jinja_path(c, item, a[0]));
            jinja_list_add(c, pair.list, group);
            jinja_list_add(c, out.list, pair);
            last = key;
        }
        jinja_list_add(c, group.list, item);
    }
    return out;
}

const jinja_filter *jinja_find_select_filter(const char *name)
{
    static const jinja_filter filters[] = {
        {"map", filter_map},
        {"select", filter_select},
        {"reject", filter_reject},
        {"selectattr", filter_selectattr},
        {"rejectattr", filter_rejectattr},
        {"groupby", filter_groupby},
    };
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (strcmp(filters[i].name, name) == 0) {
            return &filters[i];
        }
    }
    return NULL;
}
