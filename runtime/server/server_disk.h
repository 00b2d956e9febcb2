/* SPDX-License-Identifier: MIT */
/* Finished prompts kept in a folder, as session files, so that one that begins likewise goes on
 * from there, also after a restart. The library writes the files atomically, ties them to the
 * model's fingerprint and weights and checks them whole when they are read; a damaged one is
 * removed. The folder's files are never more than the limit; the one that was used longest ago
 * leaves first, by a counter of uses in the files' names, which no clock can put in disorder:
 * MODEL-TOKENS.USE.moe-session, hashes and the counter in hexadecimal. */
#ifndef SERVER_DISK_H
#define SERVER_DISK_H

#include <stddef.h>
#include <stdint.h>

#include <moe/moe.h>

#include "server.h"

typedef struct server_disk server_disk;

/* Makes the folder if it is missing, for its owner alone, since prompts are in it. NULL and one
 * line if it cannot be used. */
server_disk *server_disk_open(moe_engine *engine, const server_options *options, char *error,
                              size_t error_size);
void server_disk_close(server_disk **disk);

/* How many tokens the file that begins most like these shares with them; 0 without a disk. */
size_t server_disk_shared(const server_disk *disk, const int32_t *tokens, size_t n);
/* Reads that file. On failure the log says why, and the file is no longer used. */
int server_disk_load(server_disk *disk, const int32_t *tokens, size_t n, moe_session **out);
/* Writes the session, unless a file has nearly all of it; the log says what fails. */
void server_disk_keep(server_disk *disk, const moe_session *session);

#endif
