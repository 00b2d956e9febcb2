/* SPDX-License-Identifier: MIT */
/* Where a file's bytes come from: a server that gives ranges of it, or a file on a slower drive. */
#ifndef FAR_ORIGIN_H
#define FAR_ORIGIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "far_http.h"

typedef struct far_origin far_origin;

/* Finds the file at the address, a URL or a path, and asks for its size and version. Prints what is
 * wrong; an exit code. stop: ends what is under way. */
int far_origin_open(far_origin **out, const char *address, const atomic_bool *stop);
void far_origin_close(far_origin **origin);

/* The address without its secrets: a name and password, and the part behind '?'. */
const char *far_origin_name(const far_origin *origin);
/* "HOST:PORT/FILE-DIGITS": a folder's name for the file at an address, without what no name may
 * have and without secrets; of a path "file/FILE-DIGITS". */
void far_origin_place(const char *address, char *out, size_t size);
/* The last part of the address's path, as a file's name. */
void far_origin_file_name(const char *address, char *out, size_t size);
uint64_t far_origin_size(const far_origin *origin);
/* A text that is another one for each version of the file. */
const char *far_origin_identity(const far_origin *origin);

/* Fetches this range, which the file has, into memory. Tries again what may succeed later. Returns
 * 0 or an errno, after printing what is wrong, once: ESTALE, the file has changed; ECANCELED,
 * stopped. Any thread. */
int far_origin_fetch(far_origin *origin, uint64_t offset, void *dst, size_t size);
/* Compares all of the file, which is at fd, with the checksum that a hub names for it. 0, also if
 * none is named; EBADMSG: it is another one, which is printed; or another errno. May take long. */
int far_origin_check(far_origin *origin, int fd);
/* Bytes fetched so far. */
uint64_t far_origin_fetched(const far_origin *origin);

#endif
