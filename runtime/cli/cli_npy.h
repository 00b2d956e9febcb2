/* SPDX-License-Identifier: MIT */
/* Writes a float32 matrix as a NumPy .npy file (format 1.0), one row at a time. The file gets its
 * name only when it is complete. */
#ifndef CLI_NPY_H
#define CLI_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct cli_npy {
    FILE *file;
    char *partial_path;
    const char *path;
    size_t n_columns;
    size_t rows_left;
    bool in_place; /* a pipe or a device, which cannot be replaced */
} cli_npy;

/* False, with errno set, on failure; there is then nothing to close. */
bool cli_npy_create(cli_npy *npy, const char *path, size_t n_rows, size_t n_columns);
bool cli_npy_write_row(cli_npy *npy, const float *row);
/* Ends the file: renames it if keep and all rows are there, else removes it. False, with errno set,
 * when it could not be completed. */
bool cli_npy_close(cli_npy *npy, bool keep);

#endif
