/* SPDX-License-Identifier: MIT */
/* Updates states of heads token by token, for any of the rules (cpu/kernels/delta_rule.h). A block
 * of one warp takes 32 columns of one head of one sequence, keeps them in shared memory and goes
 * through all tokens in order. Each thread has a column, which is independent of the others. So a
 * call reads and writes the state once. A token is one or two chains of key_dim fmaf, which must
 * keep their order and length. */
#ifndef MOE_CUDA_RECURRENT_STATES_CUH
#define MOE_CUDA_RECURRENT_STATES_CUH

#include "cpu/kernels/delta_rule.h"
#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

#define MOE_STATE_COLUMNS MOE_WARP

typedef struct moe_states_shared {
    float q[MOE_DELTA_MAX_KEY_DIM];
    float k[MOE_DELTA_MAX_KEY_DIM];
    float decays[MOE_DELTA_MAX_KEY_DIM]; /* of the state's rows, if the rule has row decays */
    float decay[MOE_WARP];               /* of the next tokens */
    float beta[MOE_WARP];
} moe_states_shared;

static_assert(sizeof(moe_states_shared) % sizeof(moe_float4) == 0, "what follows is aligned");

typedef struct moe_states_shape {
    uint32_t n_head, key_dim, value_dim;
    uint32_t n_channels;    /* of a row of the scratch */
    const float *convolved; /* scratch, [tokens of all sequences][n_channels] */
    const moe_delta_sequence *sequences;
} moe_states_shape;

/* Where a head's inputs are in a row of the scratch, in floats. */
typedef struct moe_head_inputs {
    size_t q, k, v;
    size_t decays; /* of a rule with row_decays */
} moe_head_inputs;

/* The thread's column, and what one token does to it. */
typedef struct moe_state_token {
    const moe_states_shared *shared;
    float *state; /* row i at state[i * MOE_STATE_COLUMNS] */
    uint32_t key_dim;
    float decay, beta, v;
} moe_state_token;

__device__ static inline void moe_load_token(const moe_states_shape &d, const moe_head_inputs &at,
                                             const float *row, bool row_decays,
                                             moe_states_shared *shared)
{
    for (uint32_t i = threadIdx.x; i < d.key_dim; i += MOE_STATE_COLUMNS) {
        shared->q[i] = row[at.q + i];
        shared->k[i] = row[at.k + i];
        if (row_decays)
            shared->decays[i] = row[at.decays + i];
    }
}

/* Blocks: (columns of a head, head, sequence). memory: the block's shared memory, of
 * moe_states_bytes(). A rule has
 *    row_decays             whether each row of a state has a decay of its own
 *    inputs(head)
 *    gates(sequence, head, token, decay, beta)
 *    take(token, head)      returns the column's output */
template <class Rule>
__device__ static inline void moe_advance_states(const moe_states_shape &d, const Rule &rule,
                                                 moe_float4 *memory)
{
    moe_states_shared *shared = (moe_states_shared *)memory;
    float *state = (float *)(memory + sizeof(moe_states_shared) / sizeof(moe_float4)) + threadIdx.x;
    const moe_delta_sequence &s = d.sequences[blockIdx.z];
    uint32_t head = blockIdx.y;
    uint32_t column = blockIdx.x * MOE_STATE_COLUMNS + threadIdx.x;
    bool valid = column < d.value_dim;
    size_t place = (size_t)head * d.key_dim * d.value_dim + column;
    moe_head_inputs at = rule.inputs(head);
    const float *row = d.convolved;
    for (uint32_t i = 0; i < blockIdx.z; i++)
        row += (size_t)d.sequences[i].n_tokens * d.n_channels;
#pragma unroll 8
    for (uint32_t i = 0; i < d.key_dim; i++)
        state[i * MOE_STATE_COLUMNS] =
            valid && s.from != NULL ? s.from[place + (size_t)i * d.value_dim] : 0.0f;
    for (uint32_t t = 0; t < s.n_tokens; t++, row += d.n_channels) {
        uint32_t slot = t % MOE_WARP;
        __syncthreads();
        if (slot == 0 && t + threadIdx.x < s.n_tokens)
            rule.gates(s, head, t + threadIdx.x, &shared->decay[threadIdx.x],
                       &shared->beta[threadIdx.x]);
        moe_load_token(d, at, row, Rule::row_decays, shared);
        float v = valid ? row[at.v + column] : 0.0f;
        __syncthreads();
        moe_state_token token = {shared, state, d.key_dim, shared->decay[slot], shared->beta[slot],
                                 v};
        float o = rule.take(token, head);
        if (valid && t >= s.n_silent)
            s.out[((size_t)(t - s.n_silent) * d.n_head + head) * d.value_dim + column] = o;
    }
    for (uint32_t i = 0; valid && s.to != NULL && i < d.key_dim; i++)
        s.to[place + (size_t)i * d.value_dim] = state[i * MOE_STATE_COLUMNS];
}

static inline size_t moe_states_bytes(uint32_t key_dim)
{
    return sizeof(moe_states_shared) + (size_t)key_dim * MOE_STATE_COLUMNS * sizeof(float);
}

static inline dim3 moe_states_grid(uint32_t value_dim, uint32_t n_head, uint32_t n_sequences)
{
    return dim3((value_dim + MOE_STATE_COLUMNS - 1) / MOE_STATE_COLUMNS, n_head, n_sequences);
}

#endif
