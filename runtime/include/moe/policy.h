/* SPDX-License-Identifier: MIT */
/* The contract of a cache policy: all that a plug-in needs.
 *
 * The cache owns lookup, slots, bytes and pins; a policy only orders what is resident and nominates
 * victims. One policy object governs one *domain*: a set of slots of one size that its keys share
 * (the whole model, one size class of it, or one layer). The same object serves the engine and the
 * simulator, so it must be deterministic: no clocks, no randomness but from `seed`.
 *
 * When every layer is a domain of its own, each of its objects sees a model of one layer: n_layer
 * is 1, keys are numbers of experts, the layer of an access is 0.
 *
 * A plug-in is a shared object that defines moe_policy_plugin() and is loaded by
 * `--policy ./mine.so` (examples/policy_plugin.c is one).
 *
 * Threads (the groups are explained in moe.h). The library is the caller here:
 *   free: moe_policy_plugin
 * It calls create() and destroy() from any thread, and the functions with one state one at a time.
 * Two engines or simulations of one process may call with two states at the same time. */
#ifndef MOE_POLICY_H
#define MOE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOE_POLICY_ABI 2 /* ABI 1, without lookahead(), is accepted, too */
#define MOE_KEY_NONE   UINT32_MAX

/* Data that a policy needs, or-ed into moe_policy.needs. A cache that cannot supply the data
 * refuses the policy. */
enum {
    MOE_POLICY_NEEDS_HOTNESS = 1, /* moe_policy_config.hotness */
    MOE_POLICY_NEEDS_GATES = 2,   /* moe_policy_access.gate */
    MOE_POLICY_NEEDS_FUTURE = 4   /* moe_policy_access.next_use: a bound, for simulations only */
};

/* The cache and the model that a policy is created for. A key is layer * n_expert + expert. */
typedef struct moe_policy_config {
    size_t struct_size;
    uint32_t n_layer;
    uint32_t n_expert;       /* per layer */
    uint32_t n_expert_used;  /* per token */
    uint32_t n_slots;        /* of this domain */
    uint32_t n_keys;         /* keys range over [0, n_keys) = n_layer * n_expert */
    const float *hotness;    /* [n_keys] share of a layer's calibration activations, or NULL */
    const float *fetch_cost; /* [n_keys] relative cost of fetching, or NULL: all alike */
    uint64_t seed;
} moe_policy_config;

/* One use of an expert by a pass. */
typedef struct moe_policy_access {
    uint64_t pass; /* number of the pass, from 0 */
    uint32_t layer;
    uint32_t n_rows; /* rows of the pass that chose it; 0 for a prefetch */
    float gate;      /* sum of the weights those rows mix it with; 0 when not known */
    /* pass * n_layer + layer of its next use, UINT64_MAX: none; 0 when the future is not known. In
     * simulations of accesses one by one: the number of the next access to it. */
    uint64_t next_use;
} moe_policy_access;

/* A use that a draft model, or another source, expects. */
typedef struct moe_policy_forecast {
    uint32_t key;
    float chance;  /* (0, 1]: the probability that the pass uses the expert */
    uint64_t pass; /* as in moe_policy_access */
} moe_policy_forecast;

/* Whether a key may be evicted now (it is resident and nothing pins it). */
typedef bool (*moe_policy_evictable)(void *context, uint32_t key);

typedef struct moe_policy {
    uint32_t abi;   /* MOE_POLICY_ABI */
    uint32_t needs; /* MOE_POLICY_NEEDS_..., or-ed */
    const char *name;
    /* NULL when memory is short. */
    void *(*create)(const moe_policy_config *config);
    void (*destroy)(void *state);
    /* A resident expert was used. */
    void (*hit)(void *state, uint32_t key, const moe_policy_access *access);
    /* An expert was given a slot (after any evict() this took), by demand or by prefetch. */
    void (*insert)(void *state, uint32_t key, const moe_policy_access *access);
    /* An expert lost its slot. */
    void (*evict)(void *state, uint32_t key);
    /* Returns the victim: of the resident keys for which evictable() is true, the one that will be
     * missed least; MOE_KEY_NONE if there is none. for_key is the key that needs the slot; if the
     * cache gives memory away, it is an expert of the layer that the next pass begins with,
     * resident or not. Must not change what is resident. */
    uint32_t (*victim)(void *state, uint32_t for_key, moe_policy_evictable evictable,
                       void *context);
    /* The pass is over. */
    void (*end_pass)(void *state, uint64_t pass);
    /* Optional; NULL: the policy only looks at the past. Gives the policy the keys that the passes
     * from first_pass on are expected to use, at most once for each pass and key, in any order.
     * They replace earlier forecasts. n = 0: there are no forecasts any more. Wrong forecasts may
     * cost hits and nothing else. */
    void (*lookahead)(void *state, uint64_t first_pass, const moe_policy_forecast *uses, size_t n);
} moe_policy;

/* Defined by a plug-in, not by the library: its policy, valid while the plug-in is loaded. */
__attribute__((visibility("default"))) const moe_policy *moe_policy_plugin(void);

#ifdef __cplusplus
}
#endif
#endif
