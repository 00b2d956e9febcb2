/* SPDX-License-Identifier: MIT */
/* W-TinyLFU (Einziger, Friedman, Manes, ACM Transactions on Storage 2017):
 *
 *     new --> [ window: LRU ] --last--> [ probation ] <--> [ protected ]
 *
 * The window has 1 % of the slots, but at least as many as a layer uses experts for a token: these
 * are pinned together, and if they filled the window, no key of the window could be a victim.
 *
 * When a slot is needed, the last key of the window and the last key of `probation` compete: the
 * less frequent one is evicted; of equals, the window's. A use moves a key from `probation` to
 * `protected`. `protected` has 80 % of the slots outside the window; when it is full, its last key
 * goes back to `probation`.
 *
 * Frequencies are exact counts, where the paper has a sketch: a model has few experts. As in the
 * paper, counts stop at 15, and are halved after ten times as many uses as there are slots. O(1)
 * amortised, plus the pinned keys that are passed over. */
#include <stdlib.h>

#include "cache/key_list.h"
#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"

enum { WINDOW, PROBATION, PROTECTED, N_LISTS };

#define MOST_USES 15

typedef struct tiny_state {
    moe_key_list lists; /* the last used in front */
    uint8_t *uses;      /* [n_keys], of resident and other keys */
    uint32_t window_slots, protected_slots;
    uint64_t n_uses, sample; /* uses are halved after `sample` uses */
} tiny_state;

static void tiny_destroy(void *state)
{
    tiny_state *tiny = state;
    moe_key_list_release(&tiny->lists);
    free(tiny->uses);
    free(tiny);
}

static void *tiny_create(const moe_policy_config *config)
{
    tiny_state *tiny = moe_calloc(1, sizeof *tiny);
    if (tiny == NULL) {
        return NULL;
    }
    uint32_t window = config->n_slots / 100;
    window = window > config->n_expert_used ? window : config->n_expert_used;
    window = window < config->n_slots / 2 ? window : config->n_slots / 2;
    tiny->window_slots = window > 0 ? window : 1;
    tiny->protected_slots = (uint32_t)((uint64_t)(config->n_slots - tiny->window_slots) * 4 / 5);
    tiny->sample = 10 * (uint64_t)config->n_slots;
    tiny->uses = moe_calloc(config->n_keys, sizeof *tiny->uses);
    if (!moe_key_list_init(&tiny->lists, config->n_keys, N_LISTS) || tiny->uses == NULL) {
        tiny_destroy(tiny);
        return NULL;
    }
    return tiny;
}

static void count(tiny_state *tiny, uint32_t key, const moe_policy_access *access)
{
    if (access->n_rows == 0) { /* a prefetch is not a use */
        return;
    }
    tiny->uses[key] += tiny->uses[key] < MOST_USES;
    if (++tiny->n_uses < tiny->sample) {
        return;
    }
    tiny->n_uses = 0;
    for (uint32_t k = 0; k < tiny->lists.n_keys; k++) {
        tiny->uses[k] /= 2;
    }
}

/* Moves keys from the end of a list that is too long to the front of probation. */
static void shorten(tiny_state *tiny, uint32_t list, uint32_t most)
{
    while (moe_key_list_length(&tiny->lists, list) > most) {
        moe_key_list_move_front(&tiny->lists, PROBATION, moe_key_list_last(&tiny->lists, list));
    }
}

static void tiny_hit(void *state, uint32_t key, const moe_policy_access *access)
{
    tiny_state *tiny = state;
    count(tiny, key, access);
    const uint32_t from = moe_key_list_of(&tiny->lists, key);
    moe_key_list_move_front(&tiny->lists, from == WINDOW ? WINDOW : PROTECTED, key);
    shorten(tiny, PROTECTED, tiny->protected_slots);
}

static void tiny_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    tiny_state *tiny = state;
    count(tiny, key, access);
    moe_key_list_push_front(&tiny->lists, WINDOW, key);
    shorten(tiny, WINDOW, tiny->window_slots);
}

static void tiny_evict(void *state, uint32_t key)
{
    tiny_state *tiny = state;
    moe_key_list_remove(&tiny->lists, key);
}

static uint32_t tiny_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                            void *context)
{
    tiny_state *tiny = state;
    uint32_t last[N_LISTS];
    (void)for_key;
    for (uint32_t list = 0; list < N_LISTS; list++) {
        last[list] = moe_key_list_last_evictable(&tiny->lists, list, evictable, context);
    }
    const uint32_t main = last[PROBATION] != MOE_KEY_NONE ? last[PROBATION] : last[PROTECTED];
    const uint32_t candidate = last[WINDOW];
    if (main == MOE_KEY_NONE || candidate == MOE_KEY_NONE) {
        return main == MOE_KEY_NONE ? candidate : main;
    }
    const bool is_full = moe_key_list_length(&tiny->lists, WINDOW) >= tiny->window_slots;
    return is_full && tiny->uses[candidate] <= tiny->uses[main] ? candidate : main;
}

const moe_policy moe_policy_tiny_lfu = {
    .abi = MOE_POLICY_ABI,
    .name = "w-tinylfu",
    .create = tiny_create,
    .destroy = tiny_destroy,
    .hit = tiny_hit,
    .insert = tiny_insert,
    .evict = tiny_evict,
    .victim = tiny_victim,
    .end_pass = moe_policy_ignore_pass,
};
