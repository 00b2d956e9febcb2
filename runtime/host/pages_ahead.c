/* SPDX-License-Identifier: MIT */
#include "runtime/host/pages_ahead.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime/base/alloc.h"

#define HUGE_PAGE   ((size_t)2 << 20)
#define STEP        (2 * HUGE_PAGE)
#define MAX_THREADS 4u
/* Threads keep this far from the filler, because two that touch one page both clear a new one, and
 * one of these is thrown away. */
#define DISTANCE (2 * STEP)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct moe_pages_ahead {
    uint8_t *memory; /* begins at a huge page */
    size_t bytes;
    size_t skipped; /* bytes before memory */
    uint32_t n_threads;
    pthread_t threads[MAX_THREADS];
    _Atomic size_t next;   /* the next step */
    _Atomic size_t filled; /* by the filler, of memory */
    _Atomic bool ended;
};

/* Takes the next step, or one further on if the filler is close to it. */
static size_t take_step(moe_pages_ahead *ahead)
{
    size_t next = atomic_load(&ahead->next);
    size_t at;
    do {
        size_t near = atomic_load(&ahead->filled) + DISTANCE;
        at = next < near ? near / STEP * STEP : next;
    } while (!atomic_compare_exchange_weak(&ahead->next, &next, at + STEP));
    return at;
}

static void *touch(void *context)
{
    moe_pages_ahead *ahead = context;
    for (size_t at = take_step(ahead); at < ahead->bytes && !atomic_load(&ahead->ended);
         at = take_step(ahead)) {
        size_t left = ahead->bytes - at;
        if (madvise(ahead->memory + at, left < STEP ? left : STEP, MADV_POPULATE_WRITE) != 0) {
            break;
        }
    }
    return NULL;
}

moe_pages_ahead *moe_pages_ahead_start(void *memory, size_t bytes, uint32_t n_threads)
{
    size_t skipped = (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
    moe_pages_ahead *ahead =
        n_threads > 0 && bytes > skipped + DISTANCE + STEP ? moe_calloc(1, sizeof *ahead) : NULL;
    if (ahead == NULL) {
        return NULL;
    }
    ahead->memory = (uint8_t *)memory + skipped;
    ahead->bytes = bytes - skipped;
    ahead->skipped = skipped;
    for (uint32_t i = 0; i < n_threads && i < MAX_THREADS; i++) {
        if (pthread_create(&ahead->threads[i], NULL, touch, ahead) != 0) {
            break;
        }
        ahead->n_threads++;
    }
    return ahead;
}

void moe_pages_ahead_filled(moe_pages_ahead *ahead, size_t bytes)
{
    if (ahead != NULL && bytes > ahead->skipped) {
        atomic_store_explicit(&ahead->filled, bytes - ahead->skipped, memory_order_relaxed);
    }
}

void moe_pages_ahead_stop(moe_pages_ahead **ahead)
{
    moe_pages_ahead *a = *ahead;
    if (a == NULL) {
        return;
    }
    *ahead = NULL;
    atomic_store(&a->ended, true);
    for (uint32_t i = 0; i < a->n_threads; i++) {
        pthread_join(a->threads[i], NULL);
    }
    free(a);
}
