/* SPDX-License-Identifier: MIT */
/* Loaded before the C library: the wall clock jumps by days and years, forwards and back, each time
 * that it is read, and a wait whose deadline is on it ends the program with status 99. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define HOOK __attribute__((visibility("default")))

enum { MOST = 4096, DAY = 86400 };

static _Atomic unsigned n_reads;
static _Atomic(pthread_cond_t *) steady[MOST]; /* conditions whose deadlines no jump moves */

static time_t jumped(time_t seconds)
{
    static const int days[] = {0, 365, -365, 1, -30, 7000};
    return seconds + (time_t)DAY * days[atomic_fetch_add(&n_reads, 1) % 6];
}

HOOK int clock_gettime(clockid_t clock, struct timespec *time)
{
    long status = syscall(SYS_clock_gettime, clock, time);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        time->tv_sec = jumped(time->tv_sec);
    }
    return (int)status;
}

HOOK time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) {
        *out = now.tv_sec;
    }
    return now.tv_sec;
}

HOOK int gettimeofday(struct timeval *out, void *zone)
{
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

/* Puts `to` in the first place that holds `from`. */
static void replace(pthread_cond_t *from, pthread_cond_t *to)
{
    for (int i = 0; i < MOST; i++) {
        pthread_cond_t *expected = from;
        if (atomic_compare_exchange_strong(&steady[i], &expected, to)) {
            return;
        }
    }
}

HOOK int pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
    int (*init)(pthread_cond_t *, const pthread_condattr_t *) =
        (int (*)(pthread_cond_t *, const pthread_condattr_t *))dlsym(RTLD_NEXT,
                                                                     "pthread_cond_init");
    clockid_t clock = CLOCK_REALTIME;
    if (attributes != NULL) {
        pthread_condattr_getclock(attributes, &clock);
    }
    replace(condition, NULL);
    if (clock == CLOCK_MONOTONIC) {
        replace(NULL, condition);
    }
    return init(condition, attributes);
}

HOOK int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                const struct timespec *deadline)
{
    int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *) =
        (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))dlsym(
            RTLD_NEXT, "pthread_cond_timedwait");
    for (int i = 0; i < MOST; i++) {
        if (atomic_load(&steady[i]) == condition) {
            return wait(condition, mutex, deadline);
        }
    }
    static const char text[] = "clock_jumps: a wait has its deadline on the wall clock\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(99);
}
