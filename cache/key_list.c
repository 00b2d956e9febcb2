/* SPDX-License-Identifier: MIT */
#include "cache/key_list.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"

bool moe_key_list_init(moe_key_list *lists, uint32_t n_keys, uint32_t n_lists)
{
    size_t n = (size_t)n_keys + n_lists;
    MOE_ASSERT(n_lists <= UINT16_MAX);
    *lists = (moe_key_list){.n_keys = n_keys, .n_lists = n_lists};
    lists->prev = moe_calloc(n, sizeof *lists->prev);
    lists->next = moe_calloc(n, sizeof *lists->next);
    lists->list = moe_calloc(n_keys, sizeof *lists->list);
    lists->length = moe_calloc(n_lists, sizeof *lists->length);
    if (lists->prev == NULL || lists->next == NULL || lists->list == NULL ||
        lists->length == NULL) {
        moe_key_list_release(lists);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        lists->prev[i] = lists->next[i] = i < n_keys ? MOE_KEY_NONE : (uint32_t)i;
    }
    return true;
}

void moe_key_list_release(moe_key_list *lists)
{
    free(lists->prev);
    free(lists->next);
    free(lists->list);
    free(lists->length);
    *lists = (moe_key_list){0};
}

bool moe_key_list_contains(const moe_key_list *lists, uint32_t key)
{
    MOE_ASSERT(key < lists->n_keys);
    MOE_ASSERT((lists->next[key] == MOE_KEY_NONE) == (lists->prev[key] == MOE_KEY_NONE));
    return lists->next[key] != MOE_KEY_NONE;
}

uint32_t moe_key_list_of(const moe_key_list *lists, uint32_t key)
{
    MOE_ASSERT(moe_key_list_contains(lists, key));
    return lists->list[key];
}

uint32_t moe_key_list_length(const moe_key_list *lists, uint32_t list)
{
    MOE_ASSERT(list < lists->n_lists);
    return lists->length[list];
}

void moe_key_list_push_front(moe_key_list *lists, uint32_t list, uint32_t key)
{
    MOE_ASSERT(list < lists->n_lists && !moe_key_list_contains(lists, key));
    uint32_t sentinel = lists->n_keys + list;
    uint32_t first = lists->next[sentinel];
    MOE_ASSERT(lists->prev[first] == sentinel);
    lists->prev[key] = sentinel;
    lists->next[key] = first;
    lists->prev[first] = key;
    lists->next[sentinel] = key;
    lists->list[key] = (uint16_t)list;
    lists->length[list]++;
}

void moe_key_list_remove(moe_key_list *lists, uint32_t key)
{
    MOE_ASSERT(moe_key_list_contains(lists, key));
    MOE_ASSERT(lists->next[lists->prev[key]] == key && lists->prev[lists->next[key]] == key);
    lists->next[lists->prev[key]] = lists->next[key];
    lists->prev[lists->next[key]] = lists->prev[key];
    lists->prev[key] = lists->next[key] = MOE_KEY_NONE;
    MOE_ASSERT(lists->length[lists->list[key]] > 0);
    lists->length[lists->list[key]]--;
}

void moe_key_list_move_front(moe_key_list *lists, uint32_t list, uint32_t key)
{
    moe_key_list_remove(lists, key);
    moe_key_list_push_front(lists, list, key);
}

uint32_t moe_key_list_first(const moe_key_list *lists, uint32_t list)
{
    MOE_ASSERT(list < lists->n_lists);
    uint32_t key = lists->next[lists->n_keys + list];
    return key < lists->n_keys ? key : MOE_KEY_NONE;
}

uint32_t moe_key_list_last(const moe_key_list *lists, uint32_t list)
{
    MOE_ASSERT(list < lists->n_lists);
    uint32_t key = lists->prev[lists->n_keys + list];
    return key < lists->n_keys ? key : MOE_KEY_NONE;
}

uint32_t moe_key_list_before(const moe_key_list *lists, uint32_t key)
{
    MOE_ASSERT(moe_key_list_contains(lists, key));
    uint32_t before = lists->prev[key];
    return before < lists->n_keys ? before : MOE_KEY_NONE;
}

uint32_t moe_key_list_last_evictable(const moe_key_list *lists, uint32_t list,
                                     moe_policy_evictable evictable, void *context)
{
    uint32_t key = moe_key_list_last(lists, list);
    while (key != MOE_KEY_NONE && !evictable(context, key)) {
        key = moe_key_list_before(lists, key);
    }
    return key;
}
