/* SPDX-License-Identifier: MIT */
#include "cache/key_heap.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"

bool moe_key_heap_init(moe_key_heap *heap, uint32_t n_keys)
{
    *heap = (moe_key_heap){.n = 0};
    heap->keys = moe_calloc(n_keys, sizeof *heap->keys);
    heap->position = moe_calloc(n_keys, sizeof *heap->position);
    heap->priority = moe_calloc(n_keys, sizeof *heap->priority);
    heap->order = moe_calloc(n_keys, sizeof *heap->order);
    heap->spare = moe_calloc(n_keys, sizeof *heap->spare);
    if (heap->keys == NULL || heap->position == NULL || heap->priority == NULL ||
        heap->order == NULL || heap->spare == NULL) {
        moe_key_heap_release(heap);
        return false;
    }
    for (uint32_t key = 0; key < n_keys; key++) {
        heap->position[key] = MOE_KEY_NONE;
    }
    return true;
}

void moe_key_heap_release(moe_key_heap *heap)
{
    free(heap->keys);
    free(heap->position);
    free(heap->priority);
    free(heap->order);
    free(heap->spare);
    *heap = (moe_key_heap){.n = 0};
}

bool moe_key_heap_contains(const moe_key_heap *heap, uint32_t key)
{
    return heap->position[key] != MOE_KEY_NONE;
}

static bool before(const moe_key_heap *heap, uint32_t a, uint32_t b)
{
    if (heap->priority[a] != heap->priority[b]) {
        return heap->priority[a] < heap->priority[b];
    }
    if (heap->order[a] != heap->order[b]) {
        return heap->order[a] < heap->order[b];
    }
    return a < b;
}

static void place(moe_key_heap *heap, uint32_t position, uint32_t key)
{
    MOE_ASSERT(position < heap->n);
    heap->keys[position] = key;
    heap->position[key] = position;
}

static void sift_up(moe_key_heap *heap, uint32_t position, uint32_t key)
{
    while (position > 0) {
        uint32_t parent = (position - 1) / 2;
        if (!before(heap, key, heap->keys[parent])) {
            break;
        }
        place(heap, position, heap->keys[parent]);
        position = parent;
    }
    place(heap, position, key);
}

static void sift_down(moe_key_heap *heap, uint32_t position, uint32_t key)
{
    while (2 * position + 1 < heap->n) {
        uint32_t child = 2 * position + 1;
        if (child + 1 < heap->n && before(heap, heap->keys[child + 1], heap->keys[child])) {
            child++;
        }
        if (!before(heap, heap->keys[child], key)) {
            break;
        }
        place(heap, position, heap->keys[child]);
        position = child;
    }
    place(heap, position, key);
}

/* Checks that the key is at the position recorded for it, and that its parent does not rank after
 * it nor a child before it. */
static bool is_ordered_at(const moe_key_heap *heap, uint32_t key)
{
    uint32_t at = heap->position[key];
    return at < heap->n && heap->keys[at] == key &&
           (at == 0 || !before(heap, key, heap->keys[(at - 1) / 2])) &&
           (2 * at + 1 >= heap->n || !before(heap, heap->keys[2 * at + 1], key)) &&
           (2 * at + 2 >= heap->n || !before(heap, heap->keys[2 * at + 2], key));
}

void moe_key_heap_set(moe_key_heap *heap, uint32_t key, double priority, uint64_t order)
{
    MOE_ASSERT(priority == priority); /* not NaN, so that the order is total */
    if (!moe_key_heap_contains(heap, key)) {
        place(heap, heap->n++, key);
    }
    heap->priority[key] = priority;
    heap->order[key] = order;
    sift_up(heap, heap->position[key], key);
    sift_down(heap, heap->position[key], key);
    MOE_ASSERT(is_ordered_at(heap, key));
}

void moe_key_heap_remove(moe_key_heap *heap, uint32_t key)
{
    MOE_ASSERT(moe_key_heap_contains(heap, key) && heap->keys[heap->position[key]] == key);
    uint32_t hole = heap->position[key];
    uint32_t last = heap->keys[--heap->n];
    heap->position[key] = MOE_KEY_NONE;
    if (last != key) {
        sift_up(heap, hole, last);
        sift_down(heap, heap->position[last], last);
        MOE_ASSERT(is_ordered_at(heap, last));
    }
}

uint32_t moe_key_heap_first_evictable(moe_key_heap *heap, moe_policy_evictable evictable,
                                      void *context)
{
    uint32_t n_spare = 0;
    uint32_t found = MOE_KEY_NONE;
    while (heap->n > 0 && found == MOE_KEY_NONE) {
        uint32_t key = heap->keys[0];
        if (evictable(context, key)) {
            found = key;
        } else {
            moe_key_heap_remove(heap, key);
            heap->spare[n_spare++] = key;
        }
    }
    while (n_spare > 0) {
        uint32_t key = heap->spare[--n_spare];
        moe_key_heap_set(heap, key, heap->priority[key], heap->order[key]);
    }
    return found;
}
