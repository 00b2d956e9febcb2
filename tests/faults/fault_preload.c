/* SPDX-License-Identifier: MIT */
/* Preloaded (LD_PRELOAD) into the command or a test program: calls of the C library and of liburing
 * that the program itself makes go wrong as the page says. Calls from other libraries do not, as
 * what hwloc does without memory is not under test.
 *
 *   driver --> fault_page (a mapped file) --> choose() <-- a hook of every call --> the true call
 *
 * Which calls go wrong is a function of seed, class and the call's number in its class, so that a
 * run of one thread repeats itself. Hooks for io_uring are in fault_ring.c. */
#include "tests/faults/fault_hooks.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANGES 4
#define MAX_FDS    1024
#define LOOK_NS    2000000
#define SPOILT     0xa5
#define STREAM_ERR 0x20 /* glibc's _IO_ERR_SEEN */

static fault_page *page;
static struct {
    uintptr_t begin, end;
} own[MAX_RANGES];
static int n_own;
static _Atomic unsigned char is_eventfd[MAX_FDS];

/* The program itself, and the library where it is a shared one. */
static int note_object(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    int *index = user;
    if ((*index)++ == 0 || strstr(info->dlpi_name, "libmoe_offload") != NULL) {
        for (int i = 0; i < info->dlpi_phnum && n_own < MAX_RANGES; i++) {
            const ElfW(Phdr) *p = &info->dlpi_phdr[i];
            if (p->p_type == PT_LOAD && (p->p_flags & PF_X) != 0) {
                own[n_own].begin = info->dlpi_addr + p->p_vaddr;
                own[n_own++].end = info->dlpi_addr + p->p_vaddr + p->p_memsz;
            }
        }
    }
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    int index = 0;
    const char *path = getenv("FAULT_PAGE");
    int fd = path == NULL ? -1 : (open)(path, O_RDWR | O_CLOEXEC);
    dl_iterate_phdr(note_object, &index);
    if (fd >= 0) {
        void *mapped = (mmap)(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (mapped != MAP_FAILED) {
            page = mapped;
            atomic_store(&page->loaded, 1);
        }
    }
}

void *fault_true_call(const char *name)
{
    void *call = dlsym(RTLD_NEXT, name);
    if (call == NULL) {
        static const char text[] = "fault_preload: a call is missing\n";
        ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
        (void)written;
        _exit(99);
    }
    return call;
}

static bool is_own(const void *caller)
{
    for (int i = 0; i < n_own; i++) {
        if ((uintptr_t)caller >= own[i].begin && (uintptr_t)caller < own[i].end) {
            return true;
        }
    }
    return false;
}

static uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void wait_us(uint32_t us)
{
    struct timespec time = {us / 1000000u, (long)(us % 1000000u) * 1000};
    nanosleep(&time, NULL);
}

fault_chosen fault_choose(const void *caller, fault_class class, unsigned kinds)
{
    fault_chosen none = {.kind = FAULT_KINDS};
    if (page == NULL || !atomic_load(&page->armed) || (caller != NULL && !is_own(caller))) {
        return none;
    }
    uint64_t n = atomic_fetch_add(&page->n_calls[class], 1);
    uint64_t random = mixed(atomic_load(&page->seed) ^ mixed(((uint64_t) class << 56) ^ n));
    fault_chosen chosen = {.kind = FAULT_KINDS, .random = mixed(random)};
    uint64_t at = random % 1000000u;
    for (int kind = 0; kind < FAULT_KINDS && chosen.kind == FAULT_KINDS; kind++) {
        uint32_t rate = atomic_load(&page->rates[class][kind]);
        if ((kinds & (1u << kind)) != 0 && at < rate) {
            chosen.kind = (fault_kind)kind;
        }
        at = at < rate ? 1000000u : at - rate;
    }
    unsigned nth_kind = atomic_load(&page->nth_kind);
    if ((int64_t)n == atomic_load(&page->nth) && class == atomic_load(&page->nth_class) &&
        (kinds & (1u << nth_kind)) != 0) {
        chosen.kind = (fault_kind)nth_kind;
    }
    if (chosen.kind != FAULT_KINDS) {
        atomic_fetch_add(&page->n_faults[class][chosen.kind], 1);
    }
    if (chosen.kind == FAULT_LATE) {
        wait_us(atomic_load(&page->late_us));
    }
    return chosen;
}

void fault_uncount(fault_class class, fault_kind kind)
{
    atomic_fetch_sub(&page->n_faults[class][kind], 1);
}

bool fault_let_go(void)
{
    return page != NULL && atomic_load(&page->let_go) != 0;
}

/* As long as a read hangs. */
static void hang(void)
{
    for (uint64_t ms = 0; !atomic_load(&page->let_go) && ms < atomic_load(&page->hang_ms);
         ms += LOOK_NS / 1000000) {
        wait_us(LOOK_NS / 1000);
    }
}

static int one_of(fault_chosen chosen, const int *errors, size_t n)
{
    return errors[chosen.random % n];
}

#define ERROR_OF(chosen, ...)                                                                      \
    one_of(chosen, (const int[]){__VA_ARGS__}, sizeof((const int[]){__VA_ARGS__}) / sizeof(int))
#define CALLER    __builtin_return_address(0)
#define BIT(kind) (1u << FAULT_##kind)
#define HOOK      __attribute__((visibility("default")))

/* The call as it is, unless it fails or is late. */
#define PLAIN_HOOK(type, bad, class, name, parameters, arguments, ...)                             \
    HOOK type name parameters                                                                      \
    {                                                                                              \
        static type(*true_call) parameters;                                                        \
        if (true_call == NULL) {                                                                   \
            true_call = fault_true_call(#name);                                                    \
        }                                                                                          \
        fault_chosen chosen = fault_choose(CALLER, class, BIT(FAIL) | BIT(LATE));                  \
        if (chosen.kind == FAULT_FAIL) {                                                           \
            errno = ERROR_OF(chosen, __VA_ARGS__);                                                 \
            return bad;                                                                            \
        }                                                                                          \
        return true_call arguments;                                                                \
    }

/* ---- Opening and asking ---- */

static mode_t mode_in(int flags, va_list list)
{
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

HOOK int open64(const char *path, int flags, ...)
{
    static int (*true_call)(const char *, int, ...);
    va_list list;
    va_start(list, flags);
    mode_t mode = mode_in(flags, list);
    va_end(list);
    if (true_call == NULL) {
        true_call = fault_true_call("open64");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_OPEN, BIT(FAIL) | BIT(LATE));
    if (chosen.kind == FAULT_FAIL) {
        errno = (flags & O_DIRECT) != 0 ? ERROR_OF(chosen, EINVAL, EMFILE, EINTR)
                                        : ERROR_OF(chosen, EMFILE, ENFILE, EACCES, EIO, EINTR);
        return -1;
    }
    return true_call(path, flags, mode);
}

HOOK int openat64(int folder, const char *path, int flags, ...)
{
    static int (*true_call)(int, const char *, int, ...);
    va_list list;
    va_start(list, flags);
    mode_t mode = mode_in(flags, list);
    va_end(list);
    if (true_call == NULL) {
        true_call = fault_true_call("openat64");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_OPEN, BIT(FAIL) | BIT(LATE));
    if (chosen.kind == FAULT_FAIL) {
        errno = ERROR_OF(chosen, EMFILE, ENFILE, EACCES, ENOSPC, EIO);
        return -1;
    }
    return true_call(folder, path, flags, mode);
}

PLAIN_HOOK(FILE *, NULL, FAULT_OPEN, fopen64, (const char *path, const char *mode), (path, mode),
           EMFILE, ENOMEM, EACCES, EINTR)
PLAIN_HOOK(FILE *, NULL, FAULT_OPEN, fdopen, (int fd, const char *mode), (fd, mode), ENOMEM)
PLAIN_HOOK(DIR *, NULL, FAULT_OPEN, opendir, (const char *path), (path), EMFILE, ENOMEM, EACCES)
PLAIN_HOOK(DIR *, NULL, FAULT_OPEN, fdopendir, (int fd), (fd), ENOMEM)
PLAIN_HOOK(ssize_t, -1, FAULT_READ, getrandom, (void *bytes, size_t size, unsigned flags),
           (bytes, size, flags), ENOSYS, EAGAIN)
PLAIN_HOOK(int, -1, FAULT_STAT, fstat64, (int fd, struct stat64 *s), (fd, s), EIO, EOVERFLOW)
PLAIN_HOOK(int, -1, FAULT_STAT, stat64, (const char *path, struct stat64 *s), (path, s), EIO,
           ENOMEM, EACCES)
PLAIN_HOOK(int, -1, FAULT_STAT, statx,
           (int fd, const char *path, int flags, unsigned mask, struct statx *s),
           (fd, path, flags, mask, s), ENOSYS, EIO, EINVAL)
PLAIN_HOOK(int, -1, FAULT_STAT, fstatat64,
           (int folder, const char *path, struct stat64 *s, int flags), (folder, path, s, flags),
           EIO, ENOMEM, EACCES)
PLAIN_HOOK(int, -1, FAULT_STAT, access, (const char *path, int mode), (path, mode), EACCES, EIO)

/* ---- Reading ---- */

/* Of `got` bytes of the file from `offset` on, the first where a bit may be wrong; or `got`. */
static size_t first_lie(int fd, uint64_t offset, size_t got)
{
    struct stat about;
    if (fstat(fd, &about) != 0 || about.st_ino != atomic_load(&page->lie_inode)) {
        return got;
    }
    uint64_t from = atomic_load(&page->lie_from);
    return offset >= from ? 0 : from - offset < got ? (size_t)(from - offset) : got;
}

/* What a read of `size` bytes returned, after the fault. */
static ssize_t fault_read(fault_chosen chosen, int fd, uint64_t offset, void *bytes, ssize_t got)
{
    if (chosen.kind == FAULT_SHORT && got > 1) {
        size_t kept = 1 + chosen.random % (size_t)(got - 1);
        memset((char *)bytes + kept, SPOILT, (size_t)got - kept);
        return (ssize_t)kept;
    }
    if (chosen.kind == FAULT_LIE) {
        size_t n = got > 0 ? (size_t)got : 0;
        size_t first = first_lie(fd, offset, n);
        if (first == n) {
            fault_uncount(FAULT_READ, FAULT_LIE);
            return got;
        }
        size_t at = first + chosen.random % (n - first);
        ((unsigned char *)bytes)[at] ^= 1u << (chosen.random >> 61);
    }
    return got;
}

HOOK ssize_t pread64(int fd, void *bytes, size_t size, off64_t offset)
{
    static ssize_t (*true_call)(int, void *, size_t, off64_t);
    if (true_call == NULL) {
        true_call = fault_true_call("pread64");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_READ, ~0u);
    if (chosen.kind == FAULT_FAIL || chosen.kind == FAULT_WAKE) {
        errno = chosen.kind == FAULT_WAKE ? EINTR : ERROR_OF(chosen, EIO, EAGAIN, EINVAL, ENOMEM);
        return -1;
    }
    if (chosen.kind == FAULT_HANG) {
        hang();
    }
    return fault_read(chosen, fd, (uint64_t)offset, bytes, true_call(fd, bytes, size, offset));
}

HOOK ssize_t read(int fd, void *bytes, size_t size)
{
    static ssize_t (*true_call)(int, void *, size_t);
    if (true_call == NULL) {
        true_call = fault_true_call("read");
    }
    if (fd >= 0 && fd < MAX_FDS && is_eventfd[fd]) {
        return true_call(fd, bytes, size);
    }
    fault_chosen chosen =
        fault_choose(CALLER, FAULT_READ, BIT(FAIL) | BIT(SHORT) | BIT(LATE) | BIT(WAKE));
    if (chosen.kind == FAULT_FAIL || chosen.kind == FAULT_WAKE) {
        errno = chosen.kind == FAULT_WAKE ? EINTR : EIO;
        return -1;
    }
    return true_call(fd, bytes, chosen.kind == FAULT_SHORT && size > 1 ? 1 : size);
}

static void break_stream(FILE *file, int error)
{
    file->_flags |= STREAM_ERR;
    errno = error;
}

HOOK size_t fread(void *bytes, size_t size, size_t n, FILE *file)
{
    static size_t (*true_call)(void *, size_t, size_t, FILE *);
    if (true_call == NULL) {
        true_call = fault_true_call("fread");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_READ, BIT(FAIL) | BIT(LATE));
    if (chosen.kind == FAULT_FAIL) {
        break_stream(file, EIO);
        return 0;
    }
    return true_call(bytes, size, n, file);
}

/* ---- Memory ---- */

HOOK void *mmap64(void *at, size_t size, int prot, int flags, int fd, off64_t offset)
{
    static void *(*true_call)(void *, size_t, int, int, int, off64_t);
    if (true_call == NULL) {
        true_call = fault_true_call("mmap64");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_MAP, BIT(FAIL) | BIT(LATE));
    if (chosen.kind == FAULT_FAIL) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return true_call(at, size, prot, flags, fd, offset);
}

/* It fails and has been carried out: what did not go is no leak of the program's. */
HOOK int munmap(void *at, size_t size)
{
    static int (*true_call)(void *, size_t);
    if (true_call == NULL) {
        true_call = fault_true_call("munmap");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_MAP, BIT(FAIL) | BIT(LATE));
    int rc = true_call(at, size);
    if (chosen.kind == FAULT_FAIL) {
        errno = ENOMEM;
        return -1;
    }
    return rc;
}

PLAIN_HOOK(int, -1, FAULT_ADVISE, madvise, (void *at, size_t size, int advice), (at, size, advice),
           ENOMEM, EINVAL, EAGAIN)
PLAIN_HOOK(int, -1, FAULT_ADVISE, mincore, (void *at, size_t size, unsigned char *pages),
           (at, size, pages), ENOMEM, EAGAIN)
PLAIN_HOOK(int, -1, FAULT_ADVISE, sched_setaffinity, (pid_t pid, size_t size, const cpu_set_t *set),
           (pid, size, set), EINVAL, EPERM)

/* It returns the error. */
HOOK int posix_fadvise64(int fd, off64_t offset, off64_t size, int advice)
{
    static int (*true_call)(int, off64_t, off64_t, int);
    if (true_call == NULL) {
        true_call = fault_true_call("posix_fadvise64");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_ADVISE, BIT(FAIL) | BIT(LATE));
    return chosen.kind == FAULT_FAIL ? EINVAL : true_call(fd, offset, size, advice);
}

/* dlsym() allocates, so these do not ask it for what is true. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static bool is_refused(const void *caller)
{
    bool refused = fault_choose(caller, FAULT_ALLOC, BIT(FAIL) | BIT(LATE)).kind == FAULT_FAIL;
    if (refused) {
        errno = ENOMEM;
    }
    return refused;
}

HOOK void *malloc(size_t size)
{
    return is_refused(CALLER) ? NULL : __libc_malloc(size);
}

HOOK void *calloc(size_t n, size_t size)
{
    return is_refused(CALLER) ? NULL : __libc_calloc(n, size);
}

HOOK void *realloc(void *memory, size_t size)
{
    return is_refused(CALLER) ? NULL : __libc_realloc(memory, size);
}

HOOK void *aligned_alloc(size_t alignment, size_t size)
{
    return is_refused(CALLER) ? NULL : __libc_memalign(alignment, size);
}

HOOK char *strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = is_refused(CALLER) ? NULL : __libc_malloc(size);
    return copy == NULL ? NULL : memcpy(copy, text, size);
}

/* ---- Threads ---- */

/* It returns the error. */
HOOK int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                        void *argument)
{
    static int (*true_call)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (true_call == NULL) {
        true_call = fault_true_call("pthread_create");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_THREAD, BIT(FAIL) | BIT(LATE));
    return chosen.kind == FAULT_FAIL ? EAGAIN : true_call(thread, attributes, start, argument);
}

/* A wait that ends for no reason, as POSIX allows. */
HOOK int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    static int (*true_call)(pthread_cond_t *, pthread_mutex_t *);
    if (true_call == NULL) {
        true_call = fault_true_call("pthread_cond_wait");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_WAIT, BIT(LATE) | BIT(WAKE));
    return chosen.kind == FAULT_WAKE ? 0 : true_call(condition, mutex);
}

HOOK int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                const struct timespec *deadline)
{
    static int (*true_call)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (true_call == NULL) {
        true_call = fault_true_call("pthread_cond_timedwait");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_WAIT, BIT(LATE) | BIT(WAKE));
    return chosen.kind == FAULT_WAKE ? 0 : true_call(condition, mutex, deadline);
}

/* ---- Writing ---- */

HOOK int eventfd(unsigned value, int flags)
{
    static int (*true_call)(unsigned, int);
    if (true_call == NULL) {
        true_call = fault_true_call("eventfd");
    }
    if (fault_choose(CALLER, FAULT_RING, BIT(FAIL) | BIT(LATE)).kind == FAULT_FAIL) {
        errno = EMFILE;
        return -1;
    }
    int fd = true_call(value, flags);
    if (fd >= 0 && fd < MAX_FDS) {
        is_eventfd[fd] = 1;
    }
    return fd;
}

HOOK int close(int fd)
{
    static int (*true_call)(int);
    if (true_call == NULL) {
        true_call = fault_true_call("close");
    }
    if (fd >= 0 && fd < MAX_FDS) {
        is_eventfd[fd] = 0;
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_WRITE, BIT(FAIL) | BIT(LATE));
    int rc = true_call(fd);
    if (chosen.kind == FAULT_FAIL) {
        errno = ERROR_OF(chosen, EIO, EINTR);
        return -1;
    }
    return rc;
}

/* An eventfd takes every write but one that overflows it. */
HOOK ssize_t write(int fd, const void *bytes, size_t size)
{
    static ssize_t (*true_call)(int, const void *, size_t);
    if (true_call == NULL) {
        true_call = fault_true_call("write");
    }
    if (fd >= 0 && fd < MAX_FDS && is_eventfd[fd]) {
        return true_call(fd, bytes, size);
    }
    fault_chosen chosen =
        fault_choose(CALLER, FAULT_WRITE, BIT(FAIL) | BIT(SHORT) | BIT(LATE) | BIT(WAKE));
    if (chosen.kind == FAULT_FAIL || chosen.kind == FAULT_WAKE) {
        errno = chosen.kind == FAULT_WAKE ? EINTR : ERROR_OF(chosen, ENOSPC, EIO);
        return -1;
    }
    return true_call(fd, bytes, chosen.kind == FAULT_SHORT && size > 1 ? 1 : size);
}

HOOK size_t fwrite(const void *bytes, size_t size, size_t n, FILE *file)
{
    static size_t (*true_call)(const void *, size_t, size_t, FILE *);
    if (true_call == NULL) {
        true_call = fault_true_call("fwrite");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_WRITE, BIT(FAIL) | BIT(LATE));
    if (chosen.kind == FAULT_FAIL && file != stderr) {
        break_stream(file, ENOSPC);
        return 0;
    }
    return true_call(bytes, size, n, file);
}

HOOK int fflush(FILE *file)
{
    static int (*true_call)(FILE *);
    if (true_call == NULL) {
        true_call = fault_true_call("fflush");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_WRITE, BIT(FAIL) | BIT(LATE));
    if (chosen.kind == FAULT_FAIL && file != NULL && file != stderr) {
        break_stream(file, ENOSPC);
        return EOF;
    }
    return true_call(file);
}

HOOK int fclose(FILE *file)
{
    static int (*true_call)(FILE *);
    if (true_call == NULL) {
        true_call = fault_true_call("fclose");
    }
    fault_chosen chosen = fault_choose(CALLER, FAULT_WRITE, BIT(FAIL) | BIT(LATE));
    int rc = true_call(file);
    if (chosen.kind == FAULT_FAIL) {
        errno = EIO;
        return EOF;
    }
    return rc;
}

PLAIN_HOOK(int, -1, FAULT_WRITE, fsync, (int fd), (fd), EIO, ENOSPC)
PLAIN_HOOK(int, -1, FAULT_WRITE, fdatasync, (int fd), (fd), EIO, ENOSPC)
PLAIN_HOOK(int, -1, FAULT_WRITE, ftruncate64, (int fd, off64_t size), (fd, size), EIO, ENOSPC)
PLAIN_HOOK(int, -1, FAULT_WRITE, renameat,
           (int from_folder, const char *from, int to_folder, const char *to),
           (from_folder, from, to_folder, to), EIO, ENOSPC, EACCES)
PLAIN_HOOK(int, -1, FAULT_WRITE, flock, (int fd, int operation), (fd, operation), EWOULDBLOCK,
           ENOLCK, EINTR)
