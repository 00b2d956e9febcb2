/* SPDX-License-Identifier: MIT */
/* The KV cache and attention. Callers pass page tables and paths in host memory; the kernels need
 * them in device memory. Consecutive rows with the same table share its copy. */
#include "cuda/cuda_internal.h"
#include "cuda/kernels/norm_launch.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

#include "cpu/kernels/vector_ops.h"

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t path_length(const moe_kv_row *row)
{
    return row->path == NULL ? 0 : row->position - row->path_first + 1;
}

uint32_t moe_cuda_pages_of(const moe_kv_row *row)
{
    uint32_t last = max_u32(row->stored, row->path == NULL ? row->position : 0);
    if (row->path != NULL && row->path_first > 0) {
        last = max_u32(last, row->path_first - 1);
    }
    for (uint32_t i = 0; i < path_length(row); i++) {
        last = max_u32(last, row->path[i]);
    }
    return last / MOE_KV_PAGE + 1;
}

/* The end of the run of rows from `first` on that share a page table; *n_pages: the table's pages.
 */
static uint32_t run_end(const moe_kv_row *rows, uint32_t n_rows, uint32_t first, uint32_t *n_pages)
{
    uint32_t end = first;
    *n_pages = 0;
    for (; end < n_rows && rows[end].pages == rows[first].pages; end++) {
        *n_pages = max_u32(*n_pages, moe_cuda_pages_of(&rows[end]));
    }
    return end;
}

size_t moe_cuda_rows_room(const moe_kv_row *rows, uint32_t n_rows, uint32_t n_groups)
{
    size_t bytes = moe_cuda_parcel_room(n_rows, sizeof(moe_cuda_kv_row));
    for (uint32_t r = 0; r < n_rows;) {
        uint32_t n_pages;
        uint32_t end = run_end(rows, n_rows, r, &n_pages);
        bytes += moe_cuda_parcel_room((size_t)n_pages * n_groups, sizeof(void *));
        for (; r < end; r++) {
            bytes += moe_cuda_parcel_room(path_length(&rows[r]), sizeof(uint32_t));
        }
    }
    return bytes;
}

const moe_cuda_kv_row *moe_cuda_put_rows(moe_cuda_parcel *parcel, const moe_kv_row *rows,
                                         uint32_t n_rows, uint32_t n_groups, uint32_t *n_runs)
{
    void *place;
    const moe_cuda_kv_row *out =
        moe_cuda_parcel_put(parcel, NULL, n_rows, sizeof(moe_cuda_kv_row), &place);
    moe_cuda_kv_row *staged = place;
    *n_runs = 0;
    for (uint32_t r = 0; r < n_rows; ++*n_runs) {
        uint32_t n_pages;
        uint32_t end = run_end(rows, n_rows, r, &n_pages);
        void *pages = moe_cuda_parcel_put(parcel, rows[r].pages, (size_t)n_pages * n_groups,
                                          sizeof(void *), NULL);
        for (; r < end; r++) {
            const uint32_t *path = NULL;
            if (rows[r].path != NULL) {
                path = moe_cuda_parcel_put(parcel, rows[r].path, path_length(&rows[r]),
                                           sizeof(uint32_t), NULL);
            }
            staged[r] = (moe_cuda_kv_row){.pages = pages,
                                          .path = path,
                                          .path_first = rows[r].path_first,
                                          .position = rows[r].position,
                                          .stored = rows[r].stored};
        }
    }
    return out;
}

/* Sends rows to the device, unless they are the step's own rows: begin_step() has sent these. */
static int stage_rows(moe_cuda_device *cuda, const moe_kv_layout *layout, const moe_kv_row *rows,
                      uint32_t n_rows, const moe_cuda_kv_row **out, uint32_t *n_runs,
                      moe_error *err)
{
    const moe_cuda_step *step = &cuda->step;
    const uint32_t n_groups = layout->n_other_groups + 1;
    if (step->inputs != NULL && rows == step->inputs->rows && n_rows == step->inputs->n_rows) {
        MOE_ASSERT(step->inputs->n_other_groups == layout->n_other_groups);
        *out = step->rows;
        *n_runs = step->n_runs;
        return MOE_OK;
    }
    moe_cuda_parcel parcel;
    MOE_TRY(moe_cuda_parcel_begin(cuda, moe_cuda_rows_room(rows, n_rows, n_groups), &parcel, err));
    *out = moe_cuda_put_rows(&parcel, rows, n_rows, n_groups, n_runs);
    return moe_cuda_parcel_send(cuda, &parcel, err);
}

int moe_cuda_op_kv_store(moe_device *device, const moe_kv_layout *layout, const moe_kv_row *rows,
                         uint32_t n_rows, const float *k, size_t k_stride, const float *v,
                         size_t v_stride, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const moe_cuda_kv_row *staged;
    uint32_t n_runs;
    MOE_TRY(moe_cuda_begin(cuda, err));
    MOE_TRY(stage_rows(cuda, layout, rows, n_rows, &staged, &n_runs, err));
    moe_cuda_kv_store(cuda->stream, layout, staged, n_rows, k, k_stride, v, v_stride);
    return moe_cuda_launched(cuda, "storing keys and values", err);
}

int moe_cuda_op_heads_store(moe_device *device, const moe_heads_store *heads, uint32_t n_rows,
                            moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_heads job = {.weights = {heads->norms[0], heads->norms[1]},
                          .eps = heads->eps,
                          .q = heads->q,
                          .k = heads->k,
                          .dim = heads->layout.k_dim,
                          .layout = heads->layout,
                          .v = heads->v,
                          .v_stride = heads->v_stride,
                          .n_rows = n_rows};
    uint32_t n_runs;
    MOE_ASSERT(heads->q.cos == heads->k.cos && heads->q.head_stride == heads->layout.k_dim);
    MOE_TRY(moe_cuda_begin(cuda, err));
    MOE_TRY(stage_rows(cuda, &heads->layout, heads->rows, n_rows, &job.rows, &n_runs, err));
    MOE_TRY(moe_cuda_stage_angles(cuda, n_rows, &job.q, err));
    job.k.cos = job.q.cos;
    job.k.sin = job.q.sin;
    moe_cuda_heads_store(cuda->stream, &job);
    return moe_cuda_launched(cuda, "heads of queries and keys", err);
}

int moe_cuda_op_kv_move(moe_device *device, const moe_kv_move *move, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    int status = moe_cuda_begin(cuda, err);
    if (status != MOE_OK || move->n == 0 || move->n_layouts == 0) {
        return status;
    }
    /* Moves are ascending, and no target is behind its source. So the last source is in the last
     * page. */
    size_t n_pages =
        (size_t)(move->from[move->n - 1] / MOE_KV_PAGE + 1) * (move->layouts[0].n_other_groups + 1);
    uint32_t max_head_kv = 0;
    for (uint32_t l = 0; l < move->n_layouts; l++) {
        max_head_kv = max_u32(max_head_kv, move->layouts[l].n_head_kv);
    }
    moe_cuda_parcel parcel;
    MOE_TRY(moe_cuda_parcel_begin(cuda,
                                  moe_cuda_parcel_room(move->n_layouts, sizeof *move->layouts) +
                                      moe_cuda_parcel_room(n_pages, sizeof(void *)) +
                                      2 * moe_cuda_parcel_room(move->n, sizeof(uint32_t)),
                                  &parcel, err));
    moe_kv_move staged = *move;
    staged.layouts =
        moe_cuda_parcel_put(&parcel, move->layouts, move->n_layouts, sizeof *move->layouts, NULL);
    staged.pages = moe_cuda_parcel_put(&parcel, move->pages, n_pages, sizeof(void *), NULL);
    staged.from = moe_cuda_parcel_put(&parcel, move->from, move->n, sizeof(uint32_t), NULL);
    staged.to = moe_cuda_parcel_put(&parcel, move->to, move->n, sizeof(uint32_t), NULL);
    MOE_TRY(moe_cuda_parcel_send(cuda, &parcel, err));
    moe_cuda_kv_move(cuda->stream, &staged, max_head_kv);
    return moe_cuda_launched(cuda, "moving positions of the KV cache", err);
}

/* Each row's scale depends on its position. A recording has one array for all replays, so it cannot
 * hold such scales. */
static int stage_row_scales(moe_cuda_device *cuda, const moe_attention *attention, uint32_t n_rows,
                            const float **out, moe_error *err)
{
    void *staged = NULL;
    *out = NULL;
    if (attention->row_scales == NULL) {
        return MOE_OK;
    }
    if (cuda->recording.under_way) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "scales of rows are not recorded");
    }
    int status = moe_cuda_stage(cuda, attention->row_scales, n_rows * sizeof(float), &staged, err);
    *out = staged;
    return status;
}

int moe_cuda_op_pool_keys(moe_device *device, const moe_key_pool *pool, uint32_t n_rows,
                          moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const moe_cuda_kv_row *staged;
    moe_key_pool job = *pool;
    uint32_t n_runs;
    MOE_TRY(moe_cuda_begin(cuda, err));
    MOE_TRY(stage_rows(cuda, &pool->layout, pool->rows, n_rows, &staged, &n_runs, err));
    if (pool->means) {
        MOE_TRY(moe_cuda_stage_angles(cuda, n_rows, &job.rope, err));
    }
    moe_cuda_pool_keys(cuda->stream, &job, staged, n_rows);
    return moe_cuda_launched(cuda, "the index keys of pools", err);
}

int moe_cuda_op_choose(moe_device *device, const moe_position_choice *choice, uint32_t n_rows,
                       moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const moe_cuda_kv_row *staged;
    uint32_t n_runs;
    uint32_t n_positions = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        n_positions = max_u32(n_positions, choice->rows[r].position + 1);
    }
    MOE_ASSERT(choice->block > 0 || choice->pool > 1 || n_positions <= choice->n_scores);
    int status = moe_cuda_begin(cuda, err);
    if (status == MOE_OK) {
        status = stage_rows(cuda, &choice->layout, choice->rows, n_rows, &staged, &n_runs, err);
    }
    if (status != MOE_OK ||
        n_positions < choice->n_chosen + (choice->pool > 0 ? choice->pool : 1)) {
        return status;
    }
    moe_cuda_choose(cuda->stream, choice, staged, n_rows, n_positions);
    return moe_cuda_launched(cuda, "choosing positions", err);
}

/* Whether a row attends to chosen positions. */
static bool is_choosing(const moe_attention *attention, uint32_t row)
{
    const uint32_t pool = attention->chosen_pool > 0 ? attention->chosen_pool : 1;
    return attention->chosen != NULL &&
           attention->rows[row].position + 1 >= attention->n_chosen + pool;
}

/* Like stage_rows(), but a row that has chosen positions attends to those. */
static int stage_choosing_rows(moe_cuda_device *cuda, const moe_attention *attention,
                               uint32_t n_rows, const moe_cuda_kv_row **out, moe_error *err)
{
    const moe_kv_row *rows = attention->rows;
    moe_cuda_parcel parcel;
    uint32_t n_runs;
    const uint32_t n_groups = attention->layout.n_other_groups + 1;
    MOE_TRY(moe_cuda_parcel_begin(cuda, moe_cuda_rows_room(rows, n_rows, n_groups), &parcel, err));
    *out = moe_cuda_put_rows(&parcel, rows, n_rows, n_groups, &n_runs);
    size_t at = (size_t)((const uint8_t *)*out - parcel.device);
    moe_cuda_kv_row *staged = (moe_cuda_kv_row *)(parcel.host + at);
    for (uint32_t r = 0; r < n_rows; r++) {
        if (is_choosing(attention, r)) {
            const uint32_t pool = attention->chosen_pool > 0 ? attention->chosen_pool : 1;
            staged[r].path = attention->chosen + (size_t)r * (attention->n_chosen + pool - 1);
            staged[r].path_first = 0;
            staged[r].position = moe_chosen_positions(attention, rows[r].position) - 1;
        }
    }
    return moe_cuda_parcel_send(cuda, &parcel, err);
}

/* Stages the rows for attention. Refuses chosen positions in a recording: the rows of a step cannot
 * name paths on the device. */
static int stage_rows_of(moe_cuda_device *cuda, const moe_attention *attention, uint32_t n_rows,
                         const moe_cuda_kv_row **out, uint32_t *n_runs, moe_error *err)
{
    *out = NULL;
    if (attention->chosen == NULL) {
        return stage_rows(cuda, &attention->layout, attention->rows, n_rows, out, n_runs, err);
    }
    if (cuda->recording.under_way) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "chosen positions are not recorded");
    }
    *n_runs = n_rows; /* rows share no pages */
    return stage_choosing_rows(cuda, attention, n_rows, out, err);
}

/* The positions that any of the rows sees: first .. last. A recording will be replayed with other
 * rows, so it covers all positions. */
static void find_range(const moe_cuda_device *cuda, const moe_attention *attention, uint32_t n_rows,
                       uint32_t *first, uint32_t *last)
{
    *first = UINT32_MAX;
    *last = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t from = moe_attention_first(attention, attention->rows[r].position);
        *first = from < *first ? from : *first;
        const uint32_t position = attention->rows[r].position;
        *last =
            max_u32(*last, is_choosing(attention, r) ? moe_chosen_positions(attention, position) - 1
                                                     : position);
    }
    if (cuda->recording.under_way) {
        *first = 0;
        *last = cuda->step.at->max_pages * MOE_KV_PAGE - 1;
    }
}

bool moe_cuda_op_own_attention(const moe_device *device, const moe_kv_layout *layout, float cap)
{
    return ((const moe_cuda_device *)device)->matrix_attention &&
           moe_cuda_attends_by_matrix(layout, cap);
}

int moe_cuda_op_attention(moe_device *device, const moe_attention *attention, uint32_t n_rows,
                          moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const moe_cuda_kv_row *staged;
    const float *row_scales;
    uint32_t n_runs;
    MOE_TRY(moe_cuda_begin(cuda, err));
    MOE_TRY(stage_rows_of(cuda, attention, n_rows, &staged, &n_runs, err));
    MOE_TRY(stage_row_scales(cuda, attention, n_rows, &row_scales, err));
    uint32_t first, last;
    find_range(cuda, attention, n_rows, &first, &last);
    bool has_workspace = attention->layout.v_dim <= cuda->workspace_v_dim;
    moe_cuda_attention job = {.layout = attention->layout,
                              .rows = staged,
                              .n_rows = n_rows,
                              .n_visible = last + 1,
                              .first_visible = first,
                              .shared_pages = n_runs <= n_rows / 2,
                              .q = attention->q,
                              .n_head = attention->n_head,
                              .scale = attention->scale,
                              .cap = attention->cap,
                              .window = attention->window,
                              .chunk = attention->chunk,
                              .sinks = attention->sinks,
                              .row_scales = row_scales,
                              .by_matrix = cuda->matrix_attention,
                              .out = attention->out,
                              .workspace = has_workspace ? cuda->attention_workspace : NULL,
                              .n_multiprocessors = cuda->n_multiprocessors};
    const uint32_t n = attention->n_head * attention->layout.v_dim;
    if (attention->layout.v_dim % MOE_Q8_BLOCK == 0 && moe_cuda_has_room_for(cuda, n_rows, n)) {
        moe_q8_rows_bind(&job.out_q8, cuda->x_q8_memory, n_rows, n);
    }
    if (moe_cuda_attend(cuda->stream, &job)) {
        moe_cuda_note_rows(cuda, attention->out, n_rows, n);
    }
    return moe_cuda_launched(cuda, "attention", err);
}
