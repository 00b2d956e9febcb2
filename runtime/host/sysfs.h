/* SPDX-License-Identifier: MIT */
/* Small text files of /proc and /sys. A file that is absent or unreadable means "not known", never
 * an error: containers hide parts of these trees. */
#ifndef MOE_HOST_SYSFS_H
#define MOE_HOST_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the file's first size - 1 bytes, terminated. False, with out empty, when it cannot be read.
 */
__attribute__((format(printf, 3, 4))) bool moe_sysfs_read(char *out, size_t size,
                                                          const char *path_format, ...);

/* Reads the file up to the first newline, in the same way. */
__attribute__((format(printf, 3, 4))) bool moe_sysfs_read_line(char *out, size_t size,
                                                               const char *path_format, ...);

/* Reads a number. Returns false and leaves *value unless the file starts with a decimal number. */
__attribute__((format(printf, 2, 3))) bool moe_sysfs_read_u64(uint64_t *value,
                                                              const char *path_format, ...);

/* The number after `key` at the start of a line ("MemTotal:   123 kB"): false when there is none.
 */
bool moe_sysfs_find_u64(const char *text, const char *key, uint64_t *value);

#endif
