/* SPDX-License-Identifier: MIT */
/* Operations of a pass that are neither weight products nor attention. */
#include <string.h>

#include "cuda/cuda_internal.h"
#include "runtime/base/error.h"

int moe_cuda_op_gather(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                       uint32_t n_rows, float *out, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    void *staged;
    MOE_TRY(moe_cuda_begin(cuda, err));
    MOE_TRY(moe_cuda_stage(cuda, rows, n_rows * sizeof *rows, &staged, err));
    moe_cuda_gather(cuda->stream, x, n, staged, n_rows, out);
    return moe_cuda_launched(cuda, "gathering rows", err);
}

/* Sends rows together with their numbers, as many at a time as fit a part of the ring. */
int moe_cuda_op_scatter(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                        uint32_t n_rows, float *out, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    size_t row_bytes = n * sizeof *x;
    uint32_t most = (uint32_t)(cuda->ring.part_bytes / 2 / (row_bytes + sizeof *rows));
    int status = moe_cuda_begin(cuda, err);
    most = most > 0 ? most : 1;
    for (uint32_t r = 0; r < n_rows && status == MOE_OK; r += most) {
        uint32_t n_now = n_rows - r < most ? n_rows - r : most;
        moe_cuda_parcel parcel;
        MOE_TRY(moe_cuda_parcel_begin(cuda,
                                      moe_cuda_parcel_room(n_now, row_bytes) +
                                          moe_cuda_parcel_room(n_now, sizeof *rows),
                                      &parcel, err));
        const float *sent = moe_cuda_parcel_put(&parcel, x + (size_t)r * n, n_now, row_bytes, NULL);
        const uint32_t *numbers = moe_cuda_parcel_put(&parcel, rows + r, n_now, sizeof *rows, NULL);
        status = moe_cuda_parcel_send(cuda, &parcel, err);
        if (status == MOE_OK) {
            moe_cuda_scatter(cuda->stream, sent, n, numbers, n_now, out);
            status = moe_cuda_launched(cuda, "scattering rows", err);
        }
    }
    return status;
}

int moe_cuda_op_copy_rows(moe_device *device, const float *src, size_t src_stride, float *dst,
                          size_t dst_stride, uint32_t n, size_t n_rows, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_copy_rows(cuda->stream, src, src_stride, dst, dst_stride, n, n_rows);
    return moe_cuda_launched(cuda, "copying rows", err);
}

int moe_cuda_op_layer_norm(moe_device *device, const float *x, const float *weight,
                           const float *bias, float *y, uint32_t n_rows, uint32_t n,
                           size_t x_stride, float eps, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_layer_norm(cuda->stream, x, weight, bias, y, n_rows, n, x_stride, eps);
    return moe_cuda_launched(cuda, "a norm", err);
}

int moe_cuda_op_add(moe_device *device, const float *a, const float *b, float *y, size_t n,
                    moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_add(cuda->stream, a, b, y, n);
    return moe_cuda_launched(cuda, "an addition", err);
}

int moe_cuda_op_soft_cap(moe_device *device, float cap, float *x, size_t n, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_soft_cap(cuda->stream, cap, x, n);
    return moe_cuda_launched(cuda, "a soft cap", err);
}

int moe_cuda_op_clamp(moe_device *device, float limit, float *x, size_t n, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_clamp(cuda->stream, limit, x, n);
    return moe_cuda_launched(cuda, "clamping", err);
}

int moe_cuda_op_scale(moe_device *device, float factor, float *x, size_t n, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_scale(cuda->stream, factor, x, n);
    return moe_cuda_launched(cuda, "scaling", err);
}

int moe_cuda_stage_angles(moe_cuda_device *cuda, uint32_t n_rows, moe_rope *rope, moe_error *err)
{
    const moe_cuda_step *step = &cuda->step;
    const size_t n = (size_t)n_rows * (rope->n_rot / 2);
    moe_cuda_parcel parcel;
    if (step->inputs != NULL && rope->cos == step->inputs->cos && rope->sin == step->inputs->sin) {
        rope->cos = step->cos;
        rope->sin = step->sin;
        return MOE_OK;
    }
    if (cuda->recording.under_way) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "a rotary embedding with angles of its own is not recorded");
    }
    MOE_TRY(moe_cuda_parcel_begin(cuda, 2 * moe_cuda_parcel_room(n, sizeof(float)), &parcel, err));
    rope->cos = moe_cuda_parcel_put(&parcel, rope->cos, n, sizeof(float), NULL);
    rope->sin = moe_cuda_parcel_put(&parcel, rope->sin, n, sizeof(float), NULL);
    return moe_cuda_parcel_send(cuda, &parcel, err);
}

int moe_cuda_op_rope(moe_device *device, const moe_rope *rope, uint32_t n_rows, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_rope staged = *rope;
    MOE_TRY(moe_cuda_begin(cuda, err));
    MOE_TRY(moe_cuda_stage_angles(cuda, n_rows, &staged, err));
    moe_cuda_rope(cuda->stream, &staged, n_rows);
    return moe_cuda_launched(cuda, "the rotary embedding", err);
}

moe_router_gate moe_cuda_gate_of(const moe_route *route)
{
    return (moe_router_gate){.kind = (moe_router_kind)route->gate,
                             .n_expert = route->n_expert,
                             .n_expert_used = route->n_used,
                             .n_group = route->n_group,
                             .n_group_used = route->n_group_used,
                             .group_score = (moe_router_group_score)route->group_score,
                             .renormalise = route->renormalise,
                             .scale = route->scale,
                             .expert_scales = route->expert_scales};
}

/* Bytes of a route's results, which are experts, weights and probabilities. */
static size_t outcome_bytes(const moe_route *route, uint32_t n_rows)
{
    size_t n_probs = route->probs != NULL ? (size_t)n_rows * route->n_expert : 0;
    return (size_t)n_rows * route->n_used * (sizeof(uint32_t) + sizeof(float)) +
           n_probs * sizeof(float);
}

static int queue_route(moe_cuda_device *cuda, const moe_route *route, uint32_t n_rows,
                       uint8_t *outcome, moe_error *err)
{
    size_t n = (size_t)n_rows * route->n_used;
    void *given = NULL;
    moe_router_gate gate = moe_cuda_gate_of(route);
    uint32_t *experts = (uint32_t *)outcome;
    float *weights = (float *)(experts + n);
    if (route->given) {
        MOE_TRY(moe_cuda_stage(cuda, route->experts, n * sizeof *experts, &given, err));
    }
    moe_cuda_route(cuda->stream, &gate, route->logits, route->selection_bias, given, n_rows,
                   experts, weights, route->probs != NULL ? weights + n : NULL);
    return MOE_OK;
}

static void take_route(const moe_route *route, uint32_t n_rows, const uint8_t *outcome)
{
    size_t n = (size_t)n_rows * route->n_used;
    memcpy(route->experts, outcome, n * sizeof(uint32_t));
    memcpy(route->weights, outcome + n * sizeof(uint32_t), n * sizeof(float));
    if (route->probs != NULL) {
        memcpy(route->probs, outcome + n * (sizeof(uint32_t) + sizeof(float)),
               (size_t)n_rows * route->n_expert * sizeof(float));
    }
}

/* Copies the outcome to results.host, unless the kernels have written it there. */
static int bring_outcome(moe_cuda_device *cuda, const uint8_t *outcome, size_t bytes,
                         moe_error *err)
{
    const char *what = "the routing's way back";
    return outcome == cuda->results.host
               ? MOE_OK
               : moe_cuda_transfer_queue(cuda, cuda->results.host, outcome, bytes,
                                         cudaMemcpyDeviceToHost, what, err);
}

/* All results lie in one piece, which the kernels write to the host's memory. So there is no copy,
 * and the host waits once. */
int moe_cuda_op_route(moe_device *device, const moe_route *routes, uint32_t n_routes,
                      uint32_t n_rows, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    size_t bytes = 0;
    for (uint32_t i = 0; i < n_routes; i++) {
        bytes += outcome_bytes(&routes[i], n_rows);
    }
    int status = moe_cuda_enter(cuda, err);
    if (status == MOE_OK) {
        status = moe_cuda_results_need(cuda, bytes, err);
    }
    if (status != MOE_OK || bytes == 0) {
        return status;
    }
    uint8_t *outcome = cuda->maps_host ? cuda->results.host : cuda->results.device;
    size_t at = 0;
    for (uint32_t i = 0; i < n_routes; i++) {
        MOE_TRY(queue_route(cuda, &routes[i], n_rows, outcome + at, err));
        at += outcome_bytes(&routes[i], n_rows);
    }
    status = moe_cuda_launched(cuda, "routing", err);
    if (status == MOE_OK) {
        status = bring_outcome(cuda, outcome, bytes, err);
    }
    if (status == MOE_OK) {
        status = moe_cuda_wait(cuda, "routing", err);
    }
    at = 0;
    for (uint32_t i = 0; i < n_routes && status == MOE_OK; i++) {
        take_route(&routes[i], n_rows, cuda->results.host + at);
        at += outcome_bytes(&routes[i], n_rows);
    }
    return status;
}

int moe_cuda_stage_weights(moe_cuda_device *cuda, const moe_combine *combine, uint32_t n_rows,
                           moe_combine *staged, moe_error *err)
{
    const size_t bytes = (size_t)n_rows * combine->n_ranks * sizeof(float);
    void *weights = NULL;
    *staged = *combine;
    if (combine->weights_on_device) {
        return MOE_OK;
    }
    int status = moe_cuda_stage(cuda, combine->weights, bytes, &weights, err);
    staged->weights = weights;
    return status;
}

int moe_cuda_op_combine(moe_device *device, const moe_combine *combine, uint32_t n_rows,
                        moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_combine staged;
    MOE_TRY(moe_cuda_begin(cuda, err));
    MOE_TRY(moe_cuda_stage_weights(cuda, combine, n_rows, &staged, err));
    moe_cuda_combine(cuda->stream, &staged, n_rows);
    return moe_cuda_launched(cuda, "adding up experts", err);
}

int moe_cuda_op_sigmoid_scale(moe_device *device, const float *gate, float *x, uint32_t n_rows,
                              uint32_t n, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_sigmoid_scale(cuda->stream, gate, x, n_rows, n);
    return moe_cuda_launched(cuda, "the shared expert's gate", err);
}

int moe_cuda_op_gate(moe_device *device, const moe_gating *gating, size_t n_rows, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_gate(cuda->stream, gating, n_rows);
    return moe_cuda_launched(cuda, "a gate", err);
}

int moe_cuda_op_greatest(moe_device *device, const float *x, uint32_t n_rows, uint32_t n,
                         moe_greatest *out, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_greatest(cuda->stream, x, n_rows, n, out);
    return moe_cuda_launched(cuda, "the greatest of a row", err);
}

int moe_cuda_op_stream_read(moe_device *device, const moe_stream_read *read, uint32_t n_rows,
                            moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_stream_read(cuda->stream, read, n_rows);
    return moe_cuda_launched(cuda, "reading residual streams", err);
}

int moe_cuda_op_stream_write(moe_device *device, const moe_stream_write *write, uint32_t n_rows,
                             moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_stream_write(cuda->stream, write, n_rows);
    return moe_cuda_launched(cuda, "writing residual streams", err);
}

int moe_cuda_op_stream_match(moe_device *device, const moe_stream_match *match, uint32_t n_rows,
                             moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_stream_match(cuda->stream, match, n_rows);
    return moe_cuda_launched(cuda, "matching rows of a table with streams", err);
}
