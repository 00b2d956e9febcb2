/* SPDX-License-Identifier: MIT */
#include "runtime/pass/program_run.h"

#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/runner.h"

int moe_program_run(const moe_run *run, moe_span span, moe_error *err)
{
    const moe_program *program = run->runner->program;
    int status = MOE_OK;
    MOE_ASSERT(span.first <= span.end && span.end <= program->n_ops);
    for (uint32_t i = span.first; i < span.end && status == MOE_OK; i++) {
        const moe_op *op = &program->ops[i];
        if (!op->if_choosing || moe_pass_chooses(program->config, run->pass)) {
            status = run->runner->bodies[op->kind](run, op, err);
        }
        if (status == MOE_OK && run->pass != NULL && run->pass->after_op != NULL) {
            status = run->pass->after_op(run->pass->after_user, run->runner, run->layer, op, err);
        }
        i += op->kind == MOE_OP_STATES ? op->u.n_step : 0; /* it has run them */
    }
    return status;
}

/* ---- Layers ---- */

static moe_run run_of(moe_runner *runner, const moe_pass *pass, uint32_t layer)
{
    return (moe_run){.runner = runner, .pass = pass, .layer = layer, .n_rows = pass->n_rows};
}

int moe_layer_front(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_program_layer *l = &runner->program->layers[layer];
    const moe_run run = run_of(runner, pass, layer);
    return moe_program_run(&run, (moe_span){l->first, l->rest}, err);
}

int moe_layer_rest(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_program_layer *l = &runner->program->layers[layer];
    const moe_run run = run_of(runner, pass, layer);
    if (l->rest == l->end) {
        return MOE_OK;
    }
    MOE_TRY(pass->serve_layer != NULL ? pass->serve_layer(pass->serve_user, runner, layer, err)
                                      : moe_program_run(&run, (moe_span){l->rest, l->summed}, err));
    MOE_TRY(moe_hooks_after_experts(runner, pass, layer, err));
    return moe_program_run(&run, (moe_span){l->summed, l->end}, err);
}

int moe_layer_network(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_program_layer *l = &runner->program->layers[layer];
    const moe_run run = run_of(runner, pass, layer);
    MOE_TRY(moe_program_run(&run, (moe_span){l->mixed, l->rest}, err));
    return moe_layer_rest(runner, pass, layer, err);
}

int moe_program_front(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const moe_run run = run_of(runner, pass, 0);
    return moe_program_run(&run, runner->program->front, err);
}

int moe_program_last_norm(moe_runner *runner, float *x, float *y, uint32_t n, moe_error *err)
{
    const moe_span back = runner->program->back;
    const moe_run run = {.runner = runner, .n_rows = n};
    MOE_ASSERT(runner->program->ops[back.first + 1].y.value == MOE_VALUE_SELECTED);
    runner->buffers.values[MOE_VALUE_WANTED] = x;
    runner->buffers.values[MOE_VALUE_SELECTED] = y;
    return moe_program_run(&run, (moe_span){back.first + 1, back.first + 2}, err);
}

int moe_bring_experts_x(moe_runner *runner, uint32_t layer, const float *x, uint32_t n_rows,
                        moe_error *err)
{
    const uint32_t rest = runner->program->layers[layer].rest;
    const moe_run run = {.runner = runner, .layer = layer, .n_rows = n_rows};
    const moe_value input = runner->program->ops[rest + 1].x.value;
    const bool latent = input == MOE_VALUE_LATENT; /* projected right before the routing */
    float *to = runner->buffers.values[latent ? runner->program->ops[rest - 1].x.value : input];
    const size_t bytes = (size_t)n_rows * runner->config->n_embd * sizeof(float);
    MOE_TRY(runner->device->ops->upload(runner->device, to, x, bytes, err));
    return latent ? moe_program_run(&run, (moe_span){rest - 1, rest}, err) : MOE_OK;
}

int moe_program_router_ahead(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_run run = {.runner = runner, .layer = layer, .n_rows = n_rows};
    return moe_program_run(&run, runner->program->layers[layer].ahead, err);
}
