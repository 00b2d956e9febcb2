/* SPDX-License-Identifier: MIT */
#ifndef MOE_TESTS_NPY_FILE_H
#define MOE_TESTS_NPY_FILE_H

#include <stddef.h>

/* Reads a little-endian float32 matrix of npy version 1. Returns malloc'ed values, or NULL. */
float *npy_read(const char *path, size_t *n_rows, size_t *n_columns);

/* The integers of one line of a file (line 0 is the first). Returns malloc'ed values, or NULL. */
int *ints_read(const char *path, int line, size_t *n);

#endif
