/* SPDX-License-Identifier: MIT */
/* The tokens of the virtual engine, and their text. */
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/virtual_engine.h"

#define FIRST_HALF  48 /* of a character of two bytes */
#define SECOND_HALF 49
#define REPLACEMENT "\xef\xbf\xbd"

struct moe_text {
    int32_t tokens[VE_CONTEXT];
    size_t n, told; /* bytes of their text that were handed out */
    char text[VE_TEXT_BYTES];
};

int __wrap_moe_text_create(moe_text **out, const moe_engine *engine, moe_error *err);
void __wrap_moe_text_close(moe_text **text);
const char *__wrap_moe_text_push(moe_text *text, int32_t token, size_t *size);
const char *__wrap_moe_text_finish(moe_text *text, size_t *size);

int32_t ve_next(const int32_t *tokens, size_t n, uint64_t seed)
{
    sim_dice dice = {seed * 0x9e3779b97f4a7c15u + n};
    for (size_t i = 0; i < n; i++) {
        dice.state ^= (uint64_t)(uint32_t)tokens[i] << (i % 48);
        (void)sim_roll(&dice);
    }
    return (int32_t)sim_below(&dice, VE_VOCABULARY);
}

/* The bytes of a token; returns how many. */
static size_t piece_of(int32_t token, char out[VE_MOST_PIECE])
{
    if (token == FIRST_HALF || token == SECOND_HALF) {
        out[0] = token == FIRST_HALF ? '\xc3' : '\xa9';
        return 1;
    }
    if (token == VE_END || token == 47) {
        return 0;
    }
    out[0] = (char)('a' + token % 26);
    out[1] = token % 3 == 0 ? ' ' : (char)('a' + token % 7);
    size_t n = token <= 26 ? 1 : 2;
    memset(out + n, '-', the_engine.padding);
    return n + the_engine.padding;
}

static size_t put(char *out, size_t size, size_t room, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n && size < room; i++) {
        out[size++] = bytes[i];
    }
    return size;
}

size_t ve_spell(const int32_t *tokens, size_t n, bool cut_off, char *out, size_t room)
{
    size_t size = 0;
    bool half = false; /* a character has begun */
    for (size_t i = 0; i < n; i++) {
        char piece[VE_MOST_PIECE];
        size_t n_piece = piece_of(tokens[i], piece);
        if (tokens[i] == SECOND_HALF) {
            size =
                half ? put(out, size, room, "\xc3\xa9", 2) : put(out, size, room, REPLACEMENT, 3);
            half = false;
        } else if (n_piece > 0) {
            size = half ? put(out, size, room, REPLACEMENT, 3) : size;
            half = tokens[i] == FIRST_HALF;
            size = half ? size : put(out, size, room, piece, n_piece);
        }
    }
    return half && !cut_off ? put(out, size, room, REPLACEMENT, 3) : size;
}

int __wrap_moe_text_create(moe_text **out, const moe_engine *engine, moe_error *err)
{
    (void)engine;
    *out = calloc(1, sizeof **out);
    if (*out == NULL) {
        strcpy(err->message, "no memory for a text");
    }
    return *out != NULL ? MOE_OK : MOE_ERR_MEMORY;
}

void __wrap_moe_text_close(moe_text **text)
{
    free(*text);
    *text = NULL;
}

/* What is new of the text, up to `end`. */
static const char *new_text(moe_text *t, size_t end, size_t *size)
{
    const char *from = t->text + t->told;
    *size = end - t->told;
    t->told = end;
    t->text[end] = '\0';
    return from;
}

const char *__wrap_moe_text_push(moe_text *text, int32_t token, size_t *size)
{
    if (text->n == VE_CONTEXT) {
        sim_fail("more tokens of a text than a context has");
    }
    text->tokens[text->n++] = token;
    return new_text(text, ve_spell(text->tokens, text->n, true, text->text, sizeof text->text - 1),
                    size);
}

const char *__wrap_moe_text_finish(moe_text *text, size_t *size)
{
    size_t end = ve_spell(text->tokens, text->n, false, text->text, sizeof text->text - 1);
    const char *rest = new_text(text, end, size);
    text->n = text->told = 0;
    return rest;
}
