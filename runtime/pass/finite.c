/* SPDX-License-Identifier: MIT */
#include "runtime/pass/finite.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/runner.h"

#define EXPONENT 0x7f800000u
#define CHUNK    1024u /* floats that are checked without a branch */

bool moe_all_finite(const float *x, size_t n)
{
    for (size_t first = 0; first < n; first += CHUNK) {
        size_t end = n - first < CHUNK ? n : first + CHUNK;
        uint32_t found = 0;
        for (size_t i = first; i < end; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            found |= (bits & EXPONENT) == EXPONENT;
        }
        if (found != 0) {
            return false;
        }
    }
    return true;
}

/* *row: out, the first row of `in` with a value that is not finite; n_rows if there is none. */
static int find_row(moe_runner *runner, const moe_op_written *in, uint32_t n_rows, uint32_t *row,
                    moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    const float *values = b->values[in->to.value];
    size_t floats = (size_t)in->each * in->to.stride;
    size_t capacity = b->logits_bytes / (floats * sizeof(float));
    int status = MOE_OK;
    *row = n_rows;
    /* selected_host has room for rows of the stream; rows too wide for it are not searched. */
    for (uint32_t first = capacity > 0 ? 0 : n_rows;
         first < n_rows && status == MOE_OK && *row == n_rows;) {
        uint32_t n = n_rows - first < capacity ? n_rows - first : (uint32_t)capacity;
        status =
            runner->device->ops->download(runner->device, b->selected_host, values + first * floats,
                                          n * floats * sizeof(float), err);
        for (uint32_t i = 0; i < n * in->each && status == MOE_OK && *row == n_rows; i++) {
            const float *vector = b->selected_host + (size_t)i * in->to.stride + in->to.at;
            *row = moe_all_finite(vector, in->n) ? n_rows : first + i / in->each;
        }
        first += n;
    }
    return status;
}

/* ---- Where it began ---- */

typedef struct origin {
    uint32_t n_rows;
    /* The first operation that wrote such values since the stream was finite; or NULL. */
    const moe_op *op;
    uint32_t layer;
    uint32_t row;
    bool found; /* the stream now has such values, too */
} origin;

/* Values that are not finite are an error once they are in the stream; elsewhere they may have no
 * effect. */
static int look(void *context, moe_runner *runner, uint32_t layer, const moe_op *op, moe_error *err)
{
    origin *o = context;
    moe_op_written written[MOE_MOST_OUTPUTS];
    const uint32_t n = moe_op_written_by(op, written);
    const uint32_t n_rows = o->n_rows;
    for (uint32_t i = 0; i < n && !o->found; i++) {
        const moe_value value = written[i].to.value;
        uint32_t row;
        if (moe_value_info_of(value)->rows != MOE_ROWS_OF_PASS) {
            continue;
        }
        MOE_TRY(find_row(runner, &written[i], n_rows, &row, err));
        if (row < n_rows && o->op == NULL) {
            o->op = op;
            o->layer = layer;
            o->row = row;
        }
        if (value == MOE_VALUE_X) {
            o->found = row < n_rows;
            o->op = o->found ? o->op : NULL;
        }
    }
    return MOE_OK;
}

static int make_again(moe_runner *runner, const moe_pass *pass, origin *o, moe_error *err)
{
    moe_step_inputs inputs;
    int status = moe_pass_begin_step(runner, pass, &inputs, err);
    if (status == MOE_OK) {
        status = moe_program_front(runner, pass, err);
    }
    for (uint32_t l = 0; l < runner->config->n_layer && status == MOE_OK && !o->found; l++) {
        if (pass->is_cancelled != NULL && pass->is_cancelled(pass->cancel_user)) {
            status = moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
        } else {
            status = moe_layer_front(runner, pass, l, err);
        }
        if (status == MOE_OK && !o->found) {
            status = moe_layer_rest(runner, pass, l, err);
        }
    }
    return moe_pass_end_step(runner, status, err);
}

/* Runs the pass again as a rehearsal: it calls no hooks that only watch, and predicts nothing. */
static int find_origin(moe_runner *runner, const moe_pass *pass, origin *o, moe_error *err)
{
    moe_pass again = *pass;
    bool prefetches = runner->prefetches;
    again.rehearses = true;
    again.panel = NULL; /* through all layers */
    again.after_op = look;
    again.after_user = o;
    o->n_rows = pass->n_rows;
    runner->prefetches = false;
    int status = make_again(runner, &again, o, err);
    runner->prefetches = prefetches;
    return status;
}

/* The mixer's operations stand before the network's in a layer's program. */
static const char *block_of(const moe_runner *runner, const origin *o)
{
    const moe_program *program = runner->program;
    return o->op < program->ops + program->layers[o->layer].mixed ? "attention"
           : moe_layer_has_experts(program->config, o->layer)     ? "router and experts"
                                                                  : "feed-forward network";
}

static int fail_at_origin(const moe_runner *runner, const moe_pass *pass, const origin *o,
                          moe_error *err)
{
    static const char remedy[] =
        "the model's weights are damaged, or too large for the arithmetic: "
        "compare the file with its source, or verify it";
    char where[200], op[128];
    if (!o->found) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: the output head gives values that are not finite; %s",
                        runner->model_path, remedy);
    }
    moe_program_name_op(runner->program, o->op, op, sizeof op);
    if (o->op->kind == MOE_OP_EMBED) {
        snprintf(where, sizeof where, "the embedding of token %d", (int)pass->tokens[o->row]);
    } else {
        snprintf(where, sizeof where, "layer %u, %s, '%s'", o->layer, block_of(runner, o), op);
    }
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: %s: the first values that are not finite, at position %u; %s",
                    runner->model_path, where, pass->kv_rows[o->row].position, remedy);
}

int moe_pass_fail_not_finite(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    origin o = {.found = false};
    MOE_TRY(find_origin(runner, pass, &o, err));
    return fail_at_origin(runner, pass, &o, err);
}

int moe_pass_check_hidden(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    const uint32_t n = (uint32_t)runner->program->n_floats[MOE_VALUE_X];
    const moe_op_written x = {{.value = MOE_VALUE_X, .stride = n}, n, 1};
    uint32_t row;
    MOE_TRY(find_row(runner, &x, pass->n_rows, &row, err));
    return row < pass->n_rows ? moe_pass_fail_not_finite(runner, pass, err) : MOE_OK;
}
