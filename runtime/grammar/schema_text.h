/* SPDX-License-Identifier: MIT */
/* The text of the grammar that a JSON schema becomes, as it is written. */
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
    /* Implemented in json_schema.c: writes a rule for what the schema allows. False: it allows
     * nothing. */
    bool (*write_rule)(moe_schema_writer *w, struct json_object *schema, char name[16]);
};

typedef struct moe_schema_piece {
    char *data;
    size_t size, capacity;
} moe_schema_piece;

/* list: up to NULL. */
static inline bool moe_schema_is_listed(const char *key, const char *const *list)
{
    while (*list != NULL && strcmp(*list, key) != 0) {
        list++;
    }
    return *list != NULL;
}

/* Counts steps of work. False, with an error: there were too many. */
bool moe_schema_step(moe_schema_writer *w, uint64_t n);
/* Sets an error. Only the first one stays, and nothing is written after it. name: the end of the
 * message. */
void moe_schema_fail(moe_schema_writer *w, int status, const char *what, const char *name);
/* Reports a keyword that the grammar cannot enforce here: notes it with its place, or fails. */
void moe_schema_note(moe_schema_writer *w, const char *keyword);
/* Enter notes that the place is within this property now. Leave takes the size that enter
 * returned. */
size_t moe_schema_enter(moe_schema_writer *w, const char *property);
void moe_schema_leave(moe_schema_writer *w, size_t before);
void moe_schema_add_bytes(moe_schema_writer *w, moe_schema_piece *p, const char *bytes,
                          size_t size);
void moe_schema_add(moe_schema_writer *w, moe_schema_piece *p, const char *text);
void moe_schema_drop(moe_schema_writer *w, moe_schema_piece *p);
/* A text in quotes. */
void moe_schema_add_literal(moe_schema_writer *w, moe_schema_piece *p, const char *text,
                            size_t size);
/* A value as compact JSON, in quotes. */
void moe_schema_add_value(moe_schema_writer *w, moe_schema_piece *p, struct json_object *value);
/* Makes the piece the rule of that number; *name is its name. Frees the piece. */
void moe_schema_finish_rule(moe_schema_writer *w, moe_schema_piece *p, char name[16],
                            uint32_t number);

#endif
