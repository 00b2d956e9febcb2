/* SPDX-License-Identifier: MIT */
#include "far_origin.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli_hash.h"
#include "cli_options.h"
#include "far_http.h"

struct far_origin {
    char *address, *name;
    uint64_t size;
    char identity[FAR_IDENTITY_SIZE];
    far_http *http; /* NULL: a file */
    int fd;
    struct timespec modified; /* of a file */
    atomic_bool told;         /* that the file cannot be read */
    _Atomic uint64_t fetched;
};

static bool is_of_server(const char *address)
{
    return strncmp(address, "http://", 7) == 0 || strncmp(address, "https://", 8) == 0;
}

static int open_file(far_origin *o)
{
    struct stat facts;
    o->fd = open(o->address, O_RDONLY | O_CLOEXEC);
    if (o->fd < 0 || fstat(o->fd, &facts) != 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s cannot be opened: %s", o->address, strerror(errno));
    }
    if (!S_ISREG(facts.st_mode)) {
        return cli_fail(CLI_EXIT_FAILURE, "%s is not a file", o->address);
    }
    o->size = (uint64_t)facts.st_size;
    o->modified = facts.st_mtim;
    snprintf(o->identity, sizeof o->identity, "%" PRIu64 " %lld.%09ld", o->size,
             (long long)facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec);
    return CLI_EXIT_OK;
}

/* The address without its secrets: a name and password, and the part behind '?'. */
static char *name_of(const char *address)
{
    char *name = strndup(address, strcspn(address, "?#"));
    char *host = name != NULL && is_of_server(name) ? strstr(name, "://") + 3 : NULL;
    char *user = host != NULL ? memchr(host, '@', strcspn(host, "/")) : NULL;
    if (user != NULL) {
        memmove(host, user + 1, strlen(user + 1) + 1);
    }
    return name;
}

int far_origin_open(far_origin **out, const char *address, const atomic_bool *stop)
{
    far_origin *o = calloc(1, sizeof *o);
    *out = NULL;
    if (o == NULL || (o->address = strdup(address)) == NULL ||
        (o->name = name_of(address)) == NULL) {
        far_origin_close(&o);
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for a file's address");
    }
    o->fd = -1;
    int code = is_of_server(address)
                   ? far_http_open(&o->http, o->address, o->name, stop, &o->size, o->identity)
                   : open_file(o);
    if (code != CLI_EXIT_OK) {
        far_origin_close(&o);
        return code;
    }
    *out = o;
    return CLI_EXIT_OK;
}

void far_origin_close(far_origin **origin)
{
    far_origin *o = *origin;
    if (o != NULL) {
        far_http_close(&o->http);
        if (o->fd >= 0) {
            close(o->fd);
        }
        free(o->address);
        free(o->name);
        free(o);
    }
    *origin = NULL;
}

const char *far_origin_name(const far_origin *origin)
{
    return origin->name;
}

static void make_plain(char *text)
{
    for (char *at = text; *at != '\0'; at++) {
        bool plain = isalnum((unsigned char)*at) || strchr("-._:/", *at) != NULL;
        *at = plain ? *at : '_';
    }
    if (text[0] == '.') {
        text[0] = '_';
    }
}

void far_origin_file_name(const char *address, char *out, size_t size)
{
    int length = (int)strcspn(address, "?#");
    int from = length;
    while (from > 0 && address[from - 1] != '/') {
        from--;
    }
    snprintf(out, size, "%.*s", length - from < 200 ? length - from : 200, address + from);
    make_plain(out);
}

/* The digits are of the whole address, since two may be spelt alike without some bytes. */
void far_origin_place(const char *address, char *out, size_t size)
{
    char hex[CLI_HASH_HEX_SIZE], file[256];
    const char *scheme = strstr(address, "://");
    const char *host = scheme != NULL ? scheme + 3 : "file";
    int n_host = (int)strcspn(host, "/?#");
    const char *user = memchr(host, '@', (size_t)n_host);
    if (user != NULL) { /* a password is no name of a folder */
        n_host -= (int)(user + 1 - host);
        host = user + 1;
    }
    cli_hash_bytes(address, strcspn(address, "?#"), 0, hex);
    far_origin_file_name(address, file, sizeof file);
    snprintf(out, size, "%.*s/%.80s-%.8s", n_host < 200 ? n_host : 200, host, file, hex);
    make_plain(out);
}

uint64_t far_origin_size(const far_origin *origin)
{
    return origin->size;
}

const char *far_origin_identity(const far_origin *origin)
{
    return origin->identity;
}

static int fail_file(far_origin *o, int error)
{
    if (!atomic_exchange(&o->told, true)) {
        (void)cli_fail(0, "%s cannot be read: %s", o->name,
                       error == ESTALE ? "it is another file than when it was opened"
                                       : strerror(error));
    }
    return error;
}

static int read_file(far_origin *o, uint64_t offset, uint8_t *dst, size_t size)
{
    struct stat facts;
    while (size > 0) {
        ssize_t n = pread(o->fd, dst, size, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return fail_file(o, n < 0 ? errno : ESTALE);
        }
        dst += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    bool same = fstat(o->fd, &facts) == 0 && facts.st_mtim.tv_sec == o->modified.tv_sec &&
                facts.st_mtim.tv_nsec == o->modified.tv_nsec;
    return same ? 0 : fail_file(o, ESTALE);
}

int far_origin_fetch(far_origin *o, uint64_t offset, void *dst, size_t size)
{
    int error = o->http != NULL ? far_http_fetch(o->http, offset, dst, size)
                                : read_file(o, offset, dst, size);
    atomic_fetch_add(&o->fetched, error == 0 ? size : 0);
    return error;
}

int far_origin_check(far_origin *o, int fd)
{
    return o->http != NULL ? far_http_check(o->http, fd) : 0;
}

uint64_t far_origin_fetched(const far_origin *origin)
{
    return atomic_load(&origin->fetched);
}
