/* SPDX-License-Identifier: MIT */
/* What code under simulation gets in place of threads, locks, the clock and the heap: the linker
 * gives it the functions __wrap_NAME for NAME (meson.build lists them). */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/simulation/fibers.h"

/* Freed memory is filled with this, so that a late reader notices. */
#define FREED       0xdb
#define MOST_FILLED 4096u

/* In place of what the C library has in there; all zero: free. */
typedef struct sim_mutex {
    uint32_t owner; /* 1 + the fiber */
} sim_mutex;

static sim_heap heap;

sim_heap *sim_heap_now(void)
{
    return &heap;
}

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes);
int __wrap_pthread_cond_destroy(pthread_cond_t *condition);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *deadline);
int __wrap_pthread_cond_signal(pthread_cond_t *condition);
int __wrap_pthread_cond_broadcast(pthread_cond_t *condition);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *),
                          void *argument);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_detach(pthread_t thread);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __real_clock_gettime(clockid_t clock, struct timespec *now);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);

/* ---- Locks ---- */

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    (void)attributes;
    memset(mutex, 0, sizeof *mutex);
    return 0;
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    if (sim_is_running() && ((sim_mutex *)mutex)->owner != 0) {
        sim_fail("a lock is destroyed while a thread holds it");
    }
    return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    sim_mutex *m = (sim_mutex *)mutex;
    if (!sim_is_running()) {
        return 0;
    }
    sim_point();
    if (m->owner == 1 + sim_self()) {
        sim_fail("a thread locks what it has locked");
    }
    while (m->owner != 0) {
        (void)sim_block(m, SIM_NEVER);
    }
    m->owner = 1 + sim_self();
    return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    sim_mutex *m = (sim_mutex *)mutex;
    if (!sim_is_running()) {
        return 0;
    }
    if (m->owner != 0) {
        return EBUSY;
    }
    m->owner = 1 + sim_self();
    return 0;
}

static void unlock(sim_mutex *m)
{
    if (m->owner != 1 + sim_self()) {
        sim_fail("a thread unlocks what it has not locked");
    }
    m->owner = 0;
    sim_wake(m, true);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (sim_is_running()) {
        unlock((sim_mutex *)mutex);
        sim_point();
    }
    return 0;
}

/* ---- Conditions: nothing but their address is needed ---- */

int __wrap_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
    (void)attributes;
    memset(condition, 0, sizeof *condition);
    return 0;
}

int __wrap_pthread_cond_destroy(pthread_cond_t *condition)
{
    (void)condition;
    return 0;
}

static int wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t deadline_ns)
{
    sim_mutex *m = (sim_mutex *)mutex;
    if (!sim_is_running()) {
        return EINVAL;
    }
    unlock(m);
    bool woken = sim_block(condition, deadline_ns);
    while (m->owner != 0) {
        (void)sim_block(m, SIM_NEVER);
    }
    m->owner = 1 + sim_self();
    return woken ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    return wait_until(condition, mutex, SIM_NEVER);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *deadline)
{
    return wait_until(condition, mutex,
                      (uint64_t)deadline->tv_sec * 1000000000u + (uint64_t)deadline->tv_nsec);
}

int __wrap_pthread_cond_signal(pthread_cond_t *condition)
{
    sim_wake(condition, false);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *condition)
{
    sim_wake(condition, true);
    return 0;
}

/* ---- Threads ---- */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *),
                          void *argument)
{
    (void)attributes;
    if (!sim_is_running() ||
        (heap.refuse_at != 0 && ++heap.n_allocated == heap.refuse_at && ++heap.n_refused > 0)) {
        return EAGAIN;
    }
    uint32_t number = sim_start(fn, argument);
    *thread = (pthread_t)number;
    sim_point();
    return number != 0 ? 0 : EAGAIN;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    uint32_t number = (uint32_t)thread;
    while (!sim_has_ended(number)) {
        (void)sim_block(sim_end_of(number), SIM_NEVER);
    }
    if (result != NULL) {
        *result = NULL;
    }
    return 0;
}

int __wrap_pthread_detach(pthread_t thread)
{
    (void)thread;
    return 0;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!sim_is_running()) {
        return __real_clock_gettime(clock, now);
    }
    now->tv_sec = (time_t)(sim_now_ns() / 1000000000u);
    now->tv_nsec = (long)(sim_now_ns() % 1000000000u);
    return 0;
}

/* ---- The heap ---- */

static bool is_refused(void)
{
    heap.n_allocated++;
    if (sim_is_running() && heap.n_allocated == heap.refuse_at) {
        heap.n_refused++;
        return true;
    }
    return false;
}

static void *count(void *memory)
{
    heap.n_live += memory != NULL;
    return memory;
}

void *__wrap_malloc(size_t bytes)
{
    return is_refused() ? NULL : count(__real_malloc(bytes));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return is_refused() ? NULL : count(__real_calloc(n, size));
}

void *__wrap_realloc(void *old, size_t bytes)
{
    if (is_refused()) {
        return NULL;
    }
    void *memory = __real_realloc(old, bytes);
    heap.n_live += old == NULL && memory != NULL;
    return memory;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return is_refused() ? NULL : count(__real_aligned_alloc(alignment, bytes));
}

void __wrap_free(void *memory)
{
    if (memory != NULL) {
        size_t bytes = malloc_usable_size(memory);
        memset(memory, FREED, bytes < MOST_FILLED ? bytes : MOST_FILLED);
        heap.n_live--;
    }
    __real_free(memory);
}
