/* SPDX-License-Identifier: MIT */
#include "toy_recurrence.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/error.h"
#include "runtime/families/families.h"
#include "runtime/pass/program_run.h"
#include "runtime/program/program_builder.h"

#define CHANNELS 8u
#define GATES    4u
#define INPUT    (CHANNELS + GATES)
#define STATE    24u
#define TAIL     2u /* rows of the convolution */
#define FLOATS   (STATE + TAIL * CHANNELS)
#define MODULUS  65521.0f

const bool toy_is_real = false;
uint32_t toy_layers;
uint32_t toy_fails_in;

void __wrap_moe_build_recurrent(moe_program_builder *b);
int __wrap_moe_op_states(const moe_run *run, const moe_op *op, moe_error *err);
int __wrap_moe_advance_states(moe_runner *runner, const moe_state_run *run, uint32_t layer,
                              moe_error *err);
int __real_moe_model_config_read(moe_model_config *config, const moe_gguf *gguf, moe_error *err);
int __wrap_moe_model_config_read(moe_model_config *config, const moe_gguf *gguf, moe_error *err);

const char *toy_model(bool all_layers)
{
    (void)all_layers;
    return "olmoe";
}

int toy_take_models(int n, char *const *names)
{
    (void)names;
    return n == 0;
}

const char *toy_draft_model(void)
{
    return "qwen3moe";
}

/* Every operation is exact (the first two) or rounds in a stated order. */
static float next_checksum(float checksum, float token)
{
    return fmodf(checksum * 31.0f + token + 7.0f, MODULUS);
}

static void take_input(const float *input, float *state)
{
    float *tail = state + STATE;
    state[0] += 1.0f;
    state[1] = next_checksum(state[1], input[CHANNELS]);
    for (uint32_t i = 2; i < STATE; i++) {
        float mixed = input[i % CHANNELS] + 0.5f * tail[i % (TAIL * CHANNELS)];
        state[i] = fmaf(0.8f, state[i], 0.2f * mixed + 0.05f * input[CHANNELS + 1 + i % 3]);
    }
    memmove(tail, tail + CHANNELS, (TAIL - 1) * CHANNELS * sizeof *tail);
    memcpy(tail + (TAIL - 1) * CHANNELS, input, CHANNELS * sizeof *tail);
}

static void give_output(const float *state, float *out, uint32_t n)
{
    float sum = state[1] / MODULUS - 0.5f;
    for (uint32_t e = 0; e < n; e++) {
        out[e] = 0.3f * state[2 + e % (STATE - 2)] + (e % 5 == 0 ? 0.2f * sum : 0.0f);
    }
}

static void read_row(const moe_pass *pass, const float *norm, uint32_t row, uint32_t n_embd,
                     float *input)
{
    memcpy(input, norm + (size_t)row * n_embd, INPUT * sizeof *input);
    input[CHANNELS] = (float)pass->tokens[row];
}

static void begin_state(const moe_state_run *run, const moe_state_layout *at, float *state)
{
    memset(state, 0, FLOATS * sizeof *state);
    if (run->from != NULL) {
        memcpy(state, (const uint8_t *)run->from + at->offset, at->bytes);
    }
}

static float *log_row(const moe_state_run *run, const moe_state_layout *at, uint32_t row)
{
    row += run->log_first;
    return (float *)((uint8_t *)run->log + at->log_offset + row * at->row_bytes);
}

static void end_state(const moe_state_run *run, const moe_state_layout *at, const float *state)
{
    if (run->to != NULL) {
        memcpy((uint8_t *)run->to + at->offset, state, at->bytes);
    }
}

static void run_rows(moe_runner *runner, const moe_pass *pass, const moe_state_run *run,
                     const moe_state_layout *at)
{
    uint32_t n_embd = runner->config->n_embd;
    moe_pass_buffers *b = &runner->buffers;
    float state[FLOATS];
    float input[INPUT];
    begin_state(run, at, state);
    for (uint32_t i = 0; i < run->n_logged; i++) {
        take_input(log_row(run, at, i), state);
    }
    for (uint32_t i = 0; i < run->n_rows; i++) {
        uint32_t row = run->first_row + i;
        read_row(pass, b->values[MOE_VALUE_NORM], row, n_embd, input);
        if (run->log != NULL) {
            memcpy(log_row(run, at, run->n_logged + i), input, sizeof input);
        }
        take_input(input, state);
        give_output(state, b->values[MOE_VALUE_BRANCH] + (size_t)row * n_embd, n_embd);
    }
    end_state(run, at, state);
}

/* The toy's operation, from the norm of the stream to what is added to it. The file's attention
 * weights of these layers are loaded and not used. */
void __wrap_moe_build_recurrent(moe_program_builder *b)
{
    static const moe_layer_tensor unused[] = {MOE_LAYER_ATTN_Q,      MOE_LAYER_ATTN_K,
                                              MOE_LAYER_ATTN_V,      MOE_LAYER_ATTN_OUT,
                                              MOE_LAYER_ATTN_Q_NORM, MOE_LAYER_ATTN_K_NORM};
    const uint32_t n = b->config->n_embd;
    moe_build(b, (moe_op){.kind = MOE_OP_STATES,
                          .n = n,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_NORM, n),
                          .y = moe_all_of(MOE_VALUE_BRANCH, n)});
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s", b->layer, moe_tensor_name(b->config, unused[i]));
        const moe_gguf_tensor *t = moe_gguf_find_tensor(b->claims->gguf, name);
        assert_non_null(t);
        moe_build_claim(b, unused[i], t->dims[0], t->dims[1],
                        t->n_dims == 1 ? MOE_TENSOR_VECTOR : MOE_TENSOR_MATRIX);
    }
}

int __wrap_moe_op_states(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_pass *pass = run->pass;
    const moe_state_layout *at = &run->runner->states->layers[run->layer];
    uint32_t n_rows = 0;
    (void)op;
    assert_int_equal(at->bytes, FLOATS * sizeof(float));
    for (uint32_t i = 0; i < pass->n_state_runs; i++) {
        run_rows(run->runner, pass, &pass->state_runs[i], at);
        n_rows += pass->state_runs[i].n_rows;
    }
    assert_int_equal(n_rows, pass->n_rows);
    if (toy_fails_in > 0 && --toy_fails_in == 0) {
        return moe_fail(err, MOE_ERR_IO, "the toy was told to fail");
    }
    return MOE_OK;
}

int __wrap_moe_advance_states(moe_runner *runner, const moe_state_run *run, uint32_t layer,
                              moe_error *err)
{
    const moe_state_layout *at = &runner->states->layers[layer];
    float state[FLOATS];
    (void)err;
    if (at->bytes == 0) {
        return MOE_OK;
    }
    begin_state(run, at, state);
    for (uint32_t i = 0; i < run->n_rows; i++) {
        take_input(log_row(run, at, i), state);
    }
    end_state(run, at, state);
    return MOE_OK;
}

int __wrap_moe_model_config_read(moe_model_config *config, const moe_gguf *gguf, moe_error *err)
{
    int status = __real_moe_model_config_read(config, gguf, err);
    for (uint32_t l = 0; status == MOE_OK && l < config->n_layer; l++) {
        if ((toy_layers >> l & 1) != 0) {
            config->layers[l].mixer = MOE_MIXER_RECURRENT;
            config->recurrence = (moe_recurrence){.n_head = 2,
                                                  .key_dim = 3,
                                                  .value_dim = 4,
                                                  .conv_kernel = TAIL + 1,
                                                  .conv_channels = CHANNELS,
                                                  .n_gates = GATES};
        }
    }
    return status;
}

void toy_check_states(const moe_session *session)
{
    const moe_state_pool *pool = &session->engine->states;
    assert_true(moe_state_table_check(&session->states, session->n_evaluated));
    float checksum = 0.0f;
    for (uint32_t i = 0; i < session->n_evaluated; i++) {
        checksum = next_checksum(checksum, (float)session->tokens[i]);
    }
    for (uint32_t l = 0; session->n_evaluated > 0 && l < session->engine->config.n_layer; l++) {
        const uint8_t *memory = session->states.current->memory;
        const float *state = (const float *)(memory + pool->layers[l].offset);
        if (pool->layers[l].bytes > 0) {
            assert_true(state[0] == (float)session->n_evaluated);
            assert_true(state[1] == checksum);
        }
    }
}
