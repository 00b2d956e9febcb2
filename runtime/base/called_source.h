/* SPDX-License-Identifier: MIT */
#ifndef MOE_BASE_CALLED_SOURCE_H
#define MOE_BASE_CALLED_SOURCE_H

#include "runtime/base/byte_source.h"

/* As moe_read_fn of moe.h: like pread(), may wait, and is called on any thread. */
typedef int64_t (*moe_called_read_fn)(const char *path, void *dst, size_t size, uint64_t offset,
                                      void *user);

/* A file that `read` reads. It holds `file`, which says its name and size. */
int moe_called_source_open(moe_byte_source **out, moe_byte_source *file, moe_called_read_fn read,
                           void *user, moe_error *err);

#endif
