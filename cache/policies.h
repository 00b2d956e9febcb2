/* SPDX-License-Identifier: MIT */
/* The built-in policies, one file each. */
#ifndef MOE_CACHE_POLICIES_H
#define MOE_CACHE_POLICIES_H

#include <moe/policy.h>

extern const moe_policy moe_policy_lru;
extern const moe_policy moe_policy_lfu;
extern const moe_policy moe_policy_lfru;

#endif
