/* SPDX-License-Identifier: MIT */
/* Writes rows of keys and values to their places in the pages of the KV cache, and moves them. */
#include <string.h>

#include "cpu/cpu_internal.h"
#include "runtime/base/moe_assert.h"

int moe_cpu_kv_store(moe_device *device, const moe_kv_layout *layout, const moe_kv_row *rows,
                     uint32_t n_rows, const float *k, size_t k_stride, const float *v,
                     size_t v_stride, moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint8_t *page = rows[r].pages[moe_kv_entry(layout, rows[r].stored / MOE_KV_PAGE)];
        size_t slot = rows[r].stored % MOE_KV_PAGE;
        MOE_ASSERT(page != NULL);
        MOE_ASSERT(rows[r].path != NULL || rows[r].stored == rows[r].position);
        for (uint32_t h = 0; h < layout->n_head_kv; h++) {
            size_t position = (size_t)h * MOE_KV_PAGE + slot;
            cpu->vector.kv_store((moe_kv_type)layout->type, k + r * k_stride + h * layout->k_dim,
                                 page + layout->k_offset + position * layout->k_row_bytes,
                                 layout->k_dim);
            if (!layout->v_in_k) {
                cpu->vector.kv_store(
                    (moe_kv_type)layout->type, v + r * v_stride + h * layout->v_dim,
                    page + layout->v_offset + position * layout->v_row_bytes, layout->v_dim);
            }
        }
    }
    return MOE_OK;
}

/* Moves one position's rows of one layer, all heads. */
static void move_rows(const moe_kv_move *move, const moe_kv_layout *layout, uint32_t i,
                      size_t offset, size_t row_bytes)
{
    const uint8_t *source = move->pages[moe_kv_entry(layout, move->from[i] / MOE_KV_PAGE)];
    uint8_t *target = move->pages[moe_kv_entry(layout, move->to[i] / MOE_KV_PAGE)];
    uint32_t n_head = layout->n_head_kv;
    source += offset + move->from[i] % MOE_KV_PAGE * row_bytes;
    target += offset + move->to[i] % MOE_KV_PAGE * row_bytes;
    for (uint32_t h = 0; h < n_head; h++) {
        size_t head = (size_t)h * MOE_KV_PAGE * row_bytes;
        memcpy(target + head, source + head, row_bytes);
    }
}

static void move_layers(void *context, uint32_t begin, uint32_t end)
{
    const moe_kv_move *move = context;
    for (uint32_t l = begin; l < end; l++) {
        const moe_kv_layout *layout = &move->layouts[l];
        for (uint32_t i = 0; i < move->n; i++) {
            MOE_ASSERT(move->to[i] <= move->from[i]);
            MOE_ASSERT(i == 0 ||
                       (move->from[i] > move->from[i - 1] && move->to[i] > move->to[i - 1]));
            if (move->from[i] == move->to[i]) {
                continue;
            }
            move_rows(move, layout, i, layout->k_offset, layout->k_row_bytes);
            if (!layout->v_in_k) {
                move_rows(move, layout, i, layout->v_offset, layout->v_row_bytes);
            }
        }
    }
}

int moe_cpu_kv_move(moe_device *device, const moe_kv_move *move, moe_error *err)
{
    (void)err;
    moe_kv_move all = *move;
    moe_cpu_for(moe_cpu_device_of(device), move->n_layouts, 1, move_layers, &all);
    return MOE_OK;
}
