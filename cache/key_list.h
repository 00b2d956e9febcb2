/* SPDX-License-Identifier: MIT */
/* Doubly linked lists over keys, as arrays of links: what queue policies are made of. Several lists
 * share one pair of arrays when a key is in at most one of them.
 *
 *     links:  [ key 0 | key 1 | ... | key n-1 | sentinel of list 0 | sentinel of list 1 | ... ]
 *
 * A list is a ring through its sentinel: first = next[sentinel], last = prev[sentinel]. */
#ifndef MOE_CACHE_KEY_LIST_H
#define MOE_CACHE_KEY_LIST_H

#include <moe/policy.h>

typedef struct moe_key_list {
    uint32_t n_keys;
    uint32_t n_lists;
    uint32_t *prev; /* [n_keys + n_lists]; MOE_KEY_NONE for a key that is in no list */
    uint32_t *next;
} moe_key_list;

/* False when memory is short. */
bool moe_key_list_init(moe_key_list *lists, uint32_t n_keys, uint32_t n_lists);
void moe_key_list_release(moe_key_list *lists);

bool moe_key_list_contains(const moe_key_list *lists, uint32_t key);
/* The key is in no list. */
void moe_key_list_push_front(moe_key_list *lists, uint32_t list, uint32_t key);
/* The key is in some list. */
void moe_key_list_remove(moe_key_list *lists, uint32_t key);

/* MOE_KEY_NONE at the end. */
uint32_t moe_key_list_last(const moe_key_list *lists, uint32_t list);
/* The neighbour towards the front; MOE_KEY_NONE when the key is the first. */
uint32_t moe_key_list_before(const moe_key_list *lists, uint32_t key);
/* From the last key forwards, the first for which evictable() holds. */
uint32_t moe_key_list_last_evictable(const moe_key_list *lists, uint32_t list,
                                     moe_policy_evictable evictable, void *context);

#endif
