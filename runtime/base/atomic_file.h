/* SPDX-License-Identifier: MIT */
/* A file that is replaced whole or not at all: written to PATH.tmp, synced, renamed over PATH. If
 * the process is killed, the old or the new file remains, and at most one PATH.tmp, which the next
 * writer reuses. A lock on PATH.tmp excludes a second writer. */
#ifndef MOE_BASE_ATOMIC_FILE_H
#define MOE_BASE_ATOMIC_FILE_H

#include <stddef.h>
#include <stdio.h>

#include <moe/status.h>

typedef struct moe_atomic_file {
    FILE *stream;
    char *path;
    char *temporary;
} moe_atomic_file;

int moe_atomic_file_open(moe_atomic_file *file, const char *path, moe_error *err);
int moe_atomic_file_write(moe_atomic_file *file, const void *data, size_t size, moe_error *err);
/* Renames the file to its final name. Ends the writing, also on failure. */
int moe_atomic_file_commit(moe_atomic_file *file, moe_error *err);
/* Discards what was written. */
void moe_atomic_file_abandon(moe_atomic_file *file);

#endif
