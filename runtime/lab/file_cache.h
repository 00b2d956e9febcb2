/* SPDX-License-Identifier: MIT */
/* The page cache's share in a file. */
#ifndef MOE_LAB_FILE_CACHE_H
#define MOE_LAB_FILE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

/* Asks the kernel to drop the file's pages. *cached: bytes that it caches all the same; false when
 * that cannot be told. */
bool moe_file_cache_drop_fd(int fd, uint64_t file_bytes, uint64_t *cached);

#endif
