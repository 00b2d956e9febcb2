/* SPDX-License-Identifier: MIT */
#include "runtime/pass/program_run.h"

#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/runner.h"

/* Whether the device carries out, in one call, the fused operations that begin with this one; n
 * operations of the span are left. If the pass watches every operation (after_op), none are
 * fused. */
static bool takes_fused(const moe_run *run, const moe_op *op, uint32_t n)
{
    const moe_form form = op->fused == MOE_OP_HEADS ? MOE_FORM_HEADS : MOE_FORM_ADD_NORM;
    const bool watched = run->pass != NULL && run->pass->after_op != NULL;
    return op->n_fused > 0 && op->n_fused <= n && !watched &&
           (run->runner->device->forms & MOE_FORM_BIT(form)) != 0;
}

int moe_program_run(const moe_run *given, moe_span span, moe_error *err)
{
    const moe_program *program = given->runner->program;
    const moe_pass *pass = given->pass;
    moe_run run = *given;
    int status = MOE_OK;
    MOE_ASSERT(span.first <= span.end && span.end <= program->n_ops);
    for (uint32_t i = span.first, n; i < span.end && status == MOE_OK; i += n) {
        const moe_op *op = &program->ops[i];
        const bool fused = takes_fused(&run, op, span.end - i);
        n = fused ? op->n_fused : op->kind == MOE_OP_STATES ? 1 + op->u.states.n_step : 1;
        run.layer = op->layer;
        if (!op->if_choosing || moe_pass_chooses(program->config, pass)) {
            status = run.runner->bodies[fused ? op->fused : op->kind](&run, op, err);
        }
        if (status == MOE_OK && pass != NULL && pass->after_op != NULL) {
            status = pass->after_op(pass->after_user, run.runner, op->layer, op, err);
        }
    }
    return status;
}

/* ---- Layers ---- */

static moe_run run_of(moe_runner *runner, const moe_pass *pass)
{
    return (moe_run){.runner = runner, .pass = pass, .n_rows = pass->n_rows};
}

int moe_layer_front(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_program_layer *l = &runner->program->layers[layer];
    const moe_run run = run_of(runner, pass);
    return moe_program_run(&run, (moe_span){l->first, l->rest}, err);
}

int moe_layer_rest(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_program_layer *l = &runner->program->layers[layer];
    const moe_run run = run_of(runner, pass);
    if (l->rest == l->end) {
        return MOE_OK;
    }
    MOE_TRY(moe_program_run(&run, (moe_span){l->rest, l->summed}, err));
    MOE_TRY(moe_hooks_after_experts(runner, pass, layer, err));
    return moe_program_run(&run, (moe_span){l->summed, l->end}, err);
}

int moe_layer_network(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_program_layer *l = &runner->program->layers[layer];
    const moe_run run = run_of(runner, pass);
    MOE_TRY(moe_program_run(&run, (moe_span){l->mixed, l->rest}, err));
    return moe_layer_rest(runner, pass, layer, err);
}

int moe_program_front(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_run run = run_of(runner, pass);
    return moe_program_run(&run, runner->program->front, err);
}

int moe_program_last_norm(moe_runner *runner, const uint32_t *rows, float *x, float *y, uint32_t n,
                          moe_error *err)
{
    const moe_op *ops = runner->program->ops;
    float **values = runner->buffers.values;
    const moe_op *select = &ops[runner->program->back.first];
    const moe_run run = {.runner = runner, .n_rows = n};
    uint32_t last = runner->program->back.first + 1;
    while (ops[last].y.value != MOE_VALUE_SELECTED) {
        last++;
    }
    if (select->y.value == MOE_VALUE_WANTED) {
        values[MOE_VALUE_WANTED] = x; /* it has no memory of its own */
    }
    values[MOE_VALUE_SELECTED] = y;
    MOE_TRY(runner->device->ops->gather(runner->device, values[MOE_VALUE_X], select->n, rows, n,
                                        values[select->y.value], err));
    return moe_program_run(&run, (moe_span){runner->program->back.first + 1, last + 1}, err);
}

int moe_bring_experts_x(moe_runner *runner, uint32_t layer, const float *x, uint32_t n_rows,
                        moe_error *err)
{
    const uint32_t rest = runner->program->layers[layer].rest;
    const moe_run run = {.runner = runner, .n_rows = n_rows};
    const moe_value input = runner->program->ops[rest + 1].x.value;
    /* Projected right before the routing, so it must be computed here. */
    const bool latent = input == MOE_VALUE_LATENT;
    float *to = runner->buffers.values[latent ? runner->program->ops[rest - 1].x.value : input];
    const size_t bytes = (size_t)n_rows * runner->config->n_embd * sizeof(float);
    MOE_TRY(runner->device->ops->upload(runner->device, to, x, bytes, err));
    return latent ? moe_program_run(&run, (moe_span){rest - 1, rest}, err) : MOE_OK;
}

int moe_program_router_ahead(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_run run = {.runner = runner, .n_rows = n_rows};
    return moe_program_run(&run, runner->program->layers[layer].ahead, err);
}
