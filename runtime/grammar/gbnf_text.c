/* SPDX-License-Identifier: MIT */
#include "runtime/grammar/gbnf_text.h"

#include <string.h>

#include "runtime/base/error.h"

int moe_gbnf_wrong(const moe_gbnf_text *r, const char *what)
{
    uint32_t line = 1;
    for (size_t i = 0; i < r->at && i < r->size; i++) {
        line += r->text[i] == '\n';
    }
    return moe_fail(r->err, MOE_ERR_ARGUMENT, "grammar, line %u: %s", line, what);
}

unsigned char moe_gbnf_peek(const moe_gbnf_text *r, size_t ahead)
{
    return r->at + ahead < r->size ? (unsigned char)r->text[r->at + ahead] : 0;
}

static void skip_space(moe_gbnf_text *r, bool lines)
{
    for (;;) {
        unsigned char c = moe_gbnf_peek(r, 0);
        if (c == '#') {
            while (r->at < r->size && r->text[r->at] != '\n') {
                r->at++;
            }
        } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
            r->at++;
        } else {
            return;
        }
    }
}

/* Counts the white space as steps, like other text: a repeated item is read again with its white
 * space, so this work must be bounded, too. The caller checks the limit. */
void moe_gbnf_skip_space(moe_gbnf_text *r, bool lines)
{
    size_t begin = r->at;
    skip_space(r, lines);
    (void)moe_grammar_step(r->g, r->at - begin);
}

/* ---- Characters ---- */

static int read_hex(moe_gbnf_text *r, uint32_t n_digits, uint32_t *out)
{
    *out = 0;
    for (uint32_t i = 0; i < n_digits; i++) {
        unsigned char c = moe_gbnf_peek(r, 0);
        uint32_t digit = c >= '0' && c <= '9'   ? c - (uint32_t)'0'
                         : c >= 'a' && c <= 'f' ? c - 'a' + 10u
                         : c >= 'A' && c <= 'F' ? c - 'A' + 10u
                                                : 16u;
        if (digit == 16) {
            return moe_gbnf_wrong(r, "an escape has too few hexadecimal digits");
        }
        *out = *out << 4 | digit;
        r->at++;
    }
    return *out <= 0x10ffff && (*out < 0xd800 || *out > 0xdfff)
               ? MOE_OK
               : moe_gbnf_wrong(r, "an escape names no character");
}

static int read_escape(moe_gbnf_text *r, uint32_t *out)
{
    unsigned char c = moe_gbnf_peek(r, 0);
    r->at++;
    switch (c) {
    case 'x':
        return read_hex(r, 2, out);
    case 'u':
        return read_hex(r, 4, out);
    case 'U':
        return read_hex(r, 8, out);
    case 'n':
        *out = '\n';
        return MOE_OK;
    case 'r':
        *out = '\r';
        return MOE_OK;
    case 't':
        *out = '\t';
        return MOE_OK;
    default:
        *out = c;
        return c != 0 && strchr("\\\"[]-^/'", c) != NULL
                   ? MOE_OK
                   : moe_gbnf_wrong(r, "there is no such escape");
    }
}

int moe_gbnf_read_char(moe_gbnf_text *r, uint32_t *out)
{
    unsigned char c = moe_gbnf_peek(r, 0);
    uint32_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c == '\\') {
        r->at++;
        return read_escape(r, out);
    }
    if (r->at + n > r->size || (c >= 0x80 && c < 0xc2) || c > 0xf4) {
        return moe_gbnf_wrong(r, "the text is not UTF-8");
    }
    *out = n == 1 ? c : c & (0xffu >> (n + 1));
    for (uint32_t i = 1; i < n; i++) {
        if ((moe_gbnf_peek(r, i) & 0xc0) != 0x80) {
            return moe_gbnf_wrong(r, "the text is not UTF-8");
        }
        *out = *out << 6 | (moe_gbnf_peek(r, i) & 0x3f);
    }
    r->at += n;
    return *out <= 0x10ffff ? MOE_OK : moe_gbnf_wrong(r, "the text is not UTF-8");
}
