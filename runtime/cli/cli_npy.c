/* SPDX-License-Identifier: MIT */
#include "cli_npy.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define HEADER_BYTES 128

/* Magic, version 1.0, header size (little-endian u16), then a Python dictionary padded with spaces
 * so that the data starts at a multiple of 64. */
static void make_header(uint8_t *header, size_t n_rows, size_t n_columns)
{
    memset(header, ' ', HEADER_BYTES);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = HEADER_BYTES - 10;
    header[9] = 0;
    int size = snprintf((char *)header + 10, HEADER_BYTES - 10,
                        "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", n_rows,
                        n_columns);
    header[10 + size] = ' ';
    header[HEADER_BYTES - 1] = '\n';
}

bool cli_npy_create(cli_npy *npy, const char *path, size_t n_rows, size_t n_columns, moe_error *err)
{
    *npy = (cli_npy){.n_columns = n_columns, .rows_left = n_rows};
    if (moe_atomic_file_open(&npy->file, path, MOE_FILE_OR_DEVICE, err) != MOE_OK) {
        return false;
    }
    uint8_t header[HEADER_BYTES];
    make_header(header, n_rows, n_columns);
    if (moe_atomic_file_write(npy->file, header, sizeof header, err) != MOE_OK) {
        moe_atomic_file_abandon(&npy->file);
        return false;
    }
    return true;
}

/* Model files are little-endian, and so is every processor that the library supports. */
bool cli_npy_write_row(cli_npy *npy, const float *row, moe_error *err)
{
    npy->rows_left -= npy->rows_left > 0;
    return moe_atomic_file_write(npy->file, row, npy->n_columns * sizeof *row, err) == MOE_OK;
}

bool cli_npy_close(cli_npy *npy, bool keep, moe_error *err)
{
    if (keep && npy->rows_left == 0) {
        return moe_atomic_file_commit(&npy->file, err) == MOE_OK;
    }
    moe_atomic_file_abandon(&npy->file);
    return false;
}
