/* SPDX-License-Identifier: MIT */
/* Shared by all files of this folder: memory that lives until the rendering ends, the limits on
 * work, and the one way to fail. */
#ifndef MOE_TEMPLATE_JINJA_CONTEXT_H
#define MOE_TEMPLATE_JINJA_CONTEXT_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/template/template.h"

#define JINJA_MAX_STEPS  20000000 /* of evaluation, and more for long conversations */
#define JINJA_MAX_DEPTH  300      /* of nesting: expressions, statements, macro calls, data */
#define JINJA_MAX_MEMORY ((size_t)128 << 20) /* and 64 times the input */
#define JINJA_MAX_SOURCE ((size_t)4 << 20)
#define JINJA_MAX_RANGE  100000

typedef struct jinja_chunk jinja_chunk;
typedef struct jinja_scope jinja_scope;
typedef struct jinja_builder jinja_builder;
typedef struct jinja_symbol jinja_symbol;

typedef struct jinja_context {
    jinja_chunk *chunks;
    size_t memory_left;
    uint64_t steps_left;
    uint64_t steps_told; /* since the allowance was charged */
    unsigned depth;
    unsigned line; /* of what is evaluated */
    moe_error *err;
    int status;
    jmp_buf failed;
    jinja_symbol *symbols; /* names of the template: equal names have one address */
    jinja_scope *globals;
    jinja_builder *out;
    const struct jinja_value *block_value; /* the input of a filter block's first filter */
    const struct jinja_text *continued;    /* the last message, with continue_final_message */
    const moe_template_input *input;
    const struct jinja_links *links;
} jinja_context;

/* Allocates zero-filled memory. Ends the rendering with an error if memory is short or the limit
 * is reached. */
void *jinja_alloc(jinja_context *c, size_t count, size_t size);
/* Releases all memory of the rendering. Returns how many bytes that was. */
uint64_t jinja_free_all(jinja_context *c);

/* Ends the rendering with an error that names the line. */
__attribute__((noreturn, format(printf, 3, 4))) void jinja_fail(jinja_context *c, int status,
                                                                const char *format, ...);
/* Counts steps of work; ends the rendering with an error when the limit is reached. */
void jinja_charge(jinja_context *c, uint64_t steps);
void jinja_enter(jinja_context *c); /* one level deeper; undone by jinja_leave() */
void jinja_leave(jinja_context *c);

/* Returns the address under which this name is stored. Equal names have the same address, so they
 * are compared by address. */
const char *jinja_intern(jinja_context *c, const char *name, size_t size);

#endif
