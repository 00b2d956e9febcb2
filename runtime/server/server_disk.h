/* SPDX-License-Identifier: MIT */
/* Keeps evaluated prompts as session files in a folder, so that a later prompt with the same
 * beginning need not be evaluated again, even after a restart.
 *
 * The library writes each file atomically, ties it to the model's fingerprint and weights, and
 * verifies it when it is read; damaged files are deleted. The total size of the folder's files is
 * limited: the file that was used longest ago is deleted first. The order of uses is a counter in
 * the file names, so it does not depend on clocks: MODEL-TOKENS.USE.moe-session, where MODEL and
 * TOKENS are hashes and USE is the counter, all in hexadecimal. */
#ifndef SERVER_DISK_H
#define SERVER_DISK_H

#include <stddef.h>
#include <stdint.h>

#include <moe/moe.h>

#include "server.h"

typedef struct server_disk server_disk;

/* Opens the folder. Creates it, readable by its owner alone, if it is missing, because it will hold
 * users' prompts. Returns NULL and one line in `error` if the folder cannot be used. */
server_disk *server_disk_open(moe_engine *engine, const server_options *options, char *error,
                              size_t error_size);
void server_disk_close(server_disk **disk);

/* Returns how many tokens these have in common with the file whose beginning is most like them. 0
 * if disk is NULL. */
size_t server_disk_shared(const server_disk *disk, const int32_t *tokens, size_t n);
/* Loads the session of the file whose beginning is most like the tokens. On failure, the log says
 * why, and the file is not used any more. */
int server_disk_load(server_disk *disk, const int32_t *tokens, size_t n, moe_session **out);
/* Writes the session to a file, unless some file already holds nearly all of it. Failures are
 * logged. */
void server_disk_keep(server_disk *disk, const moe_session *session);

#endif
