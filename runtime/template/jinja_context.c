/* SPDX-License-Identifier: MIT */
/* Memory for one rendering. It comes from chunks that are all released together at the end, so
 * that a failure may jump out from anywhere. */
#include "runtime/template/jinja_context.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

struct jinja_chunk {
    jinja_chunk *next;
    size_t used;
    size_t size;
    _Alignas(16) unsigned char bytes[];
};

struct jinja_symbol {
    jinja_symbol *next;
    size_t size;
    char name[];
};

#define CHUNK_SIZE          ((size_t)64 << 10)
#define STEPS_BETWEEN_LOOKS 4096

/* Ends the rendering because the caller's allowance is used up, or the caller stops the call. */
static _Noreturn void jinja_refuse(jinja_context *c)
{
    c->status = moe_allowance_fail(c->input->allowance, c->err, "the chat template");
    longjmp(c->failed, 1);
}

static jinja_chunk *add_chunk(jinja_context *c, size_t least)
{
    size_t size = least > CHUNK_SIZE ? least : CHUNK_SIZE;
    if (size > c->memory_left) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "the template takes more than %zu MiB of memory",
                   JINJA_MAX_MEMORY >> 20);
    }
    if (!moe_allowance_take(c->input->allowance, sizeof(jinja_chunk) + size)) {
        jinja_refuse(c);
    }
    jinja_chunk *chunk = moe_calloc(1, sizeof *chunk + size);
    if (chunk == NULL) {
        moe_allowance_give(c->input->allowance, sizeof *chunk + size);
        jinja_fail(c, MOE_ERR_MEMORY, "out of memory");
    }
    c->memory_left -= size;
    chunk->size = size;
    /* A large allocation gets a chunk of its own, which is inserted behind the chunk that is
     * being filled. */
    if (c->chunks != NULL && size > CHUNK_SIZE) {
        chunk->next = c->chunks->next;
        c->chunks->next = chunk;
    } else {
        chunk->next = c->chunks;
        c->chunks = chunk;
    }
    return chunk;
}

void *jinja_alloc(jinja_context *c, size_t count, size_t size)
{
    uint64_t bytes;
    if (!moe_mul_u64(count, size, &bytes) || bytes > JINJA_MAX_MEMORY * 64) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "the template takes more than %zu MiB of memory",
                   JINJA_MAX_MEMORY >> 20);
    }
    bytes = (bytes + 15) & ~(uint64_t)15;
    jinja_charge(c, bytes / 64);
    jinja_chunk *chunk = c->chunks;
    if (chunk == NULL || bytes > chunk->size - chunk->used) {
        chunk = add_chunk(c, bytes);
    }
    void *piece = chunk->bytes + chunk->used;
    chunk->used += bytes;
    return piece;
}

uint64_t jinja_free_all(jinja_context *c)
{
    uint64_t bytes = 0;
    while (c->chunks != NULL) {
        jinja_chunk *next = c->chunks->next;
        bytes += sizeof *next + c->chunks->size;
        free(c->chunks);
        c->chunks = next;
    }
    return bytes;
}

void jinja_fail(jinja_context *c, int status, const char *format, ...)
{
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    c->status = c->line > 0 ? moe_fail(c->err, status, "chat template, line %u: %s", c->line, text)
                            : moe_fail(c->err, status, "chat template: %s", text);
    longjmp(c->failed, 1);
}

void jinja_charge(jinja_context *c, uint64_t steps)
{
    if (steps >= c->steps_left) {
        c->steps_left = 0;
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "the template takes more than %d steps",
                   JINJA_MAX_STEPS);
    }
    c->steps_left -= steps;
    c->steps_told += steps;
    if (c->steps_told >= STEPS_BETWEEN_LOOKS) {
        uint64_t told = c->steps_told;
        c->steps_told = 0;
        if (!moe_allowance_step(c->input->allowance, told)) {
            jinja_refuse(c);
        }
    }
}

void jinja_enter(jinja_context *c)
{
    jinja_charge(c, 1);
    if (++c->depth > JINJA_MAX_DEPTH) {
        jinja_fail(c, MOE_ERR_UNSUPPORTED, "nested more than %d deep", JINJA_MAX_DEPTH);
    }
}

void jinja_leave(jinja_context *c)
{
    c->depth--;
}

const char *jinja_intern(jinja_context *c, const char *name, size_t size)
{
    for (jinja_symbol *symbol = c->symbols; symbol != NULL; symbol = symbol->next) {
        if (symbol->size == size && memcmp(symbol->name, name, size) == 0) {
            return symbol->name;
        }
        jinja_charge(c, 1);
    }
    jinja_symbol *symbol = jinja_alloc(c, 1, sizeof *symbol + size + 1);
    symbol->size = size;
    memcpy(symbol->name, name, size);
    symbol->next = c->symbols;
    c->symbols = symbol;
    return symbol->name;
}
