/* SPDX-License-Identifier: MIT */
/* Scores of index keys. Keys are turned, MOE_SCORED_KEYS at a time, so that each lane has a key of
 * its own: no product is stored, and none is summed across lanes. attention_ops.h defines the
 * arithmetic. */
#include <string.h>

#include "cpu/cpu_internal.h"
#include "runtime/base/moe_assert.h"

typedef struct score_job {
    const moe_cpu_device *cpu;
    const moe_key_scores *scores;
    uint32_t n_rows;
} score_job;

/* Lanes behind the last key repeat it. turned: [dim][MOE_SCORED_KEYS] */
static void turn(const moe_key_scores *s, uint32_t first, float *turned)
{
    for (uint32_t i = 0; i < MOE_SCORED_KEYS; i++) {
        const uint32_t key = first + i < s->n_keys ? first + i : s->n_keys - 1;
        const float *from = s->keys + (size_t)key * s->dim;
        for (uint32_t k = 0; k < s->dim; k++) {
            turned[(size_t)k * MOE_SCORED_KEYS + i] = from[k];
        }
    }
}

/* Scores the keys from begin * MOE_SCORED_KEYS on, for all rows. */
static void score_range(void *context, uint32_t begin, uint32_t end)
{
    const score_job *job = context;
    const moe_key_scores *s = job->scores;
    _Alignas(64) float turned[MOE_SCORED_MAX_DIM * MOE_SCORED_KEYS];
    float scores[MOE_SCORED_KEYS];
    for (uint32_t t = begin; t < end; t++) {
        const uint32_t first = t * MOE_SCORED_KEYS, left = s->n_keys - first;
        const uint32_t n = left < MOE_SCORED_KEYS ? left : MOE_SCORED_KEYS;
        turn(s, first, turned);
        for (uint32_t r = 0; r < job->n_rows; r++) {
            job->cpu->vector.score_keys(turned, s->queries + (size_t)r * s->n_head * s->dim,
                                        s->weights + (size_t)r * s->n_head, s->n_head, s->dim,
                                        scores);
            memcpy(s->scores + r * s->stride + first, scores, n * sizeof *scores);
        }
    }
}

int moe_cpu_score_keys(moe_device *device, const moe_key_scores *scores, uint32_t n_rows,
                       moe_error *err)
{
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    score_job job = {cpu, scores, n_rows};
    (void)err;
    MOE_ASSERT(scores->dim <= MOE_SCORED_MAX_DIM);
    moe_cpu_for(cpu, (scores->n_keys + MOE_SCORED_KEYS - 1) / MOE_SCORED_KEYS, 1, score_range,
                &job);
    return MOE_OK;
}
