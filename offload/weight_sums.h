/* SPDX-License-Identifier: MIT */
/* Checksums of a model's weights: one for each expert's gate, up and down, and one for each tensor
 * without experts. A checksum is made when the bytes are first read, or given by a calibration.
 * Later readings are compared with it: always if they come from a copy, otherwise each
 * MOE_WEIGHT_SUMS_EVERY-th one. (Where each expert is read for each use, hashing every reading
 * would take up to 8 % of the processor's time.) A checksum shows what has changed since it was
 * made, and where a copy differs. Only those of a calibration show damage that was there before the
 * first reading.
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
    /* [n_layer * n_expert][MOE_EXPERT_PARTS] of experts, then [n_tensors] */
    size_t n;
    size_t n_of_experts;       /* how many of the n belong to experts */
    _Atomic uint64_t *of;      /* [n] XXH3; 0: not known */
    _Atomic uint8_t *n_reads;  /* [n_of_experts] readings from the model's own files, modulo 256 */
    bool each_time;            /* compares all readings; set before the first reading */
    const char *remedy;        /* advice about damaged experts; NULL: to download the file again */
    _Atomic uint64_t n_hashed; /* bytes of experts that were hashed */
    _Atomic bool changed;      /* some checksums were made */
    _Atomic bool damaged;      /* for some part no source has bytes that match */
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

/* Returns the checksum; 0: not known. */
static inline uint64_t moe_weight_sums_get(const moe_weight_sums *sums, size_t at)
{
    return atomic_load_explicit(&sums->of[at], memory_order_relaxed);
}

/* Whether a reading of an expert's part from the model's own files is to be compared. */
bool moe_weight_sums_is_due(moe_weight_sums *sums, size_t at);
/* Compares a reading with the checksum; if there is none, `hash` becomes it. After a mismatch
 * the next reading is compared, too: the first may have been a prefetch, whose failure is not
 * reported. */
bool moe_weight_sums_check(moe_weight_sums *sums, size_t at, uint64_t hash);
/* Sets a checksum that comes from elsewhere; 0: none. */
void moe_weight_sums_give(moe_weight_sums *sums, size_t at, uint64_t hash);
/* Notes that no source has bytes that match. */
static inline void moe_weight_sums_tell_damage(moe_weight_sums *sums)
{
    atomic_store(&sums->damaged, true);
}

#endif
