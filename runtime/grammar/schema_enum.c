/* SPDX-License-Identifier: MIT */
/* Writes an enum of strings as a tree. As one alternative for each value, many alternatives would
 * begin alike, and the matcher cannot follow so many at once. So the values are sorted and written
 * by their common beginnings: "\"app" ( "le\"" | "ly\"" | "\"" ). */
#include "runtime/grammar/schema_enum.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* How deep groups may nest. A deeper group is written as a rule of its own. */
enum { MOST_NESTING = 24, STEPS_OF_VALUE = 32 };

typedef struct value_text {
    const char *data; /* compact JSON, of the value's object */
    size_t size;
} value_text;

static int compare(const void *a, const void *b)
{
    const value_text *x = a, *y = b;
    int order = memcmp(x->data, y->data, x->size < y->size ? x->size : y->size);
    return order != 0 ? order : x->size < y->size ? -1 : x->size > y->size;
}

/* Returns how many bytes the beginnings of both texts have in common from byte `from` on. Counts
 * only whole UTF-8 characters. */
static size_t shared(const value_text *a, const value_text *b, size_t from)
{
    size_t most = a->size < b->size ? a->size : b->size;
    size_t n = from;
    while (n < most && a->data[n] == b->data[n]) {
        n++;
    }
    while (n > from && n < a->size && ((unsigned char)a->data[n] & 0xc0) == 0x80) {
        n--;
    }
    return n;
}

/* Writes what follows the first `at` bytes of the texts. The texts are sorted, all different, and
 * equal in their first `at` bytes. */
static void write_texts(moe_schema_writer *w, moe_schema_piece *out, const value_text *texts,
                        size_t n, size_t at, unsigned nesting)
{
    size_t end = n == 1 ? texts[0].size : shared(&texts[0], &texts[n - 1], at);
    if (!moe_schema_step(w, end - at + n)) {
        return;
    }
    moe_schema_add_literal(w, out, texts[0].data + at, end - at);
    if (n == 1) {
        return;
    }
    moe_schema_piece rule = {NULL, 0, 0};
    const bool apart = nesting == MOST_NESTING;
    moe_schema_piece *to = apart ? &rule : out;
    moe_schema_add(w, to, apart ? "" : " (");
    for (size_t i = 0, next; i < n && w->status == MOE_OK; i = next) {
        next = i + 1;
        while (next < n && texts[i].size > end && shared(&texts[i], &texts[next], end) > end) {
            next++;
        }
        moe_schema_add(w, to, i > 0 ? " | " : "");
        write_texts(w, to, texts + i, next - i, end, apart ? 0 : nesting + 1);
    }
    if (apart) {
        char name[16];
        moe_schema_finish_rule(w, &rule, name, w->n_rules++);
        moe_schema_add(w, out, " ");
        moe_schema_add(w, out, name);
    } else {
        moe_schema_add(w, out, ")");
    }
}

void moe_schema_write_enum(moe_schema_writer *w, struct json_object *values, moe_schema_piece *out)
{
    const int plain = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
    size_t n = json_object_is_type(values, json_type_array) ? json_object_array_length(values) : 0;
    if (n == 0) {
        moe_schema_fail(w, MOE_ERR_ARGUMENT, "enum must be an array of at least one value", "");
        return;
    }
    const size_t bytes = n * sizeof(value_text);
    value_text *texts = moe_allowance_grow(w->allowance, NULL, 0, n, sizeof *texts);
    for (size_t i = 0; texts != NULL && i < n && moe_schema_step(w, STEPS_OF_VALUE); i++) {
        struct json_object *value = json_object_array_get_idx(values, i);
        texts[i].data = json_object_to_json_string_length(value, plain, &texts[i].size);
        if (texts[i].data == NULL) {
            moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
        }
    }
    if (texts == NULL) {
        moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
    }
    if (w->status == MOE_OK) {
        size_t n_apart = 1;
        qsort(texts, n, sizeof *texts, compare);
        for (size_t i = 1; i < n; i++) {
            if (compare(&texts[i], &texts[n_apart - 1]) != 0) {
                texts[n_apart++] = texts[i];
            }
        }
        moe_schema_add(w, out, "(");
        write_texts(w, out, texts, n_apart, 0, 0);
        moe_schema_add(w, out, ")");
    }
    free(texts);
    moe_allowance_give(w->allowance, texts == NULL ? 0 : bytes);
}
