/* SPDX-License-Identifier: MIT */
/* Stores keys and values in the cache, then lets rows attend to the cache. */
#include "runtime/pass/program_run.h"

#include "runtime/base/error.h"
#include "runtime/pass/compressed_keys.h"
#include "runtime/pass/position_index.h"
#include "runtime/pass/runner.h"

int moe_op_kv_store(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_runner *runner = run->runner;
    float *const *values = runner->buffers.values;
    const moe_kv_layout *layout =
        op->u.side ? moe_kv_side(runner->kv, run->layer) : &runner->kv->layers[run->layer];
    return runner->device->ops->kv_store(runner->device, layout, run->pass->kv_rows, run->n_rows,
                                         values[op->x.value], op->x.stride, values[op->z.value],
                                         op->z.stride, err);
}

/* Groups of heads attend one after the other, each as if the layer had no other heads. */
static int attend_by_groups(const moe_run *run, const moe_op *op, const moe_attention *whole,
                            moe_error *err)
{
    const moe_runner *runner = run->runner;
    const moe_device_ops *ops = runner->device->ops;
    float *const *values = runner->buffers.values;
    const uint32_t n_groups = moe_choosing_groups(runner->config), n = op->each / n_groups;
    const uint32_t n_kv = op->u.attend.n_kv / n_groups, v_dim = op->u.attend.v_dim;
    const size_t n_q = (size_t)n * op->n, n_out = (size_t)n * v_dim;
    moe_attention attention = *whole;
    attention.n_head = n;
    attention.layout.n_head_kv = n_kv;
    attention.q = values[MOE_VALUE_GROUP_Q];
    attention.out = values[MOE_VALUE_GROUP_OUT];
    for (uint32_t g = 0; g < n_groups; g++) {
        const size_t rows_before = (size_t)g * n_kv * MOE_KV_PAGE;
        attention.layout.k_offset =
            whole->layout.k_offset + rows_before * whole->layout.k_row_bytes;
        attention.layout.v_offset =
            whole->layout.v_offset + rows_before * whole->layout.v_row_bytes;
        moe_index_chosen(runner, run->pass, g, &attention);
        MOE_TRY(ops->copy_rows(runner->device, whole->q + g * n_q, n_groups * n_q,
                               values[MOE_VALUE_GROUP_Q], n_q, (uint32_t)n_q, run->n_rows, err));
        MOE_TRY(ops->attention(runner->device, &attention, run->n_rows, err));
        MOE_TRY(ops->copy_rows(runner->device, values[MOE_VALUE_GROUP_OUT], n_out,
                               whole->out + g * n_out, n_groups * n_out, (uint32_t)n_out,
                               run->n_rows, err));
    }
    return MOE_OK;
}

/* The layer's layout as its attention sees it: without the index key that follows a key. */
static moe_kv_layout attended_layout(const moe_runner *runner, uint32_t layer, const moe_op *op)
{
    moe_kv_layout layout = runner->kv->layers[layer];
    layout.k_dim = op->n;
    return layout;
}

bool moe_has_own_attention(const moe_runner *runner)
{
    const moe_device *device = runner->device;
    for (uint32_t l = 0; device->ops->own_attention != NULL && l < runner->config->n_layer; l++) {
        const moe_program_layer *layer = &runner->program->layers[l];
        for (uint32_t i = layer->first; i < layer->end; i++) {
            const moe_op *op = &runner->program->ops[i];
            if (op->kind == MOE_OP_ATTEND) {
                const moe_kv_layout layout = attended_layout(runner, l, op);
                if (device->ops->own_attention(device, &layout, op->u.attend.cap)) {
                    return true;
                }
            }
        }
    }
    return false;
}

int moe_op_attend(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_runner *runner = run->runner;
    const moe_pass_buffers *b = &runner->buffers;
    moe_attention attention = {.layout = attended_layout(runner, run->layer, op),
                               .rows = run->pass->kv_rows,
                               .q = b->values[op->x.value],
                               .n_head = op->each,
                               .scale = op->factor,
                               .cap = op->u.attend.cap,
                               .window = op->u.attend.window,
                               .chunk = op->u.attend.chunk,
                               .row_scales = op->u.attend.scales_rows ? b->temperatures : NULL,
                               .sinks = moe_op_weight(run, op->tensor)->data,
                               .out = b->values[op->y.value]};
    if (op->u.attend.rate > 0) {
        attention.beside = &runner->kv->beside[run->layer];
        attention.window = 0; /* the rows' paths already leave out what is behind the window */
        MOE_TRY(moe_compressed_rows(run, op, &attention.rows, err));
    } else if (op->u.attend.indexer != MOE_INDEXER_NONE) {
        moe_index_chosen(runner, run->pass, 0, &attention);
        if (runner->config->index_block > 0 && moe_pass_chooses(runner->config, run->pass)) {
            return attend_by_groups(run, op, &attention, err);
        }
    }
    return runner->device->ops->attention(runner->device, &attention, run->n_rows, err);
}
