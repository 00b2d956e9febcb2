/* SPDX-License-Identifier: MIT */
/* The built-in policies, one file each. */
#ifndef MOE_CACHE_POLICIES_H
#define MOE_CACHE_POLICIES_H

#include <moe/policy.h>

extern const moe_policy moe_policy_lfru;
extern const moe_policy moe_policy_lru;
extern const moe_policy moe_policy_lfu;
extern const moe_policy moe_policy_sieve;
extern const moe_policy moe_policy_s3_fifo;
extern const moe_policy moe_policy_arc;
extern const moe_policy moe_policy_two_queue;
extern const moe_policy moe_policy_lirs;
extern const moe_policy moe_policy_lru_k;
extern const moe_policy moe_policy_gdsf;
extern const moe_policy moe_policy_tiny_lfu;
extern const moe_policy moe_policy_lecar;
extern const moe_policy moe_policy_least_stale;
extern const moe_policy moe_policy_hot_temporal;
extern const moe_policy moe_policy_hot_global;
extern const moe_policy moe_policy_gate_score;
extern const moe_policy moe_policy_cost_aware;
extern const moe_policy moe_policy_random;
extern const moe_policy moe_policy_belady;

#endif
