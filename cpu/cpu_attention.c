/* SPDX-License-Identifier: MIT */
/* Attention over the paged KV cache. A task is one KV head, a tile of rows and some of the query
 * heads that share the KV head. The task walks the pages in ascending order and folds each into the
 * running state of every row, so the order of reduction depends on logical positions alone.
 *
 * A page that several neighbouring rows of the tile see whole, in one place, is attended to by the
 * queries of all of them in one call: its keys and values are loaded and converted once. A prompt's
 * rows share all pages but the last two; the rows of a batch share the pages of a common prefix.
 *
 *   page      0      1      2      3
 *   row 200   whole  whole  whole  partly   pages 0 to 2: one call for the three rows,
 *   row 201   whole  whole  whole  partly   page 3: one call for each row
 *   row 202   whole  whole  whole  partly
 *
 * If a row's path takes a logical page from several places, the kernel gets a list of the page's
 * rows. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_internal.h"
#include "runtime/base/moe_assert.h"

typedef struct attention_job {
    moe_cpu_device *cpu;
    const moe_attention *a;
    uint32_t n_rows;
    uint32_t group;     /* query heads of a KV head */
    uint32_t heads;     /* query heads of a task */
    uint32_t tile_rows; /* rows of a task */
    uint32_t n_parts;   /* tasks that share a KV head's group */
    uint32_t n_tiles;   /* tasks that share the rows */
    uint32_t n_tasks;
    moe_task_queue queue;
} attention_job;

/* Where a logical page's keys and values are. */
typedef struct page_rows {
    const void *k[MOE_KV_PAGE];
    const void *v[MOE_KV_PAGE];
} page_rows;

/* Lists positions first .. first + n - 1 of the timeline. */
static void collect_rows(const moe_kv_layout *layout, const moe_kv_row *kv, uint32_t kv_head,
                         uint32_t first, uint32_t n, page_rows *rows)
{
    MOE_ASSERT(n <= MOE_KV_PAGE && kv->path_first <= kv->position);
    for (uint32_t j = 0; j < n; j++) {
        MOE_ASSERT(first + j <= kv->position);
        uint32_t stored = moe_kv_row_stored(kv, first + j);
        const uint8_t *page = kv->pages[moe_kv_entry(layout, stored / MOE_KV_PAGE)];
        MOE_ASSERT(page != NULL);
        size_t slot = (size_t)kv_head * MOE_KV_PAGE + stored % MOE_KV_PAGE;
        rows->k[j] = page + layout->k_offset + slot * layout->k_row_bytes;
        rows->v[j] = page + layout->v_offset + slot * layout->v_row_bytes;
    }
}

/* Finds positions from .. from + args->n_valid - 1, which lie in one page. */
static void place_page(const moe_kv_layout *layout, const moe_kv_row *kv, uint32_t kv_head,
                       uint32_t from, page_rows *rows, moe_attend_args *args)
{
    uint32_t page = from / MOE_KV_PAGE;
    if (kv->path != NULL && (page + 1) * MOE_KV_PAGE > kv->path_first) {
        collect_rows(layout, kv, kv_head, from, args->n_valid, rows);
        args->k_rows = rows->k;
        args->v_rows = rows->v;
        return;
    }
    const uint8_t *base = kv->pages[moe_kv_entry(layout, page)];
    MOE_ASSERT(base != NULL);
    size_t slot = (size_t)kv_head * MOE_KV_PAGE + from % MOE_KV_PAGE;
    args->k = base + layout->k_offset + slot * layout->k_row_bytes;
    args->v = base + layout->v_offset + slot * layout->v_row_bytes;
}

/* The keys of the page that begins at position `from`, or NULL if the timeline ends before the
 * page does, or takes it from several places. */
static const void *next_keys(const moe_kv_layout *layout, const moe_kv_row *kv, uint32_t kv_head,
                             uint32_t from)
{
    uint32_t end = from + MOE_KV_PAGE;
    if (from % MOE_KV_PAGE != 0 || end > kv->position ||
        (kv->path != NULL && end > kv->path_first)) {
        return NULL;
    }
    const uint8_t *page = kv->pages[moe_kv_entry(layout, from / MOE_KV_PAGE)];
    return page + layout->k_offset + (size_t)kv_head * MOE_KV_PAGE * layout->k_row_bytes;
}

/* A task. Arrays with one element a query are [n_rows][n_heads]. */
typedef struct attention_tile {
    const attention_job *job;
    uint32_t first_row, n_rows;
    uint32_t kv_head;
    uint32_t first_head, n_heads; /* of all query heads */
    const float *q;               /* [n_rows][n_heads][k_dim] */
    float *page_out;              /* [n_rows][n_heads][v_dim] */
    float max[MOE_CPU_ATTENTION_TILE], sum[MOE_CPU_ATTENTION_TILE];
} attention_tile;

static const moe_kv_row *row_of(const attention_tile *tile, uint32_t r)
{
    return &tile->job->a->rows[tile->first_row + r];
}

static float *out_of(const attention_tile *tile, uint32_t r)
{
    const moe_attention *a = tile->job->a;
    size_t head = (size_t)(tile->first_row + r) * a->n_head + tile->first_head;
    return a->out + head * a->layout.v_dim;
}

static float scale_of(const attention_tile *tile, uint32_t r)
{
    const moe_attention *a = tile->job->a;
    return a->row_scales != NULL ? a->scale * a->row_scales[tile->first_row + r] : a->scale;
}

/* The positions of a page that row r sees: from .. end - 1, perhaps none. */
typedef struct seen_range {
    uint32_t from, end;
} seen_range;

static seen_range seen_of(const attention_tile *tile, uint32_t r, uint32_t page)
{
    uint32_t position = row_of(tile, r)->position;
    uint32_t first = moe_attention_first(tile->job->a, position);
    uint32_t from = page * MOE_KV_PAGE, end = from + MOE_KV_PAGE;
    return (seen_range){from > first ? from : first, end < position + 1 ? end : position + 1};
}

/* Row r sees the whole page, and none of it through a path. */
static bool sees_whole(const attention_tile *tile, uint32_t r, uint32_t page)
{
    const moe_kv_row *kv = row_of(tile, r);
    seen_range seen = seen_of(tile, r, page);
    uint32_t end = (page + 1) * MOE_KV_PAGE;
    return seen.from == page * MOE_KV_PAGE && seen.end == end &&
           (kv->path == NULL || end <= kv->path_first);
}

/* How many rows from r on, one or more, attend to the page in one call. */
static uint32_t rows_together(const attention_tile *tile, uint32_t r, uint32_t page)
{
    uint32_t n = 1;
    size_t entry = moe_kv_entry(&tile->job->a->layout, page);
    if (sees_whole(tile, r, page)) {
        while (r + n < tile->n_rows && sees_whole(tile, r + n, page) &&
               row_of(tile, r + n)->pages[entry] == row_of(tile, r)->pages[entry] &&
               scale_of(tile, r + n) == scale_of(tile, r)) {
            n++;
        }
    }
    return n;
}

/* Folds what rows r .. r + n - 1 see of a page into their state. */
static void attend_page(attention_tile *tile, uint32_t r, uint32_t n, seen_range seen)
{
    const attention_job *job = tile->job;
    const moe_kv_layout *layout = &job->a->layout;
    float page_max[MOE_CPU_ATTENTION_TILE], page_sum[MOE_CPU_ATTENTION_TILE];
    page_rows rows;
    moe_attend_args args = {
        .type = (moe_kv_type)layout->type,
        .k_row_bytes = layout->k_row_bytes,
        .v_row_bytes = layout->v_row_bytes,
        .k_dim = layout->k_dim,
        .v_dim = layout->v_dim,
        .n_valid = seen.end - seen.from,
        .n_q = n * tile->n_heads,
        .q = tile->q + (size_t)r * tile->n_heads * layout->k_dim,
        .scale = scale_of(tile, r),
        .cap = job->a->cap,
        .max = page_max,
        .sum = page_sum,
        .out = tile->page_out,
    };
    place_page(layout, row_of(tile, r), tile->kv_head, seen.from, &rows, &args);
    args.next_k = next_keys(layout, row_of(tile, r), tile->kv_head, seen.end);
    job->cpu->vector.attend_page(&args);
    for (uint32_t i = 0; i < args.n_q; i++) {
        uint32_t query = r * tile->n_heads + i;
        float *out =
            out_of(tile, query / tile->n_heads) + (size_t)(query % tile->n_heads) * layout->v_dim;
        job->cpu->vector.attend_merge(&tile->max[query], &tile->sum[query], out, page_max[i],
                                      page_sum[i], tile->page_out + (size_t)i * layout->v_dim,
                                      layout->v_dim);
    }
}

/* The state before any page: empty, or the heads' sinks. */
static void begin_state(attention_tile *tile)
{
    const moe_attention *a = tile->job->a;
    for (uint32_t i = 0; i < tile->n_rows * tile->n_heads; i++) {
        uint32_t head = tile->first_head + i % tile->n_heads;
        tile->max[i] = a->sinks != NULL ? a->sinks[head] + 0.0f : -INFINITY;
        tile->sum[i] = a->sinks != NULL ? 1.0f : 0.0f;
    }
    for (uint32_t r = 0; r < tile->n_rows; r++) {
        memset(out_of(tile, r), 0, (size_t)tile->n_heads * a->layout.v_dim * sizeof(float));
    }
}

static void attend_tile(attention_tile *tile)
{
    const moe_attention *a = tile->job->a;
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t r = 0; r < tile->n_rows; r++) {
        uint32_t position = row_of(tile, r)->position;
        uint32_t seen_first = moe_attention_first(a, position);
        first = seen_first < first ? seen_first : first;
        last = position > last ? position : last;
    }
    begin_state(tile);
    for (uint32_t page = first / MOE_KV_PAGE; page <= last / MOE_KV_PAGE; page++) {
        for (uint32_t r = 0, n; r < tile->n_rows; r += n) {
            seen_range seen = seen_of(tile, r, page);
            n = rows_together(tile, r, page);
            if (seen.from < seen.end) {
                attend_page(tile, r, n, seen);
            }
        }
    }
    for (uint32_t i = 0; i < tile->n_rows * tile->n_heads; i++) {
        float *out =
            out_of(tile, i / tile->n_heads) + (size_t)(i % tile->n_heads) * a->layout.v_dim;
        tile->job->cpu->vector.scale(1.0f / tile->sum[i], out, a->layout.v_dim);
    }
}

/* The queries of a tile one after the other: where they lie, or a copy in `packed`. */
static const float *pack_queries(const attention_tile *tile, float *packed)
{
    const moe_attention *a = tile->job->a;
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

static void attention_worker(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    attention_job *job = arg;
    float *scratch = job->cpu->attention_state + worker * job->cpu->attention_state_size;
    for (uint32_t t; (t = moe_task_next(&job->queue)) < job->n_tasks;) {
        uint32_t part = t % job->n_parts * job->heads;
        uint32_t row = t / job->n_parts % job->n_tiles * job->tile_rows;
        uint32_t kv_head = t / job->n_parts / job->n_tiles;
        attention_tile tile = {.job = job, .first_row = row, .kv_head = kv_head};
        tile.n_rows = job->n_rows - row < job->tile_rows ? job->n_rows - row : job->tile_rows;
        tile.first_head = kv_head * job->group + part;
        tile.n_heads = job->group - part < job->heads ? job->group - part : job->heads;
        tile.page_out = scratch;
        tile.q = pack_queries(&tile,
                              scratch + (size_t)job->tile_rows * job->heads * job->a->layout.v_dim);
        attend_tile(&tile);
    }
}

/* Chooses the shape of the tasks: as many queries as fit a tile, heads before rows, but enough
 * tasks to keep all threads busy. */
static void share_out(attention_job *job)
{
    const moe_kv_layout *layout = &job->a->layout;
    const uint32_t wanted = 2 * moe_team_size(job->cpu->team);
    uint32_t units = job->n_rows * layout->n_head_kv;
    job->heads = job->group < MOE_CPU_ATTENTION_TILE ? job->group : MOE_CPU_ATTENTION_TILE;
    while (job->heads > 1 && units * (job->group / job->heads) < wanted) {
        job->heads = (job->heads + 1) / 2;
    }
    size_t row_floats = (size_t)job->heads * (layout->k_dim + layout->v_dim);
    size_t rows = job->cpu->attention_state_size / row_floats;
    rows = rows < MOE_CPU_ATTENTION_TILE / job->heads ? rows : MOE_CPU_ATTENTION_TILE / job->heads;
    rows = rows < job->n_rows ? rows : job->n_rows;
    while (rows > 1 && units / rows < wanted) {
        rows = (rows + 1) / 2;
    }
    job->tile_rows = rows > 0 ? (uint32_t)rows : 1;
    job->n_parts = (job->group + job->heads - 1) / job->heads;
    job->n_tiles = (job->n_rows + job->tile_rows - 1) / job->tile_rows;
    job->n_tasks = job->n_parts * job->n_tiles * layout->n_head_kv;
    MOE_ASSERT((size_t)job->heads * layout->v_dim <= job->cpu->attention_state_size);
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
    share_out(&job);
    moe_team_run(cpu->team, attention_worker, &job);
    return MOE_OK;
}

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
