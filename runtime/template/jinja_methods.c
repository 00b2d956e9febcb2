/* SPDX-License-Identifier: MIT */
/* Methods of all types except strings. The only methods that change a value are append() and pop()
 * of lists: the sandbox of transformers refuses them, but published templates use them (Kimi-K2).
 * If a list comes to contain itself, printing and comparing it end at the limit of nesting. */
#include <string.h>

#include "runtime/template/jinja_evaluate.h"

typedef enum entry_part { PART_KEY, PART_VALUE, PART_BOTH } entry_part;

static jinja_value list_of(jinja_context *c, jinja_value self, const jinja_args *args,
                           entry_part part)
{
    jinja_value list = jinja_new_list(c, JINJA_LIST);
    jinja_bind(c, "this method", args, "", 0, NULL);
    for (size_t i = 0; i < self.dict->n; i++) {
        const jinja_entry *entry = &self.dict->entries[i];
        jinja_value item = part == PART_KEY ? entry->key : entry->value;
        if (part == PART_BOTH) {
            item = jinja_new_list(c, JINJA_TUPLE);
            jinja_list_add(c, item.list, entry->key);
            jinja_list_add(c, item.list, entry->value);
        }
        jinja_list_add(c, list.list, item);
    }
    return list;
}

static jinja_value dict_items(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return list_of(c, self, args, PART_BOTH);
}

static jinja_value dict_keys(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return list_of(c, self, args, PART_KEY);
}

static jinja_value dict_values(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return list_of(c, self, args, PART_VALUE);
}

static jinja_value dict_get(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value a[2];
    jinja_bind(c, "get", args, "key default", 1, a);
    if (a[0].kind == JINJA_LIST || a[0].kind == JINJA_DICT) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "a %s cannot be a key", jinja_kind_name(a[0].kind));
    }
    const jinja_value *found = jinja_dict_get(c, self.dict, a[0]);
    if (found != NULL) {
        return *found;
    }
    return a[1].kind == JINJA_ABSENT ? jinja_none() : a[1];
}

static jinja_value copy(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_bind(c, "copy", args, "", 0, NULL);
    return self; /* nothing changes */
}

static jinja_value copy_list(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_bind(c, "copy", args, "", 0, NULL);
    return jinja_copy_list(c, self.list);
}

static jinja_value list_append(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value item;
    jinja_bind(c, "append", args, "value", 1, &item);
    jinja_list_add(c, self.list, item);
    return jinja_none();
}

static jinja_value list_pop(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value index;
    jinja_list *list = self.list;
    jinja_bind(c, "pop", args, "index", 0, &index);
    int64_t n = (int64_t)list->n;
    int64_t at = index.kind == JINJA_ABSENT ? -1 : jinja_need_integer(c, "pop", index);
    at += at < 0 ? n : 0;
    if (at < 0 || at >= n) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "pop: the list has no such item");
    }
    jinja_value item = list->items[at];
    jinja_charge(c, list->n - (size_t)at);
    memmove(list->items + at, list->items + at + 1,
            (list->n - (size_t)at - 1) * sizeof *list->items);
    list->n--;
    return item;
}

static jinja_value list_index(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value item;
    jinja_bind(c, "index", args, "value", 1, &item);
    for (size_t i = 0; i < self.list->n; i++) {
        if (jinja_equal(c, self.list->items[i], item)) {
            return jinja_int((int64_t)i);
        }
    }
    jinja_fail(c, MOE_ERR_UNSUPPORTED, "index: the list does not hold it");
}

static jinja_value list_count(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value item;
    int64_t n = 0;
    jinja_bind(c, "count", args, "value", 1, &item);
    for (size_t i = 0; i < self.list->n; i++) {
        n += jinja_equal(c, self.list->items[i], item);
    }
    return jinja_int(n);
}

static jinja_value loop_cycle(jinja_context *c, jinja_value self, const jinja_args *args)
{
    if (args->n == 0) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "loop.cycle needs values");
    }
    return args->values[self.loop->index % args->n];
}

static jinja_value loop_changed(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value now = jinja_new_list(c, JINJA_TUPLE);
    for (size_t i = 0; i < args->n; i++) {
        jinja_list_add(c, now.list, args->values[i]);
    }
    bool same = self.loop->has_changed_before && jinja_equal(c, self.loop->changed, now);
    self.loop->has_changed_before = true;
    self.loop->changed = now;
    return jinja_bool(!same);
}

static jinja_value cycler_next(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_bind(c, "next", args, "", 0, NULL);
    return self.list->items[self.list->at++ % self.list->n];
}

static jinja_value cycler_reset(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_bind(c, "reset", args, "", 0, NULL);
    self.list->at = 0;
    return jinja_none();
}

const jinja_method_row *jinja_find_method(jinja_kind of, jinja_text name)
{
    static const jinja_method_row rows[] = {
        {JINJA_DICT, "items", dict_items},   {JINJA_DICT, "keys", dict_keys},
        {JINJA_DICT, "values", dict_values}, {JINJA_DICT, "get", dict_get},
        {JINJA_DICT, "copy", copy},          {JINJA_LIST, "index", list_index},
        {JINJA_LIST, "count", list_count},   {JINJA_TUPLE, "index", list_index},
        {JINJA_TUPLE, "count", list_count},  {JINJA_LIST, "copy", copy_list},
        {JINJA_LIST, "append", list_append}, {JINJA_LIST, "pop", list_pop},
        {JINJA_LOOP, "cycle", loop_cycle},   {JINJA_LOOP, "changed", loop_changed},
        {JINJA_CYCLER, "next", cycler_next}, {JINJA_CYCLER, "reset", cycler_reset},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].of == of && jinja_text_is(name, rows[i].name)) {
            return &rows[i];
        }
    }
    return NULL;
}
