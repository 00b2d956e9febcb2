/* SPDX-License-Identifier: MIT */
/* A file on a web server. far_http_none.c stands in for it in a build without libcurl. */
#ifndef FAR_HTTP_H
#define FAR_HTTP_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { FAR_IDENTITY_SIZE = 256 };

typedef struct far_http far_http;

/* Asks for the first byte: sets the size and the identity. name: in messages; stays the caller's,
 * as url does. Prints what is wrong; an exit code. */
int far_http_open(far_http **out, const char *url, const char *name, const atomic_bool *stop,
                  uint64_t *size, char identity[FAR_IDENTITY_SIZE]);
void far_http_close(far_http **http);
/* As far_origin_fetch(). */
int far_http_fetch(far_http *http, uint64_t offset, void *dst, size_t size);
/* As far_origin_check(). */
int far_http_check(far_http *http, int fd);

#endif
