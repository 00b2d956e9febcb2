/* SPDX-License-Identifier: MIT */
/* A cache policy in a shared object: first in, first out, with a second chance for what was used
 * since (the clock algorithm). It needs moe/policy.h alone, not the library:
 *
 *     cc -std=c11 -shared -fPIC policy_plugin.c $(pkg-config --cflags moe-offload) -o clock.so
 *     moe-offload run -m model.gguf -p "Once" --policy ./clock.so
 *     moe-offload simulate --trace trace.jsonl --policy lru,./clock.so */
#include <stdlib.h>

#include <moe/policy.h>

/* A ring of what is resident; the hand points at the next candidate. */
typedef struct clock_state {
    uint32_t n_slots;
    uint32_t hand;
    uint32_t *ring;     /* [n_slots] keys; MOE_KEY_NONE: an empty place */
    uint32_t *place_of; /* [n_keys] of a resident key */
    bool *used;         /* [n_keys] since the hand last passed */
} clock_state;

static void clock_destroy(void *state)
{
    clock_state *clock = state;
    free(clock->ring);
    free(clock->place_of);
    free(clock->used);
    free(clock);
}

static void *clock_create(const moe_policy_config *config)
{
    clock_state *clock = calloc(1, sizeof *clock);
    if (clock == NULL) {
        return NULL;
    }
    clock->n_slots = config->n_slots;
    clock->ring = calloc(config->n_slots, sizeof *clock->ring);
    clock->place_of = calloc(config->n_keys, sizeof *clock->place_of);
    clock->used = calloc(config->n_keys, sizeof *clock->used);
    if (clock->ring == NULL || clock->place_of == NULL || clock->used == NULL) {
        clock_destroy(clock);
        return NULL;
    }
    for (uint32_t place = 0; place < config->n_slots; place++) {
        clock->ring[place] = MOE_KEY_NONE;
    }
    return clock;
}

static void clock_hit(void *state, uint32_t key, const moe_policy_access *access)
{
    clock_state *clock = state;
    (void)access;
    clock->used[key] = true;
}

/* An evicted key left the place under the hand; the others are found by walking on. */
static void clock_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    clock_state *clock = state;
    (void)access;
    while (clock->ring[clock->hand] != MOE_KEY_NONE) {
        clock->hand = (clock->hand + 1) % clock->n_slots;
    }
    clock->ring[clock->hand] = key;
    clock->place_of[key] = clock->hand;
    clock->used[key] = false;
    clock->hand = (clock->hand + 1) % clock->n_slots;
}

static void clock_evict(void *state, uint32_t key)
{
    clock_state *clock = state;
    clock->ring[clock->place_of[key]] = MOE_KEY_NONE;
}

/* Two rounds: the first takes the second chances away. */
static uint32_t clock_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                             void *context)
{
    clock_state *clock = state;
    (void)for_key;
    for (uint64_t i = 0; i < 2 * (uint64_t)clock->n_slots; i++) {
        uint32_t key = clock->ring[clock->hand];
        if (key != MOE_KEY_NONE && evictable(context, key)) {
            if (!clock->used[key]) {
                return key;
            }
            clock->used[key] = false;
        }
        clock->hand = (clock->hand + 1) % clock->n_slots;
    }
    return MOE_KEY_NONE;
}

static void clock_end_pass(void *state, uint64_t pass)
{
    (void)state;
    (void)pass;
}

static const moe_policy policy = {
    .abi = MOE_POLICY_ABI,
    .name = "clock",
    .create = clock_create,
    .destroy = clock_destroy,
    .hit = clock_hit,
    .insert = clock_insert,
    .evict = clock_evict,
    .victim = clock_victim,
    .end_pass = clock_end_pass,
};

/* The one symbol that the library looks for. */
const moe_policy *moe_policy_plugin(void)
{
    return &policy;
}
