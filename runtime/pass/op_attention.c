/* SPDX-License-Identifier: MIT */
/* Stores keys and values in the cache; then rows attend to the cache. */
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

int moe_op_attend(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_runner *runner = run->runner;
    const moe_pass_buffers *b = &runner->buffers;
    moe_attention attention = {.layout = runner->kv->layers[run->layer],
                               .rows = run->pass->kv_rows,
                               .n_chosen = runner->config->index_top_k,
                               .q = b->values[op->x.value],
                               .n_head = op->each,
                               .scale = op->factor,
                               .cap = op->u.attend.cap,
                               .window = op->u.attend.window,
                               .chunk = op->u.attend.chunk,
                               .row_scales = op->u.attend.scales_rows ? b->temperatures : NULL,
                               .sinks = moe_op_weight(run, op->tensor)->data,
                               .out = b->values[op->y.value]};
    attention.layout.k_dim = op->n; /* less the index key behind it */
    if (op->u.attend.rate > 0) {
        attention.beside = &runner->kv->beside[run->layer];
        attention.window = 0; /* which is in the rows' paths */
        MOE_TRY(moe_compressed_rows(run, op, &attention.rows, err));
    } else if (op->u.attend.indexer != MOE_INDEXER_NONE) {
        moe_index_chosen(runner, run->pass, &attention.rows, &attention.chosen);
    }
    return runner->device->ops->attention(runner->device, &attention, run->n_rows, err);
}
