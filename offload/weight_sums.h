/* SPDX-License-Identifier: MIT */
/* Checksums of a model's weights, made while they are first read: one for each expert's gate, up
 * and down, and one for each tensor without experts. What is read again is compared with them:
 * always if it comes from a copy, else each MOE_WEIGHT_SUMS_EVERY-th time, since a hash of every
 * reading takes up to 8 % of the processor's time where each expert is read for each use. They show
 * what has changed since the first reading, and where a copy differs; damage that was there before,
 * only a calibration's checksums show, which are given in place of made ones.
 *
 * Any thread may call all but init, free and give. */
#ifndef MOE_OFFLOAD_WEIGHT_SUMS_H
#define MOE_OFFLOAD_WEIGHT_SUMS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

#include "runtime/model/tensor_map.h"

#define MOE_WEIGHT_SUMS_EVERY 16u

typedef struct moe_weight_sums {
    size_t n;                  /* [n_layer * n_expert][MOE_EXPERT_PARTS], then [n_tensors] */
    size_t n_of_experts;       /* of n */
    _Atomic uint64_t *of;      /* [n] XXH3; 0: not known */
    _Atomic uint8_t *n_reads;  /* [n_of_experts] from the files, modulo 256 */
    bool each_time;            /* all readings are compared; set before the first */
    const char *remedy;        /* of damaged experts; NULL: to download the file again */
    _Atomic uint64_t n_hashed; /* bytes of experts */
    _Atomic bool changed;      /* some were made */
    _Atomic bool damaged;      /* bytes have been found that match nothing, in no source */
} moe_weight_sums;

int moe_weight_sums_init(moe_weight_sums *sums, const moe_tensor_map *map, size_t n_tensors,
                         moe_error *err);
void moe_weight_sums_free(moe_weight_sums *sums);

static inline size_t moe_weight_sum_of_expert(uint32_t key, int part)
{
    return (size_t)key * MOE_EXPERT_PARTS + (size_t)part;
}

static inline size_t moe_weight_sum_of_tensor(const moe_weight_sums *sums, size_t tensor)
{
    return sums->n_of_experts + tensor;
}

/* 0: not known. */
static inline uint64_t moe_weight_sums_get(const moe_weight_sums *sums, size_t at)
{
    return atomic_load_explicit(&sums->of[at], memory_order_relaxed);
}

/* Whether a reading of an expert's part from the model's own files is to be compared. */
bool moe_weight_sums_is_due(moe_weight_sums *sums, size_t at);
/* Compares what was read with the checksum. Where there is none, `hash` becomes it. If they differ,
 * the next reading is due again: the first may have been a prefetch, whose failure nobody hears. */
bool moe_weight_sums_check(moe_weight_sums *sums, size_t at, uint64_t hash);
/* Sets a checksum that is known from elsewhere; 0: none. */
void moe_weight_sums_give(moe_weight_sums *sums, size_t at, uint64_t hash);
/* No source has bytes that match. */
static inline void moe_weight_sums_tell_damage(moe_weight_sums *sums)
{
    atomic_store(&sums->damaged, true);
}

#endif
