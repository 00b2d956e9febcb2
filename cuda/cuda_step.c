/* SPDX-License-Identifier: MIT */
/* A step's inputs, sent once for all its operations, as one block: page-locked on the host, and the
 * same on the device.
 *
 *    | tokens | cos | sin | rows | pages and paths .. | room for pages | arrays of recordings |
 *    |<------------- sent by begin_step() ----------->|                | sent when recorded   |
 *
 * Steps of 1, 2, .. rows of one timeline without paths have a block for each number of rows. Its
 * places stay fixed while the timeline grows, because recordings (cuda_recording.c) read them there
 * and keep their own arrays behind them. When the room for pages is used up, or the angles change
 * size, the places move and the block's recordings are dropped. One more block serves all other
 * steps, and grows. */
#include <string.h>

#include "cpu/kernels/vector_ops.h"
#include "cuda/cuda_internal.h"

#define FIRST_BYTES  (2u << 20) /* for one row, whose whole passes are recorded */
#define STEADY_BYTES (512u << 10)
#define OTHER_BYTES  (256u << 10)
#define LEAST_PAGES  2u

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
    for (uint32_t i = 0; i < MOE_CUDA_STEADY_ROWS; i++) {
        moe_cuda_recording_close(&cuda->step.steady[i]);
        release(&cuda->step.steady[i].block);
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
    int status = make(&cuda->step.other, OTHER_BYTES, err);
    for (uint32_t i = 0; i < MOE_CUDA_STEADY_ROWS && status == MOE_OK; i++) {
        status = make(&cuda->step.steady[i].block, i == 0 ? FIRST_BYTES : STEADY_BYTES, err);
    }
    return status;
}

/* Makes the block hold so many bytes, and waits until its last copy is done, because it will be
 * overwritten. */
static int prepare(moe_cuda_device *cuda, moe_cuda_block *block, size_t bytes, moe_error *err)
{
    if (bytes > block->bytes) {
        moe_cuda_block larger = {0};
        int status = moe_cuda_wait(cuda, what, err);
        if (status == MOE_OK) {
            status = make(&larger, 2 * bytes, err);
        }
        if (status == MOE_OK) {
            release(block);
            *block = larger;
        }
        return status;
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

/* The steady block for these inputs, if they are of its kind and fit. */
static moe_cuda_steady *steady_for(moe_cuda_step *step, const moe_step_inputs *inputs, size_t bytes)
{
    uint32_t n = inputs->n_rows;
    if (n > MOE_CUDA_STEADY_ROWS || bytes > step->steady[n - 1].block.bytes / 4) {
        return NULL;
    }
    for (uint32_t r = 0; r < n; r++) {
        if (inputs->rows[r].path != NULL || inputs->rows[r].pages != inputs->rows[0].pages) {
            return NULL;
        }
    }
    return &step->steady[n - 1];
}

static uint32_t pages_seen(const moe_step_inputs *inputs)
{
    uint32_t last = 0;
    for (uint32_t r = 0; r < inputs->n_rows; r++) {
        uint32_t position = inputs->rows[r].position;
        last = position > last ? position : last;
    }
    return last / MOE_KV_PAGE + 1;
}

/* Finds the block's places. If they move, drops what was recorded. */
static int place_steady(moe_cuda_device *cuda, moe_cuda_steady *steady,
                        const moe_step_inputs *inputs, size_t pages_at, moe_error *err)
{
    uint32_t n_pages = pages_seen(inputs);
    if (steady->pages_at == pages_at && n_pages <= steady->max_pages) {
        return MOE_OK;
    }
    int status = moe_cuda_recording_drop(cuda, steady, err);
    steady->max_pages = pages_to_hold(n_pages);
    steady->pages_at = pages_at;
    steady->recordings_at = pages_at + moe_cuda_parcel_room(steady->max_pages, sizeof(void *));
    steady->recordings_used = 0;
    return status;
}

static void fill(moe_cuda_step *step, const moe_step_inputs *inputs, moe_cuda_parcel *parcel)
{
    size_t n_angles = (size_t)inputs->n_rows * (inputs->n_rot / 2);
    step->tokens =
        moe_cuda_parcel_put(parcel, inputs->tokens, inputs->n_rows, sizeof(int32_t), NULL);
    step->cos = moe_cuda_parcel_put(parcel, inputs->cos, n_angles, sizeof(float), NULL);
    step->sin = moe_cuda_parcel_put(parcel, inputs->sin, n_angles, sizeof(float), NULL);
    step->rows = moe_cuda_put_rows(parcel, inputs->rows, inputs->n_rows, &step->n_runs);
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
    int status = moe_cuda_enter(cuda, err);
    step->inputs = NULL;
    if (status != MOE_OK || inputs == NULL || inputs->n_rows == 0) {
        return status;
    }
    size_t n_angles = (size_t)inputs->n_rows * (inputs->n_rot / 2);
    size_t rows_at = moe_cuda_parcel_room(inputs->n_rows, sizeof(int32_t)) +
                     2 * moe_cuda_parcel_room(n_angles, sizeof(float));
    size_t bytes = rows_at + moe_cuda_rows_room(inputs->rows, inputs->n_rows);
    step->at = steady_for(step, inputs, bytes);
    moe_cuda_block *block = step->at != NULL ? &step->at->block : &step->other;
    status = prepare(cuda, block, bytes, err);
    if (status == MOE_OK && step->at != NULL) {
        size_t pages_at = rows_at + moe_cuda_parcel_room(inputs->n_rows, sizeof(moe_cuda_kv_row));
        status = place_steady(cuda, step->at, inputs, pages_at, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    moe_cuda_parcel parcel = {.host = block->host, .device = block->device, .bytes = bytes};
    fill(step, inputs, &parcel);
    step->inputs = inputs;
    return send(cuda, block, parcel.used, err);
}
