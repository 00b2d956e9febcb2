/* SPDX-License-Identifier: MIT */
#include "cache/layer_access.h"

#include "runtime/base/moe_assert.h"

uint32_t moe_layer_access_wave(moe_expert_cache *cache, const uint32_t *keys,
                               const moe_policy_access *accesses, uint32_t n, bool *handled,
                               moe_layer_access *out)
{
    uint32_t n_out = 0;
    for (uint32_t i = 0; MOE_ASSERTS_ARE_ON && i + 1 < n; i++) {
        MOE_ASSERT(keys[i] < keys[i + 1]);
    }
    for (int resident_pass = 1; resident_pass >= 0; resident_pass--) {
        for (uint32_t i = 0; i < n; i++) {
            bool resident = moe_expert_cache_find(cache, keys[i]) != MOE_SLOT_NONE;
            if (handled[i] || resident != (resident_pass == 1)) {
                continue;
            }
            moe_layer_access *access = &out[n_out];
            access->position = i;
            access->slot = moe_expert_cache_access(cache, keys[i], &accesses[i], &access->hit,
                                                   &access->evicted);
            if (access->slot == MOE_SLOT_NONE) {
                return n_out;
            }
            MOE_ASSERT(access->hit == resident && (!resident || access->evicted == MOE_KEY_NONE));
            moe_expert_cache_pin(cache, keys[i]);
            handled[i] = true;
            n_out++;
        }
    }
    return n_out;
}
