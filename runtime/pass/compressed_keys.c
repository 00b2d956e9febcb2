/* SPDX-License-Identifier: MIT */
#include "runtime/pass/compressed_keys.h"

#include <math.h>
#include <stdlib.h>

#include "cpu/kernels/vector_reference.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/runner.h"

uint32_t moe_block_row(const moe_kv_row *row, uint32_t rate, uint32_t block)
{
    const uint32_t stored = moe_kv_row_stored(row, (block + 1) * rate - 1);
    return stored / MOE_KV_PAGE * MOE_KV_PAGE + stored % MOE_KV_PAGE / rate;
}

uint8_t *moe_block_key(const moe_kv_layout *layout, const moe_kv_row *row, uint32_t rate,
                       uint32_t block)
{
    const uint32_t at = moe_block_row(row, rate, block);
    uint8_t *page = row->pages[moe_kv_entry(layout, at / MOE_KV_PAGE)];
    return page + layout->k_offset + at % MOE_KV_PAGE * layout->k_row_bytes;
}

/* Where one kind of compressed keys is stored, and its weights: the layer's keys, or its
 * indexer's. */
typedef struct block_part {
    uint32_t dim, series, rate;
    size_t k_offset;    /* where k begins in a position's row; its gates follow */
    size_t key_offset;  /* where the key begins in a block's row */
    const float *place; /* [rate][series * dim] */
    const float *norm;  /* [dim] */
} block_part;

/* Loads row i of a block's sum: first the rows of the previous block, by their first series, then
 * the block's own rows, by their last series. */
static void load_row(const moe_runner *runner, const moe_kv_row *row, uint32_t layer,
                     const block_part *part, uint32_t position, uint32_t at, float *k, float *gates)
{
    const moe_kv_layout *layout = &runner->kv->layers[layer];
    const moe_kv_type type = (moe_kv_type)layout->type;
    const uint32_t stored = moe_kv_row_stored(row, position);
    const uint8_t *page = row->pages[moe_kv_entry(layout, stored / MOE_KV_PAGE)];
    const uint8_t *from = page + layout->k_offset +
                          (size_t)(stored % MOE_KV_PAGE) * layout->k_row_bytes + part->k_offset;
    const uint32_t n = part->series * part->dim;
    const float *place = part->place + (size_t)(position % part->rate) * n + at;
    const moe_vector_kernels *vector = &runner->buffers.vector;
    vector->kv_load(type, from + moe_kv_row_bytes(type, at), k, part->dim);
    vector->kv_load(type, from + moe_kv_row_bytes(type, n + at), gates, part->dim);
    vector->add(gates, place, gates, part->dim);
}

/* The sum of n rows of k, weighted by the softmax of their gates. Overwrites the gates. */
static void sum_rows(const float *k, float *gates, uint32_t n, uint32_t dim, float *sum)
{
    for (uint32_t i = 0; i < dim; i++) {
        float max = -INFINITY, all = 0.0f;
        for (uint32_t p = 0; p < n; p++) {
            const float gate = gates[(size_t)p * dim + i];
            max = gate > max ? gate : max;
        }
        for (uint32_t p = 0; p < n; p++) {
            float *gate = &gates[(size_t)p * dim + i];
            *gate = moe_exp(*gate - max);
            all += *gate;
        }
        sum[i] = 0.0f;
        for (uint32_t p = 0; p < n; p++) {
            sum[i] = fmaf(gates[(size_t)p * dim + i] / all, k[(size_t)p * dim + i], sum[i]);
        }
    }
}

/* Applies the norm to a key, and rope to its last elements by a position. */
static void norm_and_turn(const moe_runner *runner, const block_part *part, uint32_t position,
                          float *key)
{
    const moe_model_config *c = runner->config;
    double squares = 0.0;
    for (uint32_t i = 0; i < part->dim; i++) {
        squares += (double)key[i] * key[i];
    }
    const float factor = (float)(1.0 / sqrt(squares / part->dim + (double)c->norm_eps));
    for (uint32_t i = 0; i < part->dim; i++) {
        key[i] = key[i] * factor * part->norm[i];
    }
    float *turned = key + part->dim - c->n_rot;
    for (uint32_t i = 0; i < c->n_rot / 2; i++) {
        const double angle = (double)position * runner->rope_frequencies[i];
        const float cosine = (float)cos(angle), sine = (float)sin(angle);
        const float a = turned[2 * i], b = turned[2 * i + 1];
        turned[2 * i] = fmaf(a, cosine, -(b * sine));
        turned[2 * i + 1] = fmaf(a, sine, b * cosine);
    }
}

/* Computes and stores the key of the block whose last position is this row's. */
static void store_block(const moe_runner *runner, const moe_kv_row *row, uint32_t layer,
                        const block_part *part)
{
    const moe_kv_layout *layout = &runner->kv->beside[layer];
    const uint32_t block = row->position / part->rate, begin = block * part->rate;
    const uint32_t before = part->series > 1 && block > 0 ? part->rate : 0;
    const uint32_t n = before + part->rate;
    float *k = runner->buffers.block_rows, *gates = k + (size_t)n * part->dim;
    float *key = gates + (size_t)n * part->dim;
    for (uint32_t p = 0; p < n; p++) {
        const uint32_t at = p < before ? 0 : (part->series - 1) * part->dim;
        load_row(runner, row, layer, part, begin - before + p, at, k + (size_t)p * part->dim,
                 gates + (size_t)p * part->dim);
    }
    sum_rows(k, gates, n, part->dim, key);
    norm_and_turn(runner, part, begin, key);
    runner->buffers.vector.kv_store(
        (moe_kv_type)layout->type, key,
        moe_block_key(layout, row, part->rate, block) + part->key_offset, part->dim);
}

int moe_op_compress(const moe_run *run, const moe_op *op, moe_error *err)
{
    moe_runner *runner = run->runner;
    const moe_model_config *c = runner->config;
    const moe_kv_type type = (moe_kv_type)runner->kv->beside[run->layer].type;
    const uint32_t rate = op->u.attend.rate, series = moe_key_series(rate), dim = c->head_dim_k;
    const bool indexes = op->u.attend.indexer == MOE_INDEXER_OWN;
    const block_part parts[2] = {
        {dim, series, rate, moe_kv_row_bytes(type, dim), 0,
         moe_op_weight(run, MOE_LAYER_COMPRESS_PLACE)->data,
         moe_op_weight(run, MOE_LAYER_COMPRESS_NORM)->data},
        {c->index_dim, series, rate, moe_kv_row_bytes(type, dim + 2 * series * dim),
         moe_kv_row_bytes(type, dim), moe_op_weight(run, MOE_LAYER_INDEX_COMPRESS_PLACE)->data,
         moe_op_weight(run, MOE_LAYER_INDEX_COMPRESS_NORM)->data}};
    MOE_ASSERT((runner->device->features & MOE_DEVICE_READABLE) != 0);
    MOE_TRY(runner->device->ops->sync(runner->device, err));
    for (uint32_t r = 0; r < run->n_rows; r++) {
        const moe_kv_row *row = &run->pass->kv_rows[r];
        for (int i = 0; i < 1 + indexes && (row->position + 1) % rate == 0; i++) {
            store_block(runner, row, run->layer, &parts[i]);
        }
    }
    return MOE_OK;
}

/* ---- What rows attend to ---- */

static uint32_t *grow(moe_pass_buffers *b, size_t n)
{
    if (n > b->n_block_path) {
        uint32_t *larger = moe_realloc_array(b->block_path, n + n / 2, sizeof *larger);
        b->block_path = larger != NULL ? larger : b->block_path;
        b->n_block_path = larger != NULL ? n + n / 2 : b->n_block_path;
        return larger;
    }
    return b->block_path;
}

/* How many blocks a row attends to. *chooses: out, whether the row attends to chosen blocks
 * only. */
static uint32_t blocks_of(const moe_model_config *c, const moe_op *op, const moe_kv_row *row,
                          bool *chooses)
{
    *chooses = op->u.attend.indexer == MOE_INDEXER_OWN && moe_position_chooses(c, row->position);
    return *chooses ? c->index_top_k : (row->position + 1) / op->u.attend.rate;
}

int moe_compressed_rows(const moe_run *run, const moe_op *op, const moe_kv_row **rows,
                        moe_error *err)
{
    moe_pass_buffers *b = &run->runner->buffers;
    const moe_model_config *c = run->runner->config;
    const uint32_t rate = op->u.attend.rate, window = op->u.attend.window;
    const uint32_t *chosen = (const uint32_t *)b->values[MOE_VALUE_INDEX_CHOSEN];
    size_t most = 0;
    bool chooses;
    for (uint32_t r = 0; r < run->n_rows; r++) {
        most += blocks_of(c, op, &run->pass->kv_rows[r], &chooses) + window;
    }
    uint32_t *path = grow(b, most);
    if (path == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the keys that %u rows see",
                        run->n_rows);
    }
    for (uint32_t r = 0; r < run->n_rows; r++) {
        const moe_kv_row *at = &run->pass->kv_rows[r];
        const uint32_t n_blocks = blocks_of(c, op, at, &chooses);
        const uint32_t first = at->position + 1 > window ? at->position + 1 - window : 0;
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_blocks; i++) {
            const uint32_t block = chooses ? chosen[(size_t)r * moe_most_chosen(c) + i] : i;
            path[n++] = MOE_KV_BESIDE | moe_block_row(at, rate, block);
        }
        for (uint32_t p = first; p <= at->position; p++) {
            path[n++] = moe_kv_row_stored(at, p);
        }
        b->block_kv_rows[r] =
            (moe_kv_row){.pages = at->pages, .position = n - 1, .stored = at->stored, .path = path};
        path += n;
    }
    *rows = b->block_kv_rows;
    return MOE_OK;
}
