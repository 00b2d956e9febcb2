/* SPDX-License-Identifier: MIT */
#include "tests/model/gguf_builder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/dtype.h"

typedef struct bytes {
    uint8_t *data;
    size_t size;
    size_t room;
} bytes;

typedef struct item {
    bytes name;
    bytes rest; /* of a key: type and value; of a tensor: n_dims, dims, type */
    bytes data; /* of a tensor */
    uint64_t offset;
    int raw; /* offset is given, there are no data */
} item;

struct gguf_builder {
    char magic[4];
    uint32_t version;
    uint64_t n_kvs_written, n_tensors_written; /* UINT64_MAX: the true ones */
    uint64_t alignment;
    item *kvs, *tensors;
    size_t n_kvs, n_tensors;
    bytes file;
};

static void put(bytes *to, const void *data, size_t size)
{
    if (to->size + size > to->room) {
        to->room = 2 * (to->size + size) + 32;
        to->data = realloc(to->data, to->room);
        if (to->data == NULL) {
            abort();
        }
    }
    if (size > 0) {
        memcpy(to->data + to->size, data, size);
    }
    to->size += size;
}

static void put_uint(bytes *to, uint64_t value, size_t size)
{
    uint8_t raw[8];
    for (size_t i = 0; i < size; i++) {
        raw[i] = (uint8_t)(value >> (8 * i));
    }
    put(to, raw, size);
}

static void put_string(bytes *to, const void *data, size_t size)
{
    put_uint(to, size, 8);
    put(to, data, size);
}

static item *add(item **items, size_t *n, const void *name, size_t size)
{
    /* Room doubles whenever the number of items has filled a power of two. */
    if ((*n & (*n - 1)) == 0) {
        item *grown = realloc(*items, (*n == 0 ? 1 : 2 * *n) * sizeof **items);
        if (grown == NULL) {
            abort();
        }
        *items = grown;
    }
    item *added = &(*items)[(*n)++];
    memset(added, 0, sizeof *added);
    put(&added->name, name, size);
    return added;
}

static void drop(item *dropped)
{
    free(dropped->name.data);
    free(dropped->rest.data);
    free(dropped->data.data);
}

gguf_builder *gb_new(void)
{
    gguf_builder *b = calloc(1, sizeof *b);
    if (b == NULL) {
        abort();
    }
    memcpy(b->magic, "GGUF", 4);
    b->version = 3;
    b->n_kvs_written = UINT64_MAX;
    b->n_tensors_written = UINT64_MAX;
    b->alignment = 32;
    return b;
}

void gb_free(gguf_builder *b)
{
    for (size_t i = 0; i < b->n_kvs; i++) {
        drop(&b->kvs[i]);
    }
    for (size_t i = 0; i < b->n_tensors; i++) {
        drop(&b->tensors[i]);
    }
    free(b->kvs);
    free(b->tensors);
    free(b->file.data);
    free(b);
}

void gb_raw_kv(gguf_builder *b, const void *key, size_t key_size, uint32_t type, const void *value,
               size_t value_size)
{
    item *kv = add(&b->kvs, &b->n_kvs, key, key_size);
    put_uint(&kv->rest, type, 4);
    put(&kv->rest, value, value_size);
}

static void add_number(gguf_builder *b, const char *key, uint32_t type, uint64_t bits, size_t size)
{
    item *kv = add(&b->kvs, &b->n_kvs, key, strlen(key));
    put_uint(&kv->rest, type, 4);
    put_uint(&kv->rest, bits, size);
}

void gb_u8(gguf_builder *b, const char *key, uint8_t value)
{
    add_number(b, key, MOE_GGUF_U8, value, 1);
}

void gb_i32(gguf_builder *b, const char *key, int32_t value)
{
    add_number(b, key, MOE_GGUF_I32, (uint32_t)value, 4);
}

void gb_u32(gguf_builder *b, const char *key, uint32_t value)
{
    add_number(b, key, MOE_GGUF_U32, value, 4);
}

void gb_u64(gguf_builder *b, const char *key, uint64_t value)
{
    add_number(b, key, MOE_GGUF_U64, value, 8);
}

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

void gb_f32(gguf_builder *b, const char *key, float value)
{
    add_number(b, key, MOE_GGUF_F32, float_bits(value), 4);
}

void gb_f64(gguf_builder *b, const char *key, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_number(b, key, MOE_GGUF_F64, bits, 8);
}

void gb_bool(gguf_builder *b, const char *key, int value)
{
    add_number(b, key, MOE_GGUF_BOOL, (uint64_t)value, 1);
}

void gb_string(gguf_builder *b, const char *key, const char *value)
{
    item *kv = add(&b->kvs, &b->n_kvs, key, strlen(key));
    put_uint(&kv->rest, MOE_GGUF_STRING, 4);
    put_string(&kv->rest, value, strlen(value));
}

static bytes *add_array(gguf_builder *b, const char *key, uint32_t type, size_t n)
{
    item *kv = add(&b->kvs, &b->n_kvs, key, strlen(key));
    put_uint(&kv->rest, MOE_GGUF_ARRAY, 4);
    put_uint(&kv->rest, type, 4);
    put_uint(&kv->rest, n, 8);
    return &kv->rest;
}

void gb_array_i32(gguf_builder *b, const char *key, const int32_t *values, size_t n)
{
    bytes *to = add_array(b, key, MOE_GGUF_I32, n);
    for (size_t i = 0; i < n; i++) {
        put_uint(to, (uint32_t)values[i], 4);
    }
}

void gb_array_f32(gguf_builder *b, const char *key, const float *values, size_t n)
{
    bytes *to = add_array(b, key, MOE_GGUF_F32, n);
    for (size_t i = 0; i < n; i++) {
        put_uint(to, float_bits(values[i]), 4);
    }
}

void gb_array_string(gguf_builder *b, const char *key, const char *const *values, size_t n)
{
    bytes *to = add_array(b, key, MOE_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) {
        put_string(to, values[i], strlen(values[i]));
    }
}

void gb_array_tokens(gguf_builder *b, const char *key, size_t n)
{
    bytes *to = add_array(b, key, MOE_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) {
        char text[24];
        int size = snprintf(text, sizeof text, "t%zu", i);
        put_string(to, text, (size_t)size);
    }
}

static void remove_named(item *items, size_t *n, const char *name)
{
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++) {
        if (items[i].name.size == strlen(name) &&
            memcmp(items[i].name.data, name, items[i].name.size) == 0) {
            drop(&items[i]);
        } else {
            items[kept++] = items[i];
        }
    }
    *n = kept;
}

void gb_remove(gguf_builder *b, const char *key)
{
    remove_named(b->kvs, &b->n_kvs, key);
}

void gb_remove_tensor(gguf_builder *b, const char *name)
{
    remove_named(b->tensors, &b->n_tensors, name);
}

void gb_rename_tensor(gguf_builder *b, const char *name, const char *new_name)
{
    for (size_t i = 0; i < b->n_tensors; i++) {
        item *tensor = &b->tensors[i];
        if (tensor->name.size == strlen(name) &&
            memcmp(tensor->name.data, name, tensor->name.size) == 0) {
            tensor->name.size = 0;
            put(&tensor->name, new_name, strlen(new_name));
        }
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t seed_of(const char *name)
{
    uint64_t hash = 1469598103934665603u;
    for (; *name != '\0'; name++) {
        hash = (hash ^ (uint8_t)*name) * 1099511628211u;
    }
    return hash | 1;
}

/* Floats from -0.125 to 0.125 (norm weights around 1); blocks of random bytes whose every other
 * byte's high bits are cleared, so that no half-precision scale is large, infinite or NaN. */
static void put_data(bytes *to, const char *name, uint32_t type, uint64_t row_elems,
                     uint64_t n_elems)
{
    const moe_dtype_info *info = moe_dtype_info_of(type);
    uint64_t state = seed_of(name);
    float centre = strstr(name, "norm") != NULL ? 1.0f : 0.0f;
    if (info == NULL) {
        return;
    }
    for (uint64_t i = 0; info->is_float && i < n_elems; i++) {
        float value = centre + ((float)(next_random(&state) >> 40) / 16777216.0f - 0.5f) * 0.25f;
        uint32_t bits = float_bits(value);
        if (type == MOE_DTYPE_F32) {
            put_uint(to, bits, 4);
        } else if (type == MOE_DTYPE_BF16) {
            put_uint(to, bits >> 16, 2);
        } else {
            /* half precision, small: 2^-4 with random sign and mantissa */
            put_uint(to, 0x2c00u | (next_random(&state) & 0x83ffu), 2);
        }
    }
    uint64_t n_rows = row_elems == 0 ? 0 : n_elems / row_elems;
    uint64_t n_bytes =
        info->is_float ? 0 : n_rows * moe_dtype_row_bytes((moe_dtype)type, row_elems);
    for (uint64_t i = 0; i < n_bytes; i++) {
        uint8_t byte = (uint8_t)next_random(&state);
        put_uint(to, i % 2 == 1 ? byte & 0xa7u : byte, 1);
    }
}

void gb_tensor(gguf_builder *b, const char *name, uint32_t type, int n_dims, ...)
{
    va_list args;
    item *tensor = add(&b->tensors, &b->n_tensors, name, strlen(name));
    uint64_t n_elems = 1;
    uint64_t row_elems = 0;
    put_uint(&tensor->rest, (uint64_t)n_dims, 4);
    va_start(args, n_dims);
    for (int i = 0; i < n_dims; i++) {
        uint64_t dim = (uint64_t)va_arg(args, int);
        n_elems *= dim;
        row_elems = i == 0 ? dim : row_elems;
        put_uint(&tensor->rest, dim, 8);
    }
    va_end(args);
    put_uint(&tensor->rest, type, 4);
    put_data(&tensor->data, name, type, row_elems, n_elems);
}

void gb_raw_tensor(gguf_builder *b, const gb_entry *entry)
{
    item *tensor = add(&b->tensors, &b->n_tensors, entry->name, strlen(entry->name));
    put_uint(&tensor->rest, entry->n_dims, 4);
    for (uint32_t i = 0; i < entry->n_dims && i < 5; i++) {
        put_uint(&tensor->rest, entry->dims[i], 8);
    }
    put_uint(&tensor->rest, entry->type, 4);
    tensor->offset = entry->offset;
    tensor->raw = 1;
}

void gb_set_magic(gguf_builder *b, const char magic[4])
{
    memcpy(b->magic, magic, 4);
}

void gb_set_version(gguf_builder *b, uint32_t version)
{
    b->version = version;
}

void gb_set_n_kvs(gguf_builder *b, uint64_t n_kvs)
{
    b->n_kvs_written = n_kvs;
}

void gb_set_n_tensors(gguf_builder *b, uint64_t n_tensors)
{
    b->n_tensors_written = n_tensors;
}

void gb_set_alignment(gguf_builder *b, uint64_t alignment)
{
    b->alignment = alignment;
}

static void pad(bytes *to, uint64_t alignment)
{
    while (to->size % alignment != 0) {
        put_uint(to, 0, 1);
    }
}

const uint8_t *gb_finish(gguf_builder *b, size_t *size)
{
    bytes *to = &b->file;
    uint64_t offset = 0;
    to->size = 0;
    put(to, b->magic, 4);
    put_uint(to, b->version, 4);
    put_uint(to, b->n_tensors_written != UINT64_MAX ? b->n_tensors_written : b->n_tensors, 8);
    put_uint(to, b->n_kvs_written != UINT64_MAX ? b->n_kvs_written : b->n_kvs, 8);
    for (size_t i = 0; i < b->n_kvs; i++) {
        put_string(to, b->kvs[i].name.data, b->kvs[i].name.size);
        put(to, b->kvs[i].rest.data, b->kvs[i].rest.size);
    }
    for (size_t i = 0; i < b->n_tensors; i++) {
        item *tensor = &b->tensors[i];
        put_string(to, tensor->name.data, tensor->name.size);
        put(to, tensor->rest.data, tensor->rest.size);
        put_uint(to, tensor->raw ? tensor->offset : offset, 8);
        offset += tensor->data.size;
        offset += (b->alignment - offset % b->alignment) % b->alignment;
    }
    pad(to, b->alignment);
    for (size_t i = 0; i < b->n_tensors; i++) {
        put(to, b->tensors[i].data.data, b->tensors[i].data.size);
        pad(to, b->alignment);
    }
    *size = to->size;
    return to->data;
}

int gb_write(gguf_builder *b, const char *path)
{
    size_t size;
    const uint8_t *data = gb_finish(b, &size);
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return -1;
    }
    size_t written = fwrite(data, 1, size, file);
    return fclose(file) == 0 && written == size ? 0 : -1;
}
