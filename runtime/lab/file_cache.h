/* SPDX-License-Identifier: MIT */
/* Finds out how much of a file is in the page cache, and drops it from there. */
#ifndef MOE_LAB_FILE_CACHE_H
#define MOE_LAB_FILE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

/* Asks the kernel to drop the file's pages. *cached: bytes that are still cached; false if that
 * cannot be determined. */
bool moe_file_cache_drop_fd(int fd, uint64_t file_bytes, uint64_t *cached);

#endif
