/* SPDX-License-Identifier: MIT */
/* One step of UTF-8 decoding, strict as Unicode defines it: no overlong forms, no surrogates. */
#ifndef MOE_MODEL_UTF8_TEXT_H
#define MOE_MODEL_UTF8_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Returns how many bytes the character at text[0] takes (1 to 4), or 0 if text does not start with
 * a whole valid character. In that case *bad is the length of the "maximal subpart": the bytes that
 * one U+FFFD replaces. If *bad == size, more bytes might still complete the character, and *open is
 * set. */
static inline size_t moe_utf8_step(const uint8_t *text, size_t size, size_t *bad, int *open)
{
    *open = 0;
    *bad = 1;
    uint8_t lead = text[0];
    if (lead < 0x80) {
        return 1;
    }
    if (lead < 0xC2 || lead > 0xF4) {
        return 0;
    }
    size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < length; i++) {
        if (i == size) {
            *bad = i;
            *open = 1;
            return 0;
        }
        if (text[i] < low || text[i] > high) {
            *bad = i;
            return 0;
        }
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

#endif
