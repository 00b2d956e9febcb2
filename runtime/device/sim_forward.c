/* SPDX-License-Identifier: MIT */
/* Operations that the simulated device forwards unchanged: arithmetic, and copies within its
 * memory, which do not use the link. */
#include "runtime/device/sim_internal.h"

static int sim_embed(moe_device *device, const moe_weight *table, const int32_t *tokens,
                     uint32_t n_rows, float scale, float *out, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->embed(inner, table, tokens, n_rows, scale, out, err);
}

static int sim_gather(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                      uint32_t n_rows, float *out, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->gather(inner, x, n, rows, n_rows, out, err);
}

static int sim_rms_norm(moe_device *device, const float *x, const float *weight, float *y,
                        uint32_t n_rows, uint32_t n, size_t x_stride, float eps, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->rms_norm(inner, x, weight, y, n_rows, n, x_stride, eps, err);
}

static int sim_linear(moe_device *device, const float *x, uint32_t n_rows, uint32_t n_in,
                      const moe_linear *linears, uint32_t n_linears, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->linear(inner, x, n_rows, n_in, linears, n_linears, err);
}

static int sim_head_linear(moe_device *device, const moe_head_linear *linear, uint32_t n_rows,
                           moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->head_linear(inner, linear, n_rows, err);
}

static int sim_clamp(moe_device *device, float limit, float *x, size_t n, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->clamp(inner, limit, x, n, err);
}

static int sim_scale(moe_device *device, float factor, float *x, size_t n, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->scale(inner, factor, x, n, err);
}

static int sim_add(moe_device *device, const float *a, const float *b, float *y, size_t n,
                   moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->add(inner, a, b, y, n, err);
}

static int sim_rope(moe_device *device, const moe_rope *rope, uint32_t n_rows, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->rope(inner, rope, n_rows, err);
}

static int sim_kv_store(moe_device *device, const moe_kv_layout *layout, const moe_kv_row *rows,
                        uint32_t n_rows, const float *k, size_t k_stride, const float *v,
                        size_t v_stride, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->kv_store(inner, layout, rows, n_rows, k, k_stride, v, v_stride, err);
}

static int sim_kv_move(moe_device *device, const moe_kv_move *move, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->kv_move(inner, move, err);
}

static int sim_attention(moe_device *device, const moe_attention *attention, uint32_t n_rows,
                         moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->attention(inner, attention, n_rows, err);
}

static int sim_route(moe_device *device, const moe_route *routes, uint32_t n_routes,
                     uint32_t n_rows, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->route(inner, routes, n_routes, n_rows, err);
}

static int sim_experts(moe_device *device, const float *x, uint32_t n_x_rows, uint32_t n_in,
                       const moe_expert_work *works, uint32_t n_works, float *out,
                       size_t out_stride, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->experts(inner, x, n_x_rows, n_in, works, n_works, out, out_stride, err);
}

static int sim_combine(moe_device *device, const moe_combine *combine, uint32_t n_rows,
                       moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->combine(inner, combine, n_rows, err);
}

static int sim_sigmoid_scale(moe_device *device, const float *gate, float *x, uint32_t n_rows,
                             uint32_t n, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->sigmoid_scale(inner, gate, x, n_rows, n, err);
}

static int sim_gate(moe_device *device, const moe_gating *gating, size_t n_rows, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->gate(inner, gating, n_rows, err);
}

static int sim_layer_norm(moe_device *device, const float *x, const float *weight,
                          const float *bias, float *y, uint32_t n_rows, uint32_t n, size_t x_stride,
                          float eps, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->layer_norm(inner, x, weight, bias, y, n_rows, n, x_stride, eps, err);
}

static int sim_soft_cap(moe_device *device, float cap, float *x, size_t n, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->soft_cap(inner, cap, x, n, err);
}

static int sim_delta_rule(moe_device *device, const moe_delta_rule *rule, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->delta_rule(inner, rule, err);
}

static int sim_stream_read(moe_device *device, const moe_stream_read *read, uint32_t n_rows,
                           moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->stream_read(inner, read, n_rows, err);
}

static int sim_stream_match(moe_device *device, const moe_stream_match *match, uint32_t n_rows,
                            moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->stream_match(inner, match, n_rows, err);
}

static int sim_stream_write(moe_device *device, const moe_stream_write *write, uint32_t n_rows,
                            moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->stream_write(inner, write, n_rows, err);
}

static int sim_pool_keys(moe_device *device, const moe_key_pool *pool, uint32_t n_rows,
                         moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->pool_keys(inner, pool, n_rows, err);
}

static int sim_score_keys(moe_device *device, const moe_key_scores *scores, uint32_t n_rows,
                          moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->score_keys(inner, scores, n_rows, err);
}

static int sim_greatest(moe_device *device, const float *x, uint32_t n_rows, uint32_t n,
                        moe_greatest *out, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->greatest(inner, x, n_rows, n, out, err);
}

static int sim_copy(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->copy(inner, dst, src, bytes, err);
}

static int sim_copy_rows(moe_device *device, const float *src, size_t src_stride, float *dst,
                         size_t dst_stride, uint32_t n, size_t n_rows, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->copy_rows(inner, src, src_stride, dst, dst_stride, n, n_rows, err);
}

static int sim_sync(moe_device *device, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->sync(inner, err);
}

static int sim_begin_step(moe_device *device, const moe_step_inputs *inputs, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->begin_step(inner, inputs, err);
}

static int sim_short_conv(moe_device *device, const moe_short_conv *conv, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->short_conv(inner, conv, err);
}

static int sim_state_space(moe_device *device, const moe_state_space *space, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->state_space(inner, space, err);
}

static int sim_channel_rule(moe_device *device, const moe_channel_rule *rule, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->channel_rule(inner, rule, err);
}

static int sim_selective_scan(moe_device *device, const moe_selective_scan *scan, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->selective_scan(inner, scan, err);
}

void moe_sim_forward_arithmetic(moe_device_ops *ops)
{
    ops->embed = sim_embed;
    ops->gather = sim_gather;
    ops->rms_norm = sim_rms_norm;
    ops->linear = sim_linear;
    ops->head_linear = sim_head_linear;
    ops->clamp = sim_clamp;
    ops->scale = sim_scale;
    ops->add = sim_add;
    ops->rope = sim_rope;
    ops->kv_store = sim_kv_store;
    ops->kv_move = sim_kv_move;
    ops->attention = sim_attention;
    ops->route = sim_route;
    ops->experts = sim_experts;
    ops->combine = sim_combine;
    ops->sigmoid_scale = sim_sigmoid_scale;
    ops->gate = sim_gate;
    ops->layer_norm = sim_layer_norm;
    ops->soft_cap = sim_soft_cap;
    ops->delta_rule = sim_delta_rule;
    ops->short_conv = sim_short_conv;
    ops->state_space = sim_state_space;
    ops->channel_rule = sim_channel_rule;
    ops->selective_scan = sim_selective_scan;
    ops->pool_keys = sim_pool_keys;
    ops->score_keys = sim_score_keys;
    ops->greatest = sim_greatest;
    ops->stream_read = sim_stream_read;
    ops->stream_write = sim_stream_write;
    ops->stream_match = sim_stream_match;
    ops->copy = sim_copy;
    ops->copy_rows = sim_copy_rows;
    ops->sync = sim_sync;
    ops->begin_step = sim_begin_step;
}
