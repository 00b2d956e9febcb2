/* SPDX-License-Identifier: MIT */
/* Writes a float32 matrix as a NumPy .npy file (format 1.0), one row at a time. The file gets its
 * name only when it is complete. */
#ifndef CLI_NPY_H
#define CLI_NPY_H

#include <stdbool.h>
#include <stddef.h>

#include <moe/files.h>

typedef struct cli_npy {
    moe_atomic_file *file;
    size_t n_columns;
    size_t rows_left;
} cli_npy;

/* False, with a message, on failure; there is then nothing to close. */
bool cli_npy_create(cli_npy *npy, const char *path, size_t n_rows, size_t n_columns,
                    moe_error *err);
bool cli_npy_write_row(cli_npy *npy, const float *row, moe_error *err);
/* Ends the file: gives it its name if `keep` and all rows are there, else removes it. False if the
 * file did not get its name; prints a message if it should have. */
bool cli_npy_close(cli_npy *npy, bool keep, moe_error *err);

#endif
