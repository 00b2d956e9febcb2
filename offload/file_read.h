/* SPDX-License-Identifier: MIT */
#ifndef MOE_OFFLOAD_FILE_READ_H
#define MOE_OFFLOAD_FILE_READ_H

#include "runtime/model/gguf.h"

/* Reads exactly size bytes at offset: interrupted and short reads are continued, an early end of
 * file is MOE_ERR_IO that names the file and the offset. Any thread. */
int moe_file_read(const moe_gguf_file *file, uint64_t offset, void *dst, uint64_t size,
                  moe_error *err);

#endif
