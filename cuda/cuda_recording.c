/* SPDX-License-Identifier: MIT */
/* A pass as one CUDA graph: its launches are captured once, and played with other inputs.
 *
 * All host arrays of the pass lie in one block, page-locked on the host and the same on the device:
 *
 *     | tokens | row | pages .. | cos | sin | arrays of operations ..        |
 *     |<----- inputs: sent before each ---->|<- constants: sent when made -->|
 *
 * While a recording is under way parcels (cuda_staging.c) are places in the block and nothing is
 * copied, and an operation that is given an array of the inputs takes its place at the front. So
 * the graph is of kernels alone. What a launch's shape depends on besides is how many pages the
 * rows see: they are recorded for twice as many as there are, a power of two, and anew beyond. */
#include <string.h>

#include "cpu/kernels/vector_ops.h"
#include "cuda/cuda_internal.h"
#include "runtime/base/error.h"

#define BLOCK_BYTES (2u << 20)
#define LEAST_PAGES 2u

static const char what[] = "recording a pass";

void moe_cuda_recording_close(moe_cuda_device *cuda)
{
    moe_cuda_recording *r = &cuda->recording;
    if (r->exec != NULL) {
        (void)cudaGraphExecDestroy(r->exec);
    }
    if (r->played != NULL) {
        (void)cudaEventDestroy(r->played);
    }
    if (r->host != NULL) {
        (void)cudaFreeHost(r->host);
    }
    if (r->device != NULL) {
        (void)cudaFree(r->device);
    }
    *r = (moe_cuda_recording){0};
}

/* Once; without it nothing is recorded. */
static cudaError_t make_block(moe_cuda_recording *r)
{
    cudaError_t code = cudaSuccess;
    if (r->host == NULL) {
        code = cudaHostAlloc((void **)&r->host, BLOCK_BYTES, cudaHostAllocDefault);
    }
    if (code == cudaSuccess && r->device == NULL) {
        code = cudaMalloc((void **)&r->device, BLOCK_BYTES);
    }
    if (code == cudaSuccess && r->played == NULL) {
        code = cudaEventCreateWithFlags(&r->played, cudaEventDisableTiming);
    }
    return code;
}

static uint32_t pages_seen(const moe_step_inputs *in)
{
    return in->rows[0].position / MOE_KV_PAGE + 1;
}

static uint32_t pages_to_record(const moe_step_inputs *in)
{
    uint32_t n = LEAST_PAGES;
    while (n < 2 * pages_seen(in)) {
        n *= 2;
    }
    return n;
}

/* Places of the inputs in the block. */
static void lay_out(moe_cuda_recording *r, const moe_step_inputs *in)
{
    size_t angles = in->n_rot * sizeof(float) / 2;
    r->max_pages = pages_to_record(in);
    r->n_rot = in->n_rot;
    r->row_at = moe_cuda_parcel_room(1, sizeof(int32_t));
    r->pages_at = r->row_at + moe_cuda_parcel_room(1, sizeof(moe_cuda_kv_row));
    r->cos_at = r->pages_at + moe_cuda_parcel_room(r->max_pages, sizeof(void *));
    r->sin_at = r->cos_at + moe_cuda_parcel_room(angles, 1);
    r->inputs_bytes = r->sin_at + moe_cuda_parcel_room(angles, 1);
    r->used = r->inputs_bytes;
}

static void write_inputs(moe_cuda_recording *r, const moe_step_inputs *in)
{
    const moe_kv_row *row = &in->rows[0];
    size_t angles = in->n_rot * sizeof(float) / 2;
    moe_cuda_kv_row staged = {.pages = (void *const *)(r->device + r->pages_at),
                              .position = row->position,
                              .stored = row->stored};
    memcpy(r->host, in->tokens, sizeof *in->tokens);
    memcpy(r->host + r->row_at, &staged, sizeof staged);
    memcpy(r->host + r->pages_at, row->pages, pages_seen(in) * sizeof(void *));
    memcpy(r->host + r->cos_at, in->cos, angles);
    memcpy(r->host + r->sin_at, in->sin, angles);
}

static bool fits(const moe_cuda_recording *r, const moe_step_inputs *in)
{
    return r->exec != NULL && in->n_rows == 1 && in->n_rot == r->n_rot &&
           in->rows[0].path == NULL && pages_seen(in) <= r->max_pages;
}

/* So many bytes of the block, and the graph. */
static int send_and_launch(moe_cuda_device *cuda, size_t bytes, moe_error *err)
{
    moe_cuda_recording *r = &cuda->recording;
    int status = moe_cuda_check(
        cuda, cudaMemcpyAsync(r->device, r->host, bytes, cudaMemcpyHostToDevice, cuda->stream),
        "cudaMemcpyAsync", "the inputs of a recorded pass", err);
    if (status == MOE_OK) {
        status = moe_cuda_check(cuda, cudaGraphLaunch(r->exec, cuda->stream), "cudaGraphLaunch",
                                "playing a recorded pass", err);
    }
    if (status == MOE_OK) {
        status = moe_cuda_check(cuda, cudaEventRecord(r->played, cuda->stream), "cudaEventRecord",
                                "playing a recorded pass", err);
    }
    r->has_played = status == MOE_OK;
    return status;
}

/* The block is written to again only when the copy of it is through. */
static int wait_for_block(moe_cuda_device *cuda, moe_error *err)
{
    moe_cuda_recording *r = &cuda->recording;
    if (!r->has_played) {
        return MOE_OK;
    }
    return moe_cuda_check(cuda, cudaEventSynchronize(r->played), "cudaEventSynchronize",
                          "the inputs of a recorded pass", err);
}

static int play(moe_device *device, const moe_step_inputs *inputs, bool *played, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_recording *r = &cuda->recording;
    *played = false;
    int status = moe_cuda_enter(cuda, err);
    if (status != MOE_OK || !fits(r, inputs)) {
        return status;
    }
    status = wait_for_block(cuda, err);
    if (status == MOE_OK) {
        write_inputs(r, inputs);
        status = send_and_launch(cuda, r->inputs_bytes, err);
    }
    *played = status == MOE_OK;
    return status;
}

/* What the device does not offer, or has no memory for, is no failure of it. */
static int refuse(cudaError_t code, const char *call, moe_error *err)
{
    (void)moe_cuda_translate(code, call, what, err);
    return MOE_ERR_UNSUPPORTED;
}

/* Whether the code is about recording, not about the device. */
static bool is_refusal(cudaError_t code)
{
    return code == cudaErrorMemoryAllocation || code == cudaErrorNotSupported ||
           (code >= cudaErrorStreamCaptureUnsupported && code <= cudaErrorStreamCaptureIsolation);
}

static int record(moe_device *device, const moe_step_inputs *inputs, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_recording *r = &cuda->recording;
    int status = moe_cuda_enter(cuda, err);
    if (status == MOE_OK && (inputs->n_rows != 1 || inputs->rows[0].path != NULL)) {
        status = moe_fail(err, MOE_ERR_UNSUPPORTED, "passes of one row of a timeline are recorded");
    }
    if (status == MOE_OK) {
        status = wait_for_block(cuda, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    if (r->exec != NULL) {
        (void)cudaGraphExecDestroy(r->exec);
        r->exec = NULL;
    }
    const char *call = "memory for the arrays of a pass";
    cudaError_t code = make_block(r);
    if (code == cudaSuccess) {
        call = "cudaStreamBeginCapture";
        /* Other threads go on with the link: what they call is not of the recording. */
        code = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal);
    }
    if (code != cudaSuccess) {
        return is_refusal(code) ? refuse(code, call, err)
                                : moe_cuda_give_up(cuda, code, call, what, err);
    }
    lay_out(r, inputs);
    write_inputs(r, inputs);
    r->inputs = inputs;
    return MOE_OK;
}

static int record_end(moe_device *device, int status, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_recording *r = &cuda->recording;
    cudaGraph_t graph = NULL;
    r->inputs = NULL;
    const char *call = "cudaStreamEndCapture";
    cudaError_t code = cudaStreamEndCapture(cuda->stream, &graph);
    if (code == cudaSuccess && status == MOE_OK) {
        call = "cudaGraphInstantiate";
        code = cudaGraphInstantiate(&r->exec, graph, 0);
    }
    if (code != cudaSuccess) {
        (void)cudaGetLastError();
        r->exec = NULL;
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    if (status != MOE_OK) {
        return status; /* and the capture may well have ended with an error for it */
    }
    if (code != cudaSuccess) {
        return is_refusal(code) ? refuse(code, call, err)
                                : moe_cuda_give_up(cuda, code, call, what, err);
    }
    return send_and_launch(cuda, r->used, err);
}

int moe_cuda_recording_parcel(moe_cuda_device *cuda, size_t bytes, moe_cuda_parcel *parcel,
                              moe_error *err)
{
    moe_cuda_recording *r = &cuda->recording;
    if (bytes > BLOCK_BYTES - r->used) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the arrays of a pass take more than the %u KiB that a recording has",
                        BLOCK_BYTES >> 10);
    }
    *parcel =
        (moe_cuda_parcel){.host = r->host + r->used, .device = r->device + r->used, .bytes = bytes};
    r->used += bytes;
    return MOE_OK;
}

/* One row's experts, from the router's logits to their sum. */
static int resident_experts(moe_device *device, const moe_resident_experts *job, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const moe_route *route = &job->route;
    uint32_t n_used = route->n_used;
    moe_cuda_parcel parcel;
    int status = moe_cuda_enter(cuda, err);
    if (status == MOE_OK) {
        status = moe_cuda_parcel_begin(
            cuda,
            moe_cuda_parcel_room(route->n_expert, sizeof(float)) +
                2 * moe_cuda_parcel_room(n_used, sizeof(float)) +
                moe_cuda_parcel_room(3 * (size_t)n_used, sizeof(moe_cuda_product)),
            &parcel, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    /* Scratch of the device: nothing is sent. */
    float *probs = moe_cuda_parcel_put(&parcel, NULL, route->n_expert, sizeof *probs, NULL);
    float *weights = moe_cuda_parcel_put(&parcel, NULL, n_used, sizeof *weights, NULL);
    uint32_t *chosen = moe_cuda_parcel_put(&parcel, NULL, n_used, sizeof *chosen, NULL);
    moe_cuda_product *list =
        moe_cuda_parcel_put(&parcel, NULL, 3 * (size_t)n_used, sizeof *list, NULL);
    moe_router_gate gate = moe_cuda_gate_of(route);
    moe_cuda_route(cuda->stream, &gate, route->logits, route->selection_bias, 1, job->picks,
                   weights, probs);
    moe_cuda_route_edit edit = {.n_rows = 1,
                                .n_expert = route->n_expert,
                                .n_used = n_used,
                                .chosen = job->picks,
                                .experts = chosen,
                                .weights = weights,
                                .probs = probs,
                                .resident = job->resident,
                                .renormalise = job->renormalise,
                                .scale = route->scale,
                                .bias = route->selection_bias};
    moe_cuda_draft_routing routing = {.fill = job->fill, .affinity = job->affinity};
    moe_cuda_draft_route(cuda->stream, &edit, &routing);
    moe_cuda_chosen_experts experts = {.chosen = chosen,
                                       .addresses = job->addresses,
                                       .n_expert = route->n_expert,
                                       .n_used = n_used,
                                       .gate = job->gate,
                                       .up = job->up,
                                       .down = job->down,
                                       .x = job->x,
                                       .list = list,
                                       .gate_out = cuda->ff_gate,
                                       .up_out = cuda->ff_up,
                                       .h_q8_memory = cuda->h_q8_memory,
                                       .out = job->outs};
    if (moe_cuda_is_quantized(&job->gate) || moe_cuda_is_quantized(&job->up)) {
        moe_cuda_quantize_x(cuda, job->x, 1, job->gate.n_in, &experts.x_q8);
    }
    moe_cuda_chosen_experts_run(cuda->stream, &experts);
    moe_combine combine = {.outs = job->outs,
                           .weights = weights,
                           .n_ranks = n_used,
                           .n = job->down.n_out,
                           .y = job->y};
    moe_cuda_combine(cuda->stream, &combine, 1);
    return moe_cuda_launched(cuda, "resident experts", err);
}

const moe_recording_ops moe_cuda_recording_ops = {
    .resident_experts = resident_experts,
    .play = play,
    .record = record,
    .record_end = record_end,
};
