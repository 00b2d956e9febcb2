/* SPDX-License-Identifier: MIT */
/* Extends the text of the answer's grammar by a rule for reasoning before the answer. The reasoning
 * ends at the first closing mark. If the closing mark is a control token, text never matches it, so
 * the rule takes any text before it. If the mark is ordinary text, the rule must not skip it: for
 * "</x>" the rule is
 *
 * ( [^<] | "<" (P "<")* Q )* "<" (P "<")* "/x>"
 *
 * P stands for any beginning of "/x>" (also the empty one): the mark had begun, and then begins
 * again. Q stands for such a beginning and one character that neither continues it nor is "<": the
 * mark had begun, but did not come. */
#include "runtime/grammar/reasoned_grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define START "moe-reasoned-answer"

enum { MOST_CHARACTERS = 64 };

typedef struct writer {
    char *data;
    size_t size, capacity;
    moe_allowance *allowance; /* NULL: any */
    bool failed;
} writer;

static void add(writer *w, const char *bytes, size_t size)
{
    if (w->size + size > w->capacity) {
        size_t capacity = 2 * w->capacity + size + 1024;
        char *larger =
            w->failed ? NULL : moe_allowance_grow(w->allowance, w->data, w->capacity, capacity, 1);
        if (larger == NULL) {
            w->failed = true;
            return;
        }
        w->data = larger;
        w->capacity = capacity;
    }
    memcpy(w->data + w->size, bytes, size);
    w->size += size;
}

static void add_text(writer *w, const char *text)
{
    add(w, text, strlen(text));
}

/* Writes the character as an escape, which is valid within quotes and within a class of
 * characters. */
static void add_character(writer *w, uint32_t character)
{
    char text[16];
    snprintf(text, sizeof text, character < 0x80 ? "\\x%02X" : "\\U%08X", character);
    add_text(w, text);
}

static void add_literal(writer *w, uint32_t character)
{
    add_text(w, " \"");
    add_character(w, character);
    add_text(w, "\"");
}

static void add_mark(writer *w, const moe_grammar_mark *mark, const uint32_t *text, size_t n)
{
    char token[24];
    snprintf(token, sizeof token, " <[%d]>", (int)mark->token);
    if (mark->token >= 0) {
        add_text(w, token);
    }
    for (size_t i = 0; i < n && mark->token < 0; i++) {
        add_literal(w, text[i]);
    }
}

/* Adds (P "<")*: the mark began and begins again before it was complete (see the top of this
 * file). */
static void add_restarts(writer *w, const uint32_t *text, size_t n)
{
    add_text(w, " (");
    for (size_t i = 1; i + 1 < n; i++) {
        add_text(w, " (");
        add_literal(w, text[i]);
    }
    for (size_t i = 1; i + 1 < n; i++) {
        add_text(w, " )?");
    }
    add_literal(w, text[0]);
    add_text(w, " )*");
}

static void add_reasoning(writer *w, const uint32_t *text, size_t n)
{
    add_text(w, " ( [^");
    add_character(w, text[0]);
    add_text(w, "] |");
    add_literal(w, text[0]);
    add_restarts(w, text, n);
    for (size_t i = 1; i < n; i++) {
        add_text(w, " ( [^");
        add_character(w, text[0]);
        add_character(w, text[i]);
        add_text(w, "]");
        if (i + 1 < n) {
            add_text(w, " |");
            add_literal(w, text[i]);
        }
    }
    for (size_t i = 1; i < n; i++) {
        add_text(w, " )");
    }
    add_text(w, " )*");
    add_literal(w, text[0]);
    add_restarts(w, text, n);
    for (size_t i = 1; i < n; i++) {
        add_literal(w, text[i]);
    }
}

/* Decodes the UTF-8 text of a mark, and returns its number of characters. Marks are constants of
 * this library, so they are valid UTF-8. */
static size_t decode(const char *text, uint32_t out[MOST_CHARACTERS])
{
    size_t n = 0;
    for (const unsigned char *at = (const unsigned char *)text; *at != 0 && n < MOST_CHARACTERS;) {
        unsigned n_more = *at < 0x80 ? 0 : *at < 0xe0 ? 1 : *at < 0xf0 ? 2 : 3;
        uint32_t character = n_more == 0 ? *at : *at & (0x3fu >> n_more);
        at++;
        for (; n_more > 0 && *at != 0; n_more--) {
            character = character << 6 | (*at++ & 0x3f);
        }
        out[n++] = character;
    }
    return n;
}

static int finish(writer *w, moe_grammar **out, moe_error *err)
{
    int status = w->failed ? moe_allowance_fail(w->allowance, err, "a grammar")
                           : moe_grammar_read(out, w->data, w->size, START, w->allowance, err);
    free(w->data);
    moe_allowance_give(w->allowance, w->capacity);
    return status;
}

int moe_grammar_after_reasoning(moe_grammar **out, const moe_grammar *answer, moe_grammar_mark open,
                                moe_grammar_mark close, bool is_open, moe_allowance *allowance,
                                moe_error *err)
{
    writer w = {.allowance = allowance};
    uint32_t opening[MOST_CHARACTERS];
    uint32_t closing[MOST_CHARACTERS];
    size_t n_open = decode(open.text, opening);
    size_t n_close = decode(close.text, closing);
    add(&w, answer->text, answer->size);
    add_text(&w, is_open ? "\n" START " ::=" : "\n" START " ::= (");
    if (!is_open) {
        add_mark(&w, &open, opening, n_open);
    }
    if (close.token >= 0) {
        add_text(&w, " .*");
        add_mark(&w, &close, closing, n_close);
    } else {
        add_reasoning(&w, closing, n_close);
    }
    add_text(&w, is_open ? " [ \\t\\r\\n]* root\n" : " [ \\t\\r\\n]* )? root\n");
    return finish(&w, out, err);
}

int moe_grammar_between(moe_grammar **out, const moe_grammar *answer, const char *before,
                        const char *behind, moe_allowance *allowance, moe_error *err)
{
    writer w = {.allowance = allowance};
    const char *const parts[] = {"\n" START " ::= ", before, " root ", behind, "\n"};
    add(&w, answer->text, answer->size);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        add_text(&w, parts[i]);
    }
    return finish(&w, out, err);
}
