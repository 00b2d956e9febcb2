/* SPDX-License-Identifier: MIT */
#include "npy_file.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *read_values(FILE *file, size_t *n_rows, size_t *n_columns)
{
    uint8_t head[10];
    char text[4096];
    if (fread(head, 1, sizeof head, file) != sizeof head || memcmp(head, "\x93NUMPY\x01", 7) != 0) {
        return NULL;
    }
    size_t size = head[8] + 256u * head[9];
    if (size >= sizeof text || fread(text, 1, size, file) != size) {
        return NULL;
    }
    text[size] = '\0';
    const char *shape = strstr(text, "'shape': (");
    if (strstr(text, "'<f4'") == NULL || shape == NULL ||
        sscanf(shape, "'shape': (%zu, %zu)", n_rows, n_columns) != 2) {
        return NULL;
    }
    size_t n = *n_rows * *n_columns;
    float *values = malloc(n * sizeof *values);
    if (values != NULL && fread(values, sizeof *values, n, file) != n) {
        free(values);
        return NULL;
    }
    return values;
}

float *npy_read(const char *path, size_t *n_rows, size_t *n_columns)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    float *values = read_values(file, n_rows, n_columns);
    fclose(file);
    return values;
}

int *ints_read(const char *path, int line, size_t *n)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return NULL;
    }
    char *text = NULL;
    size_t capacity = 0;
    for (int i = 0; i <= line; i++) {
        if (getline(&text, &capacity, file) < 0) {
            free(text);
            fclose(file);
            return NULL;
        }
    }
    fclose(file);
    int *values = malloc((strlen(text) / 2 + 1) * sizeof *values);
    *n = 0;
    char *end = text;
    for (char *p = text; values != NULL; p = end) {
        long value = strtol(p, &end, 10);
        if (end == p) {
            break;
        }
        values[(*n)++] = (int)value;
    }
    free(text);
    return values;
}
