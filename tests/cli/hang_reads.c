/* SPDX-License-Identifier: MIT */
/* Preloaded into the command: from the HANG_FROM-th pread() on (1 is the first) reads are not
 * answered, as by a disk that hangs. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

typedef ssize_t (*read_fn)(int, void *, size_t, off_t);

static atomic_int n_calls;

/* The compiler names it pread64, as it does the library's calls. */
__attribute__((visibility("default"))) ssize_t pread(int fd, void *buffer, size_t size,
                                                     off_t offset)
{
    const char *from = getenv("HANG_FROM");
    if (from != NULL && atomic_fetch_add(&n_calls, 1) + 1 >= atoi(from)) {
        for (;;) {
            pause();
        }
    }
    read_fn next;
    *(void **)&next = dlsym(RTLD_NEXT, "pread64");
    return next(fd, buffer, size, offset);
}
