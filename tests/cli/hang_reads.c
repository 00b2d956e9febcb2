/* SPDX-License-Identifier: MIT */
/* Preloaded into the command: from the HANG_FROM-th pread() on (1 is the first) reads get no
 * answer, as from a disk that hangs. HANG_ON: only reads of files with this text in their path are
 * counted and hang. SLOW_MS: each of those takes so long before that. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef ssize_t (*read_fn)(int, void *, size_t, off_t);

static atomic_int n_calls;

static bool is_meant(int fd)
{
    const char *part = getenv("HANG_ON");
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = part != NULL ? readlink(link, path, sizeof path - 1) : -1;
    path[size > 0 ? size : 0] = '\0';
    return part == NULL || strstr(path, part) != NULL;
}

/* The compiler names it pread64, as it does the library's calls. */
__attribute__((visibility("default"))) ssize_t pread(int fd, void *buffer, size_t size,
                                                     off_t offset)
{
    const char *from = getenv("HANG_FROM");
    const char *slow = getenv("SLOW_MS");
    if (slow != NULL && is_meant(fd)) {
        usleep(1000 * (unsigned)atoi(slow));
    }
    if (from != NULL && is_meant(fd) && atomic_fetch_add(&n_calls, 1) + 1 >= atoi(from)) {
        for (;;) {
            pause();
        }
    }
    read_fn next;
    *(void **)&next = dlsym(RTLD_NEXT, "pread64");
    return next(fd, buffer, size, offset);
}
