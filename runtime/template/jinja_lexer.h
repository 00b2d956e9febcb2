/* SPDX-License-Identifier: MIT */
/* Splits a template's text into tokens, and removes the white space that transformers' settings
 * remove (trim_blocks, lstrip_blocks, no newline at the end). */
#ifndef MOE_TEMPLATE_JINJA_LEXER_H
#define MOE_TEMPLATE_JINJA_LEXER_H

#include "runtime/template/jinja_value.h"

typedef enum jinja_token_type {
    JINJA_T_END,
    JINJA_T_TEXT, /* outside of tags */
    JINJA_T_OPEN_BLOCK,
    JINJA_T_CLOSE_BLOCK,
    JINJA_T_OPEN_OUTPUT,
    JINJA_T_CLOSE_OUTPUT,
    JINJA_T_NAME,
    JINJA_T_STRING,
    JINJA_T_NUMBER, /* value is an int or a float */
    JINJA_T_OPERATOR
} jinja_token_type;

typedef struct jinja_token {
    jinja_token_type type;
    unsigned line;
    const char *name; /* interned: a name, or an operator's sign */
    jinja_value value;
} jinja_token;

typedef struct jinja_tokens {
    jinja_token *items;
    size_t n;
    size_t capacity;
} jinja_tokens;

void jinja_tokenize(jinja_context *c, const char *source, size_t size, jinja_tokens *out);

#endif
