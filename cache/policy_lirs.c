/* SPDX-License-Identifier: MIT */
/* LIRS (Jiang, Zhang, SIGMETRICS 2002): ranks keys by their distance, the number of other keys that
 * were used between their last two uses. Keys with short distances ("hot": LIR in the paper) have
 * 99 % of the slots; the others ("cold": HIR) pass through the remaining slots.
 *
 *     stack: all hot keys, and the cold keys, resident or not, that were used after the hot key
 *            whose last use is oldest; the last used in front, so this hot key is the last
 *     queue: the resident cold keys; the next victim is the last
 *
 * If a cold key is used while it is in the stack, its distance is shorter than that of the last hot
 * key, and the two change places. While every cold key is pinned (a layer may miss several at
 * once), the last hot key is evicted. The key that comes in its place is cold; cold keys then have
 * more slots until others become hot. O(1) amortised, plus the pinned keys that are passed over. */
#include <stdlib.h>

#include "cache/key_list.h"
#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"

typedef struct lirs_state {
    moe_key_list stack, queue;
    bool *hot; /* [n_keys]; hot keys are always resident */
    uint32_t n_hot, hot_slots;
} lirs_state;

static void lirs_destroy(void *state)
{
    lirs_state *lirs = state;
    moe_key_list_release(&lirs->stack);
    moe_key_list_release(&lirs->queue);
    free(lirs->hot);
    free(lirs);
}

static void *lirs_create(const moe_policy_config *config)
{
    lirs_state *lirs = moe_calloc(1, sizeof *lirs);
    if (lirs == NULL) {
        return NULL;
    }
    const uint32_t cold_slots = config->n_slots / 100 > 0 ? config->n_slots / 100 : 1;
    lirs->hot_slots = config->n_slots - cold_slots;
    lirs->hot = moe_calloc(config->n_keys, sizeof *lirs->hot);
    if (!moe_key_list_init(&lirs->stack, config->n_keys, 1) ||
        !moe_key_list_init(&lirs->queue, config->n_keys, 1) || lirs->hot == NULL) {
        lirs_destroy(lirs);
        return NULL;
    }
    return lirs;
}

/* Drops cold keys behind the last hot key from the stack. */
static void prune(lirs_state *lirs)
{
    uint32_t last = moe_key_list_last(&lirs->stack, 0);
    while (last != MOE_KEY_NONE && !lirs->hot[last]) {
        moe_key_list_remove(&lirs->stack, last);
        last = moe_key_list_last(&lirs->stack, 0);
    }
}

static void to_front(moe_key_list *list, uint32_t key)
{
    if (moe_key_list_contains(list, key)) {
        moe_key_list_remove(list, key);
    }
    moe_key_list_push_front(list, 0, key);
}

/* Makes a resident key hot, and the last hot one cold if there are too many. */
static void warm(lirs_state *lirs, uint32_t key)
{
    if (moe_key_list_contains(&lirs->queue, key)) {
        moe_key_list_remove(&lirs->queue, key);
    }
    to_front(&lirs->stack, key);
    lirs->hot[key] = true;
    lirs->n_hot++;
    if (lirs->n_hot > lirs->hot_slots) {
        const uint32_t last = moe_key_list_last(&lirs->stack, 0);
        MOE_ASSERT(lirs->hot[last]);
        moe_key_list_remove(&lirs->stack, last);
        moe_key_list_push_front(&lirs->queue, 0, last);
        lirs->hot[last] = false;
        lirs->n_hot--;
    }
    prune(lirs);
}

static void lirs_use(void *state, uint32_t key, const moe_policy_access *access)
{
    lirs_state *lirs = state;
    (void)access;
    if (lirs->hot[key]) {
        to_front(&lirs->stack, key);
        prune(lirs);
    } else if (lirs->hot_slots > 0 && moe_key_list_contains(&lirs->stack, key)) {
        warm(lirs, key);
    } else {
        to_front(&lirs->queue, key);
        to_front(&lirs->stack, key);
        prune(lirs); /* in case nothing is hot */
    }
}

static void lirs_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    lirs_state *lirs = state;
    const bool is_filling = lirs->n_hot < lirs->hot_slots;
    if (is_filling && moe_key_list_length(&lirs->queue, 0) == 0) {
        warm(lirs, key);
    } else {
        lirs_use(state, key, access);
    }
}

static void lirs_evict(void *state, uint32_t key)
{
    lirs_state *lirs = state;
    if (lirs->hot[key]) { /* dropped, or evicted because every cold key is pinned */
        lirs->hot[key] = false;
        lirs->n_hot--;
        moe_key_list_remove(&lirs->stack, key);
        prune(lirs);
    } else {
        moe_key_list_remove(&lirs->queue, key);
    }
}

static uint32_t lirs_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                            void *context)
{
    lirs_state *lirs = state;
    (void)for_key;
    uint32_t key = moe_key_list_last_evictable(&lirs->queue, 0, evictable, context);
    return key != MOE_KEY_NONE ? key
                               : moe_key_list_last_evictable(&lirs->stack, 0, evictable, context);
}

const moe_policy moe_policy_lirs = {
    .abi = MOE_POLICY_ABI,
    .name = "lirs",
    .create = lirs_create,
    .destroy = lirs_destroy,
    .hit = lirs_use,
    .insert = lirs_insert,
    .evict = lirs_evict,
    .victim = lirs_victim,
    .end_pass = moe_policy_ignore_pass,
};
