/* SPDX-License-Identifier: MIT */
/* Files that are written whole or not at all, and files that are read without waiting for a pipe.
 * The library writes and reads everything that it keeps in this way; a program that keeps something
 * beside it may do the same. Errors and ownership are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *   free: moe_atomic_file_open, moe_input_open, moe_input_stream
 *   own:  moe_atomic_file_write, moe_atomic_file_stream, moe_atomic_file_sync,
 *         moe_atomic_file_commit, moe_atomic_file_abandon */
#ifndef MOE_FILES_H
#define MOE_FILES_H

#include <stddef.h>
#include <stdio.h>

#include <moe/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Writing ------------------------------------------------------------------------------- */

/* A file that replaces the one at its path when it is complete:
 *
 *   open: moe-offload-RANDOM.tmp in the same folder, new, never through a link
 *      |--- write, write to the stream ---> commit: synced, renamed over the path, folder synced
 *      '----------------------------------> abandon, or any error: removed
 *
 * Until the rename, and after every error except one, the old file stays as it is. The exception:
 * if the folder cannot be synced, the new file is in place, and the error says that it may be lost
 * in a power cut. A link at the path is replaced, not followed. A killed process leaves its
 * temporary file, which the next writer in that folder removes. Of two writers the last to commit
 * wins. */
typedef struct moe_atomic_file moe_atomic_file;

typedef enum moe_atomic_file_flags {
    MOE_FILE_PRIVATE = 1, /* only the owner may read it (0600); otherwise as the umask says */
    /* Writes to a device, a pipe or a socket at the path in place. Without this flag, anything at
     * the path but a regular file or a link is an error. */
    MOE_FILE_OR_DEVICE = 2
} moe_atomic_file_flags;

/* MOE_ERR_IO: the folder cannot be written to, or the thing at the path must not be replaced. */
MOE_API int moe_atomic_file_open(moe_atomic_file **out, const char *path, unsigned flags,
                                 moe_error *err);
MOE_API int moe_atomic_file_write(moe_atomic_file *file, const void *data, size_t size,
                                  moe_error *err);
/* A stream for fprintf() and the like. Do not close it. sync and commit report its errors. */
MOE_API FILE *moe_atomic_file_stream(moe_atomic_file *file);
/* Brings everything so far to the disk, still under the temporary name, so that commit only has to
 * rename. Optional; use it to replace two files together. */
MOE_API int moe_atomic_file_sync(moe_atomic_file *file, moe_error *err);
/* Both functions end the writing, also on failure, and set *file to NULL. */
MOE_API int moe_atomic_file_commit(moe_atomic_file **file, moe_error *err);
MOE_API void moe_atomic_file_abandon(moe_atomic_file **file);

/* ---- Reading ------------------------------------------------------------------------------- */

typedef enum moe_input_flags {
    /* Also accepts inputs that the caller has already opened, such as <(COMMAND) and /dev/stdin: a
     * pipe without a name, or the same file as standard input, of any kind. */
    MOE_INPUT_PIPES = 1
} moe_input_flags;

/* Opens a regular file for reading, as *fd, which the caller closes. Anything else is MOE_ERR_IO
 * and "is not a regular file": in particular a named pipe, which would keep the caller waiting for
 * a writer, perhaps for ever. */
MOE_API int moe_input_open(int *fd, const char *path, unsigned flags, moe_error *err);
/* Opens the file as a stream. After an error returns NULL, with the error's status in *status. */
MOE_API FILE *moe_input_stream(const char *path, unsigned flags, int *status, moe_error *err);

#ifdef __cplusplus
}
#endif
#endif
