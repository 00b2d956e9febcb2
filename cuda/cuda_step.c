/* SPDX-License-Identifier: MIT */
/* A step's inputs, sent once for all its operations, as one block: page-locked on the host, and the
 * same on the device.
 *
 *    | tokens | cos | sin | rows | pages and paths .. | room for pages | arrays of recordings |
 *    |<------------- sent by begin_step() ----------->|                | sent when recorded   |
 *
 * Steps of few rows have a block for each number of rows and each shape (moe_cuda_step_shape). The
 * inputs keep their places in the block while timelines grow, because recordings
 * (cuda_recording.c) read them there and keep their own arrays behind them. The rows of one
 * timeline share a page table. In the other shapes each row has a path, and with several timelines
 * each row also has a page table of its own:
 *
 *    | .. | rows | paths | pages of the first, and room | of the second .. | arrays of recordings |
 *
 * When the room for pages is used up, or the angles change size, the places move and the block's
 * recordings are dropped. One more block serves all other steps, and grows. */
#include <string.h>

#include "cpu/kernels/vector_ops.h"
#include "cuda/cuda_internal.h"
#include "runtime/base/error.h"

#define FIRST_BYTES  (2u << 20) /* for one row of a timeline */
#define STEADY_BYTES (512u << 10)
#define OTHER_BYTES  (256u << 10)
#define LEAST_PAGES  2u
#define MOST_PATH    32u /* positions of a path */

static const char what[] = "the inputs of a step";

static void release(moe_cuda_block *block)
{
    if (block->sent != NULL) {
        (void)cudaEventDestroy(block->sent);
    }
    moe_cuda_both_free(&block->host, &block->device);
    *block = (moe_cuda_block){0};
}

void moe_cuda_step_close(moe_cuda_device *cuda)
{
    for (int shape = 0; shape < MOE_CUDA_STEP_SHAPES; shape++) {
        for (uint32_t i = 0; i < MOE_CUDA_STEADY_ROWS; i++) {
            moe_cuda_recording_close(&cuda->step.steady[shape][i]);
            release(&cuda->step.steady[shape][i].block);
        }
    }
    release(&cuda->step.other);
}

static int make(moe_cuda_block *block, size_t bytes, moe_error *err)
{
    int status = moe_cuda_both_alloc(&block->host, &block->device, bytes, what, err);
    if (status == MOE_OK) {
        status = moe_cuda_event_create(&block->sent, what, err);
    }
    block->bytes = bytes;
    if (status != MOE_OK) {
        release(block);
    }
    return status;
}

int moe_cuda_step_open(moe_cuda_device *cuda, moe_error *err)
{
    MOE_TRY(make(&cuda->step.other, OTHER_BYTES, err));
    for (uint32_t i = 0; i < MOE_CUDA_STEADY_ROWS; i++) {
        MOE_TRY(make(&cuda->step.steady[MOE_CUDA_STEP_TIMELINE][i].block,
                     i == 0 ? FIRST_BYTES : STEADY_BYTES, err));
    }
    for (uint32_t i = 1; i < MOE_CUDA_STEADY_ROWS; i++) {
        MOE_TRY(make(&cuda->step.steady[MOE_CUDA_STEP_TREE][i].block, STEADY_BYTES, err));
        MOE_TRY(make(&cuda->step.steady[MOE_CUDA_STEP_MANY][i].block, STEADY_BYTES, err));
    }
    return MOE_OK;
}

/* Makes the block at least `bytes` large, and waits until its last copy has ended, because the
 * block will be overwritten. */
static int prepare(moe_cuda_device *cuda, moe_cuda_block *block, size_t bytes, moe_error *err)
{
    if (bytes > block->bytes) {
        moe_cuda_block larger = {0};
        MOE_TRY(moe_cuda_wait(cuda, what, err));
        MOE_TRY(make(&larger, 2 * bytes, err));
        release(block);
        *block = larger;
        return MOE_OK;
    }
    return block->is_sent ? moe_cuda_check(cuda, cudaEventSynchronize(block->sent),
                                           "cudaEventSynchronize", what, err)
                          : MOE_OK;
}

static uint32_t pages_to_hold(uint32_t n_pages)
{
    uint32_t n = LEAST_PAGES;
    while (n < 2 * n_pages) {
        n *= 2;
    }
    return n;
}

/* Finds the shape of a step. False: a path is too long to be recorded. */
static bool find_shape(const moe_step_inputs *inputs, moe_cuda_step_shape *shape)
{
    bool has_paths = false;
    bool one_table = true;
    for (uint32_t r = 0; r < inputs->n_rows; r++) {
        const moe_kv_row *row = &inputs->rows[r];
        one_table = one_table && row->pages == inputs->rows[0].pages;
        has_paths = has_paths || row->path != NULL;
        if (row->path != NULL && row->position - row->path_first >= MOST_PATH) {
            return false;
        }
    }
    *shape = !one_table  ? MOE_CUDA_STEP_MANY
             : has_paths ? MOE_CUDA_STEP_TREE
                         : MOE_CUDA_STEP_TIMELINE;
    return true;
}

static uint32_t n_tables(moe_cuda_step_shape shape, uint32_t n_rows)
{
    return shape == MOE_CUDA_STEP_MANY ? n_rows : 1;
}

static size_t paths_room(moe_cuda_step_shape shape, uint32_t n_rows)
{
    return shape == MOE_CUDA_STEP_TIMELINE
               ? 0
               : moe_cuda_parcel_room((size_t)n_rows * MOST_PATH, sizeof(uint32_t));
}

static uint32_t pages_seen(const moe_step_inputs *inputs)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < inputs->n_rows; r++) {
        uint32_t pages = moe_cuda_pages_of(&inputs->rows[r]);
        n = pages > n ? pages : n;
    }
    return n;
}

/* Bytes of a page table with its room to grow. */
static size_t table_room(const moe_cuda_steady *steady)
{
    return moe_cuda_parcel_room((size_t)steady->max_pages * steady->n_groups, sizeof(void *));
}

/* Sets the places within the block; pages_at: where the pages of the first table are. If the places
 * move, drops the recordings. */
static int place_steady(moe_cuda_device *cuda, moe_cuda_steady *steady, uint32_t n_pages,
                        uint32_t n_groups, uint32_t tables, size_t pages_at, moe_error *err)
{
    if (steady->pages_at == pages_at && steady->n_groups == n_groups &&
        n_pages <= steady->max_pages) {
        return MOE_OK;
    }
    int status = moe_cuda_recording_drop(cuda, steady, err);
    steady->max_pages = pages_to_hold(n_pages);
    steady->n_groups = n_groups;
    steady->pages_at = pages_at;
    steady->recordings_at = pages_at + tables * table_room(steady);
    steady->recordings_used = 0;
    steady->scratch = (moe_cuda_parcel){0};
    return status;
}

/* Writes rows that have a path each, and the page tables: one for all rows, or one for each row. */
static const moe_cuda_kv_row *put_rows_apart(const moe_cuda_steady *steady,
                                             moe_cuda_step_shape shape,
                                             const moe_step_inputs *inputs, moe_cuda_parcel *parcel)
{
    void *place, *paths_place;
    const uint32_t n = inputs->n_rows;
    const moe_cuda_kv_row *out =
        moe_cuda_parcel_put(parcel, NULL, n, sizeof(moe_cuda_kv_row), &place);
    uint32_t *paths =
        moe_cuda_parcel_put(parcel, NULL, (size_t)n * MOST_PATH, sizeof *paths, &paths_place);
    moe_cuda_kv_row *staged = place;
    const size_t tables_at = parcel->used;
    size_t at = tables_at; /* where the row's table is */
    for (uint32_t r = 0; r < n; r++) {
        const moe_kv_row *row = &inputs->rows[r];
        if (r == 0 || shape == MOE_CUDA_STEP_MANY) {
            size_t n_pages =
                shape == MOE_CUDA_STEP_MANY ? moe_cuda_pages_of(row) : pages_seen(inputs);
            n_pages *= steady->n_groups;
            at = tables_at + r * table_room(steady);
            memcpy(parcel->host + at, row->pages, n_pages * sizeof *row->pages);
            parcel->used = at + moe_cuda_parcel_room(n_pages, sizeof(void *));
        }
        staged[r] = (moe_cuda_kv_row){.pages = (void *const *)(parcel->device + at),
                                      .path_first = row->path_first,
                                      .position = row->position,
                                      .stored = row->stored};
        if (row->path != NULL) {
            staged[r].path = paths + (size_t)r * MOST_PATH;
            memcpy((uint32_t *)paths_place + (size_t)r * MOST_PATH, row->path,
                   (row->position - row->path_first + 1) * sizeof *paths);
        }
    }
    return out;
}

static void fill(moe_cuda_step *step, moe_cuda_step_shape shape, const moe_step_inputs *inputs,
                 moe_cuda_parcel *parcel)
{
    size_t n_angles = (size_t)inputs->n_rows * (inputs->n_rot / 2);
    step->tokens =
        moe_cuda_parcel_put(parcel, inputs->tokens, inputs->n_rows, sizeof(int32_t), NULL);
    step->cos = moe_cuda_parcel_put(parcel, inputs->cos, n_angles, sizeof(float), NULL);
    step->sin = moe_cuda_parcel_put(parcel, inputs->sin, n_angles, sizeof(float), NULL);
    if (step->at != NULL && shape != MOE_CUDA_STEP_TIMELINE) {
        step->rows = put_rows_apart(step->at, shape, inputs, parcel);
        step->n_runs = n_tables(shape, inputs->n_rows);
    } else {
        step->rows = moe_cuda_put_rows(parcel, inputs->rows, inputs->n_rows,
                                       inputs->n_other_groups + 1, &step->n_runs);
    }
}

/* Finds the step's block; NULL if steps of this shape are not recorded, or the step does not fit a
 * block. */
static int find_block(moe_cuda_device *cuda, moe_cuda_step_shape shape,
                      const moe_step_inputs *inputs, size_t rows_at, moe_error *err)
{
    const uint32_t n = inputs->n_rows;
    const uint32_t n_pages = pages_seen(inputs), tables = n_tables(shape, n);
    const uint32_t n_groups = inputs->n_other_groups + 1;
    moe_cuda_steady *steady = &cuda->step.steady[shape][n - 1];
    size_t pages_at =
        rows_at + moe_cuda_parcel_room(n, sizeof(moe_cuda_kv_row)) + paths_room(shape, n);
    size_t bytes =
        pages_at + tables * moe_cuda_parcel_room((size_t)n_pages * n_groups, sizeof(void *));
    if (bytes > steady->block.bytes / 4) {
        return MOE_OK;
    }
    cuda->step.at = steady;
    return place_steady(cuda, steady, n_pages, n_groups, tables, pages_at, err);
}

static int send(moe_cuda_device *cuda, moe_cuda_block *block, size_t bytes, moe_error *err)
{
    int status = moe_cuda_transfer_queue(cuda, block->device, block->host, bytes,
                                         cudaMemcpyHostToDevice, what, err);
    if (status == MOE_OK) {
        status = moe_cuda_check(cuda, cudaEventRecord(block->sent, cuda->stream), "cudaEventRecord",
                                what, err);
    }
    block->is_sent = status == MOE_OK;
    return status;
}

int moe_cuda_op_begin_step(moe_device *device, const moe_step_inputs *inputs, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_step *step = &cuda->step;
    int status = moe_cuda_begin(cuda, err);
    step->inputs = NULL;
    if (status != MOE_OK || inputs == NULL || inputs->n_rows == 0) {
        return status;
    }
    size_t n_angles = (size_t)inputs->n_rows * (inputs->n_rot / 2);
    size_t rows_at = moe_cuda_parcel_room(inputs->n_rows, sizeof(int32_t)) +
                     2 * moe_cuda_parcel_room(n_angles, sizeof(float));
    size_t bytes =
        rows_at + moe_cuda_rows_room(inputs->rows, inputs->n_rows, inputs->n_other_groups + 1);
    moe_cuda_step_shape shape = MOE_CUDA_STEP_TIMELINE;
    step->at = NULL;
    if (inputs->n_rows <= MOE_CUDA_STEADY_ROWS && find_shape(inputs, &shape)) {
        status = find_block(cuda, shape, inputs, rows_at, err);
    }
    moe_cuda_block *block = step->at != NULL ? &step->at->block : &step->other;
    bytes = step->at != NULL ? step->at->recordings_at : bytes;
    if (status == MOE_OK) {
        status = prepare(cuda, block, bytes, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    moe_cuda_parcel parcel = {.host = block->host, .device = block->device, .bytes = bytes};
    fill(step, shape, inputs, &parcel);
    step->inputs = inputs;
    return send(cuda, block, parcel.used, err);
}
