/* SPDX-License-Identifier: MIT */
#include "runtime/template/jinja_text.h"

#include <string.h>

jinja_builder jinja_build(jinja_context *c)
{
    return (jinja_builder){.c = c};
}

static void reserve(jinja_builder *b, size_t more)
{
    if (more <= b->capacity - b->size) {
        return;
    }
    size_t capacity = b->capacity * 2 > b->size + more ? b->capacity * 2 : b->size + more;
    capacity = capacity < 32 ? 32 : capacity;
    char *data = jinja_alloc(b->c, capacity, 2);
    if (b->size > 0) {
        memcpy(data, b->data, b->size);
        memcpy(data + capacity, b->origin, b->size);
    }
    b->data = data;
    b->origin = (uint8_t *)data + capacity;
    b->capacity = capacity;
}

void jinja_add(jinja_builder *b, jinja_text text)
{
    if (text.size == 0) {
        return;
    }
    reserve(b, text.size);
    memcpy(b->data + b->size, text.data, text.size);
    if (text.origin != NULL) {
        memcpy(b->origin + b->size, text.origin, text.size);
    } else {
        memset(b->origin + b->size, text.whole, text.size);
    }
    b->size += text.size;
}

void jinja_add_bytes(jinja_builder *b, const char *data, size_t size, uint8_t origin)
{
    jinja_add(b, (jinja_text){.data = data, .size = size, .whole = origin});
}

void jinja_add_string(jinja_builder *b, const char *text)
{
    jinja_add_bytes(b, text, strlen(text), JINJA_DATA);
}

void jinja_add_char(jinja_builder *b, uint32_t u, uint8_t origin)
{
    char bytes[4];
    size_t n = 0;
    if (u >= 0xdc80 && u <= 0xdcff) { /* a byte that was not valid UTF-8 */
        bytes[n++] = (char)(u & 0xff);
    } else if (u < 0x80) {
        bytes[n++] = (char)u;
    } else if (u < 0x800) {
        bytes[n++] = (char)(0xc0 | u >> 6);
        bytes[n++] = (char)(0x80 | (u & 0x3f));
    } else if (u < 0x10000) {
        bytes[n++] = (char)(0xe0 | u >> 12);
        bytes[n++] = (char)(0x80 | (u >> 6 & 0x3f));
        bytes[n++] = (char)(0x80 | (u & 0x3f));
    } else {
        bytes[n++] = (char)(0xf0 | u >> 18);
        bytes[n++] = (char)(0x80 | (u >> 12 & 0x3f));
        bytes[n++] = (char)(0x80 | (u >> 6 & 0x3f));
        bytes[n++] = (char)(0x80 | (u & 0x3f));
    }
    jinja_add_bytes(b, bytes, n, origin);
}

jinja_text jinja_built(jinja_builder *b)
{
    if (b->size == 0) {
        return (jinja_text){.data = "", .whole = JINJA_DATA};
    }
    return (jinja_text){.data = b->data, .origin = b->origin, .size = b->size};
}

jinja_text jinja_text_of(const char *text, uint8_t origin)
{
    return (jinja_text){.data = text, .size = strlen(text), .whole = origin};
}

jinja_text jinja_part(jinja_text text, size_t from, size_t to)
{
    text.data += from;
    text.origin = text.origin == NULL ? NULL : text.origin + from;
    text.size = to > from ? to - from : 0;
    return text;
}

uint8_t jinja_origin_at(jinja_text text, size_t at)
{
    return text.origin == NULL ? text.whole : text.origin[at];
}

jinja_text jinja_concat(jinja_context *c, jinja_text a, jinja_text b)
{
    if (a.size == 0 || b.size == 0) {
        return a.size == 0 ? b : a;
    }
    jinja_builder built = jinja_build(c);
    reserve(&built, a.size + b.size);
    jinja_add(&built, a);
    jinja_add(&built, b);
    return jinja_built(&built);
}

bool jinja_text_equal(jinja_text a, jinja_text b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

int jinja_text_compare(jinja_text a, jinja_text b)
{
    size_t common = a.size < b.size ? a.size : b.size;
    int order = common == 0 ? 0 : memcmp(a.data, b.data, common);
    return order != 0 ? order : (a.size > b.size) - (a.size < b.size);
}

bool jinja_text_is(jinja_text text, const char *other)
{
    return jinja_text_equal(text, jinja_text_of(other, JINJA_DATA));
}

size_t jinja_find(jinja_context *c, jinja_text text, jinja_text part, size_t from)
{
    if (from > text.size || part.size > text.size - from) {
        return SIZE_MAX;
    }
    if (part.size == 0) {
        return from;
    }
    const char *at = memmem(text.data + from, text.size - from, part.data, part.size);
    size_t passed = at == NULL ? text.size - from : (size_t)(at - text.data) - from;
    jinja_charge(c, passed / 16 + 1);
    return at == NULL ? SIZE_MAX : (size_t)(at - text.data);
}

size_t jinja_find_last(jinja_context *c, jinja_text text, jinja_text part, size_t end)
{
    if (part.size > end) {
        return SIZE_MAX;
    }
    for (size_t at = end - part.size + 1; at-- > 0;) {
        jinja_charge(c, 1);
        if (part.size == 0 || memcmp(text.data + at, part.data, part.size) == 0) {
            return at;
        }
    }
    return SIZE_MAX;
}

size_t jinja_char_at(jinja_text text, size_t at, uint32_t *codepoint)
{
    const unsigned char *p = (const unsigned char *)text.data + at;
    size_t left = text.size - at;
    size_t n = p[0] < 0x80   ? 1
               : p[0] < 0xc2 ? 0
               : p[0] < 0xe0 ? 2
               : p[0] < 0xf0 ? 3
               : p[0] < 0xf5 ? 4
                             : 0;
    uint32_t u = n == 1 ? p[0] : n == 2 ? p[0] & 0x1fU : n == 3 ? p[0] & 0xfU : p[0] & 7U;
    for (size_t i = 1; i < n; i++) {
        if (i >= left || (p[i] & 0xc0) != 0x80) {
            n = 0;
            break;
        }
        u = u << 6 | (p[i] & 0x3fU);
    }
    if ((n == 3 && u < 0x800) || (n == 4 && (u < 0x10000 || u > 0x10ffff))) {
        n = 0;
    }
    *codepoint = n == 0 ? 0xdc00U + p[0] : u;
    return n == 0 ? 1 : n;
}

size_t jinja_char_before(jinja_text text, size_t at)
{
    for (size_t back = 1; back <= 4 && back <= at; back++) {
        uint32_t u;
        if (jinja_char_at(text, at - back, &u) == back && (back > 1 || u < 0x80)) {
            return at - back;
        }
    }
    return at - 1;
}

size_t jinja_length(jinja_context *c, jinja_text text)
{
    size_t n = 0;
    uint32_t u;
    jinja_charge(c, text.size / 16 + 1);
    for (size_t at = 0; at < text.size; n++) {
        at += jinja_char_at(text, at, &u);
    }
    return n;
}

size_t jinja_byte_of(jinja_context *c, jinja_text text, size_t position)
{
    size_t at = 0;
    uint32_t u;
    for (; position > 0 && at < text.size; position--) {
        at += jinja_char_at(text, at, &u);
    }
    jinja_charge(c, at / 16 + 1);
    return at;
}
