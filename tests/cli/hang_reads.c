/* SPDX-License-Identifier: MIT */
/* Preloaded into the command: from the HANG_FROM-th pread() on (1 is the first) reads get no
 * answer, as from a disk that hangs. HANG_AS: "eio", they fail; "short", they bring only a half.
 * HANG_ON: only reads of files with this text in their path are counted and hang. HANG_BEGIN,
 * HANG_END: only those that overlap these bytes of the file. HANG_MOST: only those of so many bytes
 * at most. SLOW_MS: each of those takes so long before that. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef ssize_t (*read_fn)(int, void *, size_t, off_t);

static atomic_int n_calls;

static long long number(const char *name, long long otherwise)
{
    const char *value = getenv(name);
    return value != NULL ? atoll(value) : otherwise;
}

static bool is_meant(int fd, size_t size, off_t offset)
{
    const char *part = getenv("HANG_ON");
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = part != NULL ? readlink(link, path, sizeof path - 1) : -1;
    path[length > 0 ? length : 0] = '\0';
    return (part == NULL || strstr(path, part) != NULL) &&
           (long long)size <= number("HANG_MOST", INT64_MAX) &&
           offset < number("HANG_END", INT64_MAX) && offset + (off_t)size > number("HANG_BEGIN", 0);
}

/* The compiler names it pread64, as it does the library's calls. */
__attribute__((visibility("default"))) ssize_t pread(int fd, void *buffer, size_t size,
                                                     off_t offset)
{
    const char *from = getenv("HANG_FROM");
    const char *slow = getenv("SLOW_MS");
    const char *as = getenv("HANG_AS");
    if (slow != NULL && is_meant(fd, size, offset)) {
        usleep(1000 * (unsigned)atoi(slow));
    }
    if (from != NULL && is_meant(fd, size, offset) &&
        atomic_fetch_add(&n_calls, 1) + 1 >= atoi(from)) {
        if (as != NULL && strcmp(as, "eio") == 0) {
            errno = EIO;
            return -1;
        }
        size = as != NULL && size > 1 ? size / 2 : size;
        while (as == NULL) {
            pause();
        }
    }
    read_fn next;
    *(void **)&next = dlsym(RTLD_NEXT, "pread64");
    return next(fd, buffer, size, offset);
}
