/* SPDX-License-Identifier: MIT */
/* Attributes, subscripts and slices. */
#include <string.h>

#include "runtime/template/jinja_evaluate.h"

static jinja_value missing(jinja_context *c, jinja_text name)
{
    return jinja_undefined(jinja_intern(c, name.data, name.size < 80 ? name.size : 80));
}

static jinja_value loop_attribute(jinja_context *c, const jinja_loop *loop, jinja_text name)
{
    int64_t index = (int64_t)loop->index;
    int64_t n = (int64_t)loop->list->n;
    const struct {
        const char *name;
        jinja_value value;
    } attributes[] = {
        {"index", jinja_int(index + 1)},
        {"index0", jinja_int(index)},
        {"revindex", jinja_int(n - index)},
        {"revindex0", jinja_int(n - index - 1)},
        {"first", jinja_bool(index == 0)},
        {"last", jinja_bool(index + 1 == n)},
        {"length", jinja_int(n)},
        {"depth", jinja_int(1)},
        {"depth0", jinja_int(0)},
        {"previtem", index > 0 ? loop->list->items[index - 1] : jinja_undefined("loop.previtem")},
        {"nextitem",
         index + 1 < n ? loop->list->items[index + 1] : jinja_undefined("loop.nextitem")},
    };
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        if (jinja_text_is(name, attributes[i].name)) {
            return attributes[i].value;
        }
    }
    return missing(c, name);
}

static jinja_value find_method(jinja_context *c, jinja_value of, jinja_text name)
{
    const jinja_method_row *row = of.kind == JINJA_STRING ? c->links->find_string_method(name)
                                                          : c->links->find_method(of.kind, name);
    if (row == NULL) {
        return (jinja_value){.kind = JINJA_ABSENT};
    }
    jinja_bound *bound = jinja_alloc(c, 1, sizeof *bound);
    bound->self = of;
    bound->row = row;
    return (jinja_value){.kind = JINJA_METHOD, .method = bound};
}

/* As in Jinja: in x.name a method of x hides a key of the same name, and in x["name"] the keys of
 * a dict come before methods. */
jinja_value jinja_attribute(jinja_context *c, jinja_value of, jinja_text name)
{
    if (of.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(c, of);
    }
    jinja_value method = find_method(c, of, name);
    if (method.kind != JINJA_ABSENT) {
        return method;
    }
    if (of.kind == JINJA_LOOP) {
        return loop_attribute(c, of.loop, name);
    }
    if (of.kind == JINJA_DICT || of.kind == JINJA_NAMESPACE) {
        jinja_value key = {.kind = JINJA_STRING, .text = &name};
        const jinja_value *found = jinja_dict_get(c, of.dict, key);
        if (found != NULL) {
            return *found;
        }
    }
    if (of.kind == JINJA_MACRO && jinja_text_is(name, "name")) {
        return jinja_string(c, jinja_text_of(of.macro->node->name, JINJA_MARKUP));
    }
    if (of.kind == JINJA_CYCLER && jinja_text_is(name, "current")) {
        return of.list->items[of.list->at % of.list->n];
    }
    return missing(c, name);
}

static jinja_value item_of_list(jinja_context *c, jinja_value of, int64_t index)
{
    int64_t n = jinja_count(c, of);
    index += index < 0 ? n : 0;
    if (index < 0 || index >= n) {
        return jinja_undefined("an item that is not there");
    }
    if (of.kind != JINJA_STRING) {
        return of.list->items[index];
    }
    uint32_t u;
    size_t at = jinja_byte_of(c, *of.text, (size_t)index);
    size_t size = jinja_char_at(*of.text, at, &u);
    return jinja_string(c, jinja_part(*of.text, at, at + size));
}

jinja_value jinja_item(jinja_context *c, jinja_value of, jinja_value key)
{
    if (of.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(c, of);
    }
    if (of.kind == JINJA_DICT && key.kind != JINJA_LIST && key.kind != JINJA_DICT) {
        const jinja_value *found = jinja_dict_get(c, of.dict, key);
        if (found != NULL) {
            return *found;
        }
    }
    bool is_sequence = of.kind == JINJA_LIST || of.kind == JINJA_TUPLE || of.kind == JINJA_STRING;
    if (is_sequence && jinja_is_integer(key)) {
        return item_of_list(c, of, jinja_as_integer(key));
    }
    if (key.kind == JINJA_STRING) {
        return jinja_attribute(c, of, *key.text);
    }
    return jinja_undefined("an item that is not there");
}

typedef struct range {
    int64_t from, to, step;
} range;

static int64_t bound_of(jinja_context *c, jinja_value part, int64_t absent, int64_t n,
                        int64_t least, int64_t most)
{
    if (part.kind == JINJA_NONE) {
        return absent;
    }
    int64_t at = jinja_need_integer(c, "a slice", part);
    at += at < 0 ? n : 0;
    return at < least ? least : at > most ? most : at;
}

static range find_range(jinja_context *c, const jinja_value part[3], int64_t n)
{
    range r = {.step = 1};
    if (part[2].kind != JINJA_NONE) {
        r.step = jinja_need_integer(c, "a slice", part[2]);
    }
    if (r.step == 0 || r.step == INT64_MIN) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "a slice's step cannot be %d", (int)r.step);
    }
    int64_t least = r.step > 0 ? 0 : -1;
    int64_t most = r.step > 0 ? n : n - 1;
    r.from = bound_of(c, part[0], r.step > 0 ? 0 : n - 1, n, least, most);
    r.to = bound_of(c, part[1], r.step > 0 ? n : -1, n, least, most);
    return r;
}

static bool is_in(const range *r, int64_t at)
{
    return r->step > 0 ? at < r->to : at > r->to;
}

static jinja_value slice_string(jinja_context *c, jinja_text text, const range *r)
{
    if (r->step == 1) {
        size_t from = jinja_byte_of(c, text, (size_t)r->from);
        jinja_text rest = jinja_part(text, from, text.size);
        int64_t n = r->to > r->from ? r->to - r->from : 0;
        return jinja_string(c, jinja_part(rest, 0, jinja_byte_of(c, rest, (size_t)n)));
    }
    const jinja_list *list = jinja_iterate(c, (jinja_value){.kind = JINJA_STRING, .text = &text});
    jinja_builder b = jinja_build(c);
    for (int64_t at = r->from; is_in(r, at);) {
        jinja_add(&b, *list->items[at].text);
        if (__builtin_add_overflow(at, r->step, &at)) {
            break;
        }
    }
    return jinja_string(c, jinja_built(&b));
}

jinja_value jinja_slice(jinja_context *c, jinja_value of, const jinja_value part[3])
{
    if (of.kind == JINJA_UNDEFINED) {
        jinja_fail_undefined(c, of);
    }
    if (of.kind != JINJA_LIST && of.kind != JINJA_TUPLE && of.kind != JINJA_STRING) {
        return jinja_undefined("a slice");
    }
    range r = find_range(c, part, jinja_count(c, of));
    if (of.kind == JINJA_STRING) {
        return slice_string(c, *of.text, &r);
    }
    jinja_value list = jinja_new_list(c, of.kind);
    for (int64_t at = r.from; is_in(&r, at);) {
        jinja_list_add(c, list.list, of.list->items[at]);
        jinja_charge(c, 1);
        if (__builtin_add_overflow(at, r.step, &at)) {
            break;
        }
    }
    return list;
}
