/* SPDX-License-Identifier: MIT */
/* Computes the experts of a few rows without the host, from the routers' logits to the experts'
 * outputs. All of these experts are in memory that the device reads. Recordings (cuda_recording.c)
 * use this. */
#include "cuda/cuda_internal.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

typedef struct routed_rows {
    float *probs;     /* [n_rows][n_expert] */
    float *weights;   /* [n_rows][n_used] as the routers gave them */
    float *mixed;     /* [n_rows][n_used] after the edits */
    float *ordered;   /* [n_rows][n_used] after the edits, by ascending number of the expert */
    uint32_t *chosen; /* [n_rows][n_used] */
    moe_cuda_product *list;
    uint32_t *index;
    moe_cuda_substitution_counts *counts;
    moe_cuda_fetches fetches;
} routed_rows;

/* Sets the places of the rows' arrays. Arrays without a place in the job lie in scratch, which all
 * layers of a recording share. */
static int place_rows(moe_cuda_device *cuda, const moe_resident_experts *job, routed_rows *rows,
                      moe_error *err)
{
    const moe_route *route = &job->route;
    size_t n_probs = (size_t)job->n_rows * route->n_expert;
    size_t n = (size_t)job->n_rows * route->n_used;
    moe_cuda_parcel parcel;
    size_t bytes = moe_cuda_parcel_room(n_probs, sizeof(float)) +
                   4 * moe_cuda_parcel_room(n, sizeof(float)) +
                   moe_cuda_parcel_room(3 * n, sizeof(moe_cuda_product)) +
                   moe_cuda_parcel_room(2 * n, sizeof(uint32_t)) +
                   moe_cuda_parcel_room(n, sizeof(moe_cuda_fetch)) +
                   moe_cuda_parcel_room(1, sizeof(uint32_t)) +
                   moe_cuda_parcel_room(1, sizeof(moe_cuda_substitution_counts));
    MOE_TRY(moe_cuda_scratch_begin(cuda, bytes, &parcel, err));
    float *probs = moe_cuda_parcel_put(&parcel, NULL, n_probs, sizeof(float), NULL);
    float *weights = moe_cuda_parcel_put(&parcel, NULL, n, sizeof(float), NULL);
    float *mixed = moe_cuda_parcel_put(&parcel, NULL, n, sizeof(float), NULL);
    rows->ordered = moe_cuda_parcel_put(&parcel, NULL, n, sizeof(float), NULL);
    uint32_t *chosen = moe_cuda_parcel_put(&parcel, NULL, n, sizeof(uint32_t), NULL);
    rows->probs = job->probs != NULL ? job->probs : probs;
    rows->weights = job->weights != NULL ? job->weights : weights;
    rows->mixed = job->substitution != NULL ? mixed : rows->weights;
    rows->chosen = job->stop.stopped != NULL ? job->picks
                   : job->chosen != NULL     ? job->chosen
                                             : chosen;
    rows->list = moe_cuda_parcel_put(&parcel, NULL, 3 * n, sizeof(moe_cuda_product), NULL);
    rows->index = moe_cuda_parcel_put(&parcel, NULL, 2 * n, sizeof(uint32_t), NULL);
    rows->fetches.list = moe_cuda_parcel_put(&parcel, NULL, n, sizeof(moe_cuda_fetch), NULL);
    rows->fetches.n = moe_cuda_parcel_put(&parcel, NULL, 1, sizeof(uint32_t), NULL);
    rows->counts =
        moe_cuda_parcel_put(&parcel, NULL, 1, sizeof(moe_cuda_substitution_counts), NULL);
    return MOE_OK;
}

/* Edits `chosen` and `mixed`, which begin as copies of the router's choice and weights. Nobody
 * reads the counts that the kernel makes. */
static void substitute(moe_cuda_device *cuda, const moe_substitution *rules,
                       const moe_cuda_route_edit *edit, const routed_rows *row,
                       const uint32_t *picks)
{
    uint32_t n = edit->n_used;
    moe_cuda_copy_rows(cuda->stream, (const float *)picks, n, (float *)row->chosen, n, n, 1);
    moe_cuda_copy_rows(cuda->stream, row->weights, n, row->mixed, n, n, 1);
    moe_cuda_substitute(cuda->stream, edit, rules, row->counts);
}

/* Whether one kernel routes and lists the products. */
static bool routes_and_lists(const moe_resident_experts *job)
{
    return job->stop.stopped != NULL && job->n_rows == 1;
}

static void choose(moe_cuda_device *cuda, const moe_resident_experts *job, const routed_rows *row)
{
    const moe_route *route = &job->route;
    if (routes_and_lists(job)) {
        return;
    }
    moe_router_gate gate = moe_cuda_gate_of(route);
    moe_cuda_route(cuda->stream, &gate, route->logits, route->selection_bias, NULL, job->n_rows,
                   job->picks, row->weights, row->probs);
    if (job->stop.stopped != NULL) {
        return; /* no other experts replace the missing ones */
    }
    moe_cuda_route_edit edit = {.n_rows = 1,
                                .n_expert = route->n_expert,
                                .n_used = route->n_used,
                                .chosen = job->substitution != NULL ? row->chosen : job->picks,
                                .experts = row->chosen,
                                .weights = row->mixed,
                                .probs = row->probs,
                                .resident = job->resident,
                                .renormalise = job->renormalise,
                                .scale = route->scale,
                                .bias = route->selection_bias};
    if (job->substitution != NULL) {
        substitute(cuda, job->substitution, &edit, row, job->picks);
    }
    moe_cuda_draft_routing routing = {
        .fill = job->fill, .lists = job->lists, .n_missing = job->n_missing};
    moe_cuda_draft_route(cuda->stream, &edit, &routing);
}

int moe_cuda_op_resident_experts(moe_device *device, const moe_resident_experts *job,
                                 moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const bool stops = job->stop.stopped != NULL;
    routed_rows row;
    MOE_ASSERT(job->n_rows == 1 || (stops && job->n_rows <= MOE_CUDA_CHOSEN_ROWS));
    MOE_TRY(moe_cuda_enter(cuda, err));
    MOE_TRY(place_rows(cuda, job, &row, err));
    choose(cuda, job, &row);
    const moe_router_gate gate = moe_cuda_gate_of(&job->route);
    const moe_cuda_chosen_router router = {.gate = &gate,
                                           .logits = job->route.logits,
                                           .bias = job->route.selection_bias,
                                           .experts = job->picks,
                                           .weights = row.weights,
                                           .probs = row.probs};
    moe_cuda_chosen_experts experts = {.router = routes_and_lists(job) ? &router : NULL,
                                       .chosen = row.chosen,
                                       .weights = row.mixed,
                                       .ordered = row.ordered,
                                       .addresses = job->addresses,
                                       .resident = stops ? job->resident : NULL,
                                       .n_expert = job->route.n_expert,
                                       .n_used = job->route.n_used,
                                       .n_rows = job->n_rows,
                                       .gate = job->gate,
                                       .up = job->up,
                                       .down = job->down,
                                       .activation = job->activation,
                                       .x = job->x,
                                       .list = row.list,
                                       .index = row.index,
                                       .gate_out = cuda->ff_gate,
                                       .up_out = cuda->ff_up,
                                       .h_q8_memory = cuda->h_q8_memory,
                                       .out = job->outs,
                                       .n_missing = stops ? job->n_missing : NULL,
                                       .stop = job->stop,
                                       .keep = job->keep,
                                       .fetches = row.fetches,
                                       .n_multiprocessors = cuda->n_multiprocessors};
    for (int p = 0; p < 3; p++) {
        experts.biases[p] = job->biases[p];
        experts.bias_stride[p] = job->bias_bytes[p] / sizeof(float);
    }
    if (moe_cuda_is_quantized(&job->gate) || moe_cuda_is_quantized(&job->up)) {
        moe_cuda_quantize_x(cuda, job->x, job->n_rows, job->gate.n_in, &experts.x_q8);
    }
    moe_cuda_chosen_experts_run(cuda->stream, &experts);
    *job->mixed = row.ordered;
    moe_cuda_forget_rows(cuda); /* the experts' kernels may have overwritten x */
    return moe_cuda_launched(cuda, "resident experts", err);
}
