/* SPDX-License-Identifier: MIT */
/* Shared by the tokenizer tests: whole files, and a builder of GGUF headers in memory. */
#ifndef MOE_TESTS_TOKENIZER_FIXTURE_H
#define MOE_TESTS_TOKENIZER_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/model/tokenizer.h"

/* The whole file with a 0 after it; NULL when it cannot be read. free() it. */
char *fixture_read_file(const char *path, size_t *size);

typedef struct fixture_gguf {
    char *data;
    size_t size, capacity;
} fixture_gguf;

void fixture_begin(fixture_gguf *gguf);
void fixture_u32(fixture_gguf *gguf, const char *key, uint32_t value);
void fixture_bool(fixture_gguf *gguf, const char *key, int value);
void fixture_string(fixture_gguf *gguf, const char *key, const char *value);
void fixture_strings(fixture_gguf *gguf, const char *key, const char *const *values,
                     const size_t *sizes, size_t n); /* sizes NULL: terminated */
void fixture_numbers(fixture_gguf *gguf, const char *key, uint32_t type, const void *values,
                     size_t n); /* type: MOE_GGUF_I32 or MOE_GGUF_F32 */
/* Opens what was built. The bytes must outlive the reader. */
moe_gguf *fixture_parse(fixture_gguf *gguf);
void fixture_free(fixture_gguf *gguf);

/* Writes the spelling of bytes in byte-level BPE's alphabet; returns its length. */
size_t fixture_byte_level(const uint8_t *bytes, size_t size, char *out);

#endif
