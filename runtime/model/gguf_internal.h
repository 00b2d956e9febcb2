/* SPDX-License-Identifier: MIT */
/* Shared by the files of the GGUF reader. A file's header is parsed from one block of memory; every
 * string and array of the result points into that block. */
#ifndef MOE_MODEL_GGUF_INTERNAL_H
#define MOE_MODEL_GGUF_INTERNAL_H

#include <string.h>

#include "runtime/model/gguf.h"

/* A hash table with open addressing. Each slot holds a position in another table, plus 1; 0:
 * free. */
typedef struct moe_gguf_index {
    uint32_t *slots;
    uint64_t mask;
    uint64_t seed;
} moe_gguf_index;

/* The header of one file. */
typedef struct moe_gguf_header {
    uint32_t version;
    uint32_t alignment;
    uint64_t size;       /* bytes up to the end of the tensor list */
    uint64_t data_start; /* size rounded up to the alignment */
    moe_gguf_kv *kvs;
    size_t n_kvs;
    size_t kvs_capacity;
    moe_gguf_tensor *tensors;
    size_t n_tensors;
    size_t tensors_capacity;
    moe_string_view **string_arrays; /* one block per array of strings */
    size_t n_string_arrays;
    size_t string_arrays_capacity;
    moe_gguf_index kv_index;
} moe_gguf_header;

typedef struct moe_gguf_part {
    moe_gguf_file file;
    uint8_t *bytes; /* the header; NULL when it is the caller's memory */
    moe_gguf_header header;
} moe_gguf_part;

struct moe_gguf {
    moe_gguf_part *parts;
    size_t n_parts;
    const moe_gguf_reading *reading; /* while the model is being opened */
    moe_gguf_tensor *tensors;        /* of all parts, in order */
    size_t n_tensors;
    moe_gguf_index tensor_index;
    size_t n_file_kvs; /* of the first part's metadata; further ones were added as overrides */
    char *overrides;   /* texts of moe_gguf_override(); keys and values point into it */
};

/* Returned by moe_gguf_header_parse() when the bytes in memory end before the header does. */
#define MOE_GGUF_NEED_MORE 1

/* Parses and checks the header of a file of file_size bytes, whose first n_bytes are in memory.
 * Returns MOE_OK, an error, or MOE_GGUF_NEED_MORE with *needed > n_bytes (and <= file_size): the
 * least number of bytes for the next attempt. The header must be empty (zeroed). */
int moe_gguf_header_parse(moe_gguf_header *header, const uint8_t *bytes, uint64_t n_bytes,
                          uint64_t file_size, uint64_t *needed, moe_error *err);
void moe_gguf_header_free(moe_gguf_header *header);

/* Checks offsets, sizes against the file, and overlaps; then makes offsets absolute. */
int moe_gguf_check_placement(moe_gguf_header *header, uint64_t file_size, moe_error *err);

int moe_gguf_index_init(moe_gguf_index *index, size_t n_entries, const void *seed);
void moe_gguf_index_free(moe_gguf_index *index);
/* Looks a name up: returns the position of an equal name or, if there is none, adds `position` and
 * returns SIZE_MAX. The names are `stride` bytes apart, beginning at *names. */
size_t moe_gguf_index_add(moe_gguf_index *index, const void *names, size_t stride, size_t position);
size_t moe_gguf_index_find(const moe_gguf_index *index, const void *names, size_t stride,
                           moe_string_view name);

/* How long a name is in messages: at most size - 1 bytes. Unprintable bytes become '?', and a cut
 * name ends in "...". */
#define MOE_GGUF_SHOWN 72
const char *moe_gguf_show(moe_string_view name, char shown[MOE_GGUF_SHOWN]);

/* Like moe_gguf_find(), within one file. */
const moe_gguf_kv *moe_gguf_header_find(const moe_gguf_header *header, const char *key);

/* Bytes of a number or bool; 0 for strings, arrays and unknown types. */
size_t moe_gguf_scalar_size(uint32_t type);
const char *moe_gguf_type_name(uint32_t type);
/* Whether the reader itself used the key while it read the file; such a key cannot be
 * overridden. */
static inline bool moe_gguf_key_is_of_the_reader(const char *key)
{
    return strcmp(key, "general.alignment") == 0 || strncmp(key, "split.", 6) == 0;
}

/* Reads the integer of a scalar of an integer type, or of a bool; false for another type. */
bool moe_gguf_scalar_u64(const moe_gguf_kv *kv, uint64_t *value);

#endif
