/* SPDX-License-Identifier: MIT */
/* The experts of one row, all of them in device memory: from the router's logits to the sum of
 * their outputs, without the host. Recordings (cuda_recording.c) use it. */
#include "cuda/cuda_internal.h"

typedef struct routed_row {
    float *probs;     /* [n_expert] */
    float *weights;   /* [n_used] the router's */
    float *mixed;     /* [n_used] after the edits */
    uint32_t *chosen; /* [n_used] likewise */
    moe_cuda_product *list;
    moe_cuda_buddy_stats *stats;
} routed_row;

/* Uses the device's scratch where the job gives no place. */
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

/* Edits chosen and mixed, which begin as the router's. The kernel's counts are not read. */
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
    moe_cuda_draft_routing routing = {.fill = job->fill,
                                      .affinity = job->affinity,
                                      .n_missing = job->n_missing,
                                      .stop = job->stop};
    moe_cuda_draft_route(cuda->stream, &edit, &routing);
}

int moe_cuda_op_resident_experts(moe_device *device, const moe_resident_experts *job,
                                 moe_error *err)
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
                                       .activation = job->activation,
                                       .x = job->x,
                                       .list = row.list,
                                       .gate_out = cuda->ff_gate,
                                       .up_out = cuda->ff_up,
                                       .h_q8_memory = cuda->h_q8_memory,
                                       .out = job->outs,
                                       .stopped = job->stop.stopped,
                                       .n_multiprocessors = cuda->n_multiprocessors};
    for (int p = 0; p < 3; p++) {
        experts.biases[p] = job->biases[p];
        experts.bias_stride[p] = job->bias_bytes[p] / sizeof(float);
    }
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
