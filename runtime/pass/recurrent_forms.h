/* SPDX-License-Identifier: MIT */
/* The parts of a recurrent layer that differ between kinds of recurrence (moe_recurrence_kind). */
#ifndef MOE_PASS_RECURRENT_FORMS_H
#define MOE_PASS_RECURRENT_FORMS_H

#include "runtime/device/delta_ops.h"
#include "runtime/pass/pass.h"

typedef struct moe_recurrent_form {
    /* From buffers->norm to what advances a state, which a draft logs: buffers->mixed and
     * delta_gates. And to what put_out() needs beside the states' outputs. */
    int (*project)(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err);
    /* Advances the states of some sequences; the outputs go where the sequences say. */
    int (*advance)(moe_runner *runner, uint32_t layer, const moe_delta_sequence *sequences,
                   uint32_t n_sequences, moe_error *err);
    /* From buffers->delta_out to buffers->branch. */
    int (*put_out)(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err);
} moe_recurrent_form;

extern const moe_recurrent_form moe_recurrent_delta;
extern const moe_recurrent_form moe_recurrent_convolution;
extern const moe_recurrent_form moe_recurrent_space;
extern const moe_recurrent_form moe_recurrent_channels;
extern const moe_recurrent_form moe_recurrent_scan;

/* Sequences of one call of advance(), at most. */
#define MOE_MOST_STATE_SEQUENCES 32u

#endif
