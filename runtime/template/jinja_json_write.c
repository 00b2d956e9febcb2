/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/template/jinja_json.h"

static void add_escaped(jinja_builder *b, uint32_t u)
{
    char text[16];
    if (u >= 0x10000) {
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((u - 0x10000) >> 10),
                 0xdc00 + ((u - 0x10000) & 0x3ff));
    } else {
        snprintf(text, sizeof text, "\\u%04x", u);
    }
    jinja_add_string(b, text);
}

static void add_string(jinja_builder *b, jinja_text text, bool ascii)
{
    uint32_t u;
    jinja_add_string(b, "\"");
    for (size_t at = 0; at < text.size;) {
        size_t n = jinja_char_at(text, at, &u);
        if (u == '"' || u == '\\') {
            jinja_add_string(b, u == '"' ? "\\\"" : "\\\\");
        } else if (u == '\n' || u == '\r' || u == '\t') {
            jinja_add_string(b, u == '\n' ? "\\n" : u == '\r' ? "\\r" : "\\t");
        } else if (u == '\b' || u == '\f') {
            jinja_add_string(b, u == '\b' ? "\\b" : "\\f");
        } else if (u < 0x20 || (ascii && u > 0x7e && u != 0x7f)) {
            add_escaped(b, u);
        } else {
            jinja_add(b, jinja_part(text, at, at + n));
        }
        at += n;
    }
    jinja_add_string(b, "\"");
}

static void add_line(jinja_builder *b, const jinja_json_style *style, unsigned level)
{
    if (style->indent != NULL) {
        jinja_add_string(b, "\n");
        for (unsigned i = 0; i < level; i++) {
            jinja_add(b, *style->indent);
        }
    }
}

static void add_value(jinja_builder *b, jinja_value value, const jinja_json_style *style,
                      unsigned level);

static void add_list(jinja_builder *b, const jinja_list *list, const jinja_json_style *style,
                     unsigned level)
{
    jinja_add_string(b, "[");
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0) {
            jinja_add(b, style->item_separator);
        }
        add_line(b, style, level + 1);
        add_value(b, list->items[i], style, level + 1);
    }
    if (list->n > 0) {
        add_line(b, style, level);
    }
    jinja_add_string(b, "]");
}

static void add_key(jinja_builder *b, jinja_value key, bool ascii)
{
    switch (key.kind) {
    case JINJA_STRING:
        add_string(b, *key.text, ascii);
        break;
    case JINJA_NONE:
        jinja_add_string(b, "\"null\"");
        break;
    case JINJA_BOOL:
        jinja_add_string(b, key.truth ? "\"true\"" : "\"false\"");
        break;
    case JINJA_INT:
    case JINJA_FLOAT:
        jinja_add_string(b, "\"");
        jinja_add_repr(b, key);
        jinja_add_string(b, "\"");
        break;
    default:
        jinja_fail(b->c, MOE_ERR_UNSUPPORTED, "JSON has no keys of %s", jinja_kind_name(key.kind));
    }
}

static int compare_entries(const void *a, const void *b)
{
    const jinja_entry *x = a;
    const jinja_entry *y = b;
    return jinja_text_compare(*x->key.text, *y->key.text);
}

static const jinja_entry *sorted(jinja_builder *b, const jinja_dict *dict)
{
    jinja_entry *copy = jinja_alloc(b->c, dict->n, sizeof *copy);
    for (size_t i = 0; i < dict->n; i++) {
        copy[i] = dict->entries[i];
        jinja_need_text(b->c, "a sorted key", copy[i].key);
    }
    qsort(copy, dict->n, sizeof *copy, compare_entries);
    return copy;
}

static void add_dict(jinja_builder *b, const jinja_dict *dict, const jinja_json_style *style,
                     unsigned level)
{
    const jinja_entry *entries = style->sort_keys && dict->n > 0 ? sorted(b, dict) : dict->entries;
    jinja_add_string(b, "{");
    for (size_t i = 0; i < dict->n; i++) {
        if (i > 0) {
            jinja_add(b, style->item_separator);
        }
        add_line(b, style, level + 1);
        add_key(b, entries[i].key, style->ascii);
        jinja_add(b, style->key_separator);
        add_value(b, entries[i].value, style, level + 1);
    }
    if (dict->n > 0) {
        add_line(b, style, level);
    }
    jinja_add_string(b, "}");
}

static void add_value(jinja_builder *b, jinja_value value, const jinja_json_style *style,
                      unsigned level)
{
    jinja_enter(b->c);
    switch (value.kind) {
    case JINJA_NONE:
        jinja_add_string(b, "null");
        break;
    case JINJA_BOOL:
        jinja_add_string(b, value.truth ? "true" : "false");
        break;
    case JINJA_FLOAT:
        if (isnan(value.number) || isinf(value.number)) {
            jinja_add_string(b, isnan(value.number) ? "NaN"
                                : value.number < 0  ? "-Infinity"
                                                    : "Infinity");
            break;
        }
        jinja_add_float(b, value.number);
        break;
    case JINJA_INT:
    case JINJA_BIG:
        jinja_add_repr(b, value);
        break;
    case JINJA_STRING:
        add_string(b, *value.text, style->ascii);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        add_list(b, value.list, style, level);
        break;
    case JINJA_DICT:
        add_dict(b, value.dict, style, level);
        break;
    case JINJA_UNDEFINED:
        jinja_fail_undefined(b->c, value);
    default:
        jinja_fail(b->c, MOE_ERR_UNSUPPORTED, "a %s has no JSON", jinja_kind_name(value.kind));
    }
    jinja_leave(b->c);
}

void jinja_add_json(jinja_builder *b, jinja_value value, const jinja_json_style *style)
{
    add_value(b, value, style, 0);
}
