/* SPDX-License-Identifier: MIT */
#include "runtime/model/gguf_writer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <moe/files.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/model/gguf.h"

#define ALIGNMENT 32u

typedef struct byte_buffer {
    uint8_t *data;
    size_t size;
    size_t capacity;
    bool failed;
} byte_buffer;

typedef struct tensor_data {
    const void *data;
    uint64_t bytes;
} tensor_data;

struct moe_gguf_writer {
    byte_buffer metadata;
    byte_buffer tensors; /* the tensor table */
    tensor_data *data;   /* [n_tensors] */
    uint64_t n_kvs;
    uint64_t n_tensors;
    uint64_t data_bytes; /* bytes of the tensors added so far, with padding */
    moe_gguf_bytes_fn source;
    void *source_user;
    bool failed;
};

static void put(byte_buffer *b, const void *data, size_t size)
{
    if (b->failed || size == 0) {
        return;
    }
    if (size > b->capacity - b->size) {
        size_t capacity = 2 * b->capacity + size + 256;
        uint8_t *bigger = moe_realloc_array(b->data, capacity, 1);
        if (bigger == NULL) {
            b->failed = true;
            return;
        }
        b->data = bigger;
        b->capacity = capacity;
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

/* Files are little-endian, and so is every machine that the library supports. */
static void put_u32(byte_buffer *b, uint32_t value)
{
    put(b, &value, sizeof value);
}

static void put_u64(byte_buffer *b, uint64_t value)
{
    put(b, &value, sizeof value);
}

static void put_string(byte_buffer *b, const char *text)
{
    size_t size = strlen(text);
    put_u64(b, size);
    put(b, text, size);
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

moe_gguf_writer *moe_gguf_writer_create(void)
{
    return moe_calloc(1, sizeof(moe_gguf_writer));
}

void moe_gguf_writer_free(moe_gguf_writer **writer)
{
    if (*writer != NULL) {
        free((*writer)->metadata.data);
        free((*writer)->tensors.data);
        free((*writer)->data);
        free(*writer);
    }
    *writer = NULL;
}

static byte_buffer *begin_kv(moe_gguf_writer *writer, const char *key, moe_gguf_type type)
{
    writer->n_kvs++;
    put_string(&writer->metadata, key);
    put_u32(&writer->metadata, type);
    return &writer->metadata;
}

void moe_gguf_writer_u32(moe_gguf_writer *writer, const char *key, uint32_t value)
{
    put_u32(begin_kv(writer, key, MOE_GGUF_U32), value);
}

void moe_gguf_writer_u64(moe_gguf_writer *writer, const char *key, uint64_t value)
{
    put_u64(begin_kv(writer, key, MOE_GGUF_U64), value);
}

void moe_gguf_writer_string(moe_gguf_writer *writer, const char *key, const char *value)
{
    put_string(begin_kv(writer, key, MOE_GGUF_STRING), value);
}

void moe_gguf_writer_tensor(moe_gguf_writer *writer, const char *name, uint32_t type,
                            uint32_t n_dims, const uint64_t *dims, const void *data, uint64_t bytes)
{
    tensor_data *more = moe_realloc_array(writer->data, writer->n_tensors + 1, sizeof *more);
    if (more == NULL) {
        writer->failed = true;
        return;
    }
    writer->data = more;
    more[writer->n_tensors++] = (tensor_data){data, bytes};
    put_string(&writer->tensors, name);
    put_u32(&writer->tensors, n_dims);
    put(&writer->tensors, dims, n_dims * sizeof *dims);
    put_u32(&writer->tensors, type);
    put_u64(&writer->tensors, writer->data_bytes);
    writer->data_bytes += padded(bytes);
}

void moe_gguf_writer_later(moe_gguf_writer *writer, const char *name, uint32_t type,
                           uint32_t n_dims, const uint64_t *dims, uint64_t bytes)
{
    moe_gguf_writer_tensor(writer, name, type, n_dims, dims, NULL, bytes);
}

void moe_gguf_writer_set_source(moe_gguf_writer *writer, moe_gguf_bytes_fn source, void *user)
{
    writer->source = source;
    writer->source_user = user;
}

static int write_padding(moe_atomic_file *file, uint64_t written, moe_error *err)
{
    static const uint8_t zeros[ALIGNMENT];
    return moe_atomic_file_write(file, zeros, (size_t)(padded(written) - written), err);
}

static int write_tensor(const moe_gguf_writer *w, uint64_t tensor, moe_atomic_file *file,
                        moe_error *err)
{
    const tensor_data *t = &w->data[tensor];
    if (t->data != NULL) {
        return moe_atomic_file_write(file, t->data, (size_t)t->bytes, err);
    }
    int status = MOE_OK;
    for (uint64_t done = 0; done < t->bytes && status == MOE_OK;) {
        const void *bytes;
        size_t n = 0;
        status = w->source(tensor, &bytes, &n, w->source_user, err);
        MOE_ASSERT(status != MOE_OK || (n > 0 && n <= t->bytes - done));
        if (status == MOE_OK) {
            status = moe_atomic_file_write(file, bytes, n, err);
        }
        done += n;
    }
    return status;
}

static int write_all(const moe_gguf_writer *w, moe_atomic_file *file, moe_error *err)
{
    struct {
        char magic[4];
        uint32_t version;
        uint64_t n_tensors;
        uint64_t n_kvs;
    } header = {{'G', 'G', 'U', 'F'}, 3, w->n_tensors, w->n_kvs};
    MOE_TRY(moe_atomic_file_write(file, &header, sizeof header, err));
    MOE_TRY(moe_atomic_file_write(file, w->metadata.data, w->metadata.size, err));
    MOE_TRY(moe_atomic_file_write(file, w->tensors.data, w->tensors.size, err));
    MOE_TRY(write_padding(file, sizeof header + w->metadata.size + w->tensors.size, err));
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        MOE_TRY(write_tensor(w, i, file, err));
        MOE_TRY(write_padding(file, w->data[i].bytes, err));
    }
    return MOE_OK;
}

int moe_gguf_writer_save(const moe_gguf_writer *writer, const char *path, moe_error *err)
{
    if (writer->failed || writer->metadata.failed || writer->tensors.failed) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to write %s", path);
    }
    moe_atomic_file *file;
    MOE_TRY(moe_atomic_file_open(&file, path, 0, err));
    int status = write_all(writer, file, err);
    if (status != MOE_OK) {
        moe_atomic_file_abandon(&file);
        return status;
    }
    return moe_atomic_file_commit(&file, err);
}
