/* SPDX-License-Identifier: MIT */
/* ARC (Megiddo, Modha, FAST 2003): two lists of resident keys, and two of the names of evicted
 * keys.
 *
 *     new --> [ once: used once ] --used again--> [ often ]
 *                   | evicted                         | evicted
 *                   v                                 v
 *             [ once_gone ]                     [ often_gone ]
 *
 * The share of `once` adapts. If a key is wanted that has left `once`, the share grows; if a key is
 * wanted that has left `often`, it shrinks. All lists together hold at most twice as many keys as
 * there are slots. O(1), plus the pinned keys that are passed over. */
#include <stdlib.h>

#include "cache/key_list.h"
#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"

enum { ONCE, OFTEN, ONCE_GONE, OFTEN_GONE, N_LISTS };

typedef struct arc_state {
    moe_key_list lists; /* the last used in front */
    uint32_t n_slots;
    double once_slots; /* how many slots `once` should have, in [0, n_slots] */
    /* For which key the last victim was asked. The lists are as they were before the eviction. */
    uint32_t wanted; /* MOE_KEY_NONE: for no key since the last insertion */
    double wanted_share;
    bool forget; /* the evicted key's name is not kept */
} arc_state;

static void arc_destroy(void *state)
{
    arc_state *arc = state;
    moe_key_list_release(&arc->lists);
    free(arc);
}

static void *arc_create(const moe_policy_config *config)
{
    arc_state *arc = moe_calloc(1, sizeof *arc);
    if (arc == NULL) {
        return NULL;
    }
    arc->n_slots = config->n_slots;
    arc->wanted = MOE_KEY_NONE;
    if (!moe_key_list_init(&arc->lists, config->n_keys, N_LISTS)) {
        arc_destroy(arc);
        return NULL;
    }
    return arc;
}

static uint32_t n_in(const arc_state *arc, uint32_t list)
{
    return moe_key_list_length(&arc->lists, list);
}

static bool is_in(const arc_state *arc, uint32_t key, uint8_t list)
{
    return moe_key_list_contains(&arc->lists, key) && moe_key_list_of(&arc->lists, key) == list;
}

/* What the share of `once` becomes when this key is wanted, as in the paper. */
static double share_for(const arc_state *arc, uint32_t key)
{
    const double once = n_in(arc, ONCE_GONE), often = n_in(arc, OFTEN_GONE);
    if (is_in(arc, key, ONCE_GONE)) {
        const double more = often > once ? often / once : 1;
        return arc->once_slots + more < arc->n_slots ? arc->once_slots + more : arc->n_slots;
    }
    if (is_in(arc, key, OFTEN_GONE)) {
        const double less = once > often ? once / often : 1;
        return arc->once_slots > less ? arc->once_slots - less : 0;
    }
    return arc->once_slots;
}

static void arc_hit(void *state, uint32_t key, const moe_policy_access *access)
{
    arc_state *arc = state;
    (void)access;
    moe_key_list_move_front(&arc->lists, OFTEN, key);
}

static void forget_last(arc_state *arc, uint8_t list)
{
    moe_key_list_remove(&arc->lists, moe_key_list_last(&arc->lists, list));
}

static void arc_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    arc_state *arc = state;
    (void)access;
    arc->once_slots = arc->wanted == key ? arc->wanted_share : share_for(arc, key);
    arc->wanted = MOE_KEY_NONE;
    arc->forget = false;
    if (moe_key_list_contains(&arc->lists, key)) {
        moe_key_list_move_front(&arc->lists, OFTEN, key);
        return;
    }
    if (n_in(arc, ONCE) + n_in(arc, ONCE_GONE) >= arc->n_slots && n_in(arc, ONCE_GONE) > 0) {
        forget_last(arc, ONCE_GONE);
    } else if (n_in(arc, ONCE) + n_in(arc, OFTEN) + n_in(arc, ONCE_GONE) + n_in(arc, OFTEN_GONE) >=
                   2 * arc->n_slots &&
               n_in(arc, OFTEN_GONE) > 0) {
        forget_last(arc, OFTEN_GONE);
    }
    moe_key_list_push_front(&arc->lists, ONCE, key);
}

static void arc_evict(void *state, uint32_t key)
{
    arc_state *arc = state;
    const uint32_t from = moe_key_list_of(&arc->lists, key);
    moe_key_list_remove(&arc->lists, key);
    if (!arc->forget) {
        moe_key_list_push_front(&arc->lists, from == ONCE ? ONCE_GONE : OFTEN_GONE, key);
    }
    arc->forget = false;
    /* If keys are dropped or pinned, keys leave in another order than in the paper. */
    while (n_in(arc, ONCE_GONE) + n_in(arc, OFTEN_GONE) > arc->n_slots + 1) {
        forget_last(arc, n_in(arc, OFTEN_GONE) > 0 ? OFTEN_GONE : ONCE_GONE);
    }
}

static uint32_t arc_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                           void *context)
{
    arc_state *arc = state;
    const double share = share_for(arc, for_key);
    arc->wanted = for_key;
    arc->wanted_share = share;
    const bool is_new = !moe_key_list_contains(&arc->lists, for_key);
    arc->forget = is_new && n_in(arc, ONCE) == arc->n_slots;
    const double once = n_in(arc, ONCE);
    const bool from_once = arc->forget || once > share ||
                           (once > 0 && once == share && is_in(arc, for_key, OFTEN_GONE));
    uint32_t key =
        moe_key_list_last_evictable(&arc->lists, from_once ? ONCE : OFTEN, evictable, context);
    return key != MOE_KEY_NONE ? key
                               : moe_key_list_last_evictable(&arc->lists, from_once ? OFTEN : ONCE,
                                                             evictable, context);
}

const moe_policy moe_policy_arc = {
    .abi = MOE_POLICY_ABI,
    .name = "arc",
    .create = arc_create,
    .destroy = arc_destroy,
    .hit = arc_hit,
    .insert = arc_insert,
    .evict = arc_evict,
    .victim = arc_victim,
    .end_pass = moe_policy_ignore_pass,
};
