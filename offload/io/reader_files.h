/* SPDX-License-Identifier: MIT */
/* The files of a range reader: each with a descriptor for buffered reads and, where the file system
 * allows it, one for direct reads. */
#ifndef MOE_OFFLOAD_READER_FILES_H
#define MOE_OFFLOAD_READER_FILES_H

#include "offload/io/range_reader.h"

typedef struct moe_reader_file {
    char *path; /* for messages */
    uint64_t size;
    bool direct; /* read with O_DIRECT until that fails */
} moe_reader_file;

typedef struct moe_reader_files {
    uint32_t n_files;
    moe_reader_file *files; /* [n_files] */
    int *fds; /* [2 * n_files]: descriptors for direct reads (buffered where a file has none), then
               * for buffered reads */
    size_t alignment;  /* of buffers, offsets and sizes; a power of two */
    char refusal[256]; /* why the first file without direct reads has none, or "" */
} moe_reader_files;

/* Least alignment: a page. The kernel often allows 512 bytes, but the device's own block is mostly
 * 4 KiB, and a read that begins inside one costs a whole one. */
#define MOE_READER_ALIGNMENT 4096u

int moe_reader_files_open(moe_reader_files *out, const moe_range_file *files, uint32_t n_files,
                          bool buffered, moe_error *err);
void moe_reader_files_close(moe_reader_files *files);

/* The file's current size: smaller than at opening if somebody truncated it. */
uint64_t moe_reader_files_size_now(const moe_reader_files *files, uint32_t file);

#endif
