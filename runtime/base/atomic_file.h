/* SPDX-License-Identifier: MIT */
/* A file that appears whole or not at all: written to PATH.tmp, synced, renamed over PATH. Whatever
 * kills the process leaves the old file or the new one, and at most one PATH.tmp, which the next
 * writer reuses; two writers of one path exclude each other by a lock on it. */
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
/* Makes the file appear. Ends the writing, also on failure. */
int moe_atomic_file_commit(moe_atomic_file *file, moe_error *err);
/* Forgets what was written. */
void moe_atomic_file_abandon(moe_atomic_file *file);

#endif
