/* SPDX-License-Identifier: MIT */
/* Filters of strings. */
#include <stdio.h>
#include <string.h>

#include "runtime/template/jinja_evaluate.h"
#include "runtime/template/jinja_json.h"

static jinja_value filter_trim(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value chars;
    jinja_bind(c, "trim", args, "chars", 0, &chars);
    bool has_chars = chars.kind != JINJA_ABSENT && chars.kind != JINJA_NONE;
    jinja_text set = jinja_text_of("", JINJA_DATA);
    if (has_chars) {
        set = jinja_need_text(c, "trim", chars);
    }
    jinja_text text = jinja_to_text(c, value);
    return jinja_string(c, jinja_strip(c, text, has_chars ? &set : NULL, true, true));
}

static jinja_value change(jinja_context *c, jinja_value value, const jinja_args *args,
                          jinja_case how)
{
    jinja_bind(c, "this filter", args, "", 0, NULL);
    return jinja_string(c, jinja_change_case(c, jinja_to_text(c, value), how));
}

static jinja_value filter_upper(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return change(c, value, args, JINJA_UPPER);
}

static jinja_value filter_lower(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return change(c, value, args, JINJA_LOWER);
}

static jinja_value filter_capitalize(jinja_context *c, jinja_value value, const jinja_args *args)
{
    return change(c, value, args, JINJA_CAPITALIZE);
}

/* Capitalizes words. A word begins behind white space, "-" or an opening bracket. */
static jinja_value filter_title(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_text text = jinja_to_text(c, value);
    jinja_builder b = jinja_build(c);
    uint32_t u;
    jinja_bind(c, "title", args, "", 0, NULL);
    for (size_t at = 0; at < text.size;) {
        size_t end = at;
        while (end < text.size) {
            size_t n = jinja_char_at(text, end, &u);
            if (jinja_is_space(u) || (u < 128 && strchr("-({[<", (int)u) != NULL && u != 0)) {
                break;
            }
            end += n;
        }
        jinja_add(&b, jinja_change_case(c, jinja_part(text, at, end), JINJA_CAPITALIZE));
        size_t next = end < text.size ? end + jinja_char_at(text, end, &u) : end;
        jinja_add(&b, jinja_part(text, end, next));
        at = next;
    }
    return jinja_string(c, jinja_built(&b));
}

static jinja_value filter_string(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_bind(c, "string", args, "", 0, NULL);
    return jinja_string(c, jinja_to_text(c, value));
}

static jinja_value safe_string(jinja_context *c, jinja_text text)
{
    text.is_safe = true;
    return jinja_string(c, text);
}

static jinja_value filter_safe(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_bind(c, "safe", args, "", 0, NULL);
    return safe_string(c, jinja_to_text(c, value));
}

static jinja_value filter_escape(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_bind(c, "escape", args, "", 0, NULL);
    jinja_text text = jinja_to_text(c, value);
    return safe_string(c, text.is_safe ? text : jinja_escape(c, text));
}

static jinja_value filter_forceescape(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_bind(c, "forceescape", args, "", 0, NULL);
    return safe_string(c, jinja_escape(c, jinja_to_text(c, value)));
}

static jinja_value filter_replace(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[3];
    jinja_bind(c, "replace", args, "old new count", 2, a);
    bool all = a[2].kind == JINJA_ABSENT || a[2].kind == JINJA_NONE;
    int64_t count = all ? -1 : jinja_need_integer(c, "replace", a[2]);
    return jinja_string(c, jinja_replace(c, jinja_to_text(c, value), jinja_to_text(c, a[0]),
                                         jinja_to_text(c, a[1]), count));
}

/* Returns the line that begins at `at`, without its line end. Sets *next to where the next line
 * begins. */
static jinja_text line_at(jinja_text text, size_t at, size_t *next)
{
    size_t from = at;
    uint32_t u;
    while (at < text.size) {
        size_t n = jinja_char_at(text, at, &u);
        if (jinja_is_line_end(u)) {
            bool pair = u == '\r' && at + 1 < text.size && text.data[at + 1] == '\n';
            *next = at + n + pair;
            return jinja_part(text, from, at);
        }
        at += n;
    }
    *next = at;
    return jinja_part(text, from, at);
}

static jinja_value filter_indent(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[3];
    jinja_builder width = jinja_build(c);
    jinja_builder b = jinja_build(c);
    jinja_bind(c, "indent", args, "width first blank", 0, a);
    if (a[0].kind == JINJA_STRING) {
        jinja_add(&width, *a[0].text);
    } else {
        int64_t n = a[0].kind == JINJA_ABSENT ? 4 : jinja_need_integer(c, "indent", a[0]);
        for (; n > 0; n--) {
            jinja_charge(c, 1);
            jinja_add_string(&width, " ");
        }
    }
    jinja_text text = jinja_concat(c, jinja_to_text(c, value), jinja_text_of("\n", JINJA_DATA));
    bool first = jinja_truth(a[1]);
    for (size_t at = 0; at < text.size;) {
        bool begins = at == 0;
        jinja_text line = line_at(text, at, &at);
        if (!begins) {
            jinja_add_string(&b, "\n");
        }
        if (begins ? first : line.size > 0 || jinja_truth(a[2])) {
            jinja_add(&b, jinja_built(&width));
        }
        jinja_add(&b, line);
    }
    return jinja_string(c, jinja_built(&b));
}

static jinja_value filter_format(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value with;
    if (args->n > 0 && args->n_named > 0) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "format takes values or names, not both");
    }
    if (args->n_named > 0) {
        with = jinja_new_dict(c);
        for (size_t i = 0; i < args->n_named; i++) {
            jinja_value key = jinja_string(c, jinja_text_of(args->names[i], JINJA_MARKUP));
            jinja_dict_set(c, with.dict, key, args->named[i]);
        }
    } else {
        with = jinja_new_list(c, JINJA_TUPLE);
        for (size_t i = 0; i < args->n; i++) {
            jinja_list_add(c, with.list, args->values[i]);
        }
    }
    return jinja_string(c, jinja_format(c, jinja_to_text(c, value), with));
}

static jinja_value filter_wordcount(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_text text = jinja_to_text(c, value);
    int64_t n = 0;
    bool in_word = false;
    jinja_bind(c, "wordcount", args, "", 0, NULL);
    for (size_t at = 0; at < text.size; at++) {
        unsigned char ch = (unsigned char)text.data[at];
        bool is_word = ch >= 0x80 || ch == '_' || (ch >= '0' && ch <= '9') ||
                       ((ch | 32) >= 'a' && (ch | 32) <= 'z');
        n += is_word && !in_word;
        in_word = is_word;
    }
    return jinja_int(n);
}

static jinja_text indent_of(jinja_context *c, jinja_value value)
{
    jinja_builder b = jinja_build(c);
    if (value.kind == JINJA_STRING) {
        return *value.text;
    }
    for (int64_t n = jinja_need_integer(c, "tojson", value); n > 0; n--) {
        jinja_charge(c, 1);
        jinja_add_string(&b, " ");
    }
    return jinja_built(&b);
}

static jinja_value filter_tojson(jinja_context *c, jinja_value value, const jinja_args *args)
{
    jinja_value a[5];
    jinja_bind(c, "tojson", args, "ensure_ascii indent separators sort_keys", 0, a);
    jinja_text indent;
    jinja_json_style style = {.ascii = jinja_truth(a[0]), .sort_keys = jinja_truth(a[3])};
    style.item_separator = jinja_text_of(", ", JINJA_DATA);
    style.key_separator = jinja_text_of(": ", JINJA_DATA);
    if (a[1].kind != JINJA_ABSENT && a[1].kind != JINJA_NONE) {
        indent = indent_of(c, a[1]);
        style.indent = &indent;
        style.item_separator = jinja_text_of(",", JINJA_DATA);
    }
    if (a[2].kind != JINJA_ABSENT && a[2].kind != JINJA_NONE) {
        const jinja_list *list = jinja_iterate(c, a[2]);
        if (list->n != 2) {
            jinja_fail(c, MOE_ERR_UNSUPPORTED, "tojson needs two separators, not %zu", list->n);
        }
        style.item_separator = jinja_need_text(c, "a separator", list->items[0]);
        style.key_separator = jinja_need_text(c, "a separator", list->items[1]);
    }
    jinja_builder b = jinja_build(c);
    jinja_add_json(&b, value, &style);
    return jinja_string(c, jinja_built(&b));
}

const jinja_filter *jinja_find_text_filter(const char *name)
{
    static const jinja_filter filters[] = {
        {"trim", filter_trim},       {"upper", filter_upper},
        {"lower", filter_lower},     {"capitalize", filter_capitalize},
        {"title", filter_title},     {"string", filter_string},
        {"safe", filter_safe},       {"escape", filter_escape},
        {"e", filter_escape},        {"forceescape", filter_forceescape},
        {"replace", filter_replace}, {"indent", filter_indent},
        {"format", filter_format},   {"wordcount", filter_wordcount},
        {"tojson", filter_tojson},
    };
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (strcmp(filters[i].name, name) == 0) {
            return &filters[i];
        }
    }
    return NULL;
}
