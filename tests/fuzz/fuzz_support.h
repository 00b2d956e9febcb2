/* SPDX-License-Identifier: MIT */
/* Shared by the targets: promises, files in memory, and checks of an opened GGUF file. */
#ifndef MOE_TESTS_FUZZ_SUPPORT_H
#define MOE_TESTS_FUZZ_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/model/gguf.h"

/* Aborts unless the promise holds. */
void fuzz_expect(int promise);

/* A file without a name on disk, for functions that take a path. */
typedef struct fuzz_file {
    int fd; /* 0: not made yet */
    char path[32];
} fuzz_file;
/* Makes the file hold these bytes and no others; returns its path. */
const char *fuzz_file_write(fuzz_file *file, const void *data, size_t size);

/* Calls every reader of the header, then reads the config and builds the tensor map, and checks
 * what they promise: references within their files, sizes that agree. */
void fuzz_check_model(const moe_gguf *gguf);

#endif
