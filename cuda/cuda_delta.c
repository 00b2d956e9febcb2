/* SPDX-License-Identifier: MIT */
/* Recurrent layers. Callers pass the list of sequences in host memory; the kernels need it in
 * device memory. */
#include "cuda/cuda_internal.h"
#include "runtime/base/error.h"

static int stage_sequences(moe_cuda_device *cuda, const moe_delta_sequence *sequences, uint32_t n,
                           const moe_delta_sequence **staged, uint32_t *n_tokens, moe_error *err)
{
    void *place = NULL;
    int status = moe_cuda_begin(cuda, err);
    *n_tokens = 0;
    for (uint32_t i = 0; i < n; i++) {
        *n_tokens += sequences[i].n_tokens;
    }
    if (status == MOE_OK) {
        status = moe_cuda_stage(cuda, sequences, n * sizeof *sequences, &place, err);
    }
    *staged = place;
    return status;
}

int moe_cuda_op_delta_rule(moe_device *device, const moe_delta_rule *rule, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_delta_rule staged = *rule;
    uint32_t n_tokens;
    MOE_TRY(stage_sequences(cuda, rule->sequences, rule->n_sequences, &staged.sequences, &n_tokens,
                            err));
    moe_cuda_delta_rule(cuda->stream, &staged, n_tokens);
    return moe_cuda_launched(cuda, "a recurrent layer", err);
}

int moe_cuda_op_short_conv(moe_device *device, const moe_short_conv *conv, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_short_conv staged = *conv;
    uint32_t n_tokens;
    MOE_TRY(stage_sequences(cuda, conv->sequences, conv->n_sequences, &staged.sequences, &n_tokens,
                            err));
    moe_cuda_short_conv(cuda->stream, &staged, n_tokens);
    return moe_cuda_launched(cuda, "a short convolution", err);
}

int moe_cuda_op_state_space(moe_device *device, const moe_state_space *space, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_state_space staged = *space;
    uint32_t n_tokens;
    MOE_TRY(stage_sequences(cuda, space->sequences, space->n_sequences, &staged.sequences,
                            &n_tokens, err));
    moe_cuda_state_space(cuda->stream, &staged, n_tokens);
    return moe_cuda_launched(cuda, "a state space", err);
}

int moe_cuda_op_channel_rule(moe_device *device, const moe_channel_rule *rule, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_channel_rule staged = *rule;
    uint32_t n_tokens;
    MOE_TRY(stage_sequences(cuda, rule->sequences, rule->n_sequences, &staged.sequences, &n_tokens,
                            err));
    moe_cuda_channel_rule(cuda->stream, &staged, n_tokens);
    return moe_cuda_launched(cuda, "a recurrent layer", err);
}

int moe_cuda_op_selective_scan(moe_device *device, const moe_selective_scan *scan, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_selective_scan staged = *scan;
    uint32_t n_tokens;
    MOE_TRY(stage_sequences(cuda, scan->sequences, scan->n_sequences, &staged.sequences, &n_tokens,
                            err));
    moe_cuda_selective_scan(cuda->stream, &staged);
    return moe_cuda_launched(cuda, "a selective scan", err);
}
