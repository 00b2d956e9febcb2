/* SPDX-License-Identifier: MIT */
/* A binary heap of keys whose priorities may change: the key to evict first is on top. The order is
 * total (priority, then order, then key), so the nominated key does not depend on history. */
#ifndef MOE_CACHE_KEY_HEAP_H
#define MOE_CACHE_KEY_HEAP_H

#include <moe/policy.h>

typedef struct moe_key_heap {
    uint32_t n;
    uint32_t *keys;     /* [n_keys] the heap: keys[0] has the smallest priority */
    uint32_t *position; /* [n_keys] a key's place in the heap, or MOE_KEY_NONE */
    double *priority;   /* [n_keys] */
    uint64_t *order;    /* [n_keys] breaks ties between equal priorities */
    uint32_t *spare;    /* [n_keys] keys set aside while looking for an evictable one */
} moe_key_heap;

/* False when memory is short. */
bool moe_key_heap_init(moe_key_heap *heap, uint32_t n_keys);
void moe_key_heap_release(moe_key_heap *heap);

bool moe_key_heap_contains(const moe_key_heap *heap, uint32_t key);
/* Adds the key, or moves it if it is in the heap. */
void moe_key_heap_set(moe_key_heap *heap, uint32_t key, double priority, uint64_t order);
/* The key must be in the heap. */
void moe_key_heap_remove(moe_key_heap *heap, uint32_t key);
/* Returns the key with the smallest priority for which evictable() is true, or MOE_KEY_NONE.
 * Leaves the heap as it was. O((1 + p) log n), where p is the number of keys that were skipped
 * because they may not be evicted. */
uint32_t moe_key_heap_first_evictable(moe_key_heap *heap, moe_policy_evictable evictable,
                                      void *context);

#endif
