/* SPDX-License-Identifier: MIT */
#include "cli_npy.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Magic, version 1.0, header size (little-endian u16), then a Python dictionary padded with spaces
 * so that the data starts at a multiple of 64. */
static bool write_header(FILE *file, size_t n_rows, size_t n_columns)
{
    char header[128];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)(sizeof header - 10);
    header[9] = 0;
    int size = snprintf(header + 10, sizeof header - 10,
                        "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", n_rows,
                        n_columns);
    header[10 + size] = ' ';
    header[sizeof header - 1] = '\n';
    return fwrite(header, sizeof header, 1, file) == 1;
}

/* A pipe or a device is written to in place; only a file can be replaced when it is complete. */
static bool is_special(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode);
}

bool cli_npy_create(cli_npy *npy, const char *path, size_t n_rows, size_t n_columns)
{
    size_t size = strlen(path) + sizeof ".partial";
    memset(npy, 0, sizeof *npy);
    npy->path = path;
    npy->n_columns = n_columns;
    npy->rows_left = n_rows;
    npy->partial_path = malloc(size);
    if (npy->partial_path == NULL) {
        return false;
    }
    npy->in_place = is_special(path);
    snprintf(npy->partial_path, size, "%s%s", path, npy->in_place ? "" : ".partial");
    npy->file = fopen(npy->partial_path, "we");
    if (npy->file == NULL) {
        free(npy->partial_path);
        return false;
    }
    if (!write_header(npy->file, n_rows, n_columns)) {
        int error = errno;
        cli_npy_close(npy, false);
        errno = error;
        return false;
    }
    return true;
}

/* Model files are little-endian, and so is every processor that the library supports. */
bool cli_npy_write_row(cli_npy *npy, const float *row)
{
    if (npy->rows_left == 0 ||
        fwrite(row, sizeof *row, npy->n_columns, npy->file) != npy->n_columns) {
        return false;
    }
    npy->rows_left--;
    return true;
}

bool cli_npy_close(cli_npy *npy, bool keep)
{
    bool done = keep && npy->rows_left == 0;
    done = fclose(npy->file) == 0 && done;
    done = done && (npy->in_place || rename(npy->partial_path, npy->path) == 0);
    int error = errno;
    if (!done && !npy->in_place) {
        unlink(npy->partial_path);
    }
    free(npy->partial_path);
    memset(npy, 0, sizeof *npy);
    errno = error;
    return done;
}
