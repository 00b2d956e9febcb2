/* SPDX-License-Identifier: MIT */
/* The scores come from the device a block of positions at a time, with the bits of its linear map:
 * the block's stored keys are the matrix. So they are the same on every device and for any number
 * of threads. */
#include "runtime/pass/position_index.h"

#include <math.h>
#include <string.h>

#include "cpu/kernels/arch_kernels.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/compressed_keys.h"
#include "runtime/pass/index_choice.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/runner.h"

static int grow(moe_pass_buffers *b, uint32_t n, moe_error *err)
{
    if (n <= b->n_index_scores) {
        return MOE_OK;
    }
    uint32_t room = n + n / 2;
    float *scores =
        moe_realloc_array(b->index_scores, room, (size_t)MOE_INDEX_ROWS * sizeof *scores);
    b->index_scores = scores != NULL ? scores : b->index_scores;
    uint32_t *order = moe_realloc_array(b->index_order, room, sizeof *order);
    b->index_order = order != NULL ? order : b->index_order;
    if (scores == NULL || order == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to choose among %u positions", n);
    }
    b->n_index_scores = room;
    return MOE_OK;
}

/* Where a layer stores its index keys, and the keys of pools at their last positions. */
typedef struct index_place {
    moe_kv_layout layout;
    /* Offsets of a position's own key, and of its pool's key, in the position's row. */
    size_t key, pooled;
} index_place;

static index_place index_place_of(const moe_runner *runner, uint32_t layer)
{
    const moe_model_config *c = runner->config;
    if (c->index_means || c->index_block > 0) {
        return (index_place){*moe_kv_side(runner->kv, layer), 0, 0};
    }
    const moe_kv_layout *layout =
        c->index_rate > 0 ? &runner->kv->beside[layer] : &runner->kv->layers[layer];
    const moe_kv_type type = (moe_kv_type)layout->type;
    const size_t key = moe_kv_row_bytes(type, c->head_dim_k);
    const size_t gate = c->index_pool > 1 ? moe_kv_row_bytes(type, c->index_dim) : 0;
    return (index_place){*layout, key, key + gate};
}

/* Finds the stored row of a logical position. */
static uint8_t *index_row(const index_place *at, const moe_kv_row *row, uint32_t position)
{
    const uint32_t stored = moe_kv_row_stored(row, position);
    uint8_t *page = row->pages[moe_kv_entry(&at->layout, stored / MOE_KV_PAGE)];
    return page + at->layout.k_offset + (size_t)(stored % MOE_KV_PAGE) * at->layout.k_row_bytes;
}

/* Fills in the angles of the first positions of the pools that rows end. */
static void find_angles(const moe_run *run, float *cosines, float *sines)
{
    const moe_runner *runner = run->runner;
    const moe_model_config *c = runner->config;
    const uint32_t half = c->n_rot / 2;
    for (uint32_t r = 0; r < run->n_rows; r++) {
        const uint32_t after = run->pass->kv_rows[r].position + 1;
        for (uint32_t i = 0; after % c->index_pool == 0 && i < half; i++) {
            const double angle = (double)(after - c->index_pool) * runner->rope_frequencies[i];
            cosines[(size_t)r * half + i] = (float)(cos(angle) * c->yarn_magnitude);
            sines[(size_t)r * half + i] = (float)(sin(angle) * c->yarn_magnitude);
        }
    }
}

/* A pool's key takes the place of the gate of its last position, or of that position's own key. So
 * every row whose path has this position finds the key of its own pool, also in a token tree. */
int moe_op_pool(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_runner *runner = run->runner;
    const moe_model_config *c = runner->config;
    const index_place at = index_place_of(runner, run->layer);
    float *cosines = runner->buffers.index_angles;
    float *sines = cosines + (size_t)runner->buffers.max_rows * (c->n_rot / 2);
    moe_key_pool pool = {.layout = at.layout,
                         .rows = run->pass->kv_rows,
                         .key = at.key,
                         .pooled = at.pooled,
                         .n = c->index_pool,
                         .dim = c->index_dim,
                         .means = c->index_means,
                         .weight = moe_op_weight(run, op->tensor)->data,
                         .eps = c->norm_eps,
                         .scratch = runner->buffers.values[MOE_VALUE_INDEX_BLOCK]};
    _Static_assert(2 * MOE_MAX_INDEX_POOL + 1 <= MOE_INDEX_BLOCK, "the scratch of a pool");
    if (c->index_means) {
        find_angles(run, cosines, sines);
        pool.rope = (moe_rope){.n_rot = c->n_rot,
                               .interleaved = c->rope == MOE_ROPE_INTERLEAVED,
                               .cos = cosines,
                               .sin = sines};
    }
    return runner->device->ops->pool_keys(runner->device, &pool, run->n_rows, err);
}

/* Loads the index keys of n logical positions, or of n pools, into index_host. */
static void load_keys(moe_runner *runner, const moe_kv_row *row, const index_place *at,
                      uint32_t first, uint32_t n)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    MOE_ASSERT((runner->device->features & MOE_DEVICE_READABLE) != 0);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t position = (first + i + 1) * c->index_pool - 1;
        const uint8_t *from = c->index_rate > 0
                                  ? moe_block_key(&at->layout, row, c->index_rate, first + i)
                                  : index_row(at, row, position);
        b->vector.kv_load((moe_kv_type)at->layout.type, from + at->pooled,
                          b->index_host + (size_t)i * c->index_dim, c->index_dim);
    }
}

/* Rows of the pass that see the same stored positions, though some see fewer of them. */
typedef struct row_group {
    uint32_t first, n_rows;
    uint32_t n_positions; /* the most that one of them sees */
    uint32_t n_keys;      /* the keys of these positions, or of whole pools of them */
    uint32_t n_scores;    /* of a row: for each key, or for each block and head */
} row_group;

/* Sums the positive products of a row's heads with each of n keys, weighted by head. */
static void sum_scores(const moe_runner *runner, const float *weights, const float *products,
                       uint32_t n, float *scores)
{
    memset(scores, 0, n * sizeof *scores);
    for (uint32_t h = 0; h < runner->config->index_heads; h++) {
        runner->buffers.vector.relu_axpy(weights[h], products + (size_t)h * n, scores, n);
    }
}

static uint32_t n_blocks_of(const moe_model_config *c, uint32_t n_positions)
{
    return n_positions / c->index_block + (n_positions % c->index_block > 0);
}

/* The highest of n > 0 products; a NaN if one of them is a NaN. */
static float highest_of(const float *products, uint32_t n)
{
    enum { LANES = 16 };
    float highest[LANES];
    for (uint32_t l = 0; l < LANES; l++) {
        highest[l] = -INFINITY;
    }
    for (uint32_t i = 0; i < n / LANES * LANES; i += LANES) {
        for (uint32_t l = 0; l < LANES; l++) {
            const float x = products[i + l];
            highest[l] = x > highest[l] || isnan(x) ? x : highest[l];
        }
    }
    for (uint32_t i = n / LANES * LANES; i < n; i++) {
        highest[0] = products[i] > highest[0] || isnan(products[i]) ? products[i] : highest[0];
    }
    for (uint32_t l = 1; l < LANES; l++) {
        highest[0] = highest[l] > highest[0] || isnan(highest[l]) ? highest[l] : highest[0];
    }
    return highest[0];
}

/* Raises each block's score, for each head, to the highest product of its keys. scores:
 * [index_heads][n_blocks] */
static void raise_scores(const moe_model_config *c, const float *products, uint32_t begin,
                         uint32_t n, uint32_t n_blocks, float *scores)
{
    const uint32_t block = c->index_block;
    for (uint32_t h = 0; h < c->index_heads; h++) {
        for (uint32_t i = 0, n_here; i < n; i += n_here) {
            const uint32_t left = block - (begin + i) % block;
            n_here = n - i < left ? n - i : left;
            float *score = &scores[(size_t)h * n_blocks + (begin + i) / block];
            const float highest = highest_of(products + (size_t)h * n + i, n_here);
            *score = left == block || highest > *score || isnan(highest) ? highest : *score;
        }
    }
}

/* Scores n keys from `begin` on for the rows of a group. */
static int score_block(moe_runner *runner, const row_group *group, uint32_t begin, uint32_t n,
                       moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    const moe_device_ops *ops = runner->device->ops;
    moe_linear products = {.weight = {.type = MOE_DTYPE_F32,
                                      .data = (const uint8_t *)b->values[MOE_VALUE_INDEX_BLOCK],
                                      .n_in = c->index_dim,
                                      .n_out = n,
                                      .row_bytes = c->index_dim * sizeof(float)},
                           .out = b->values[MOE_VALUE_INDEX_PRODUCTS]};
    const float *queries =
        b->values[MOE_VALUE_INDEX_Q] + (size_t)group->first * c->index_heads * c->index_dim;
    uint32_t n_queries = group->n_rows * c->index_heads;
    if (c->index_block == 0 && c->index_dim <= MOE_SCORED_MAX_DIM) {
        const moe_key_scores scores = {.keys = b->index_host,
                                       .n_keys = n,
                                       .dim = c->index_dim,
                                       .n_head = c->index_heads,
                                       .queries = queries,
                                       .weights = b->index_factors,
                                       .scores = b->index_scores + begin,
                                       .stride = group->n_scores};
        return ops->score_keys(runner->device, &scores, group->n_rows, err);
    }
    MOE_TRY(ops->upload(runner->device, b->values[MOE_VALUE_INDEX_BLOCK], b->index_host,
                        (size_t)n * c->index_dim * sizeof(float), err));
    MOE_TRY(ops->linear(runner->device, queries, n_queries, c->index_dim, &products, 1, err));
    MOE_TRY(ops->download(runner->device, b->index_host, b->values[MOE_VALUE_INDEX_PRODUCTS],
                          (size_t)n_queries * n * sizeof(float), err));
    for (uint32_t r = 0; r < group->n_rows; r++) {
        const float *of_row = b->index_host + (size_t)r * c->index_heads * n;
        float *scores = b->index_scores + (size_t)r * group->n_scores;
        if (c->index_block > 0) {
            raise_scores(c, of_row, begin, n, n_blocks_of(c, group->n_keys), scores);
        } else {
            sum_scores(runner, b->index_factors + (size_t)r * c->index_heads, of_row, n,
                       scores + begin);
        }
    }
    return MOE_OK;
}

/* How many positions a row attends to if it chooses. */
static uint32_t n_chosen_of(const moe_model_config *c, const moe_kv_row *row)
{
    return c->index_block > 0 ? c->index_top_k - c->index_block + row->position % c->index_block + 1
                              : c->index_top_k + (row->position + 1) % c->index_pool;
}

/* Where a row's chosen positions are stored for a group of heads:
 * [groups][rows][moe_most_chosen()]. */
static uint32_t *choice_of(const moe_runner *runner, const moe_pass *pass, uint32_t row,
                           uint32_t group)
{
    uint32_t *chosen = (uint32_t *)runner->buffers.values[MOE_VALUE_INDEX_CHOSEN];
    return chosen + ((size_t)group * pass->n_rows + row) * moe_most_chosen(runner->config);
}

/* Chooses blocks, and lists where their positions are stored. The last block ends with the row. */
static void choose_blocks(moe_runner *runner, const moe_kv_row *at, float *scores, uint32_t *path)
{
    const moe_model_config *c = runner->config;
    const uint32_t block = c->index_block, n_chosen = c->index_top_k / block;
    const uint32_t n_blocks = at->position / block + 1;
    for (uint32_t i = 0; i < c->index_local && i < n_blocks; i++) {
        scores[n_blocks - 1 - i] = INFINITY;
    }
    moe_choose_positions(scores, n_blocks, n_chosen, runner->buffers.index_order, path);
    for (uint32_t i = n_chosen_of(c, at); i-- > 0;) {
        path[i] = moe_kv_row_stored(at, path[i / block] * block + i % block);
    }
}

static void choose_for_row(moe_runner *runner, const moe_pass *pass, uint32_t row,
                           const row_group *group)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    const moe_kv_row *at = &pass->kv_rows[row];
    const uint32_t pool = c->index_pool, n_pools = c->index_top_k / pool;
    const uint32_t n_keys = (at->position + 1) / pool, n = n_chosen_of(c, at);
    uint32_t *path = choice_of(runner, pass, row, 0);
    float *scores = b->index_scores + (size_t)(row - group->first) * group->n_scores;
    for (uint32_t h = 0; c->index_block > 0 && h < c->index_heads; h++) {
        choose_blocks(runner, at, scores + (size_t)h * n_blocks_of(c, group->n_keys),
                      choice_of(runner, pass, row, h));
    }
    if (c->index_block > 0) {
        return;
    }
    if (c->index_rate > 0) { /* the choice is of blocks, whose places moe_compressed_rows() finds */
        moe_choose_positions(scores, (at->position + 1) / c->index_rate, c->index_top_k,
                             b->index_order, path);
        return;
    }
    moe_choose_positions(scores, n_keys, n_pools, b->index_order, path);
    for (uint32_t i = c->index_top_k; i-- > 0;) { /* replaces each chosen pool by its positions */
        path[i] = path[i / pool] * pool + i % pool;
    }
    for (uint32_t i = c->index_top_k; i < n; i++) {
        path[i] = n_keys * pool + i - c->index_top_k;
    }
    for (uint32_t i = 0; i < n; i++) {
        path[i] = moe_kv_row_stored(at, path[i]);
    }
}

/* Gives rows that see more positions than they attend to their chosen positions as a path. */
static void refer_to_choice(moe_runner *runner, const moe_pass *pass)
{
    const moe_model_config *c = runner->config;
    for (uint32_t i = 0; i < pass->n_rows * moe_choosing_groups(c); i++) {
        const uint32_t r = i % pass->n_rows;
        const moe_kv_row *at = &pass->kv_rows[r];
        moe_kv_row *refers = &runner->buffers.index_rows[i];
        *refers = *at;
        if (moe_position_chooses(c, at->position)) {
            *refers = (moe_kv_row){.pages = at->pages,
                                   .position = n_chosen_of(c, at) - 1,
                                   .stored = at->stored,
                                   .path = choice_of(runner, pass, r, i / pass->n_rows)};
        }
    }
}

/* Fetches the factors of the heads' scores; 1 for indexers without such factors. */
static int bring_factors(moe_runner *runner, const row_group *group, moe_error *err)
{
    const uint32_t n_head = runner->config->index_heads;
    moe_pass_buffers *b = &runner->buffers;
    const float *weights = b->values[MOE_VALUE_INDEX_WEIGHTS];
    const size_t n = (size_t)group->n_rows * n_head;
    for (size_t i = 0; i < n; i++) {
        b->index_factors[i] = 1.0f;
    }
    return weights == NULL ? MOE_OK
                           : runner->device->ops->download(runner->device, b->index_factors,
                                                           weights + (size_t)group->first * n_head,
                                                           n * sizeof(float), err);
}

static int choose_for_group(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                            const row_group *group, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    const index_place at = index_place_of(runner, layer);
    const moe_kv_row *furthest = &pass->kv_rows[group->first];
    for (uint32_t r = 0; r < group->n_rows; r++) {
        const moe_kv_row *row = &pass->kv_rows[group->first + r];
        furthest = row->position + 1 == group->n_positions ? row : furthest;
    }
    MOE_TRY(grow(b, group->n_scores, err));
    MOE_TRY(bring_factors(runner, group, err));
    for (uint32_t begin = 0; begin < group->n_keys; begin += MOE_INDEX_BLOCK) {
        uint32_t left = group->n_keys - begin;
        uint32_t n = left < MOE_INDEX_BLOCK ? left : MOE_INDEX_BLOCK;
        load_keys(runner, furthest, &at, begin, n);
        MOE_TRY(score_block(runner, group, begin, n, err));
    }
    for (uint32_t r = 0; r < group->n_rows; r++) {
        if (moe_position_chooses(c, pass->kv_rows[group->first + r].position)) {
            choose_for_row(runner, pass, group->first + r, group);
        }
    }
    return MOE_OK;
}

/* The group whose first row is `first`. */
static row_group group_at(const moe_pass *pass, uint32_t first)
{
    const moe_kv_row *rows = pass->kv_rows;
    row_group group = {first, 1, rows[first].position + 1, 0, 0};
    while (rows[first].path == NULL && group.n_rows < MOE_INDEX_ROWS &&
           first + group.n_rows < pass->n_rows && rows[first + group.n_rows].path == NULL &&
           rows[first + group.n_rows].pages == rows[first].pages) {
        uint32_t n = rows[first + group.n_rows].position + 1;
        group.n_positions = n > group.n_positions ? n : group.n_positions;
        group.n_rows++;
    }
    return group;
}

static size_t scores_room(const moe_model_config *c)
{
    return (size_t)MOE_INDEX_ROWS * MOE_INDEX_BLOCK * c->index_heads;
}

uint64_t moe_index_most_positions(const moe_device *device, const moe_model_config *config)
{
    if ((device->features & MOE_DEVICE_READABLE) != 0) {
        return UINT64_MAX;
    }
    bool chooses =
        (device->features & MOE_DEVICE_CHOICE) != 0 && config->index_dim <= MOE_CHOICE_MAX_DIM;
    uint64_t scored = scores_room(config); /* of each head, by blocks */
    scored = config->index_block > 0 ? scored / config->index_heads * config->index_block
                                     : scored * config->index_pool;
    return chooses ? scored : config->index_top_k;
}

static int choose_on_device(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                            moe_error *err)
{
    const moe_model_config *c = runner->config;
    const moe_pass_buffers *b = &runner->buffers;
    const index_place at = index_place_of(runner, layer);
    moe_position_choice choice = {.layout = at.layout,
                                  .key_offset = at.pooled,
                                  .rows = pass->kv_rows,
                                  .queries = b->values[MOE_VALUE_INDEX_Q],
                                  .weights = b->values[MOE_VALUE_INDEX_WEIGHTS],
                                  .n_head = c->index_heads,
                                  .dim = c->index_dim,
                                  .n_chosen = c->index_top_k,
                                  .block = c->index_block,
                                  .n_local = c->index_local,
                                  .pool = c->index_pool,
                                  .scores = b->values[MOE_VALUE_INDEX_PRODUCTS],
                                  .n_scores = scores_room(c),
                                  .chosen = (uint32_t *)b->values[MOE_VALUE_INDEX_CHOSEN]};
    return runner->device->ops->choose(runner->device, &choice, pass->n_rows, err);
}

/* Chooses on the host, for a device that works in the host's memory. */
static int choose_on_host(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_model_config *c = runner->config;
    int status = MOE_OK;
    if (c->index_rate == 0) {
        refer_to_choice(runner, pass);
    }
    for (uint32_t first = 0; first < pass->n_rows && status == MOE_OK;) {
        row_group group = group_at(pass, first);
        group.n_keys = group.n_positions / (c->index_rate > 0 ? c->index_rate : c->index_pool);
        group.n_scores =
            c->index_block > 0 ? c->index_heads * n_blocks_of(c, group.n_keys) : group.n_keys;
        if (moe_position_chooses(runner->config, group.n_positions - 1)) {
            status = choose_for_group(runner, pass, layer, &group, err);
        }
        first += group.n_rows;
    }
    return status;
}

int moe_op_choose(const moe_run *run, const moe_op *op, moe_error *err)
{
    moe_runner *runner = run->runner;
    (void)op;
    return (runner->device->features & MOE_DEVICE_CHOICE) != 0
               ? choose_on_device(runner, run->pass, run->layer, err)
               : choose_on_host(runner, run->pass, run->layer, err);
}

void moe_index_chosen(const moe_runner *runner, const moe_pass *pass, uint32_t group,
                      moe_attention *attention)
{
    const moe_pass_buffers *b = &runner->buffers;
    attention->rows = pass->kv_rows;
    attention->chosen = NULL;
    attention->n_chosen = runner->config->index_top_k;
    attention->chosen_block = runner->config->index_block;
    attention->chosen_pool = runner->config->index_pool;
    if (!moe_pass_chooses(runner->config, pass)) {
        return;
    }
    if ((runner->device->features & MOE_DEVICE_CHOICE) != 0) {
        attention->chosen = choice_of(runner, pass, 0, group);
    } else {
        attention->rows = b->index_rows + (size_t)group * pass->n_rows;
    }
}

int moe_index_bring(moe_runner *runner, const moe_pass *pass, const uint32_t *chosen,
                    moe_error *err)
{
    size_t bytes = (size_t)pass->n_rows * moe_most_chosen(runner->config) * sizeof *chosen;
    if ((runner->device->features & MOE_DEVICE_CHOICE) == 0) {
        refer_to_choice(runner, pass);
    }
    return runner->device->ops->upload(
        runner->device, runner->buffers.values[MOE_VALUE_INDEX_CHOSEN], chosen, bytes, err);
}

int moe_index_fetch(moe_runner *runner, const moe_pass *pass, uint32_t *chosen, moe_error *err)
{
    size_t bytes = (size_t)pass->n_rows * moe_most_chosen(runner->config) * sizeof *chosen;
    return runner->device->ops->download(
        runner->device, chosen, runner->buffers.values[MOE_VALUE_INDEX_CHOSEN], bytes, err);
}
