/* SPDX-License-Identifier: MIT */
#include "runtime/grammar/schema_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

void moe_schema_fail(moe_schema_writer *w, int status, const char *what, const char *name)
{
    if (w->status == MOE_OK) {
        w->status = moe_fail(w->err, status, "JSON schema: %s%.80s", what, name);
    }
}

void moe_schema_note(moe_schema_writer *w, const char *keyword)
{
    char note[400];
    if (!w->is_loose) {
        moe_schema_fail(w, MOE_ERR_UNSUPPORTED, "this keyword is not supported: ", keyword);
        return;
    }
    snprintf(note, sizeof note, "%s%s%s", keyword, w->path[0] == '\0' ? "" : " of ", w->path);
    size_t n = strlen(w->notes), size = strlen(note);
    if (strstr(w->notes, note) == NULL && n + size + 8 < sizeof w->notes) {
        snprintf(w->notes + n, sizeof w->notes - n, "%s%s", n > 0 ? ", " : "", note);
    } else if (n + size + 8 >= sizeof w->notes && strstr(w->notes, ", ..") == NULL) {
        snprintf(w->notes + n, sizeof w->notes - n, ", ..");
    }
}

size_t moe_schema_enter(moe_schema_writer *w, const char *property)
{
    size_t n = strlen(w->path);
    bool plain = true;
    for (const char *c = property; *c != '\0'; c++) {
        plain = plain && *c >= 0x20 && *c < 0x7f; /* it may become a header */
    }
    snprintf(w->path + n, sizeof w->path - n, "/%.40s", plain ? property : "?");
    return n;
}

void moe_schema_leave(moe_schema_writer *w, size_t before)
{
    w->path[before] = '\0';
}

bool moe_schema_step(moe_schema_writer *w, uint64_t n)
{
    w->n_steps += n;
    if (w->status == MOE_OK && !moe_allowance_step(w->allowance, n)) {
        w->status = moe_allowance_fail(w->allowance, w->err, "the JSON schema");
    }
    if (w->n_steps > MOE_SCHEMA_MOST_STEPS) {
        moe_schema_fail(w, MOE_ERR_UNSUPPORTED, "it takes too many steps: repeat less", "");
    }
    return w->status == MOE_OK;
}

void moe_schema_drop(moe_schema_writer *w, moe_schema_piece *p)
{
    free(p->data);
    moe_allowance_give(w->allowance, p->capacity);
    *p = (moe_schema_piece){NULL, 0, 0};
}

void moe_schema_add_bytes(moe_schema_writer *w, moe_schema_piece *p, const char *bytes, size_t size)
{
    if (w->status != MOE_OK) {
        return;
    }
    if (p->size + size + 1 > p->capacity) {
        size_t capacity = (p->size + size + 1) * 2;
        char *bigger = capacity <= 2 * MOE_SCHEMA_MOST_BYTES
                           ? moe_allowance_grow(w->allowance, p->data, p->capacity, capacity, 1)
                           : NULL;
        if (bigger == NULL && w->allowance != NULL && w->allowance->refused != MOE_OK) {
            w->status = moe_allowance_fail(w->allowance, w->err, "the JSON schema");
            return;
        }
        if (bigger == NULL) {
            moe_schema_fail(w, MOE_ERR_UNSUPPORTED, "it is too large", "");
            return;
        }
        p->data = bigger;
        p->capacity = capacity;
    }
    memcpy(p->data + p->size, bytes, size);
    p->size += size;
    p->data[p->size] = '\0';
}

void moe_schema_add(moe_schema_writer *w, moe_schema_piece *p, const char *text)
{
    moe_schema_add_bytes(w, p, text, strlen(text));
}

void moe_schema_add_literal(moe_schema_writer *w, moe_schema_piece *p, const char *text,
                            size_t size)
{
    moe_schema_add(w, p, "\"");
    for (size_t i = 0; i < size; i++) {
        char escaped[8];
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f) {
            snprintf(escaped, sizeof escaped, "\\x%02X", c);
            moe_schema_add(w, p, escaped);
        } else {
            if (c == '"' || c == '\\') {
                moe_schema_add(w, p, "\\");
            }
            moe_schema_add_bytes(w, p, &text[i], 1);
        }
    }
    moe_schema_add(w, p, "\"");
}

void moe_schema_add_value(moe_schema_writer *w, moe_schema_piece *p, struct json_object *value)
{
    const char *text = json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN |
                                                                 JSON_C_TO_STRING_NOSLASHESCAPE);
    if (text == NULL) {
        moe_schema_fail(w, MOE_ERR_MEMORY, "out of memory", "");
        return;
    }
    size_t size = strlen(text);
    if (moe_schema_step(w, size)) {
        moe_schema_add_literal(w, p, text, size);
    }
}

/* Appends the piece to the grammar as a rule with this number. Writes the rule's name to `name`. */
void moe_schema_finish_rule(moe_schema_writer *w, moe_schema_piece *p, char name[16],
                            uint32_t number)
{
    moe_schema_piece all = {w->text, w->size, w->capacity};
    snprintf(name, 16, "r%" PRIu32, number);
    moe_schema_add(w, &all, name);
    moe_schema_add(w, &all, " ::= ");
    moe_schema_add_bytes(w, &all, p->data == NULL ? "\"\"" : p->data,
                         p->data == NULL ? 2 : p->size);
    moe_schema_add(w, &all, "\n");
    w->text = all.data;
    w->size = all.size;
    w->capacity = all.capacity;
    moe_schema_drop(w, p);
}
