/* SPDX-License-Identifier: MIT */
#include "offload/weight_sums.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

int moe_weight_sums_init(moe_weight_sums *sums, const moe_tensor_map *map, size_t n_tensors,
                         moe_error *err)
{
    size_t n_of_experts = (size_t)map->n_layer * map->n_expert * MOE_EXPERT_PARTS;
    *sums = (moe_weight_sums){.n = n_of_experts + n_tensors, .n_of_experts = n_of_experts};
    sums->of = moe_calloc(sums->n, sizeof *sums->of);
    sums->n_reads = moe_calloc(n_of_experts, sizeof *sums->n_reads);
    return sums->of != NULL && sums->n_reads != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for %zu checksums", sums->n);
}

void moe_weight_sums_free(moe_weight_sums *sums)
{
    free(sums->of);
    free(sums->n_reads);
    sums->of = NULL;
    sums->n_reads = NULL;
}

/* 0 stands for "not known", so a hash of 0 counts as 1. */
static uint64_t stored(uint64_t hash)
{
    return hash != 0 ? hash : 1;
}

bool moe_weight_sums_is_due(moe_weight_sums *sums, size_t at)
{
    return sums->each_time ||
           atomic_fetch_add(&sums->n_reads[at], 1) % MOE_WEIGHT_SUMS_EVERY == 0 ||
           moe_weight_sums_get(sums, at) == 0;
}

bool moe_weight_sums_check(moe_weight_sums *sums, size_t at, uint64_t hash)
{
    uint64_t known = 0;
    if (atomic_compare_exchange_strong(&sums->of[at], &known, stored(hash))) {
        atomic_store(&sums->changed, true);
        return true;
    }
    const bool matches = known == stored(hash);
    if (!matches && at < sums->n_of_experts) {
        atomic_store(&sums->n_reads[at], 0);
    }
    return matches;
}

void moe_weight_sums_give(moe_weight_sums *sums, size_t at, uint64_t hash)
{
    if (hash != 0) {
        atomic_store(&sums->of[at], hash);
    }
}
