/* SPDX-License-Identifier: MIT */
/* Strings that know for every byte whether the template wrote it. A part of a string shares its
 * bytes; a concatenation copies bytes with their origins. Positions count characters, as in the
 * language; a byte that is not valid UTF-8 counts as one. */
#ifndef MOE_TEMPLATE_JINJA_TEXT_H
#define MOE_TEMPLATE_JINJA_TEXT_H

#include "runtime/template/jinja_context.h"

enum { JINJA_DATA, JINJA_MARKUP };

typedef struct jinja_text {
    const char *data;
    const uint8_t *origin; /* of each byte, or NULL: all have `whole` */
    size_t size;
    uint8_t whole;
    bool is_safe; /* went through "safe" or "escape": text added with + is escaped */
} jinja_text;

struct jinja_builder {
    jinja_context *c;
    char *data;
    uint8_t *origin;
    size_t size;
    size_t capacity;
};

jinja_builder jinja_build(jinja_context *c);
void jinja_add(jinja_builder *b, jinja_text text);
void jinja_add_bytes(jinja_builder *b, const char *data, size_t size, uint8_t origin);
void jinja_add_string(jinja_builder *b, const char *text); /* as data */
void jinja_add_char(jinja_builder *b, uint32_t codepoint, uint8_t origin);
jinja_text jinja_built(jinja_builder *b);

jinja_text jinja_text_of(const char *text, uint8_t origin);     /* not copied */
jinja_text jinja_part(jinja_text text, size_t from, size_t to); /* bytes */
uint8_t jinja_origin_at(jinja_text text, size_t at);
jinja_text jinja_concat(jinja_context *c, jinja_text a, jinja_text b);
bool jinja_text_equal(jinja_text a, jinja_text b);
int jinja_text_compare(jinja_text a, jinja_text b);
bool jinja_text_is(jinja_text text, const char *other);
/* Return the first place of `part` at or behind byte `from`, and the last place before byte
 * `end`. SIZE_MAX: there is none. */
size_t jinja_find(jinja_context *c, jinja_text text, jinja_text part, size_t from);
size_t jinja_find_last(jinja_context *c, jinja_text text, jinja_text part, size_t end);

/* Decodes the character at byte `at`; returns its size in bytes. A byte that is not valid UTF-8
 * gives U+DC80 + its low bits.
 */
size_t jinja_char_at(jinja_text text, size_t at, uint32_t *codepoint);
size_t jinja_char_before(jinja_text text,
                         size_t at); /* where the character that ends at `at` begins */
size_t jinja_length(jinja_context *c, jinja_text text);
size_t jinja_byte_of(jinja_context *c, jinja_text text, size_t position);

bool jinja_is_space(uint32_t codepoint);
bool jinja_is_line_end(uint32_t codepoint);
/* Removes these characters from one or both ends. chars NULL: removes white space. */
jinja_text jinja_strip(jinja_context *c, jinja_text text, const jinja_text *chars, bool left,
                       bool right);
jinja_text jinja_replace(jinja_context *c, jinja_text text, jinja_text from, jinja_text to,
                         int64_t count);
typedef enum jinja_case {
    JINJA_UPPER,
    JINJA_LOWER,
    JINJA_CAPITALIZE,
    JINJA_TITLE,
    JINJA_SWAP
} jinja_case;
jinja_text jinja_change_case(jinja_context *c, jinja_text text, jinja_case how);

#endif
