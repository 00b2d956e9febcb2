/* SPDX-License-Identifier: MIT */
/* Layers with a state: projections -> states -> output. What these are is told by the kind of
 * recurrence (recurrent_forms.h).
 *
 * The device takes the tokens of each sequence in order, and a token's work on the state does not
 * depend on its neighbours in the pass, so that chunks of a prompt change no bit.
 *
 * A pass that logs (moe_state_run) keeps what advances the state of each row: the row before the
 * convolution, and its gates. Ancestors of a draft are taken from the log, without output. */
#include "runtime/pass/recurrent_mixer.h"

#include "cpu/kernels/delta_rule.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/recurrent_forms.h"
#include "runtime/pass/runner.h"

_Static_assert(MOE_RECURRENCE_MAX_DIM <= MOE_DELTA_MAX_KEY_DIM &&
                   MOE_RECURRENCE_MAX_DIM <= MOE_DELTA_MAX_VALUE_DIM &&
                   MOE_RECURRENCE_MAX_KERNEL <= MOE_DELTA_MAX_TAPS,
               "kernels take what configs may have");

static const moe_recurrent_form *form_of(const moe_runner *runner)
{
    static const moe_recurrent_form *const forms[MOE_RECURRENCES] = {
        [MOE_RECURRENCE_DELTA] = &moe_recurrent_delta,
        [MOE_RECURRENCE_CONVOLUTION] = &moe_recurrent_convolution,
        [MOE_RECURRENCE_SPACE] = &moe_recurrent_space,
        [MOE_RECURRENCE_CHANNELS] = &moe_recurrent_channels,
        [MOE_RECURRENCE_SCAN] = &moe_recurrent_scan,
    };
    return forms[runner->config->recurrence.kind];
}

static const float *state_at(const void *state, const moe_state_layout *at)
{
    return state == NULL ? NULL : (const float *)((const uint8_t *)state + at->offset);
}

static float *log_row(const moe_state_run *run, const moe_state_layout *at, uint32_t row)
{
    row += run->log_first;
    return (float *)((uint8_t *)run->log + at->log_offset + row * at->row_bytes);
}

/* Logged rows of a run as the device takes them. */
static moe_delta_sequence logged_rows(const moe_runner *runner, const moe_state_run *run,
                                      const moe_state_layout *at, uint32_t n_rows)
{
    const float *first = log_row(run, at, 0);
    return (moe_delta_sequence){.mixed = first,
                                .mixed_stride = at->row_bytes / sizeof(float),
                                .gates = first + runner->config->recurrence.conv_channels,
                                .gates_stride = at->row_bytes / sizeof(float),
                                .n_tokens = n_rows,
                                .from = state_at(run->from, at),
                                .to = (float *)state_at(run->to, at)};
}

static int log_rows(moe_runner *runner, const moe_state_run *run, const moe_state_layout *at,
                    moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    const moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    float *out = log_row(run, at, run->n_logged);
    size_t stride = at->row_bytes / sizeof(float);
    int status =
        device->ops->copy_rows(device, b->mixed + (size_t)run->first_row * c->conv_channels,
                               c->conv_channels, out, stride, c->conv_channels, run->n_rows, err);
    return status != MOE_OK || c->n_gates == 0
               ? status
               : device->ops->copy_rows(
                     device, b->delta_gates + (size_t)run->first_row * c->n_gates, c->n_gates,
                     out + c->conv_channels, stride, c->n_gates, run->n_rows, err);
}

/* One run of the pass; its rows' inputs are in the buffers, and in the log if it has one. */
static moe_delta_sequence rows_of_run(const moe_runner *runner, const moe_state_run *run,
                                      const moe_state_layout *at)
{
    const moe_recurrence *c = &runner->config->recurrence;
    const moe_pass_buffers *b = &runner->buffers;
    moe_delta_sequence s;
    if (run->log != NULL) {
        s = logged_rows(runner, run, at, run->n_logged + run->n_rows);
    } else {
        s = (moe_delta_sequence){.mixed = b->mixed + (size_t)run->first_row * c->conv_channels,
                                 .mixed_stride = c->conv_channels,
                                 .gates = b->delta_gates + (size_t)run->first_row * c->n_gates,
                                 .gates_stride = c->n_gates,
                                 .n_tokens = run->n_rows,
                                 .from = state_at(run->from, at),
                                 .to = (float *)state_at(run->to, at)};
    }
    s.n_silent = run->n_logged;
    s.out = b->delta_out + run->first_row * moe_recurrence_out_floats(c);
    return s;
}

/* Takes the runs together, as many as the scratch has room for. */
static int advance_runs(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_recurrent_form *form = form_of(runner);
    const moe_state_layout *at = &runner->states->layers[layer];
    moe_delta_sequence sequences[MOE_MOST_STATE_SEQUENCES];
    size_t most = moe_delta_scratch_rows(&runner->buffers);
    size_t n_tokens = 0;
    uint32_t n = 0;
    int status = MOE_OK;
    for (uint32_t i = 0; i < pass->n_state_runs && status == MOE_OK; i++) {
        const moe_state_run *run = &pass->state_runs[i];
        if (run->log != NULL) {
            status = log_rows(runner, run, at, err);
        }
        moe_delta_sequence s = rows_of_run(runner, run, at);
        bool full = n == MOE_MOST_STATE_SEQUENCES || n_tokens + s.n_tokens > most;
        if (status == MOE_OK && full && n > 0) {
            status = form->advance(runner, layer, sequences, n, err);
            n = 0;
            n_tokens = 0;
        }
        MOE_ASSERT(s.n_tokens <= most);
        sequences[n++] = s;
        n_tokens += s.n_tokens;
    }
    return status == MOE_OK && n > 0 ? form->advance(runner, layer, sequences, n, err) : status;
}

int moe_mix_recurrent(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_recurrent_form *form = form_of(runner);
    int status = form->project(runner, layer, pass->n_rows, err);
    if (status == MOE_OK) {
        status = advance_runs(runner, pass, layer, err);
    }
    return status != MOE_OK ? status : form->put_out(runner, layer, pass->n_rows, err);
}

int moe_advance_recurrent(moe_runner *runner, const moe_state_run *run, uint32_t layer,
                          moe_error *err)
{
    moe_delta_sequence s = logged_rows(runner, run, &runner->states->layers[layer], run->n_rows);
    s.n_silent = s.n_tokens;
    return form_of(runner)->advance(runner, layer, &s, 1, err);
}
