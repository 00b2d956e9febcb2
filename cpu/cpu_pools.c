/* SPDX-License-Identifier: MIT */
/* Index keys of pools of positions. attention_ops.h defines the arithmetic. */
#include <math.h>

#include "cpu/cpu_internal.h"
#include "runtime/base/moe_assert.h"

/* Finds the stored row of a logical position. */
static uint8_t *stored_row(const moe_key_pool *pool, const moe_kv_row *row, uint32_t position)
{
    const uint32_t stored = moe_kv_row_stored(row, position);
    uint8_t *page = row->pages[moe_kv_entry(&pool->layout, stored / MOE_KV_PAGE)];
    return page + pool->layout.k_offset + (size_t)(stored % MOE_KV_PAGE) * pool->layout.k_row_bytes;
}

/* rows: [n][dim keys, dim gates], changed. */
static void sum_by_gates(const moe_key_pool *pool, float *rows, float *key)
{
    const uint32_t dim = pool->dim;
    const size_t step = 2 * (size_t)dim;
    for (uint32_t i = 0; i < dim; i++) {
        float *gates = rows + dim + i;
        float max = -INFINITY, sum = 0.0f;
        for (uint32_t p = 0; p < pool->n; p++) {
            gates[p * step] += pool->weight[(size_t)p * dim + i];
            max = gates[p * step] > max ? gates[p * step] : max;
        }
        for (uint32_t p = 0; p < pool->n; p++) {
            gates[p * step] = moe_exp(gates[p * step] - max);
            sum += gates[p * step];
        }
        key[i] = 0.0f;
        for (uint32_t p = 0; p < pool->n; p++) {
            key[i] = fmaf(gates[p * step] / sum, rows[p * step + i], key[i]);
        }
    }
}

/* rows: [n][dim] */
static void mean_key(const moe_cpu_device *cpu, const moe_key_pool *pool, uint32_t row,
                     const float *rows, float *key)
{
    const uint32_t n_rot = pool->rope.n_rot;
    const size_t angles = (size_t)row * (n_rot / 2);
    for (uint32_t i = 0; i < pool->dim; i++) {
        key[i] = 0.0f;
        for (uint32_t p = 0; p < pool->n; p++) {
            key[i] += rows[(size_t)p * pool->dim + i];
        }
        key[i] /= (float)pool->n;
    }
    cpu->vector.rms_norm(key, pool->weight, key, pool->dim, pool->eps);
    (pool->rope.interleaved ? cpu->vector.rope_interleaved : cpu->vector.rope_halves)(
        key, pool->rope.cos + angles, pool->rope.sin + angles, n_rot);
}

int moe_cpu_pool_keys(moe_device *device, const moe_key_pool *pool, uint32_t n_rows, moe_error *err)
{
    const moe_cpu_device *cpu = moe_cpu_device_of(device);
    const moe_kv_type type = (moe_kv_type)pool->layout.type;
    const uint32_t n = pool->means ? pool->dim : 2 * pool->dim;
    float *key = pool->scratch + (size_t)pool->n * n;
    (void)err;
    MOE_ASSERT(pool->n > 1 && pool->dim > 0 && pool->rope.n_rot <= pool->dim);
    for (uint32_t r = 0; r < n_rows; r++) {
        const moe_kv_row *row = &pool->rows[r];
        for (uint32_t p = 0; p < pool->n && (row->position + 1) % pool->n == 0; p++) {
            const uint32_t position = row->position + 1 - pool->n + p;
            cpu->vector.kv_load(type, stored_row(pool, row, position) + pool->key,
                                pool->scratch + (size_t)p * n, n);
        }
        if ((row->position + 1) % pool->n != 0) {
            continue;
        }
        if (pool->means) {
            mean_key(cpu, pool, r, pool->scratch, key);
        } else {
            sum_by_gates(pool, pool->scratch, key);
        }
        cpu->vector.kv_store(type, key, stored_row(pool, row, row->position) + pool->pooled,
                             pool->dim);
    }
    return MOE_OK;
}
