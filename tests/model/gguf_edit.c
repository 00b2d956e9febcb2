/* SPDX-License-Identifier: MIT */
/* New keys go in front of the others, and a filler behind them makes their size a multiple of the
 * alignment, so that everything behind keeps its place within it. */
#include "tests/model/gguf_edit.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER    24 /* magic, version, number of tensors, number of keys */
#define ALIGNMENT 32
#define MAX_ADDED 8192

typedef struct addition {
    uint8_t bytes[MAX_ADDED];
    size_t size;
    uint64_t n_keys;
} addition;

static void put(addition *a, const void *bytes, size_t n)
{
    if (n > MAX_ADDED - a->size) {
        abort();
    }
    memcpy(a->bytes + a->size, bytes, n);
    a->size += n;
}

static void put_text(addition *a, const char *text, size_t n)
{
    uint64_t size = n;
    put(a, &size, sizeof size);
    put(a, text, n);
}

static void put_key(addition *a, const char *key, size_t n, uint32_t type)
{
    put_text(a, key, n);
    put(a, &type, sizeof type);
    a->n_keys++;
}

static void put_numbers(addition *a, const char *value)
{
    uint32_t type = 4; /* of the elements: u32 */
    uint64_t n = 1;
    for (const char *c = value; *c != '\0'; c++) {
        n += *c == ',';
    }
    put(a, &type, sizeof type);
    put(a, &n, sizeof n);
    for (char *end; n > 0; n--, value = end + 1) {
        uint32_t number = (uint32_t)strtoul(value, &end, 10);
        put(a, &number, sizeof number);
    }
}

/* "key=type:value" */
static bool add(addition *a, const char *edit)
{
    const char *equals = strchr(edit, '=');
    const char *colon = equals == NULL ? NULL : strchr(equals, ':');
    if (colon == NULL) {
        return false;
    }
    size_t n_key = (size_t)(equals - edit);
    size_t n_type = (size_t)(colon - equals - 1);
    const char *type = equals + 1;
    const char *value = colon + 1;
    if (n_type == 3 && memcmp(type, "u32", 3) == 0) {
        uint32_t number = (uint32_t)strtoul(value, NULL, 10);
        put_key(a, edit, n_key, 4);
        put(a, &number, sizeof number);
    } else if (n_type == 3 && memcmp(type, "f32", 3) == 0) {
        float number = strtof(value, NULL);
        put_key(a, edit, n_key, 6);
        put(a, &number, sizeof number);
    } else if (n_type == 4 && memcmp(type, "bool", 4) == 0) {
        uint8_t number = value[0] == '1';
        put_key(a, edit, n_key, 7);
        put(a, &number, sizeof number);
    } else if (n_type == 3 && memcmp(type, "str", 3) == 0) {
        put_key(a, edit, n_key, 8);
        put_text(a, value, strlen(value));
    } else if (n_type == 4 && memcmp(type, "u32s", 4) == 0) {
        put_key(a, edit, n_key, 9);
        put_numbers(a, value);
    } else {
        return false;
    }
    return true;
}

static void fill_up(addition *a)
{
    static const char spaces[ALIGNMENT] = "                               ";
    static const char key[] = "general.filler";
    put_key(a, key, sizeof key - 1, 8);
    size_t used = a->size + sizeof(uint64_t);
    put_text(a, spaces, (ALIGNMENT - used % ALIGNMENT) % ALIGNMENT);
}

static bool hide(uint8_t *bytes, size_t size, const char *key)
{
    uint64_t n = strlen(key);
    for (size_t i = HEADER; i + sizeof n + n <= size; i++) {
        if (memcmp(bytes + i, &n, sizeof n) == 0 && memcmp(bytes + i + sizeof n, key, n) == 0) {
            bytes[i + sizeof n] = 'X';
            return true;
        }
    }
    return false;
}

static uint8_t *read_all(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = NULL;
    if (f == NULL) {
        return NULL;
    }
    fseek(f, 0, SEEK_END);
    long end = ftell(f);
    rewind(f);
    if (end > HEADER && (bytes = malloc((size_t)end)) != NULL &&
        fread(bytes, 1, (size_t)end, f) != (size_t)end) {
        free(bytes);
        bytes = NULL;
    }
    *size = bytes != NULL ? (size_t)end : 0;
    fclose(f);
    return bytes;
}

static bool write_all(const char *path, const uint8_t *bytes, size_t size, const addition *a)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL) {
        return false;
    }
    bool written = fwrite(bytes, 1, HEADER, f) == HEADER &&
                   fwrite(a->bytes, 1, a->size, f) == a->size &&
                   fwrite(bytes + HEADER, 1, size - HEADER, f) == size - HEADER;
    return fclose(f) == 0 && written;
}

int gguf_edit(const char *in, const char *out, const char *const *edits, size_t n)
{
    size_t size;
    uint8_t *bytes = read_all(in, &size);
    addition *a = calloc(1, sizeof *a);
    bool done = bytes != NULL && a != NULL;
    for (size_t i = 0; done && i < n; i++) {
        done = edits[i][0] == '-' ? hide(bytes, size, edits[i] + 1) : add(a, edits[i]);
        if (!done) {
            fprintf(stderr, "edit '%s' cannot be made in %s\n", edits[i], in);
        }
    }
    if (done) {
        fill_up(a);
        uint64_t n_keys;
        memcpy(&n_keys, bytes + 16, sizeof n_keys);
        n_keys += a->n_keys;
        memcpy(bytes + 16, &n_keys, sizeof n_keys);
        done = write_all(out, bytes, size, a);
    }
    free(bytes);
    free(a);
    return done ? 0 : -1;
}
