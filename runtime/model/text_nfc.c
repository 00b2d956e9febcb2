/* SPDX-License-Identifier: MIT */
/* Normalisation to NFC. utf8proc decomposes and composes. This file orders the combining marks in
 * between, because utf8proc's own ordering takes quadratic time on a long run of marks. */
#include "runtime/model/text_nfc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "runtime/base/alloc.h"

bool moe_nfc_may_change(const char *text, size_t size)
{
    /* Everything below U+0300 (lead byte CC) is its own NFC. */
    for (size_t i = 0; i < size; i++) {
        if ((unsigned char)text[i] >= 0xCC) {
            return true;
        }
    }
    return false;
}

typedef struct code_points {
    utf8proc_int32_t *data;
    size_t n, capacity;
} code_points;

/* No character decomposes into more than four code points; the rest is a safety margin. */
#define MAX_DECOMPOSITION 32

static bool reserve(code_points *points, size_t n)
{
    if (n <= points->capacity) {
        return true;
    }
    size_t capacity = n + n / 2;
    utf8proc_int32_t *data = moe_realloc_array(points->data, capacity, sizeof *data);
    if (data == NULL) {
        return false;
    }
    points->data = data;
    points->capacity = capacity;
    return true;
}

static bool decompose(code_points *points, const char *text, size_t size)
{
    for (size_t at = 0; at < size;) {
        utf8proc_int32_t character;
        utf8proc_ssize_t step = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                 (utf8proc_ssize_t)(size - at), &character);
        if (step <= 0 || !reserve(points, points->n + MAX_DECOMPOSITION)) {
            return false;
        }
        int boundary = 0;
        utf8proc_ssize_t n =
            utf8proc_decompose_char(character, points->data + points->n, MAX_DECOMPOSITION,
                                    UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
        if (n < 0 || n > MAX_DECOMPOSITION) {
            return false;
        }
        points->n += (size_t)n;
        at += (size_t)step;
    }
    return true;
}

static unsigned combining_class(utf8proc_int32_t character)
{
    return (unsigned)utf8proc_get_property(character)->combining_class & 0xFF;
}

/* Orders a run of combining marks by class; marks of the same class keep their order. */
static bool order_run(utf8proc_int32_t *run, size_t n)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            utf8proc_int32_t moved = run[i];
            size_t at = i;
            for (; at > 0 && combining_class(run[at - 1]) > combining_class(moved); at--) {
                run[at] = run[at - 1];
            }
            run[at] = moved;
        }
        return true;
    }
    size_t starts[257] = {0};
    utf8proc_int32_t *ordered = moe_calloc(n, sizeof *ordered);
    if (ordered == NULL) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        starts[combining_class(run[i]) + 1]++;
    }
    for (size_t class = 1; class < 257; class ++) {
        starts[class] += starts[class - 1];
    }
    for (size_t i = 0; i < n; i++) {
        ordered[starts[combining_class(run[i])]++] = run[i];
    }
    memcpy(run, ordered, n * sizeof *run);
    free(ordered);
    return true;
}

static bool order_marks(code_points *points)
{
    size_t start = 0;
    for (size_t i = 0; i <= points->n; i++) {
        if (i == points->n || combining_class(points->data[i]) == 0) {
            if (i - start > 1 && !order_run(points->data + start, i - start)) {
                return false;
            }
            start = i + 1;
        }
    }
    return true;
}

char *moe_nfc(const char *text, size_t size, size_t *out_size)
{
    code_points points = {0};
    char *out = NULL;
    if (decompose(&points, text, size) && order_marks(&points)) {
        utf8proc_ssize_t n = points.n == 0
                                 ? 0
                                 : utf8proc_normalize_utf32(points.data, (utf8proc_ssize_t)points.n,
                                                            UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        out = n < 0 ? NULL : moe_calloc((size_t)n * 4 + 1, 1);
        *out_size = 0;
        for (utf8proc_ssize_t i = 0; out != NULL && i < n; i++) {
            *out_size +=
                (size_t)utf8proc_encode_char(points.data[i], (utf8proc_uint8_t *)out + *out_size);
        }
    }
    free(points.data);
    return out;
}
