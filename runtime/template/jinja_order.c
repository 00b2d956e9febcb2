/* SPDX-License-Identifier: MIT */
#include "runtime/template/jinja_order.h"

#include <string.h>

#include "runtime/template/jinja_evaluate.h"

static jinja_value path_part(jinja_context *c, jinja_value value, jinja_text part)
{
    int64_t index = 0;
    bool is_index = part.size > 0 && part.size < 10;
    for (size_t i = 0; i < part.size && is_index; i++) {
        is_index = part.data[i] >= '0' && part.data[i] <= '9';
        index = index * 10 + (part.data[i] - '0');
    }
    return jinja_item(c, value, is_index ? jinja_int(index) : jinja_string(c, part));
}

jinja_value jinja_path(jinja_context *c, jinja_value value, jinja_value path)
{
    if (path.kind == JINJA_ABSENT || path.kind == JINJA_NONE) {
        return value;
    }
    if (path.kind != JINJA_STRING) {
        return jinja_item(c, value, path);
    }
    jinja_text text = *path.text;
    for (size_t at = 0; at <= text.size;) {
        size_t dot = jinja_find(c, text, jinja_text_of(".", JINJA_DATA), at);
        dot = dot == SIZE_MAX ? text.size : dot;
        value = path_part(c, value, jinja_part(text, at, dot));
        at = dot + 1;
    }
    return value;
}

jinja_value jinja_order_key(jinja_context *c, jinja_value value, jinja_value path,
                            bool case_sensitive)
{
    jinja_value key = jinja_path(c, value, path);
    if (key.kind == JINJA_STRING && !case_sensitive) {
        return jinja_string(c, jinja_change_case(c, *key.text, JINJA_LOWER));
    }
    return key;
}

/* The state of a merge sort. keys[] and items[] exist twice, and sorted runs are merged from one
 * pair of arrays to the other. */
typedef struct sorting {
    jinja_context *c;
    jinja_value *keys[2];
    jinja_value *items[2];
    int sign;
} sorting;

static void merge(const sorting *s, int from, size_t begin, size_t middle, size_t end)
{
    size_t i = begin;
    size_t j = middle;
    int to = 1 - from;
    for (size_t k = begin; k < end; k++) {
        bool left = j == end;
        if (i < middle && j < end) {
            left = jinja_compare(s->c, s->keys[from][i], s->keys[from][j]) * s->sign <= 0;
        }
        size_t taken = left ? i++ : j++;
        s->keys[to][k] = s->keys[from][taken];
        s->items[to][k] = s->items[from][taken];
        jinja_charge(s->c, 1);
    }
}

jinja_value jinja_sorted(jinja_context *c, const jinja_list *list, jinja_value path,
                         bool case_sensitive, bool reverse)
{
    size_t n = list->n;
    sorting s = {.c = c, .sign = reverse ? -1 : 1};
    for (int i = 0; i < 2; i++) {
        s.keys[i] = jinja_alloc(c, n + 1, sizeof(jinja_value));
        s.items[i] = jinja_alloc(c, n + 1, sizeof(jinja_value));
    }
    for (size_t i = 0; i < n; i++) {
        s.items[0][i] = list->items[i];
        s.keys[0][i] = jinja_order_key(c, list->items[i], path, case_sensitive);
    }
    int now = 0;
    for (size_t width = 1; width < n; width *= 2, now = 1 - now) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            size_t middle = begin + width < n ? begin + width : n;
            size_t end = middle + width < n ? middle + width : n;
            merge(&s, now, begin, middle, end);
        }
    }
    jinja_value out = jinja_new_list(c, JINJA_LIST);
    *out.list = (jinja_list){.items = s.items[now], .n = n, .capacity = n};
    return out;
}
