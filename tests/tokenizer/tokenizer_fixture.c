/* SPDX-License-Identifier: MIT */
#include "tests/tokenizer/tokenizer_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *fixture_read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *data = length < 0 ? NULL : malloc((size_t)length + 1);
    if (data == NULL || fread(data, 1, (size_t)length, file) != (size_t)length) {
        free(data);
        data = NULL;
    } else {
        data[length] = '\0';
        *size = (size_t)length;
    }
    fclose(file);
    return data;
}

static void put(fixture_gguf *gguf, const void *data, size_t size)
{
    if (gguf->size + size > gguf->capacity) {
        gguf->capacity = gguf->capacity * 2 + size;
        gguf->data = realloc(gguf->data, gguf->capacity);
        if (gguf->data == NULL) {
            perror("fixture");
            exit(1);
        }
    }
    memcpy(gguf->data + gguf->size, data, size);
    gguf->size += size;
}

static void put_u32(fixture_gguf *gguf, uint32_t value)
{
    put(gguf, &value, sizeof value);
}

static void put_u64(fixture_gguf *gguf, uint64_t value)
{
    put(gguf, &value, sizeof value);
}

static void put_string(fixture_gguf *gguf, const char *text, size_t size)
{
    put_u64(gguf, size);
    put(gguf, text, size);
}

#define N_KVS_AT 16

static void put_key(fixture_gguf *gguf, const char *key, uint32_t type)
{
    uint64_t n_kvs;
    memcpy(&n_kvs, gguf->data + N_KVS_AT, sizeof n_kvs);
    n_kvs++;
    memcpy(gguf->data + N_KVS_AT, &n_kvs, sizeof n_kvs);
    put_string(gguf, key, strlen(key));
    put_u32(gguf, type);
}

void fixture_begin(fixture_gguf *gguf)
{
    memset(gguf, 0, sizeof *gguf);
    put(gguf, "GGUF", 4);
    put_u32(gguf, 3);
    put_u64(gguf, 0); /* tensors */
    put_u64(gguf, 0); /* key-value pairs */
}

void fixture_u32(fixture_gguf *gguf, const char *key, uint32_t value)
{
    put_key(gguf, key, MOE_GGUF_U32);
    put_u32(gguf, value);
}

void fixture_bool(fixture_gguf *gguf, const char *key, int value)
{
    put_key(gguf, key, MOE_GGUF_BOOL);
    put(gguf, value ? "\1" : "\0", 1);
}

void fixture_string(fixture_gguf *gguf, const char *key, const char *value)
{
    put_key(gguf, key, MOE_GGUF_STRING);
    put_string(gguf, value, strlen(value));
}

void fixture_strings(fixture_gguf *gguf, const char *key, const char *const *values,
                     const size_t *sizes, size_t n)
{
    put_key(gguf, key, MOE_GGUF_ARRAY);
    put_u32(gguf, MOE_GGUF_STRING);
    put_u64(gguf, n);
    for (size_t i = 0; i < n; i++) {
        put_string(gguf, values[i], sizes != NULL ? sizes[i] : strlen(values[i]));
    }
}

void fixture_numbers(fixture_gguf *gguf, const char *key, uint32_t type, const void *values,
                     size_t n)
{
    put_key(gguf, key, MOE_GGUF_ARRAY);
    put_u32(gguf, type);
    put_u64(gguf, n);
    put(gguf, values, n * 4);
}

moe_gguf *fixture_parse(fixture_gguf *gguf)
{
    moe_gguf *parsed = NULL;
    moe_error err;
    if (moe_gguf_parse(&parsed, gguf->data, gguf->size, &err) != MOE_OK) {
        fprintf(stderr, "fixture: %s\n", err.message);
        exit(1);
    }
    return parsed;
}

void fixture_free(fixture_gguf *gguf)
{
    free(gguf->data);
    memset(gguf, 0, sizeof *gguf);
}

size_t fixture_byte_level(const uint8_t *bytes, size_t size, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        unsigned byte = bytes[i];
        unsigned character = byte;
        if (byte < 0x21) {
            character = 0x100 + byte;
        } else if (byte >= 0x7F && byte <= 0xA0) {
            character = 0x121 + byte - 0x7F;
        } else if (byte == 0xAD) {
            character = 0x143;
        }
        if (character < 0x80) {
            out[n++] = (char)character;
        } else {
            out[n++] = (char)(0xC0 | character >> 6);
            out[n++] = (char)(0x80 | (character & 0x3F));
        }
    }
    return n;
}
