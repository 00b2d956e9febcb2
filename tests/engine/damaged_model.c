/* SPDX-License-Identifier: MIT */
#include "damaged_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/gguf.h"

bool find_tensor(const char *path, const char *name, tensor_place *place)
{
    moe_gguf *gguf = NULL;
    if (moe_gguf_open(&gguf, path, NULL) != MOE_OK) {
        return false;
    }
    const moe_gguf_tensor *tensor = moe_gguf_find_tensor(gguf, name);
    if (tensor != NULL) {
        *place = (tensor_place){tensor->offset, tensor->size, tensor->type};
    }
    moe_gguf_close(&gguf);
    return tensor != NULL;
}

static uint8_t *read_all(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        return NULL;
    }
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size);
    if (bytes != NULL && fread(bytes, 1, *size, file) != *size) {
        free(bytes);
        bytes = NULL;
    }
    fclose(file);
    return bytes;
}

static bool write_all(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    bool written = file != NULL && fwrite(bytes, 1, size, file) == size;
    return file != NULL && fclose(file) == 0 && written;
}

bool copy_with_bytes(const char *from, const char *to, uint64_t offset, const void *with, size_t n)
{
    size_t size = 0;
    uint8_t *bytes = read_all(from, &size);
    bool fits = bytes != NULL && offset <= size && n <= size - offset;
    if (fits && n > 0) {
        memcpy(bytes + offset, with, n);
    }
    bool written = fits && write_all(to, bytes, size);
    free(bytes);
    return written;
}

bool copy_with_flips(const char *from, const char *to, uint64_t offset, size_t n)
{
    size_t size = 0;
    uint8_t *bytes = read_all(from, &size);
    bool fits = bytes != NULL && offset <= size && n <= size - offset;
    for (size_t i = 0; fits && i < n; i++) {
        bytes[offset + i] ^= 0xff;
    }
    bool written = fits && write_all(to, bytes, size);
    free(bytes);
    return written;
}
