/* SPDX-License-Identifier: MIT */
/* Each kind of recurrent layer of every device that has it: the bits of the first device, the CPU;
 * the same bits when tokens come in several calls, with and without output; a state is not written
 * to by what starts from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device_fixture.h"

#define HEADS     4u
#define KEY_HEADS 2u
#define KEY       20u
#define VALUE     72u /* more than a block of columns */
#define KERNEL    4u
#define CHANNELS  (2 * KEY_HEADS * KEY + HEADS * VALUE)
#define GATES     128u     /* the most of any kind */
#define TOKENS    70u      /* more than gates are computed for at once */
#define INNER     CHANNELS /* at least HEADS * VALUE */
#define STATE     (HEADS * KEY * VALUE + (KERNEL - 1) * CHANNELS)
#define FIRST     3u
#define DIM       30u /* of KIND_CHANNELS */
#define SCRATCH   480u
#define WIDE      200u /* channels of KIND_SCAN, and their states */
#define ROWS      12u
_Static_assert(HEADS *(1 + DIM) <= GATES && 3 * HEADS * DIM <= CHANNELS, "rows have room");
_Static_assert(WIDE *ROWS + (KERNEL - 1) * WIDE <= STATE && 2 * ROWS <= GATES, "likewise");
_Static_assert(4 * HEADS * DIM <= SCRATCH && CHANNELS <= SCRATCH, "the scratch has room");

typedef enum state_kind {
    KIND_DELTA,
    KIND_CONVOLUTION,
    KIND_SPACE,
    KIND_CHANNELS,
    KIND_BOUNDED, /* channels whose decays have a bound */
    KIND_SCAN,
    KINDS
} state_kind;

static const struct {
    moe_form form;
    uint32_t n_out, n_state; /* floats: of a token's output, of a state */
} kinds[KINDS] = {
    [KIND_DELTA] = {MOE_FORM_DELTA_RULE, HEADS *VALUE, STATE},
    [KIND_CONVOLUTION] = {MOE_FORM_SHORT_CONV, CHANNELS, (KERNEL - 1) * CHANNELS},
    [KIND_SPACE] = {MOE_FORM_STATE_SPACE, HEADS *VALUE, STATE},
    [KIND_CHANNELS] = {MOE_FORM_CHANNEL_RULE, HEADS *DIM, HEADS *DIM *DIM + 9 * HEADS *DIM},
    [KIND_BOUNDED] = {MOE_FORM_CHANNEL_RULE, HEADS *DIM, HEADS *DIM *DIM + 9 * HEADS *DIM},
    [KIND_SCAN] = {MOE_FORM_SELECTIVE_SCAN, WIDE, WIDE *ROWS + (KERNEL - 1) * WIDE},
};

typedef struct delta_memory {
    float *mixed, *gates, *conv, *decay, *rates, *dt_bias, *convolved, *out, *states[3];
} delta_memory;

static float *upload_values(moe_device *device, size_t n, uint32_t seed, float scale, float shift)
{
    static float values[TOKENS * CHANNELS];
    assert_true(n <= TOKENS * CHANNELS);
    fill_values(values, n, seed);
    for (size_t i = 0; i < n; i++) {
        values[i] = shift + scale * values[i];
    }
    return device_upload(device, values, n * sizeof *values);
}

static delta_memory make_memory(moe_device *device)
{
    delta_memory m = {.mixed = upload_values(device, TOKENS * CHANNELS, 1, 4, 0),
                      .gates = upload_values(device, TOKENS * GATES, 2, 8, 0),
                      .conv = upload_values(device, CHANNELS * KERNEL, 3, 2, 0),
                      .decay = upload_values(device, HEADS, 4, 1, -0.6f),
                      .rates = upload_values(device, WIDE * ROWS, 6, 1, -0.6f),
                      .dt_bias = upload_values(device, GATES, 5, 1, 0),
                      .convolved = device_alloc(device, TOKENS * SCRATCH * sizeof(float)),
                      .out = device_alloc(device, TOKENS * INNER * sizeof(float))};
    for (int i = 0; i < 3; i++) {
        m.states[i] = device_alloc(device, STATE * sizeof(float));
    }
    return m;
}

static void free_memory(moe_device *device, delta_memory *m)
{
    void (*release)(moe_device *, void *, size_t) = device->ops->free;
    release(device, m->mixed, TOKENS * CHANNELS * sizeof(float));
    release(device, m->gates, TOKENS * GATES * sizeof(float));
    release(device, m->conv, CHANNELS * KERNEL * sizeof(float));
    release(device, m->decay, HEADS * sizeof(float));
    release(device, m->rates, WIDE * ROWS * sizeof(float));
    release(device, m->dt_bias, GATES * sizeof(float));
    release(device, m->convolved, TOKENS * SCRATCH * sizeof(float));
    release(device, m->out, TOKENS * INNER * sizeof(float));
    for (int i = 0; i < 3; i++) {
        release(device, m->states[i], STATE * sizeof(float));
    }
}

static int run_space(moe_device *device, const delta_memory *m, const moe_delta_sequence *s)
{
    moe_state_space space = {.n_head = HEADS,
                             .n_group = KEY_HEADS,
                             .key_dim = KEY,
                             .value_dim = VALUE,
                             .conv_kernel = KERNEL,
                             .conv = m->conv,
                             .conv_bias = m->conv + 7,
                             .decay = m->decay,
                             .dt_bias = m->dt_bias,
                             .skip = m->dt_bias + HEADS,
                             .convolved = m->convolved,
                             .sequences = s,
                             .n_sequences = 1};
    return device->ops->state_space(device, &space, NULL);
}

static int run_channels(moe_device *device, const delta_memory *m, const moe_delta_sequence *s,
                        float decay_bound)
{
    size_t n_conv = (size_t)HEADS * DIM * KERNEL;
    moe_channel_rule rule = {.n_head = HEADS,
                             .dim = DIM,
                             .conv_kernel = KERNEL,
                             .conv = {m->conv, m->conv + n_conv, m->conv + 2 * n_conv},
                             .decay = m->decay,
                             .decay_bound = decay_bound,
                             .dt_bias = m->dt_bias,
                             .convolved = m->convolved,
                             .sequences = s,
                             .n_sequences = 1};
    return device->ops->channel_rule(device, &rule, NULL);
}

/* Time steps, k and q are of the token, not of what the convolution put out: as a device sees it,
 * these are just other rows. Decays are negative. */
static int run_scan(moe_device *device, const delta_memory *m, const moe_delta_sequence *s,
                    uint32_t begin)
{
    moe_delta_sequence inputs = *s;
    inputs.n_silent = 0;
    inputs.out = m->convolved;
    moe_short_conv conv = {.n = WIDE,
                           .conv_kernel = KERNEL,
                           .conv = m->conv,
                           .bias = m->conv + 7,
                           .silu = true,
                           .tail_at = (size_t)WIDE * ROWS,
                           .sequences = &inputs,
                           .n_sequences = 1};
    moe_selective_scan scan = {.n = WIDE,
                               .n_rows = ROWS,
                               .decay = m->rates,
                               .dt_bias = m->conv + 11,
                               .skip = m->conv + 13,
                               .v = m->convolved,
                               .dt = m->mixed + (size_t)begin * WIDE,
                               .k = m->gates + (size_t)begin * ROWS,
                               .q = m->gates + (size_t)TOKENS * ROWS + (size_t)begin * ROWS,
                               .sequences = s,
                               .n_sequences = 1};
    int status = device->ops->short_conv(device, &conv, NULL);
    return status != MOE_OK ? status : device->ops->selective_scan(device, &scan, NULL);
}

/* Tokens begin .. begin + n - 1, of which the first n_silent have no output. */
static int run(moe_device *device, state_kind kind, const delta_memory *m, uint32_t begin,
               uint32_t n, uint32_t n_silent, const float *from, float *to)
{
    moe_delta_sequence s = {.mixed = m->mixed + (size_t)begin * CHANNELS,
                            .mixed_stride = CHANNELS,
                            .gates = m->gates + (size_t)begin * GATES,
                            .gates_stride = GATES,
                            .n_tokens = n,
                            .n_silent = n_silent,
                            .from = from,
                            .to = to,
                            .out = m->out + (size_t)(begin + n_silent) * kinds[kind].n_out};
    if (kind == KIND_CONVOLUTION) {
        moe_short_conv conv = {.n = CHANNELS,
                               .conv_kernel = KERNEL,
                               .conv = m->conv,
                               .sequences = &s,
                               .n_sequences = 1};
        return device->ops->short_conv(device, &conv, NULL);
    }
    if (kind == KIND_SPACE) {
        return run_space(device, m, &s);
    }
    if (kind == KIND_CHANNELS || kind == KIND_BOUNDED) {
        return run_channels(device, m, &s, kind == KIND_BOUNDED ? -5.0f : 0.0f);
    }
    if (kind == KIND_SCAN) {
        return run_scan(device, m, &s, begin);
    }
    moe_delta_rule rule = {.n_head = HEADS,
                           .n_key_head = KEY_HEADS,
                           .key_dim = KEY,
                           .value_dim = VALUE,
                           .conv_kernel = KERNEL,
                           .gate_group = HEADS / KEY_HEADS,
                           .conv = m->conv,
                           .decay = m->decay,
                           .dt_bias = m->dt_bias,
                           .convolved = m->convolved,
                           .sequences = &s,
                           .n_sequences = 1};
    return device->ops->delta_rule(device, &rule, NULL);
}

typedef struct delta_outcome {
    float out[TOKENS * INNER], state[STATE]; /* zeros where a kind has less */
} delta_outcome;

static void take_outcome(moe_device *device, state_kind kind, const delta_memory *m,
                         const float *state, delta_outcome *o)
{
    size_t out_bytes = TOKENS * kinds[kind].n_out * sizeof(float);
    size_t state_bytes = kinds[kind].n_state * sizeof(float);
    memset(o, 0, sizeof *o);
    assert_int_equal(device->ops->download(device, o->out, m->out, out_bytes, NULL), MOE_OK);
    assert_int_equal(device->ops->download(device, o->state, state, state_bytes, NULL), MOE_OK);
}

static void in_parts(moe_device *device, state_kind kind, const delta_memory *m,
                     const delta_outcome *whole)
{
    static delta_outcome parts;
    static float before[STATE], after[STATE], zeros[TOKENS * INNER];
    assert_int_equal(device->ops->upload(device, m->out, zeros, sizeof zeros, NULL), MOE_OK);
    assert_int_equal(run(device, kind, m, 0, FIRST - 1, 0, NULL, m->states[0]), MOE_OK);
    assert_int_equal(run(device, kind, m, FIRST - 1, 1, 0, m->states[0], m->states[1]), MOE_OK);
    device->ops->download(device, before, m->states[1], sizeof before, NULL);
    /* A draft writes no state; what stands after it begins with its tokens, and skips their output.
     */
    assert_int_equal(run(device, kind, m, FIRST, 9, 4, m->states[1], NULL), MOE_OK);
    assert_int_equal(run(device, kind, m, FIRST, 4, 4, m->states[1], m->states[2]), MOE_OK);
    assert_int_equal(run(device, kind, m, FIRST, 4, 0, m->states[1], NULL), MOE_OK);
    assert_int_equal(
        run(device, kind, m, FIRST + 4, TOKENS - FIRST - 4, 2, m->states[2], m->states[0]), MOE_OK);
    device->ops->download(device, after, m->states[1], sizeof after, NULL);
    assert_memory_equal(before, after, sizeof before);
    take_outcome(device, kind, m, m->states[0], &parts);
    assert_memory_equal(parts.out, whole->out, sizeof parts.out);
    assert_memory_equal(parts.state, whole->state, sizeof parts.state);
}

static void check_kind(state_kind kind)
{
    static delta_outcome expected, got;
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        moe_device *device = fixture.device;
        delta_memory m = make_memory(device);
        if ((device->forms & MOE_FORM_BIT(kinds[kind].form)) != 0) {
            assert_int_equal(run(device, kind, &m, 0, TOKENS, 0, NULL, m.states[2]), MOE_OK);
            take_outcome(device, kind, &m, m.states[2], i == 0 ? &expected : &got);
            assert_true(i == 0 || memcmp(&expected, &got, sizeof got) == 0);
            in_parts(device, kind, &m, &expected);
        }
        free_memory(device, &m);
        close_device(&fixture);
    }
    assert_true(expected.out[0] != 0.0f &&
                expected.out[0] != expected.out[TOKENS * kinds[kind].n_out - 1]);
}

static void same_on_every_device(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        check_kind((state_kind)kind);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_on_every_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
