/* SPDX-License-Identifier: MIT */
/* Doubly linked lists over keys, stored as arrays of links; queue policies are built from them.
 * Several lists share one pair of arrays, since a key is in at most one of them.
 *
 *    links:  [ key 0 | key 1 | ... | key n-1 | sentinel of list 0 | sentinel of list 1 | ... ]
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
    uint16_t *list;   /* [n_keys] the list of a key that is in one */
    uint32_t *length; /* [n_lists] */
} moe_key_list;

/* False when memory is short. */
bool moe_key_list_init(moe_key_list *lists, uint32_t n_keys, uint32_t n_lists);
void moe_key_list_release(moe_key_list *lists);

bool moe_key_list_contains(const moe_key_list *lists, uint32_t key);
/* The number of the list that the key is in. The key must be in a list. */
uint32_t moe_key_list_of(const moe_key_list *lists, uint32_t key);
/* How many keys a list has. */
uint32_t moe_key_list_length(const moe_key_list *lists, uint32_t list);
/* Moves a key that is in a list to the front of a list. */
void moe_key_list_move_front(moe_key_list *lists, uint32_t list, uint32_t key);
/* The key must be in no list. */
void moe_key_list_push_front(moe_key_list *lists, uint32_t list, uint32_t key);
/* The key must be in a list. */
void moe_key_list_remove(moe_key_list *lists, uint32_t key);

/* The first and the last key, or MOE_KEY_NONE when the list is empty. */
uint32_t moe_key_list_first(const moe_key_list *lists, uint32_t list);
uint32_t moe_key_list_last(const moe_key_list *lists, uint32_t list);
/* The neighbour towards the front; MOE_KEY_NONE when the key is the first. */
uint32_t moe_key_list_before(const moe_key_list *lists, uint32_t key);
/* Walks from the last key to the front and returns the first for which evictable() holds. */
uint32_t moe_key_list_last_evictable(const moe_key_list *lists, uint32_t list,
                                     moe_policy_evictable evictable, void *context);

#endif
