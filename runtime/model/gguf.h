/* SPDX-License-Identifier: MIT */
/* Bounds-checked reader of GGUF v2 and v3 files, single or split. The file is hostile: every length
 * is checked against the rest of the file before anything is allocated, and nothing is assumed to
 * be terminated, aligned, unique or in range. Reads only the header, never tensor data. */
#ifndef MOE_MODEL_GGUF_H
#define MOE_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>
#include <moe/types.h>

#include "runtime/base/byte_source.h"

typedef enum moe_gguf_type {
    MOE_GGUF_U8 = 0,
    MOE_GGUF_I8 = 1,
    MOE_GGUF_U16 = 2,
    MOE_GGUF_I16 = 3,
    MOE_GGUF_U32 = 4,
    MOE_GGUF_I32 = 5,
    MOE_GGUF_F32 = 6,
    MOE_GGUF_BOOL = 7,
    MOE_GGUF_STRING = 8,
    MOE_GGUF_ARRAY = 9,
    MOE_GGUF_U64 = 10,
    MOE_GGUF_I64 = 11,
    MOE_GGUF_F64 = 12
} moe_gguf_type;

/* Bytes inside the reader's own memory; not terminated. */
typedef struct moe_string_view {
    const char *data;
    size_t size;
} moe_string_view;

typedef struct moe_gguf_kv {
    moe_string_view key;
    moe_gguf_type type;
    moe_gguf_type element_type; /* of an array */
    uint64_t n_elements;        /* of an array; 1 otherwise */
    union {
        uint64_t u64; /* unsigned and bool */
        int64_t i64;
        double f64;
        moe_string_view string;
        const uint8_t *raw;             /* array of numbers: little-endian, packed, unaligned */
        const moe_string_view *strings; /* array of strings */
    } value;
} moe_gguf_kv;

typedef struct moe_gguf_tensor {
    moe_string_view name;
    uint32_t type;       /* moe_dtype, or a number that the engine does not know */
    uint32_t n_dims;     /* 1..4 */
    uint64_t dims[4];    /* dims[0] is the row length; unused ones are 1 */
    uint32_t file_index; /* which file of a split model */
    uint64_t offset;     /* of the tensor's first byte, from the start of that file */
    uint64_t size;       /* bytes; 0 if the type is not known */
} moe_gguf_tensor;

typedef struct moe_gguf_file {
    const char *path;
    uint64_t size;
    /* Lives until moe_gguf_close(), or longer if someone holds it; NULL: the model is in memory. */
    moe_byte_source *source;
} moe_gguf_file;

typedef struct moe_gguf moe_gguf;

/* The function that reads the files' headers. If it returns MOE_OK, it has written `size` bytes (>
 * 0) to dst; the file has that many. Its error messages need not name the file. */
typedef struct moe_gguf_reading {
    int (*read)(const moe_gguf_file *file, uint64_t offset, void *dst, size_t size, void *user,
                moe_error *err);
    void *user;
} moe_gguf_reading;

/* Opens a model. For a split model, path may name any of its parts; all parts are opened and their
 * metadata checked against each other (split.count, split.no, split.tensors.count). Errors name the
 * file, the field and the offset. This function uses pread(), and so waits for a disk that hangs:
 * see moe_model_open() of offload/model_open.h. */
int moe_gguf_open(moe_gguf **out, const char *path, moe_error *err);
int moe_gguf_open_by(moe_gguf **out, const char *path, const moe_gguf_reading *reading,
                     moe_error *err);
void moe_gguf_close(moe_gguf **gguf);

/* Replaces or adds metadata; copies the overrides. Call once, before metadata is read. NULL: does
 * nothing. After a failure the model must be closed. */
int moe_gguf_override(moe_gguf *gguf, const moe_metadata_override *overrides, size_t n,
                      moe_error *err);

/* Like moe_gguf_open(), but reads a header in memory, for tests and fuzzing. The memory is not
 * copied and must outlive the reader. The tensors' data is assumed to take the rest of
 * data_size. */
int moe_gguf_parse(moe_gguf **out, const void *data, size_t data_size, moe_error *err);

uint32_t moe_gguf_version(const moe_gguf *gguf);
size_t moe_gguf_n_files(const moe_gguf *gguf);
const moe_gguf_file *moe_gguf_file_at(const moe_gguf *gguf, size_t index);
size_t moe_gguf_n_kvs(const moe_gguf *gguf);
const moe_gguf_kv *moe_gguf_kv_at(const moe_gguf *gguf, size_t index);
size_t moe_gguf_n_tensors(const moe_gguf *gguf);
const moe_gguf_tensor *moe_gguf_tensor_at(const moe_gguf *gguf, size_t index);

/* NULL if there is none. The lookup is by hash, O(1). */
const moe_gguf_kv *moe_gguf_find(const moe_gguf *gguf, const char *key);
const moe_gguf_tensor *moe_gguf_find_tensor(const moe_gguf *gguf, const char *name);

/* Typed reads. *value keeps its default if the key is absent. A value of a wrong type, or
 * outside the range of *value, is MOE_ERR_FORMAT. Integers of every width and bools convert to
 * each other. */
int moe_gguf_get_u32(const moe_gguf *gguf, const char *key, uint32_t *value, moe_error *err);
int moe_gguf_get_f32(const moe_gguf *gguf, const char *key, float *value, moe_error *err);
int moe_gguf_get_bool(const moe_gguf *gguf, const char *key, bool *value, moe_error *err);
int moe_gguf_get_string(const moe_gguf *gguf, const char *key, moe_string_view *value,
                        moe_error *err);
/* Reads an element of an array of numbers, or a scalar, which has one element. */
int moe_gguf_array_i64(const moe_gguf_kv *kv, uint64_t index, int64_t *value);
int moe_gguf_array_f32(const moe_gguf_kv *kv, uint64_t index, float *value);

#endif
