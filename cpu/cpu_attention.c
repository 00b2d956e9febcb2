/* SPDX-License-Identifier: MIT */
/* Attention over the paged KV cache, shared by the team. Every page is folded into the running
 * state of every query in ascending order, so the order of reduction depends on logical positions
 * alone. Tasks have one of two shapes:
 *
 *  tiles   A task is one tile: it walks all pages and folds each page into the state right away.
 *  pages   If there are too few tiles for the team (one sequence, few KV heads) and the texts are
 *          long, the threads share the pages, too. They work in rounds. In a round's first half a
 *          task is a run of pages of one tile; the task stores each page's part. In the second half
 *          a task is some queries of a tile: it folds the parts, in ascending order.
 *
 *            round 0: pages 0..23                      round 1: pages 24..47
 *            thread 0  0 1 2   6 7 8 ..  fold 0..23    24 25 26 ..        fold 24..47
 *            thread 1  3 4 5   9 10 ..   fold 0..23    27 28 29 ..        fold 24..47
 *
 * A page's part does not depend on which thread computes it or when, so both shapes give the same
 * bits. */
#include <string.h>

#include "cpu/cpu_attention_tile.h"
#include "runtime/base/moe_assert.h"

/* Shorter texts, in pages, are not worth the rounds. */
#define FEWEST_PAGES 8u
/* A task reads its run of pages in order, which helps the processor's prefetcher. Longer runs than
 * this are no faster. */
#define LONGEST_RUN    8u
#define TASKS_A_THREAD 4u /* in each half of a round */

typedef struct attention_job {
    moe_cpu_device *cpu;
    const moe_attention *a;
    uint32_t n_rows;
    uint32_t group;     /* query heads that share a KV head */
    uint32_t heads;     /* query heads of a tile */
    uint32_t tile_rows; /* rows of a tile */
    uint32_t n_parts;   /* tiles into which a KV head's group is divided */
    uint32_t n_strips;  /* tiles into which the rows are divided */
    uint32_t n_tiles;
    /* Used only if the pages are shared: */
    moe_page_range round;  /* the pages of this round */
    uint32_t run;          /* pages of a task */
    uint32_t n_runs;       /* tasks of a tile */
    uint32_t fold_queries; /* queries of a task of the second half */
    uint32_t n_folds;      /* tasks of a tile in the second half */
    uint32_t pages_a_round;
    bool first_round, last_round;
    moe_task_queue queue;
} attention_job;

/* Returns the queries of a tile one after the other: in place if they lie so, else a copy in
 * `packed`. */
static const float *pack_queries(const moe_attention_tile *tile, float *packed)
{
    const moe_attention *a = tile->a;
    size_t row_stride = (size_t)a->n_head * a->layout.k_dim;
    size_t n = (size_t)tile->n_heads * a->layout.k_dim;
    const float *first =
        a->q + (size_t)tile->first_row * row_stride + (size_t)tile->first_head * a->layout.k_dim;
    if (tile->n_rows == 1) {
        return first;
    }
    for (uint32_t r = 0; r < tile->n_rows; r++) {
        memcpy(packed + r * n, first + r * row_stride, n * sizeof(float));
    }
    return packed;
}

/* Tile t, without its queries. */
static moe_attention_tile tile_at(const attention_job *job, uint32_t t)
{
    uint32_t part = t % job->n_parts * job->heads;
    uint32_t row = t / job->n_parts % job->n_strips * job->tile_rows;
    uint32_t kv_head = t / job->n_parts / job->n_strips;
    moe_attention_tile tile = {.cpu = job->cpu, .a = job->a, .first_row = row, .kv_head = kv_head};
    tile.n_rows = job->n_rows - row < job->tile_rows ? job->n_rows - row : job->tile_rows;
    tile.first_head = kv_head * job->group + part;
    tile.n_heads = job->group - part < job->heads ? job->group - part : job->heads;
    return tile;
}

static void attend_tiles(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    attention_job *job = arg;
    float *scratch = job->cpu->attention_state + worker * job->cpu->attention_state_size;
    float *packed = scratch + (size_t)job->tile_rows * job->heads * job->a->layout.v_dim;
    float max[MOE_CPU_ATTENTION_TILE], sum[MOE_CPU_ATTENTION_TILE];
    float page_max[MOE_CPU_ATTENTION_TILE], page_sum[MOE_CPU_ATTENTION_TILE];
    const moe_attention_part state = {max, sum, NULL}, part = {page_max, page_sum, scratch};
    for (uint32_t t; (t = moe_task_next(&job->queue)) < job->n_tiles;) {
        moe_attention_tile tile = tile_at(job, t);
        tile.q = pack_queries(&tile, packed);
        const moe_query_range all = {0, tile.n_rows * tile.n_heads};
        moe_page_range pages = moe_attention_pages(job->a, tile.first_row, tile.n_rows);
        moe_attention_begin(&tile, all, state);
        for (uint32_t page = pages.begin; page < pages.end; page++) {
            moe_attention_page(&tile, page, part);
            moe_attention_fold(&tile, all, page, part, state);
        }
        moe_attention_finish(&tile, all, state);
    }
}

/* How many floats the maxima of a part take, and also its sums. */
static size_t padded_queries(uint32_t n_queries)
{
    return (n_queries + 15) / 16 * 16;
}

static size_t part_floats(uint32_t n_queries, uint32_t v_dim)
{
    return 2 * padded_queries(n_queries) + (size_t)n_queries * v_dim;
}

size_t moe_cpu_attention_parts(uint32_t n_queries, uint32_t v_dim)
{
    /* Pages are shared if there are fewer than two tiles for each worker. */
    return 2 * 2 * padded_queries(n_queries) +
           MOE_CPU_ATTENTION_PAGES * part_floats(n_queries, v_dim);
}

/* attention_parts has the states of all tiles first, then the parts: [tile][page of the round]. */
static moe_attention_part state_of(const attention_job *job, uint32_t t)
{
    size_t n = padded_queries(job->tile_rows * job->heads);
    float *at = job->cpu->attention_parts + t * 2 * n;
    return (moe_attention_part){at, at + n, NULL};
}

static moe_attention_part part_of(const attention_job *job, uint32_t t, uint32_t page)
{
    uint32_t queries = job->tile_rows * job->heads;
    size_t n = padded_queries(queries);
    size_t index = (size_t)t * job->pages_a_round + (page - job->round.begin);
    float *at = job->cpu->attention_parts + job->n_tiles * 2 * n +
                index * part_floats(queries, job->a->layout.v_dim);
    return (moe_attention_part){at, at + n, at + 2 * n};
}

/* The tile's pages of this round. */
static moe_page_range round_of(const attention_job *job, const moe_attention_tile *tile)
{
    moe_page_range pages = moe_attention_pages(job->a, tile->first_row, tile->n_rows);
    pages.begin = pages.begin > job->round.begin ? pages.begin : job->round.begin;
    pages.end = pages.end < job->round.end ? pages.end : job->round.end;
    return pages;
}

static void attend_runs(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    attention_job *job = arg;
    float *packed = job->cpu->attention_state + worker * job->cpu->attention_state_size;
    for (uint32_t t; (t = moe_task_next(&job->queue)) < job->n_tiles * job->n_runs;) {
        moe_attention_tile tile = tile_at(job, t / job->n_runs);
        moe_page_range pages = round_of(job, &tile);
        uint32_t begin = job->round.begin + t % job->n_runs * job->run, end = begin + job->run;
        begin = begin > pages.begin ? begin : pages.begin;
        end = end < pages.end ? end : pages.end;
        if (begin < end) {
            tile.q = pack_queries(&tile, packed);
        }
        for (uint32_t page = begin; page < end; page++) {
            moe_attention_page(&tile, page, part_of(job, t / job->n_runs, page));
        }
    }
}

static void fold_parts(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)worker;
    (void)n_workers;
    attention_job *job = arg;
    for (uint32_t t; (t = moe_task_next(&job->queue)) < job->n_tiles * job->n_folds;) {
        const uint32_t index = t / job->n_folds;
        const moe_attention_tile tile = tile_at(job, index);
        const uint32_t n = tile.n_rows * tile.n_heads;
        moe_query_range queries = {t % job->n_folds * job->fold_queries, 0};
        queries.end = queries.begin + job->fold_queries;
        queries.end = queries.end < n ? queries.end : n;
        const moe_attention_part state = state_of(job, index);
        const moe_page_range pages = round_of(job, &tile);
        if (job->first_round) {
            moe_attention_begin(&tile, queries, state);
        }
        for (uint32_t page = pages.begin; page < pages.end; page++) {
            moe_attention_fold(&tile, queries, page, part_of(job, index, page), state);
        }
        if (job->last_round) {
            moe_attention_finish(&tile, queries, state);
        }
    }
}

static uint32_t lower(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The most rows that a tile can have, given its number of heads. */
static uint32_t most_rows(const attention_job *job)
{
    size_t row_floats = (size_t)job->heads * (job->a->layout.k_dim + job->a->layout.v_dim);
    size_t rows = job->cpu->attention_state_size / row_floats;
    rows = rows < job->n_rows ? rows : job->n_rows;
    rows = lower((uint32_t)rows, MOE_CPU_ATTENTION_TILE / job->heads);
    return rows > 0 ? (uint32_t)rows : 1;
}

static void count_tiles(attention_job *job)
{
    job->n_parts = (job->group + job->heads - 1) / job->heads;
    job->n_strips = (job->n_rows + job->tile_rows - 1) / job->tile_rows;
    job->n_tiles = job->n_parts * job->n_strips * job->a->layout.n_head_kv;
    MOE_ASSERT((size_t)job->heads * job->a->layout.v_dim <= job->cpu->attention_state_size);
}

/* Divides the queries into tiles when pages are not shared: a tile takes as many queries as fit,
 * heads before rows, but there must be enough tiles to keep all threads busy. */
static void share_out_tiles(attention_job *job, uint32_t wanted)
{
    uint32_t units = job->n_rows * job->a->layout.n_head_kv;
    job->heads = lower(job->group, MOE_CPU_ATTENTION_TILE);
    while (job->heads > 1 && units * (job->group / job->heads) < wanted) {
        job->heads = (job->heads + 1) / 2;
    }
    job->tile_rows = most_rows(job);
    while (job->tile_rows > 1 && units / job->tile_rows < wanted) {
        job->tile_rows = (job->tile_rows + 1) / 2;
    }
    count_tiles(job);
}

/* Whether all rows are of one timeline. Then they read the same pages; rows of different timelines
 * mostly do not. */
static bool is_one_timeline(const attention_job *job)
{
    for (uint32_t r = 1; r < job->n_rows; r++) {
        if (job->a->rows[r].pages != job->a->rows[0].pages) {
            return false;
        }
    }
    return true;
}

/* Divides the pages among threads, too, if there are fewer than `wanted` tiles of full size.
 * Returns false if sharing the pages does not pay. */
static bool share_out_pages(attention_job *job, moe_page_range pages, uint32_t wanted)
{
    if (pages.end - pages.begin < FEWEST_PAGES) {
        return false;
    }
    job->heads = lower(job->group, MOE_CPU_ATTENTION_TILE);
    job->tile_rows = is_one_timeline(job) ? most_rows(job) : 1;
    count_tiles(job);
    if (job->n_tiles >= wanted) {
        return false;
    }
    uint32_t queries = job->tile_rows * job->heads;
    MOE_ASSERT(job->n_tiles * 2 * padded_queries(queries) <= job->cpu->attention_parts_size);
    size_t floats = job->cpu->attention_parts_size - job->n_tiles * 2 * padded_queries(queries);
    size_t parts = floats / part_floats(queries, job->a->layout.v_dim) / job->n_tiles;
    job->pages_a_round =
        parts < pages.end - pages.begin ? (uint32_t)parts : pages.end - pages.begin;
    if (job->pages_a_round < 2) {
        return false;
    }
    uint32_t tasks = TASKS_A_THREAD * moe_team_size(job->cpu->team);
    uint32_t run = job->pages_a_round * job->n_tiles / tasks;
    job->run = run == 0 ? 1 : lower(run, LONGEST_RUN);
    job->n_runs = (job->pages_a_round + job->run - 1) / job->run;
    job->fold_queries = (queries * job->n_tiles + tasks - 1) / tasks;
    job->n_folds = (queries + job->fold_queries - 1) / job->fold_queries;
    return true;
}

static void attend_in_rounds(attention_job *job, moe_page_range pages)
{
    for (uint32_t begin = pages.begin; begin < pages.end; begin += job->pages_a_round) {
        job->round = (moe_page_range){begin, lower(begin + job->pages_a_round, pages.end)};
        job->first_round = begin == pages.begin;
        job->last_round = job->round.end == pages.end;
        job->queue = (moe_task_queue){0};
        moe_team_run(job->cpu->team, attend_runs, job);
        job->queue = (moe_task_queue){0};
        moe_team_run(job->cpu->team, fold_parts, job);
    }
}

int moe_cpu_attention(moe_device *device, const moe_attention *attention, uint32_t n_rows,
                      moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    const moe_kv_layout *layout = &attention->layout;
    attention_job job = {.cpu = cpu, .a = attention, .n_rows = n_rows};
    job.group = attention->n_head / layout->n_head_kv;
    MOE_ASSERT(job.group > 0 && job.group * layout->n_head_kv == attention->n_head);
    const uint32_t threads = moe_team_size(cpu->team);
    const uint32_t wanted = threads > 1 ? 2 * threads : 1;
    const moe_page_range pages = moe_attention_pages(attention, 0, n_rows);
    if (threads > 1 && share_out_pages(&job, pages, wanted)) {
        attend_in_rounds(&job, pages);
    } else {
        share_out_tiles(&job, wanted);
        moe_team_run(cpu->team, attend_tiles, &job);
    }
    return MOE_OK;
}
