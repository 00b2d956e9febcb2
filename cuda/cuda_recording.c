/* SPDX-License-Identifier: MIT */
/* Recordings as CUDA graphs: launches are captured once, and played with other inputs.
 *
 * An operation that is given an array of the step's inputs takes its place in their steady block
 * (cuda_step.c), as it does outside of recordings. Parcels (cuda_staging.c) are places behind the
 * inputs, sent when the recording is made: so graphs are of kernels alone. What a launch's shape
 * depends on besides is how many pages rows see: it is chosen for as many as the block has room
 * for. While a recording is under way nothing may wait or allocate. */
#include <stdlib.h>

#include "cuda/cuda_internal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

static const char what[] = "recording operations";

static void drop(moe_cuda_steady *steady, uint32_t number)
{
    if (number < steady->n_execs && steady->execs[number] != NULL) {
        (void)cudaGraphExecDestroy(steady->execs[number]);
        steady->execs[number] = NULL;
    }
}

static void drop_all(moe_cuda_steady *steady)
{
    for (uint32_t i = 0; i < steady->n_execs; i++) {
        drop(steady, i);
    }
}

void moe_cuda_recording_close(moe_cuda_steady *steady)
{
    drop_all(steady);
    free(steady->execs);
    steady->execs = NULL;
    steady->n_execs = 0;
}

int moe_cuda_recording_drop(moe_cuda_device *cuda, moe_cuda_steady *steady, moe_error *err)
{
    int status = steady->n_execs > 0 ? moe_cuda_wait(cuda, what, err) : MOE_OK;
    drop_all(steady);
    return status;
}

static int play(moe_device *device, uint32_t number, bool *played, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const moe_cuda_steady *steady = cuda->step.inputs != NULL ? cuda->step.at : NULL;
    *played = false;
    int status = moe_cuda_enter(cuda, err);
    if (status != MOE_OK || steady == NULL || number >= steady->n_execs ||
        steady->execs[number] == NULL) {
        return status;
    }
    status = moe_cuda_check(cuda, cudaGraphLaunch(steady->execs[number], cuda->stream),
                            "cudaGraphLaunch", "playing a recording", err);
    *played = status == MOE_OK;
    return status;
}

/* What the device does not offer, or has no memory for, is no failure of it. */
static int refuse(cudaError_t code, const char *call, moe_error *err)
{
    (void)moe_cuda_translate(code, call, what, err);
    return MOE_ERR_UNSUPPORTED;
}

static int need_number(moe_cuda_steady *steady, uint32_t number, moe_error *err)
{
    if (number < steady->n_execs) {
        return MOE_OK;
    }
    cudaGraphExec_t *execs = moe_realloc_array(steady->execs, (size_t)number + 1, sizeof *execs);
    if (execs == NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "no memory for recording %u", number);
    }
    for (uint32_t i = steady->n_execs; i <= number; i++) {
        execs[i] = NULL;
    }
    steady->execs = execs;
    steady->n_execs = number + 1;
    return MOE_OK;
}

static int record(moe_device *device, uint32_t number, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_steady *steady = cuda->step.at;
    int status = moe_cuda_enter(cuda, err);
    if (status == MOE_OK && (cuda->step.inputs == NULL || steady == NULL)) {
        status = moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "what is recorded is of steps of 1 to %u rows of a timeline",
                          MOE_CUDA_STEADY_ROWS);
    }
    if (status == MOE_OK) {
        status = need_number(steady, number, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    drop(steady, number);
    /* Other threads go on with the link: what they call is not of the recording. Nor is this thread
     * held to what is safe for certain: a kernel's code is loaded when it is first launched. */
    cudaError_t code = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeRelaxed);
    if (code != cudaSuccess) {
        return moe_cuda_refuses_recording(code)
                   ? refuse(code, "cudaStreamBeginCapture", err)
                   : moe_cuda_give_up(cuda, code, "cudaStreamBeginCapture", what, err);
    }
    cuda->recording =
        (moe_cuda_recording){.under_way = true, .number = number, .begin = steady->recordings_used};
    return MOE_OK;
}

/* The arrays of the recording's own, before it is played. */
static int send_arrays(moe_cuda_device *cuda, moe_error *err)
{
    const moe_cuda_steady *steady = cuda->step.at;
    size_t at = steady->recordings_at + cuda->recording.begin;
    size_t bytes = steady->recordings_used - cuda->recording.begin;
    return bytes == 0
               ? MOE_OK
               : moe_cuda_check(cuda,
                                cudaMemcpyAsync(steady->block.device + at, steady->block.host + at,
                                                bytes, cudaMemcpyHostToDevice, cuda->stream),
                                "cudaMemcpyAsync", what, err);
}

static int record_end(moe_device *device, int status, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_steady *steady = cuda->step.at;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t *exec = &steady->execs[cuda->recording.number];
    cuda->recording.under_way = false;
    const char *call = "cudaStreamEndCapture";
    cudaError_t code = cudaStreamEndCapture(cuda->stream, &graph);
    if (code == cudaSuccess && status == MOE_OK) {
        call = "cudaGraphInstantiate";
        code = cudaGraphInstantiate(exec, graph, 0);
    }
    if (code != cudaSuccess) {
        (void)cudaGetLastError();
        *exec = NULL;
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    if (status != MOE_OK || code != cudaSuccess) {
        steady->recordings_used = cuda->recording.begin;
    }
    if (status != MOE_OK) {
        return status; /* and the capture may well have ended with an error for it */
    }
    if (code != cudaSuccess) {
        return moe_cuda_refuses_recording(code) ? refuse(code, call, err)
                                                : moe_cuda_give_up(cuda, code, call, what, err);
    }
    bool played;
    status = send_arrays(cuda, err);
    return status != MOE_OK ? status : play(device, cuda->recording.number, &played, err);
}

int moe_cuda_recording_parcel(moe_cuda_device *cuda, size_t bytes, moe_cuda_parcel *parcel,
                              moe_error *err)
{
    moe_cuda_steady *steady = cuda->step.at;
    size_t at = steady->recordings_at + steady->recordings_used;
    if (at + bytes > steady->block.bytes) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the arrays of recordings take more than the %zu KiB that they have",
                        steady->block.bytes >> 10);
    }
    *parcel = (moe_cuda_parcel){
        .host = steady->block.host + at, .device = steady->block.device + at, .bytes = bytes};
    steady->recordings_used += bytes;
    return MOE_OK;
}

/* ---- One row's experts, from the router's logits to their sum ---- */

typedef struct routed_row {
    float *probs;     /* [n_expert] */
    float *weights;   /* [n_used] the router's */
    float *mixed;     /* [n_used] after the edits */
    uint32_t *chosen; /* [n_used] likewise */
    moe_cuda_product *list;
    moe_cuda_buddy_stats *stats;
} routed_row;

/* Scratch of the device, as far as the job has no place for it. */
static int place_row(moe_cuda_device *cuda, const moe_resident_experts *job, routed_row *row,
                     moe_error *err)
{
    const moe_route *route = &job->route;
    uint32_t n_used = route->n_used;
    moe_cuda_parcel parcel;
    int status = moe_cuda_parcel_begin(
        cuda,
        moe_cuda_parcel_room(route->n_expert, sizeof(float)) +
            3 * moe_cuda_parcel_room(n_used, sizeof(float)) +
            moe_cuda_parcel_room(3 * (size_t)n_used, sizeof(moe_cuda_product)) +
            moe_cuda_parcel_room(1, sizeof(moe_cuda_buddy_stats)),
        &parcel, err);
    if (status != MOE_OK) {
        return status;
    }
    float *probs = moe_cuda_parcel_put(&parcel, NULL, route->n_expert, sizeof(float), NULL);
    float *weights = moe_cuda_parcel_put(&parcel, NULL, n_used, sizeof(float), NULL);
    float *mixed = moe_cuda_parcel_put(&parcel, NULL, n_used, sizeof(float), NULL);
    uint32_t *chosen = moe_cuda_parcel_put(&parcel, NULL, n_used, sizeof(uint32_t), NULL);
    row->probs = job->probs != NULL ? job->probs : probs;
    row->weights = job->weights != NULL ? job->weights : weights;
    row->mixed = job->buddies != NULL ? mixed : row->weights;
    row->chosen = job->chosen != NULL ? job->chosen : chosen;
    row->list =
        moe_cuda_parcel_put(&parcel, NULL, 3 * (size_t)n_used, sizeof(moe_cuda_product), NULL);
    row->stats = moe_cuda_parcel_put(&parcel, NULL, 1, sizeof(moe_cuda_buddy_stats), NULL);
    return MOE_OK;
}

/* In chosen and mixed, which begin as the router's. What the kernel counts nobody reads. */
static void take_buddies(moe_cuda_device *cuda, const moe_resident_buddies *b,
                         const moe_cuda_route_edit *edit, const routed_row *row,
                         const uint32_t *picks)
{
    uint32_t n = edit->n_used;
    moe_cuda_copy_rows(cuda->stream, (const float *)picks, n, (float *)row->chosen, n, n, 1);
    moe_cuda_copy_rows(cuda->stream, row->weights, n, row->mixed, n, n, 1);
    moe_cuda_buddy_options options = {.count = b->count,
                                      .buddies = b->buddies,
                                      .max = b->max,
                                      .max_replaced = b->max_replaced,
                                      .search = b->search,
                                      .tae_threshold = b->tae_threshold,
                                      .margin_threshold = b->margin_threshold,
                                      .tae_temperature = b->tae_temperature,
                                      .residency_threshold = b->residency_threshold,
                                      .own_weight = b->own_weight,
                                      .drop_unserved = b->drop_unserved,
                                      .stats = row->stats};
    moe_cuda_buddy_route(cuda->stream, edit, &options);
}

static void choose(moe_cuda_device *cuda, const moe_resident_experts *job, const routed_row *row)
{
    const moe_route *route = &job->route;
    moe_router_gate gate = moe_cuda_gate_of(route);
    moe_cuda_route(cuda->stream, &gate, route->logits, route->selection_bias, 1, job->picks,
                   row->weights, row->probs);
    moe_cuda_route_edit edit = {.n_rows = 1,
                                .n_expert = route->n_expert,
                                .n_used = route->n_used,
                                .chosen = job->buddies != NULL ? row->chosen : job->picks,
                                .experts = row->chosen,
                                .weights = row->mixed,
                                .probs = row->probs,
                                .resident = job->resident,
                                .renormalise = job->renormalise,
                                .scale = route->scale,
                                .bias = route->selection_bias};
    if (job->buddies != NULL) {
        take_buddies(cuda, job->buddies, &edit, row, job->picks);
    }
    moe_cuda_draft_routing routing = {
        .fill = job->fill, .affinity = job->affinity, .n_missing = job->n_missing};
    moe_cuda_draft_route(cuda->stream, &edit, &routing);
}

static int resident_experts(moe_device *device, const moe_resident_experts *job, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    routed_row row;
    int status = moe_cuda_enter(cuda, err);
    if (status == MOE_OK) {
        status = place_row(cuda, job, &row, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    choose(cuda, job, &row);
    moe_cuda_chosen_experts experts = {.chosen = row.chosen,
                                       .addresses = job->addresses,
                                       .n_expert = job->route.n_expert,
                                       .n_used = job->route.n_used,
                                       .gate = job->gate,
                                       .up = job->up,
                                       .down = job->down,
                                       .x = job->x,
                                       .list = row.list,
                                       .gate_out = cuda->ff_gate,
                                       .up_out = cuda->ff_up,
                                       .h_q8_memory = cuda->h_q8_memory,
                                       .out = job->outs};
    if (moe_cuda_is_quantized(&job->gate) || moe_cuda_is_quantized(&job->up)) {
        moe_cuda_quantize_x(cuda, job->x, 1, job->gate.n_in, &experts.x_q8);
    }
    moe_cuda_chosen_experts_run(cuda->stream, &experts);
    moe_combine combine = {.outs = job->outs,
                           .weights = row.mixed,
                           .n_ranks = job->route.n_used,
                           .n = job->down.n_out,
                           .y = job->y};
    moe_cuda_combine(cuda->stream, &combine, 1);
    return moe_cuda_launched(cuda, "resident experts", err);
}

const moe_recording_ops moe_cuda_recording_ops = {
    .max_rows = MOE_CUDA_STEADY_ROWS,
    .resident_experts = resident_experts,
    .play = play,
    .record = record,
    .record_end = record_end,
};
