/* SPDX-License-Identifier: MIT */
/* Attention over the paged KV cache. A task is one row, one KV head and some of the query heads
 * that share it. The task folds pages in ascending order into its running state, so the order of
 * reduction depends on logical positions alone. If a row's path takes a logical page from several
 * places, the kernel gets a list of the page's rows. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_internal.h"
#include "runtime/base/moe_assert.h"

/* Query heads of one task: up to here, sharing the loads of K and V pays. */
#define MAX_TASK_HEADS 16u

typedef struct attention_job {
    moe_cpu_device *cpu;
    const moe_attention *a;
    uint32_t n_rows;
    uint32_t group; /* query heads of a KV head */
    uint32_t heads; /* query heads of a task */
    uint32_t tasks_per_kv_head;
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
        const uint8_t *page = kv->pages[stored / MOE_KV_PAGE];
        size_t slot = (size_t)kv_head * MOE_KV_PAGE + stored % MOE_KV_PAGE;
        rows->k[j] = page + layout->k_offset + slot * layout->k_row_bytes;
        rows->v[j] = page + layout->v_offset + slot * layout->v_row_bytes;
    }
}

/* Finds the args->n_valid positions from `first` on, which lie in one page. */
static void place_page(const moe_kv_layout *layout, const moe_kv_row *kv, uint32_t kv_head,
                       uint32_t first, page_rows *rows, moe_attend_args *args)
{
    uint32_t page = first / MOE_KV_PAGE;
    if (kv->path != NULL && (page + 1) * MOE_KV_PAGE > kv->path_first) {
        collect_rows(layout, kv, kv_head, first, args->n_valid, rows);
        args->k_rows = rows->k;
        args->v_rows = rows->v;
        return;
    }
    const uint8_t *base = kv->pages[page];
    size_t slot = (size_t)kv_head * MOE_KV_PAGE + first % MOE_KV_PAGE;
    args->k = base + layout->k_offset + slot * layout->k_row_bytes;
    args->v = base + layout->v_offset + slot * layout->v_row_bytes;
}

/* The state before any page: empty, or the sinks of heads first .. first + n_q - 1. */
static void begin_state(const moe_attention *a, uint32_t first, uint32_t n_q, float *max,
                        float *sum)
{
    for (uint32_t h = 0; h < n_q; h++) {
        max[h] = a->sinks != NULL ? a->sinks[first + h] + 0.0f : -INFINITY;
        sum[h] = a->sinks != NULL ? 1.0f : 0.0f;
    }
}

static void attend_heads(const attention_job *job, uint32_t row, uint32_t kv_head, uint32_t first,
                         uint32_t n_q, float *page_out)
{
    MOE_ASSERT(n_q > 0 && n_q <= MAX_TASK_HEADS && first + n_q <= job->group);
    const moe_attention *a = job->a;
    const moe_kv_layout *layout = &a->layout;
    const moe_kv_row *kv = &a->rows[row];
    size_t head = (size_t)row * a->n_head + (size_t)kv_head * job->group + first;
    float *out = a->out + head * layout->v_dim;
    float max[MAX_TASK_HEADS], sum[MAX_TASK_HEADS], page_max[MAX_TASK_HEADS],
        page_sum[MAX_TASK_HEADS];
    begin_state(a, kv_head * job->group + first, n_q, max, sum);
    memset(out, 0, (size_t)n_q * layout->v_dim * sizeof *out);
    uint32_t n_visible = kv->position + 1;
    uint32_t end;
    for (uint32_t from = moe_attention_first(a, kv->position); from < n_visible; from = end) {
        page_rows rows;
        end = (from / MOE_KV_PAGE + 1) * MOE_KV_PAGE;
        end = end < n_visible ? end : n_visible;
        moe_attend_args args = {
            .type = (moe_kv_type)layout->type,
            .k_row_bytes = layout->k_row_bytes,
            .v_row_bytes = layout->v_row_bytes,
            .k_dim = layout->k_dim,
            .v_dim = layout->v_dim,
            .n_valid = end - from,
            .n_q = n_q,
            .q = a->q + head * layout->k_dim,
            .scale = a->row_scales != NULL ? a->scale * a->row_scales[row] : a->scale,
            .cap = a->cap,
            .max = page_max,
            .sum = page_sum,
            .out = page_out,
        };
        place_page(layout, kv, kv_head, from, &rows, &args);
        job->cpu->vector.attend_page(&args);
        for (uint32_t h = 0; h < n_q; h++) {
            job->cpu->vector.attend_merge(&max[h], &sum[h], out + (size_t)h * layout->v_dim,
                                          page_max[h], page_sum[h],
                                          page_out + (size_t)h * layout->v_dim, layout->v_dim);
        }
    }
    for (uint32_t h = 0; h < n_q; h++) {
        job->cpu->vector.scale(1.0f / sum[h], out + (size_t)h * layout->v_dim, layout->v_dim);
    }
}

static void attention_worker(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    attention_job *job = arg;
    float *page_out = job->cpu->attention_state + worker * job->cpu->attention_state_size;
    for (uint32_t t; (t = moe_task_next(&job->queue)) < job->n_tasks;) {
        uint32_t part = t % job->tasks_per_kv_head;
        uint32_t head = t / job->tasks_per_kv_head;
        uint32_t first = part * job->heads;
        uint32_t n_q = job->group - first < job->heads ? job->group - first : job->heads;
        attend_heads(job, head % job->n_rows, head / job->n_rows, first, n_q, page_out);
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
    job.heads = job.group < MAX_TASK_HEADS ? job.group : MAX_TASK_HEADS;
    MOE_ASSERT(job.group > 0 && job.group * layout->n_head_kv == attention->n_head);
    MOE_ASSERT((size_t)job.heads * layout->v_dim <= cpu->attention_state_size);
    uint32_t wanted = 2 * moe_team_size(cpu->team);
    while (job.heads > 1 && n_rows * layout->n_head_kv * (job.group / job.heads) < wanted) {
        job.heads = (job.heads + 1) / 2;
    }
    job.tasks_per_kv_head = (job.group + job.heads - 1) / job.heads;
    job.n_tasks = n_rows * layout->n_head_kv * job.tasks_per_kv_head;
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
        uint8_t *page = rows[r].pages[rows[r].stored / MOE_KV_PAGE];
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
static void move_rows(const moe_kv_move *move, uint32_t i, uint32_t n_head, size_t offset,
                      size_t row_bytes)
{
    const uint8_t *source = move->pages[move->from[i] / MOE_KV_PAGE];
    uint8_t *target = move->pages[move->to[i] / MOE_KV_PAGE];
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
            move_rows(move, i, layout->n_head_kv, layout->k_offset, layout->k_row_bytes);
            if (!layout->v_in_k) {
                move_rows(move, i, layout->n_head_kv, layout->v_offset, layout->v_row_bytes);
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
