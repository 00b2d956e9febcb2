/* SPDX-License-Identifier: MIT */
/* Functions that depend on the kind of a character: white space, upper and lower case, escapes. */
#include <string.h>
#include <utf8proc.h>

#include "runtime/template/jinja_value.h"

bool jinja_is_space(uint32_t u)
{
    return u == ' ' || (u >= 9 && u <= 13) || (u >= 0x1c && u <= 0x1f) || u == 0x85 || u == 0xa0 ||
           u == 0x1680 || (u >= 0x2000 && u <= 0x200a) || u == 0x2028 || u == 0x2029 ||
           u == 0x202f || u == 0x205f || u == 0x3000;
}

bool jinja_is_line_end(uint32_t u)
{
    return (u >= 10 && u <= 13) || (u >= 0x1c && u <= 0x1e) || u == 0x85 || u == 0x2028 ||
           u == 0x2029;
}

static bool strips(jinja_context *c, const jinja_text *chars, jinja_text one, uint32_t u)
{
    return chars == NULL ? jinja_is_space(u) : jinja_find(c, *chars, one, 0) != SIZE_MAX;
}

jinja_text jinja_strip(jinja_context *c, jinja_text text, const jinja_text *chars, bool left,
                       bool right)
{
    size_t from = 0;
    size_t to = text.size;
    uint32_t u;
    while (left && from < to) {
        size_t n = jinja_char_at(text, from, &u);
        jinja_charge(c, 1);
        if (!strips(c, chars, jinja_part(text, from, from + n), u)) {
            break;
        }
        from += n;
    }
    while (right && to > from) {
        size_t at = jinja_char_before(text, to);
        jinja_char_at(text, at, &u);
        jinja_charge(c, 1);
        if (!strips(c, chars, jinja_part(text, at, to), u)) {
            break;
        }
        to = at;
    }
    return jinja_part(text, from, to);
}

jinja_text jinja_replace(jinja_context *c, jinja_text text, jinja_text from, jinja_text to,
                         int64_t count)
{
    jinja_builder b = jinja_build(c);
    size_t at = 0;
    uint32_t u;
    if (from.size == 0) { /* an empty text occurs before each character and at the end */
        for (; count != 0 && at < text.size; count--) {
            size_t n = jinja_char_at(text, at, &u);
            jinja_add(&b, to);
            jinja_add(&b, jinja_part(text, at, at + n));
            at += n;
        }
        jinja_add(&b, jinja_part(text, at, text.size));
        if (count != 0) {
            jinja_add(&b, to);
        }
        return jinja_built(&b);
    }
    for (; count != 0; count--) {
        size_t next = jinja_find(c, text, from, at);
        if (next == SIZE_MAX) {
            break;
        }
        jinja_add(&b, jinja_part(text, at, next));
        jinja_add(&b, to);
        at = next + from.size;
    }
    if (at == 0) {
        return text;
    }
    jinja_add(&b, jinja_part(text, at, text.size));
    return jinja_built(&b);
}

static bool is_cased(uint32_t u)
{
    return utf8proc_islower((utf8proc_int32_t)u) || utf8proc_isupper((utf8proc_int32_t)u) ||
           utf8proc_category((utf8proc_int32_t)u) == UTF8PROC_CATEGORY_LT;
}

static void add_upper(jinja_builder *b, uint32_t u, bool title, uint8_t origin)
{
    if (u == 0xdf) { /* the one common character with an upper case of two characters */
        jinja_add_bytes(b, title ? "Ss" : "SS", 2, origin);
        return;
    }
    utf8proc_int32_t other =
        title ? utf8proc_totitle((utf8proc_int32_t)u) : utf8proc_toupper((utf8proc_int32_t)u);
    jinja_add_char(b, (uint32_t)other, origin);
}

jinja_text jinja_change_case(jinja_context *c, jinja_text text, jinja_case how)
{
    jinja_builder b = jinja_build(c);
    bool in_word = false;
    uint32_t u;
    for (size_t at = 0; at < text.size;) {
        uint8_t origin = jinja_origin_at(text, at);
        bool first = at == 0;
        at += jinja_char_at(text, at, &u);
        jinja_charge(c, 1);
        bool is_upper = utf8proc_isupper((utf8proc_int32_t)u);
        if (u >= 0xdc80 && u <= 0xdcff) {
            jinja_add_char(&b, u, origin);
        } else if (how == JINJA_UPPER || (how == JINJA_SWAP && !is_upper)) {
            add_upper(&b, u, false, origin);
        } else if ((how == JINJA_CAPITALIZE && first) || (how == JINJA_TITLE && !in_word)) {
            add_upper(&b, u, true, origin);
        } else {
            jinja_add_char(&b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)u), origin);
        }
        in_word = is_cased(u);
    }
    return jinja_built(&b);
}

jinja_text jinja_escape(jinja_context *c, jinja_text text)
{
    static const struct {
        char from;
        const char *to;
    } escapes[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}};
    jinja_builder b = jinja_build(c);
    for (size_t at = 0; at < text.size; at++) {
        const char *to = NULL;
        for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
            to = text.data[at] == escapes[i].from ? escapes[i].to : to;
        }
        if (to != NULL) {
            jinja_add_string(&b, to);
        } else {
            jinja_add(&b, jinja_part(text, at, at + 1));
        }
    }
    return jinja_built(&b);
}
