/* SPDX-License-Identifier: MIT */
#include "runtime/host/pages_ahead.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime/base/alloc.h"

#define HUGE_PAGE   ((size_t)2 << 20)
#define STEP        (2 * HUGE_PAGE)
#define MAX_THREADS 4u
/* Threads keep this distance from the filler: if two threads touch the same page, both clear a new
 * one, and one of these is thrown away. */
#define DISTANCE   (2 * STEP)
#define PAGE       ((size_t)4096)
#define MOST_PARTS 64u

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

typedef struct region {
    uint8_t *memory; /* begins at a huge page */
    size_t bytes;
    size_t skipped; /* bytes before memory */
    size_t next;    /* offset of the next step in memory */
    size_t filled;  /* bytes of memory that the filler has filled */
} region;

struct moe_pages_ahead {
    uint32_t n_regions;
    uint32_t n_threads;
    size_t most_ahead;
    pthread_t threads[MAX_THREADS];
    pthread_mutex_t lock; /* protects all fields below */
    pthread_cond_t changed;
    uint32_t n_asleep;
    bool ended;
    /* A ring of parts that were asked for and come next, from number first_part on. */
    moe_pages_region parts[MOST_PARTS];
    uint32_t first_part, n_parts;
    region regions[];
};

/* Takes the first STEP of the part that waits for longest. NULL: none waits. */
static uint8_t *take_part(moe_pages_ahead *ahead, size_t *bytes)
{
    if (ahead->n_parts == 0) {
        return NULL;
    }
    moe_pages_region *part = &ahead->parts[ahead->first_part % MOST_PARTS];
    uint8_t *memory = part->memory;
    *bytes = part->bytes < STEP ? part->bytes : STEP;
    part->memory = memory + *bytes;
    part->bytes -= *bytes;
    if (part->bytes == 0) {
        ahead->first_part++;
        ahead->n_parts--;
    }
    return memory;
}

/* Takes the next step of the region in which the threads are least ahead of the filler. Skips a
 * step that the filler is close to. NULL: no region has a step now. *all_done: no region will have
 * one later either. */
static uint8_t *take_step(moe_pages_ahead *ahead, size_t *bytes, bool *all_done)
{
    region *best = NULL;
    size_t best_left = SIZE_MAX;
    *all_done = true;
    for (uint32_t i = 0; i < ahead->n_regions; i++) {
        region *r = &ahead->regions[i];
        size_t near = r->filled + DISTANCE;
        r->next = r->next < near ? near / STEP * STEP : r->next;
        size_t left = r->next - r->filled;
        *all_done = *all_done && r->next >= r->bytes;
        if (r->next < r->bytes && left < ahead->most_ahead && left < best_left) {
            best = r;
            best_left = left;
        }
    }
    if (best == NULL) {
        return NULL;
    }
    uint8_t *step = best->memory + best->next;
    *bytes = best->bytes - best->next < STEP ? best->bytes - best->next : STEP;
    best->next += STEP;
    return step;
}

static void *touch(void *context)
{
    moe_pages_ahead *ahead = context;
    bool all_done = false;
    pthread_mutex_lock(&ahead->lock);
    while (!ahead->ended && !all_done) {
        size_t bytes;
        uint8_t *step = take_part(ahead, &bytes);
        step = step != NULL ? step : take_step(ahead, &bytes, &all_done);
        if (step != NULL) {
            pthread_mutex_unlock(&ahead->lock);
            bool came = madvise(step, bytes, MADV_POPULATE_WRITE) == 0;
            pthread_mutex_lock(&ahead->lock);
            all_done = !came;
        } else if (!all_done) {
            ahead->n_asleep++;
            pthread_cond_wait(&ahead->changed, &ahead->lock);
            ahead->n_asleep--;
        }
    }
    pthread_mutex_unlock(&ahead->lock);
    return NULL;
}

/* Returns whether any region is large enough for a step. */
static bool add_regions(moe_pages_ahead *ahead, const moe_pages_region *regions)
{
    bool any = false;
    for (uint32_t i = 0; i < ahead->n_regions; i++) {
        size_t bytes = regions[i].bytes;
        size_t skipped = (HUGE_PAGE - (uintptr_t)regions[i].memory % HUGE_PAGE) % HUGE_PAGE;
        skipped = skipped < bytes ? skipped : bytes;
        ahead->regions[i] = (region){.memory = (uint8_t *)regions[i].memory + skipped,
                                     .bytes = bytes - skipped,
                                     .skipped = skipped};
        any = any || bytes - skipped > DISTANCE + STEP;
    }
    return any;
}

moe_pages_ahead *moe_pages_ahead_start(const moe_pages_region *regions, uint32_t n_regions,
                                       size_t most_ahead, uint32_t n_threads)
{
    moe_pages_ahead *ahead =
        n_threads > 0 ? moe_calloc(1, sizeof *ahead + n_regions * sizeof *ahead->regions) : NULL;
    if (ahead == NULL) {
        return NULL;
    }
    ahead->n_regions = n_regions;
    ahead->most_ahead = most_ahead;
    if (!add_regions(ahead, regions)) {
        free(ahead);
        return NULL;
    }
    pthread_mutex_init(&ahead->lock, NULL);
    pthread_cond_init(&ahead->changed, NULL);
    for (uint32_t i = 0; i < n_threads && i < MAX_THREADS; i++) {
        if (pthread_create(&ahead->threads[i], NULL, touch, ahead) != 0) {
            break;
        }
        ahead->n_threads++;
    }
    return ahead;
}

void moe_pages_ahead_filled(moe_pages_ahead *ahead, uint32_t i, size_t bytes)
{
    if (ahead == NULL) {
        return;
    }
    pthread_mutex_lock(&ahead->lock);
    region *r = &ahead->regions[i];
    if (bytes > r->skipped && bytes - r->skipped > r->filled) {
        r->filled = bytes - r->skipped;
        if (ahead->n_asleep > 0) {
            pthread_cond_broadcast(&ahead->changed);
        }
    }
    pthread_mutex_unlock(&ahead->lock);
}

void moe_pages_ahead_hurry(moe_pages_ahead *ahead, uint32_t i, size_t offset, size_t bytes)
{
    if (ahead == NULL) {
        return;
    }
    pthread_mutex_lock(&ahead->lock);
    const region *r = &ahead->regions[i];
    size_t end = offset + bytes > r->skipped ? offset + bytes - r->skipped : 0;
    size_t begin = offset > r->skipped ? (offset - r->skipped) / PAGE * PAGE : 0;
    end = end < r->bytes ? end / PAGE * PAGE : r->bytes / PAGE * PAGE;
    if (begin < end && ahead->n_parts < MOST_PARTS) {
        ahead->parts[(ahead->first_part + ahead->n_parts++) % MOST_PARTS] =
            (moe_pages_region){.memory = r->memory + begin, .bytes = end - begin};
        pthread_cond_broadcast(&ahead->changed);
    }
    pthread_mutex_unlock(&ahead->lock);
}

void moe_pages_ahead_stop(moe_pages_ahead **ahead)
{
    moe_pages_ahead *a = *ahead;
    if (a == NULL) {
        return;
    }
    *ahead = NULL;
    pthread_mutex_lock(&a->lock);
    a->ended = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    for (uint32_t i = 0; i < a->n_threads; i++) {
        pthread_join(a->threads[i], NULL);
    }
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
