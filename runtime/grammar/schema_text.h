/* SPDX-License-Identifier: MIT */
/* Writes the text of the grammar that a JSON schema is converted to. */
#ifndef MOE_GRAMMAR_SCHEMA_TEXT_H
#define MOE_GRAMMAR_SCHEMA_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <json-c/json.h>
#include <moe/status.h>

#include "runtime/base/allowance_charge.h"

enum {
    MOE_SCHEMA_MOST_BYTES = 1 << 20,
    MOE_SCHEMA_MOST_REFS = 512,
    MOE_SCHEMA_MOST_STEPS = 4000000, /* keywords, names and values looked at */
    MOE_SCHEMA_DEEPEST = 128,
};

typedef struct moe_schema_writer moe_schema_writer;
struct moe_schema_writer {
    char *text; /* finished rules */
    size_t size, capacity;
    struct json_object *root;
    uint32_t n_rules;
    struct {
        struct json_object *target;
        uint32_t rule;
    } refs[MOE_SCHEMA_MOST_REFS];
    uint32_t n_refs;
    uint64_t n_steps;
    struct json_object *kept; /* an array of what was made of schemas */
    uint64_t kept_bytes;      /* that it was charged for */
    unsigned depth;
    bool is_loose; /* what cannot be held is noted; else it is an error */
    char path[256], notes[1024];
    moe_allowance *allowance; /* NULL: any */
    int status;
    moe_error *err;
    /* Writes a rule for the values that the schema allows (json_schema.c). False: it allows none.
     * This is a pointer because the files of this folder must not call each other in a circle. */
    bool (*write_rule)(moe_schema_writer *w, struct json_object *schema, char name[16]);
};

typedef struct moe_schema_piece {
    char *data;
    size_t size, capacity;
} moe_schema_piece;

/* Whether the list, which ends with NULL, contains the key. */
static inline bool moe_schema_is_listed(const char *key, const char *const *list)
{
    while (*list != NULL && strcmp(*list, key) != 0) {
        list++;
    }
    return *list != NULL;
}

/* Counts n steps of work. Returns false and sets an error if the limit is exceeded. */
bool moe_schema_step(moe_schema_writer *w, uint64_t n);
/* Sets the error "what" + "name". The first error is kept; nothing is written after it. */
void moe_schema_fail(moe_schema_writer *w, int status, const char *what, const char *name);
/* Reports a keyword that the grammar cannot enforce. In strict mode this is an error; otherwise the
 * keyword and its place in the schema are noted. */
void moe_schema_note(moe_schema_writer *w, const char *keyword);
/* Enters a property: reports then name it as a part of the place. moe_schema_leave() takes the size
 * that enter returned. */
size_t moe_schema_enter(moe_schema_writer *w, const char *property);
void moe_schema_leave(moe_schema_writer *w, size_t before);
void moe_schema_add_bytes(moe_schema_writer *w, moe_schema_piece *p, const char *bytes,
                          size_t size);
void moe_schema_add(moe_schema_writer *w, moe_schema_piece *p, const char *text);
void moe_schema_drop(moe_schema_writer *w, moe_schema_piece *p);
/* Appends the text as a quoted literal. */
void moe_schema_add_literal(moe_schema_writer *w, moe_schema_piece *p, const char *text,
                            size_t size);
/* Appends the value's compact JSON as a quoted literal. */
void moe_schema_add_value(moe_schema_writer *w, moe_schema_piece *p, struct json_object *value);
/* Makes the piece the rule with this number, and writes the rule's name to `name`. Frees the
 * piece. */
void moe_schema_finish_rule(moe_schema_writer *w, moe_schema_piece *p, char name[16],
                            uint32_t number);

#endif
