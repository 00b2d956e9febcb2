/* SPDX-License-Identifier: MIT */
#include "runtime/template/jinja_lexer.h"

#include <string.h>

#include "runtime/template/jinja_literal.h"

typedef struct lexer {
    jinja_context *c;
    jinja_tokens *out;
    const char *text; /* all newlines are '\n' */
    size_t size;
    size_t at;
    unsigned line;
    bool line_starting; /* the last text read ended with a newline */
} lexer;

static jinja_token *add_token(lexer *l, jinja_token_type type)
{
    jinja_tokens *out = l->out;
    if (out->n == out->capacity) {
        size_t capacity = out->capacity == 0 ? 256 : out->capacity * 2;
        jinja_token *grown = jinja_alloc(l->c, capacity, sizeof *grown);
        if (out->n > 0) {
            memcpy(grown, out->items, out->n * sizeof *grown);
        }
        out->items = grown;
        out->capacity = capacity;
    }
    jinja_charge(l->c, 1);
    jinja_token *token = &out->items[out->n++];
    token->type = type;
    token->line = l->line;
    return token;
}

static void advance(lexer *l, size_t to)
{
    for (; l->at < to; l->at++) {
        l->line += l->text[l->at] == '\n';
    }
    l->line_starting = to > 0 && l->text[to - 1] == '\n';
    l->c->line = l->line;
}

static bool is_ahead(const lexer *l, size_t at, const char *what)
{
    size_t n = strlen(what);
    return l->size - at >= n && memcmp(l->text + at, what, n) == 0;
}

static jinja_text text_between(const lexer *l, size_t from, size_t to)
{
    return (jinja_text){.data = l->text + from, .size = to - from, .whole = JINJA_MARKUP};
}

static size_t after_space(const lexer *l, size_t at)
{
    uint32_t u;
    jinja_text text = text_between(l, 0, l->size);
    while (at < l->size) {
        size_t n = jinja_char_at(text, at, &u);
        if (!jinja_is_space(u)) {
            break;
        }
        at += n;
    }
    return at;
}

/* Adds text before a tag. "-" removes all white space at its end; a block at a line's beginning
 * removes what is before it on that line, unless it says "+". */
static void add_text(lexer *l, size_t from, size_t to, char sign, bool is_output)
{
    jinja_text text = text_between(l, from, to);
    if (sign == '-') {
        text = jinja_strip(l->c, text, NULL, false, true);
    } else if (sign != '+' && !is_output && text.size > 0) {
        const char *newline = memrchr(text.data, '\n', text.size);
        size_t line = newline == NULL ? 0 : (size_t)(newline - text.data) + 1;
        if ((line > 0 || l->line_starting) &&
            jinja_strip(l->c, jinja_part(text, line, text.size), NULL, true, false).size == 0) {
            text.size = line;
        }
    }
    if (text.size > 0) {
        add_token(l, JINJA_T_TEXT)->value = jinja_string(l->c, text);
    }
}

/* Finds the end of a tag at `at`: "-%}" takes the white space behind it, "%}" of a block one
 * newline. */
static size_t tag_end(const lexer *l, size_t at, const char *end, bool takes_newline)
{
    size_t n = strlen(end);
    if (at < l->size && l->text[at] == '-' && is_ahead(l, at + 1, end)) {
        return after_space(l, at + 1 + n);
    }
    if (takes_newline && at < l->size && l->text[at] == '+' && is_ahead(l, at + 1, end)) {
        return at + 1 + n;
    }
    if (is_ahead(l, at, end)) {
        at += n;
        return takes_newline && at < l->size && l->text[at] == '\n' ? at + 1 : at;
    }
    return 0;
}

static void skip_comment(lexer *l)
{
    for (size_t at = l->at; at < l->size; at++) {
        size_t end = tag_end(l, at, "#}", true);
        if (end > 0) {
            advance(l, end);
            return;
        }
    }
    jinja_fail(l->c, MOE_ERR_UNSUPPORTED, "a comment has no end");
}

static const char *operator_at(lexer *l)
{
    static const char *const signs[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                        "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                        ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        if (is_ahead(l, l->at, signs[i])) {
            return signs[i];
        }
    }
    jinja_fail(l->c, MOE_ERR_UNSUPPORTED, "unexpected character '%c'", l->text[l->at]);
}

static bool is_name_start(char ch)
{
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_' ||
           (unsigned char)ch >= 0x80;
}

static void balance(lexer *l, char open[], size_t *depth, char sign)
{
    static const char pairs[] = "()[]{}";
    const char *found = strchr(pairs, sign);
    if (found == NULL) {
        return;
    }
    if ((found - pairs) % 2 == 0) {
        if (*depth == JINJA_MAX_DEPTH) {
            jinja_fail(l->c, MOE_ERR_UNSUPPORTED, "nested more than %d deep", JINJA_MAX_DEPTH);
        }
        open[(*depth)++] = found[1];
    } else if (*depth == 0 || open[--*depth] != sign) {
        jinja_fail(l->c, MOE_ERR_UNSUPPORTED, "unexpected '%c'", sign);
    }
}

/* Reads one token of an expression. */
static void read_token(lexer *l, char open[], size_t *depth)
{
    jinja_text text = text_between(l, 0, l->size);
    char ch = l->text[l->at];
    size_t end = l->at;
    if (is_name_start(ch)) {
        while (end < l->size &&
               (is_name_start(l->text[end]) || (l->text[end] >= '0' && l->text[end] <= '9'))) {
            end++;
        }
        jinja_token *token = add_token(l, JINJA_T_NAME);
        token->name = jinja_intern(l->c, l->text + l->at, end - l->at);
    } else if (ch == '"' || ch == '\'') {
        jinja_value value = jinja_read_string_literal(l->c, text, l->at, &end);
        add_token(l, JINJA_T_STRING)->value = value;
    } else if (ch >= '0' && ch <= '9') {
        /* "a.1.2": no fraction can follow a dot. */
        bool plain = l->at > 0 && l->text[l->at - 1] == '.';
        jinja_value value = jinja_read_number_literal(l->c, text, l->at, plain, &end);
        add_token(l, JINJA_T_NUMBER)->value = value;
    } else {
        const char *sign = operator_at(l);
        if (sign[1] == '\0') {
            balance(l, open, depth, sign[0]);
        }
        end += strlen(sign);
        add_token(l, JINJA_T_OPERATOR)->name = jinja_intern(l->c, sign, strlen(sign));
    }
    advance(l, end);
}

static void read_tag(lexer *l, const char *end, jinja_token_type open, jinja_token_type close)
{
    char brackets[JINJA_MAX_DEPTH];
    size_t depth = 0;
    add_token(l, open);
    for (;;) {
        advance(l, after_space(l, l->at));
        if (l->at == l->size) {
            jinja_fail(l->c, MOE_ERR_UNSUPPORTED, "a tag has no end '%s'", end);
        }
        size_t behind = depth > 0 ? 0 : tag_end(l, l->at, end, close == JINJA_T_CLOSE_BLOCK);
        if (behind > 0) {
            add_token(l, close);
            advance(l, behind);
            return;
        }
        read_token(l, brackets, &depth);
    }
}

/* If this is the beginning of a "{% raw %}" block, returns the position behind that tag;
 * otherwise 0. */
static size_t raw_begin(const lexer *l, size_t at, const char *word)
{
    at = after_space(l, at);
    if (!is_ahead(l, at, word)) {
        return 0;
    }
    at = after_space(l, at + strlen(word));
    return tag_end(l, at, "%}", strcmp(word, "endraw") == 0);
}

static void read_raw(lexer *l)
{
    size_t from = l->at;
    for (size_t at = from; at + 1 < l->size; at++) {
        if (!is_ahead(l, at, "{%")) {
            continue;
        }
        char sign = at + 2 < l->size ? l->text[at + 2] : '\0';
        bool has_sign = sign == '-' || sign == '+';
        size_t end = raw_begin(l, at + 2 + has_sign, "endraw");
        if (end > 0) {
            add_text(l, from, at, has_sign ? sign : '\0', false);
            advance(l, end);
            return;
        }
    }
    jinja_fail(l->c, MOE_ERR_UNSUPPORTED, "{%% raw %%} has no end");
}

static void read_tagged(lexer *l, size_t from)
{
    char kind = l->text[l->at + 1];
    char sign = l->at + 2 < l->size ? l->text[l->at + 2] : '\0';
    bool has_sign = sign == '-' || sign == '+';
    size_t begin = l->at;
    add_text(l, from, begin, has_sign ? sign : '\0', kind == '{');
    size_t behind = begin + 2 + has_sign;
    size_t raw = kind == '%' ? raw_begin(l, behind, "raw") : 0;
    advance(l, raw > 0 ? raw : behind);
    if (raw > 0) {
        read_raw(l);
    } else if (kind == '#') {
        skip_comment(l);
    } else if (kind == '%') {
        read_tag(l, "%}", JINJA_T_OPEN_BLOCK, JINJA_T_CLOSE_BLOCK);
    } else {
        read_tag(l, "}}", JINJA_T_OPEN_OUTPUT, JINJA_T_CLOSE_OUTPUT);
    }
}

/* Converts all newlines to '\n' and removes the last one. */
static void take_source(lexer *l, const char *source, size_t size)
{
    char *text = jinja_alloc(l->c, size + 1, 1);
    for (size_t i = 0; i < size; i++) {
        bool pair = source[i] == '\r' && i + 1 < size && source[i + 1] == '\n';
        text[l->size++] = source[i] == '\r' ? '\n' : source[i];
        i += pair;
    }
    l->size -= l->size > 0 && text[l->size - 1] == '\n';
    l->text = text;
}

void jinja_tokenize(jinja_context *c, const char *source, size_t size, jinja_tokens *out)
{
    lexer l = {.c = c, .out = out, .line = 1, .line_starting = true};
    take_source(&l, source, size);
    size_t from = 0;
    while (l.at < l.size) {
        const char *brace = memchr(l.text + l.at, '{', l.size - l.at);
        size_t at = brace == NULL ? l.size : (size_t)(brace - l.text);
        bool was_starting = l.line_starting;
        advance(&l, at);
        l.line_starting = was_starting;
        if (at + 1 < l.size && strchr("%{#", l.text[at + 1]) != NULL && l.text[at + 1] != '\0') {
            read_tagged(&l, from);
            from = l.at;
        } else if (at < l.size) {
            advance(&l, at + 1);
            l.line_starting = was_starting;
        }
    }
    if (from < l.size) {
        add_token(&l, JINJA_T_TEXT)->value = jinja_string(c, text_between(&l, from, l.size));
    }
    add_token(&l, JINJA_T_END);
}
