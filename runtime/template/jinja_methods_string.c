/* SPDX-License-Identifier: MIT */
/* Methods of strings. */
#include <string.h>
#include <utf8proc.h>

#include "runtime/template/jinja_evaluate.h"

static jinja_value strip(jinja_context *c, jinja_value self, const jinja_args *args, bool left,
                         bool right)
{
    jinja_value chars;
    jinja_bind(c, "strip", args, "chars", 0, &chars);
    bool all = chars.kind == JINJA_ABSENT || chars.kind == JINJA_NONE;
    jinja_text set = jinja_text_of("", JINJA_DATA);
    if (!all) {
        set = jinja_need_text(c, "strip", chars);
    }
    return jinja_string(c, jinja_strip(c, *self.text, all ? NULL : &set, left, right));
}

static jinja_value method_strip(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return strip(c, self, args, true, true);
}

static jinja_value method_lstrip(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return strip(c, self, args, true, false);
}

static jinja_value method_rstrip(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return strip(c, self, args, false, true);
}

static void add_part(jinja_context *c, jinja_list *list, jinja_text text, size_t from, size_t to)
{
    jinja_list_add(c, list, jinja_string(c, jinja_part(text, from, to)));
}

/* Without a separator: splits at white space. */
static void split_words(jinja_context *c, jinja_list *list, jinja_text text, int64_t most)
{
    text = jinja_strip(c, text, NULL, true, false);
    while (text.size > 0) {
        size_t end = 0;
        uint32_t u;
        if (most-- == 0) {
            text = jinja_strip(c, text, NULL, false, true);
            end = text.size;
        }
        while (end < text.size) {
            size_t n = jinja_char_at(text, end, &u);
            if (jinja_is_space(u)) {
                break;
            }
            end += n;
        }
        add_part(c, list, text, 0, end);
        text = jinja_strip(c, jinja_part(text, end, text.size), NULL, true, false);
    }
}

static jinja_value method_split(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value a[2];
    jinja_value list = jinja_new_list(c, JINJA_LIST);
    jinja_bind(c, "split", args, "sep maxsplit", 0, a);
    int64_t most = a[1].kind == JINJA_ABSENT ? -1 : jinja_need_integer(c, "split", a[1]);
    if (a[0].kind == JINJA_ABSENT || a[0].kind == JINJA_NONE) {
        split_words(c, list.list, *self.text, most);
        return list;
    }
    jinja_text between = jinja_need_text(c, "split", a[0]);
    if (between.size == 0) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "split: an empty separator");
    }
    size_t at = 0;
    for (; most != 0; most--) {
        size_t next = jinja_find(c, *self.text, between, at);
        if (next == SIZE_MAX) {
            break;
        }
        add_part(c, list.list, *self.text, at, next);
        at = next + between.size;
    }
    add_part(c, list.list, *self.text, at, self.text->size);
    return list;
}

static jinja_value method_rsplit(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value a[2];
    jinja_bind(c, "rsplit", args, "sep maxsplit", 0, a);
    if (a[1].kind == JINJA_ABSENT || jinja_need_integer(c, "rsplit", a[1]) < 0) {
        return method_split(c, self, args);
    }
    jinja_text between = jinja_need_text(c, "rsplit", a[0]);
    if (between.size == 0) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "rsplit: an empty separator");
    }
    jinja_list *parts = jinja_new_list(c, JINJA_LIST).list;
    size_t end = self.text->size;
    for (int64_t most = a[1].integer; most > 0; most--) {
        size_t at = jinja_find_last(c, *self.text, between, end);
        if (at == SIZE_MAX) {
            break;
        }
        add_part(c, parts, *self.text, at + between.size, end);
        end = at;
    }
    add_part(c, parts, *self.text, 0, end);
    jinja_value list = jinja_new_list(c, JINJA_LIST);
    for (size_t i = parts->n; i-- > 0;) {
        jinja_list_add(c, list.list, parts->items[i]);
    }
    return list;
}

static jinja_value method_splitlines(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value keep;
    jinja_value list = jinja_new_list(c, JINJA_LIST);
    jinja_text text = *self.text;
    uint32_t u;
    jinja_bind(c, "splitlines", args, "keepends", 0, &keep);
    size_t from = 0;
    for (size_t at = 0; at < text.size;) {
        size_t end = at;
        at += jinja_char_at(text, at, &u);
        if (jinja_is_line_end(u)) {
            at += u == '\r' && at < text.size && text.data[at] == '\n';
            add_part(c, list.list, text, from, jinja_truth(keep) ? at : end);
            from = at;
        }
    }
    if (from < text.size) {
        add_part(c, list.list, text, from, text.size);
    }
    return list;
}

/* The part of the string between two positions, counted as in slices; *from is its first byte. */
static jinja_text between(jinja_context *c, jinja_value self, jinja_value begin, jinja_value end,
                          size_t *from)
{
    bool whole = begin.kind == JINJA_ABSENT && end.kind == JINJA_ABSENT;
    *from = 0;
    if (whole) {
        return *self.text;
    }
    const jinja_value part[3] = {begin.kind == JINJA_ABSENT ? jinja_none() : begin,
                                 end.kind == JINJA_ABSENT ? jinja_none() : end, jinja_none()};
    jinja_text text = *jinja_slice(c, self, part).text;
    *from = (size_t)(text.data - self.text->data);
    return text;
}

static bool touches(jinja_context *c, jinja_text text, jinja_value affix, bool at_end)
{
    if (affix.kind == JINJA_TUPLE) {
        for (size_t i = 0; i < affix.list->n; i++) {
            if (touches(c, text, affix.list->items[i], at_end)) {
                return true;
            }
        }
        return false;
    }
    jinja_text part = jinja_need_text(c, "startswith and endswith", affix);
    if (part.size > text.size) {
        return false;
    }
    size_t at = at_end ? text.size - part.size : 0;
    return jinja_text_equal(jinja_part(text, at, at + part.size), part);
}

static jinja_value method_startswith(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value a[3];
    size_t from;
    jinja_bind(c, "startswith", args, "prefix start end", 1, a);
    return jinja_bool(touches(c, between(c, self, a[1], a[2], &from), a[0], false));
}

static jinja_value method_endswith(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value a[3];
    size_t from;
    jinja_bind(c, "endswith", args, "suffix start end", 1, a);
    return jinja_bool(touches(c, between(c, self, a[1], a[2], &from), a[0], true));
}

static int64_t find(jinja_context *c, jinja_value self, const jinja_args *args, bool last)
{
    jinja_value a[3];
    size_t from;
    jinja_bind(c, "find", args, "sub start end", 1, a);
    jinja_text text = between(c, self, a[1], a[2], &from);
    jinja_text part = jinja_need_text(c, "find", a[0]);
    size_t at = last ? jinja_find_last(c, text, part, text.size) : jinja_find(c, text, part, 0);
    return at == SIZE_MAX ? -1 : (int64_t)jinja_length(c, jinja_part(*self.text, 0, from + at));
}

static jinja_value method_find(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return jinja_int(find(c, self, args, false));
}

static jinja_value method_rfind(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return jinja_int(find(c, self, args, true));
}

static jinja_value method_index(jinja_context *c, jinja_value self, const jinja_args *args)
{
    int64_t at = find(c, self, args, false);
    if (at < 0) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "index: the string does not hold it");
    }
    return jinja_int(at);
}

static jinja_value method_count(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value sub;
    jinja_bind(c, "count", args, "sub", 1, &sub);
    jinja_text part = jinja_need_text(c, "count", sub);
    if (part.size == 0) {
        return jinja_int((int64_t)jinja_length(c, *self.text) + 1);
    }
    int64_t n = 0;
    for (size_t at = 0; (at = jinja_find(c, *self.text, part, at)) != SIZE_MAX; n++) {
        at += part.size;
    }
    return jinja_int(n);
}

static jinja_value method_replace(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value a[3];
    jinja_bind(c, "replace", args, "old new count", 2, a);
    int64_t count = a[2].kind == JINJA_ABSENT ? -1 : jinja_need_integer(c, "replace", a[2]);
    return jinja_string(c, jinja_replace(c, *self.text, jinja_need_text(c, "replace", a[0]),
                                         jinja_need_text(c, "replace", a[1]), count));
}

static jinja_value change(jinja_context *c, jinja_value self, const jinja_args *args,
                          jinja_case how)
{
    jinja_bind(c, "this method", args, "", 0, NULL);
    return jinja_string(c, jinja_change_case(c, *self.text, how));
}

static jinja_value method_upper(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return change(c, self, args, JINJA_UPPER);
}

static jinja_value method_lower(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return change(c, self, args, JINJA_LOWER);
}

static jinja_value method_title(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return change(c, self, args, JINJA_TITLE);
}

static jinja_value method_capitalize(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return change(c, self, args, JINJA_CAPITALIZE);
}

static jinja_value method_swapcase(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return change(c, self, args, JINJA_SWAP);
}

static jinja_value method_join(jinja_context *c, jinja_value self, const jinja_args *args)
{
    jinja_value of;
    jinja_builder b = jinja_build(c);
    jinja_bind(c, "join", args, "iterable", 1, &of);
    const jinja_list *list = jinja_iterate(c, of);
    for (size_t i = 0; i < list->n; i++) {
        jinja_add(&b, i == 0 ? jinja_text_of("", JINJA_DATA) : *self.text);
        jinja_add(&b, jinja_need_text(c, "join", list->items[i]));
    }
    return jinja_string(c, jinja_built(&b));
}

static jinja_value remove_affix(jinja_context *c, jinja_value self, const jinja_args *args,
                                bool at_end)
{
    jinja_value affix;
    jinja_bind(c, "removeprefix and removesuffix", args, "affix", 1, &affix);
    size_t n = jinja_need_text(c, "removeprefix and removesuffix", affix).size;
    if (!touches(c, *self.text, affix, at_end)) {
        return self;
    }
    return jinja_string(c, at_end ? jinja_part(*self.text, 0, self.text->size - n)
                                  : jinja_part(*self.text, n, self.text->size));
}

static jinja_value method_removeprefix(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return remove_affix(c, self, args, false);
}

static jinja_value method_removesuffix(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return remove_affix(c, self, args, true);
}

static jinja_value partition(jinja_context *c, jinja_value self, const jinja_args *args, bool last)
{
    jinja_value sep;
    jinja_value out = jinja_new_list(c, JINJA_TUPLE);
    jinja_bind(c, "partition", args, "sep", 1, &sep);
    jinja_text part = jinja_need_text(c, "partition", sep);
    jinja_text text = *self.text;
    size_t at = last ? jinja_find_last(c, text, part, text.size) : jinja_find(c, text, part, 0);
    if (at == SIZE_MAX) {
        at = last ? 0 : text.size;
        part.size = 0;
    }
    add_part(c, out.list, text, 0, at);
    add_part(c, out.list, text, at, at + part.size);
    add_part(c, out.list, text, at + part.size, text.size);
    return out;
}

static jinja_value method_partition(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return partition(c, self, args, false);
}

static jinja_value method_rpartition(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return partition(c, self, args, true);
}

typedef enum char_class { CLASS_DIGIT, CLASS_ALPHA, CLASS_ALNUM, CLASS_SPACE } char_class;

static bool is_of(uint32_t u, char_class which)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)u);
    bool digit = category == UTF8PROC_CATEGORY_ND;
    bool alpha = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    return which == CLASS_SPACE   ? jinja_is_space(u)
           : which == CLASS_DIGIT ? digit
           : which == CLASS_ALPHA ? alpha
                                  : alpha || digit;
}

static jinja_value all_are(jinja_context *c, jinja_value self, const jinja_args *args,
                           char_class which)
{
    uint32_t u;
    jinja_bind(c, "this method", args, "", 0, NULL);
    jinja_charge(c, self.text->size / 8);
    for (size_t at = 0; at < self.text->size;) {
        at += jinja_char_at(*self.text, at, &u);
        if (!is_of(u, which)) {
            return jinja_bool(false);
        }
    }
    return jinja_bool(self.text->size > 0);
}

static jinja_value method_isdigit(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return all_are(c, self, args, CLASS_DIGIT);
}

static jinja_value method_isalpha(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return all_are(c, self, args, CLASS_ALPHA);
}

static jinja_value method_isalnum(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return all_are(c, self, args, CLASS_ALNUM);
}

static jinja_value method_isspace(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return all_are(c, self, args, CLASS_SPACE);
}

static jinja_value method_islower(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return jinja_bool(jinja_apply_test(c, "lower", self, args));
}

static jinja_value method_isupper(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return jinja_bool(jinja_apply_test(c, "upper", self, args));
}

static jinja_value method_format(jinja_context *c, jinja_value self, const jinja_args *args)
{
    return jinja_format_braces(c, *self.text, args);
}

/* String methods that Python has and this interpreter does not: calling one is an error. */
static jinja_value method_unsupported(jinja_context *c, jinja_value self, const jinja_args *args)
{
    (void)self;
    (void)args;
    jinja_fail(c, MOE_ERR_UNSUPPORTED, "this method of strings is not supported");
}

const jinja_method_row *jinja_find_string_method(jinja_text name)
{
    static const jinja_method_row rows[] = {
        {JINJA_STRING, "strip", method_strip},
        {JINJA_STRING, "lstrip", method_lstrip},
        {JINJA_STRING, "rstrip", method_rstrip},
        {JINJA_STRING, "split", method_split},
        {JINJA_STRING, "rsplit", method_rsplit},
        {JINJA_STRING, "splitlines", method_splitlines},
        {JINJA_STRING, "startswith", method_startswith},
        {JINJA_STRING, "endswith", method_endswith},
        {JINJA_STRING, "find", method_find},
        {JINJA_STRING, "rfind", method_rfind},
        {JINJA_STRING, "index", method_index},
        {JINJA_STRING, "count", method_count},
        {JINJA_STRING, "replace", method_replace},
        {JINJA_STRING, "upper", method_upper},
        {JINJA_STRING, "lower", method_lower},
        {JINJA_STRING, "casefold", method_lower},
        {JINJA_STRING, "title", method_title},
        {JINJA_STRING, "capitalize", method_capitalize},
        {JINJA_STRING, "swapcase", method_swapcase},
        {JINJA_STRING, "join", method_join},
        {JINJA_STRING, "removeprefix", method_removeprefix},
        {JINJA_STRING, "removesuffix", method_removesuffix},
        {JINJA_STRING, "partition", method_partition},
        {JINJA_STRING, "rpartition", method_rpartition},
        {JINJA_STRING, "isdigit", method_isdigit},
        {JINJA_STRING, "isdecimal", method_isdigit},
        {JINJA_STRING, "isalpha", method_isalpha},
        {JINJA_STRING, "isalnum", method_isalnum},
        {JINJA_STRING, "isspace", method_isspace},
        {JINJA_STRING, "islower", method_islower},
        {JINJA_STRING, "isupper", method_isupper},
        {JINJA_STRING, "format", method_format},
        {JINJA_STRING, "format_map", method_unsupported},
        {JINJA_STRING, "encode", method_unsupported},
        {JINJA_STRING, "zfill", method_unsupported},
        {JINJA_STRING, "ljust", method_unsupported},
        {JINJA_STRING, "rjust", method_unsupported},
        {JINJA_STRING, "center", method_unsupported},
        {JINJA_STRING, "expandtabs", method_unsupported},
        {JINJA_STRING, "rindex", method_unsupported},
        {JINJA_STRING, "isnumeric", method_unsupported},
        {JINJA_STRING, "istitle", method_unsupported},
        {JINJA_STRING, "isascii", method_unsupported},
        {JINJA_STRING, "isidentifier", method_unsupported},
        {JINJA_STRING, "isprintable", method_unsupported},
        {JINJA_STRING, "maketrans", method_unsupported},
        {JINJA_STRING, "translate", method_unsupported},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (jinja_text_is(name, rows[i].name)) {
            return &rows[i];
        }
    }
    return NULL;
}
