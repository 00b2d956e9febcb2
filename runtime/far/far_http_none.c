/* SPDX-License-Identifier: MIT */
/* A build without libcurl. */
#include "far_http.h"

#include <errno.h>

#include "cli_options.h"

int far_http_open(far_http **out, const char *url, const char *name, const atomic_bool *stop,
                  uint64_t *size, char identity[FAR_IDENTITY_SIZE])
{
    (void)url, (void)stop, (void)size, (void)identity;
    *out = NULL;
    return cli_fail(CLI_EXIT_FAILURE,
                    "%s: this build asks no servers: build it with libcurl and libcrypto (Debian: "
                    "libcurl4-openssl-dev, libssl-dev)",
                    name);
}

void far_http_close(far_http **http)
{
    *http = NULL;
}

int far_http_check(far_http *http, int fd)
{
    (void)http, (void)fd;
    return 0;
}

int far_http_fetch(far_http *http, uint64_t offset, void *dst, size_t size)
{
    (void)http, (void)offset, (void)dst, (void)size;
    return ENOTSUP;
}
