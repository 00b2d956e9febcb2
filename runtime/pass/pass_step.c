/* SPDX-License-Identifier: MIT */
/* The device's step around a pass. The device gets the rows and their angles once for all
 * layers. */
#include <math.h>

#include "runtime/base/error.h"
#include "runtime/pass/op_ngrams.h"
#include "runtime/pass/runner.h"

/* Computes angles in double: positions reach millions, and rounding in float would change the
 * angles of far positions noticeably. */
static void fill_angles(const moe_pass *pass, const float *frequencies, uint32_t n, float magnitude,
                        float *to_cos, float *to_sin)
{
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        for (uint32_t i = 0; i < n; i++) {
            double angle = (double)pass->kv_rows[r].position * frequencies[i];
            to_cos[(size_t)r * n + i] = (float)(cos(angle) * magnitude);
            to_sin[(size_t)r * n + i] = (float)(sin(angle) * magnitude);
        }
    }
}

static void fill_rope_tables(const moe_runner *runner, const moe_pass *pass)
{
    const moe_model_config *c = runner->config;
    const moe_pass_buffers *b = &runner->buffers;
    fill_angles(pass, runner->rope_frequencies, c->n_rot / 2, c->yarn_magnitude, b->rope_cos,
                b->rope_sin);
    if (c->window_rope) {
        fill_angles(pass, runner->window_frequencies, c->window_n_rot / 2, 1.0f, b->window_cos,
                    b->window_sin);
    }
}

/* Fills in the scales of the rows' queries, for layers with scales_queries. */
static void fill_temperatures(const moe_runner *runner, const moe_pass *pass)
{
    const moe_model_config *c = runner->config;
    for (uint32_t r = 0; r < pass->n_rows && c->temperature_scale != 0.0f; r++) {
        uint32_t n = (pass->kv_rows[r].position + c->temperature_offset) / c->temperature_length;
        runner->buffers.temperatures[r] = (float)(1.0 + c->temperature_scale * log1p(n));
    }
}

int moe_pass_begin_step(moe_runner *runner, const moe_pass *pass, moe_step_inputs *inputs,
                        moe_error *err)
{
    fill_rope_tables(runner, pass);
    fill_temperatures(runner, pass);
    MOE_TRY(moe_ngrams_begin(runner, pass, err));
    *inputs = (moe_step_inputs){.tokens = pass->tokens,
                                .rows = pass->kv_rows,
                                .cos = runner->buffers.rope_cos,
                                .sin = runner->buffers.rope_sin,
                                .n_rows = pass->n_rows,
                                .n_rot = runner->config->n_rot,
                                .n_other_groups = runner->kv->layers[0].n_other_groups};
    return runner->device->ops->begin_step(runner->device, inputs, err);
}

int moe_pass_end_step(moe_runner *runner, int status, moe_error *err)
{
    int ended =
        runner->device->ops->begin_step(runner->device, NULL, status == MOE_OK ? err : NULL);
    return status != MOE_OK ? status : ended;
}
