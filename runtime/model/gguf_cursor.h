/* SPDX-License-Identifier: MIT */
/* Reads the numbers and strings of a GGUF header, of which only a prefix may be in memory. It never
 * reads beyond the prefix, and a length that exceeds the file is an error, not a request for more
 * bytes. The functions return MOE_OK, an error, or MOE_GGUF_NEED_MORE with `needed` set: parsing
 * then starts again with that many bytes. One thread at a time. */
#ifndef MOE_MODEL_GGUF_CURSOR_H
#define MOE_MODEL_GGUF_CURSOR_H

#include "runtime/model/gguf_internal.h"

typedef struct moe_gguf_cursor {
    const uint8_t *bytes;
    uint64_t at;
    uint64_t n_bytes;   /* in memory */
    uint64_t file_size; /* >= n_bytes */
    uint64_t needed;    /* set when a read needs bytes that the file has but memory does not */
    const char *field;  /* what is being read, for messages */
    moe_error *err;
} moe_gguf_cursor;

/* Returns the error for a file that ends before the `wanted` bytes do. */
int moe_gguf_truncated(const moe_gguf_cursor *c, uint64_t wanted);

/* Makes sure that `size` bytes are in memory. */
int moe_gguf_want(moe_gguf_cursor *c, uint64_t size);

/* A little-endian number of 1 to 8 bytes. */
uint64_t moe_gguf_load_le(const uint8_t *bytes, size_t size);
int moe_gguf_read_uint(moe_gguf_cursor *c, size_t size, uint64_t *value);
int moe_gguf_read_u32(moe_gguf_cursor *c, uint32_t *value);

/* Reads a string: a length of 8 bytes, then that many bytes, to which *string points. */
int moe_gguf_read_string(moe_gguf_cursor *c, moe_string_view *string);

#endif
