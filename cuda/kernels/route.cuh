/* SPDX-License-Identifier: MIT */
/* Chooses experts and their weights by a router's logits (router_select.h), one block for each row.
 *
 * The experts are chosen without sorting. An expert's rank is the number of experts that come
 * before it. Each thread counts these for its own expert, and stops as soon as the expert cannot be
 * chosen any more. Groups are few, so one thread inserts them in order, as the reference does: with
 * a NaN score the outcome depends on the order of insertion. */
#ifndef MOE_CUDA_ROUTE_CUH
#define MOE_CUDA_ROUTE_CUH

#include "cuda/kernels/softplus.cuh"
#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

#define ROUTE_THREADS 256u
/* Comparisons between two checks of the rank. */
#define ROUTE_STRETCH 16u
#define MIXER_NEAR    0.02f /* as in cpu/kernels/router_select_reference.c */

typedef struct route_args {
    moe_router_gate gate;
    const float *logits;
    const float *bias;
    const uint32_t *given; /* or NULL: experts are chosen */
    uint32_t *experts;
    float *weights;
    float *probs; /* or NULL */
} route_args;

typedef struct route_shared {
    float p[MOE_ROUTER_MAX_EXPERTS];
    /* The values by which experts are ranked; NaN for experts of excluded groups, because every
     * comparison with NaN is false. */
    float ranking[MOE_ROUTER_MAX_EXPERTS];
    float scores[MOE_ROUTER_MAX_EXPERTS];    /* of groups */
    uint32_t groups[MOE_ROUTER_MAX_EXPERTS]; /* the best groups so far */
    bool used[MOE_ROUTER_MAX_EXPERTS];       /* whether a group is used */
    float weights[MOE_ROUTER_MAX_USED];
    uint32_t ids[MOE_ROUTER_MAX_USED];
    float scratch[MOE_WARP + 1];
    float divisor;
} route_shared;

__device__ static inline void probabilities(const route_args &args, const float *logits,
                                            route_shared *shared)
{
    uint32_t n = args.gate.n_expert;
    bool sigmoid = args.gate.kind == MOE_ROUTER_SIGMOID;
    bool root = args.gate.kind == MOE_ROUTER_SQRT_SOFTPLUS;
    for (uint32_t e = threadIdx.x; e < n; e += ROUTE_THREADS)
        shared->p[e] = sigmoid ? moe_device_sigmoid(logits[e])
                       : root  ? sqrtf(moe_device_softplus(logits[e]))
                               : logits[e];
    __syncthreads();
    if (!sigmoid && !root)
        moe_block_softmax(shared->p, n, shared->scratch);
}

__device__ static inline float group_score(const moe_router_gate &gate, const float *ranking,
                                           uint32_t n)
{
    float best = -MOE_INFINITY;
    float second = -MOE_INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (ranking[i] > best) {
            second = best;
            best = ranking[i];
        } else if (ranking[i] > second) {
            second = ranking[i];
        }
    }
    return gate.group_score == MOE_ROUTER_GROUP_TOP2_SUM && n > 1 ? best + second : best;
}

/* Chooses the n_group_used groups with the best scores; of equal scores, the lower numbers. */
__device__ static inline void choose_groups(const moe_router_gate &gate, route_shared *shared)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < gate.n_group; g++) {
        shared->used[g] = false;
        float score = shared->scores[g];
        if (count == gate.n_group_used) {
            if (!(score > shared->scores[shared->groups[count - 1]]))
                continue;
        } else {
            count++;
        }
        uint32_t at = count - 1;
        for (; at > 0 && score > shared->scores[shared->groups[at - 1]]; at--)
            shared->groups[at] = shared->groups[at - 1];
        shared->groups[at] = g;
    }
    for (uint32_t i = 0; i < count; i++)
        shared->used[shared->groups[i]] = true;
}

__device__ static inline void rule_out_groups(const moe_router_gate &gate, route_shared *shared)
{
    uint32_t size = gate.n_expert / gate.n_group;
    for (uint32_t g = threadIdx.x; g < gate.n_group; g += ROUTE_THREADS)
        shared->scores[g] = group_score(gate, shared->ranking + g * size, size);
    __syncthreads();
    if (threadIdx.x == 0)
        choose_groups(gate, shared);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < gate.n_expert; e += ROUTE_THREADS)
        if (!shared->used[e / size])
            shared->ranking[e] = MOE_NAN;
    __syncthreads();
}

/* How many experts come before e. If these are n_used or more, any number from n_used on. */
__device__ static inline uint32_t rank_of(const moe_router_gate &gate, const float *ranking,
                                          uint32_t e)
{
    float own = ranking[e];
    uint32_t rank = 0;
    for (uint32_t first = 0; first < gate.n_expert && rank < gate.n_expert_used;
         first += ROUTE_STRETCH) {
        uint32_t end =
            first + ROUTE_STRETCH < gate.n_expert ? first + ROUTE_STRETCH : gate.n_expert;
        for (uint32_t other = first; other < end; other++)
            rank += ranking[other] > own || (ranking[other] == own && other < e);
    }
    return rank;
}

__device__ static inline void select_experts(const route_args &args, const float *logits,
                                             route_shared *shared)
{
    const moe_router_gate &gate = args.gate;
    bool by_logits =
        gate.kind == MOE_ROUTER_SOFTMAX_SELECTED || gate.kind == MOE_ROUTER_SPARSE_MIXER;
    const float *base = by_logits ? logits : shared->p;
    for (uint32_t e = threadIdx.x; e < gate.n_expert; e += ROUTE_THREADS) {
        float value = args.bias != NULL ? base[e] + args.bias[e] : base[e];
        shared->ranking[e] = value == value ? value : -MOE_INFINITY;
    }
    __syncthreads();
    if (gate.n_group > 1)
        rule_out_groups(gate, shared);
    for (uint32_t e = threadIdx.x; e < gate.n_expert; e += ROUTE_THREADS) {
        if (shared->ranking[e] != shared->ranking[e])
            continue;
        uint32_t rank = rank_of(gate, shared->ranking, e);
        if (rank < gate.n_expert_used)
            shared->ids[rank] = e;
    }
    __syncthreads();
}

/* The weight of rank k for SPARSE_MIXER. It divides by a sum over the experts that no earlier rank
 * has taken, in ascending order. */
__device__ static inline float mixer_weight(const moe_router_gate &gate, const float *logits,
                                            const uint32_t *ids, uint32_t k)
{
    float best = logits[ids[k]];
    float sum = 0.0f;
    for (uint32_t e = 0; e < gate.n_expert; e++) {
        bool taken = false;
        for (uint32_t i = 0; i < k; i++)
            taken = taken || ids[i] == e;
        float size = fabsf(logits[e]);
        float against = size > best ? size : best;
        if (!taken && !((best - logits[e]) / against > MIXER_NEAR))
            sum += moe_device_exp(logits[e] - best);
    }
    return moe_device_exp(best - best) / sum;
}

/* Computes the weights of shared->ids, in their order. */
__device__ static inline void weigh_experts(const moe_router_gate &gate, const float *logits,
                                            route_shared *shared)
{
    uint32_t n = gate.n_expert_used;
    bool over_selected = gate.kind == MOE_ROUTER_SOFTMAX_SELECTED;
    bool mixes = gate.kind == MOE_ROUTER_SPARSE_MIXER;
    if (threadIdx.x < n) {
        uint32_t e = shared->ids[threadIdx.x];
        shared->weights[threadIdx.x] = mixes ? mixer_weight(gate, logits, shared->ids, threadIdx.x)
                                       : over_selected ? logits[e]
                                                       : shared->p[e];
    }
    __syncthreads();
    if (over_selected)
        moe_block_softmax(shared->weights, n, shared->scratch);
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < n; i++)
            sum += shared->weights[i];
        bool divided = !over_selected && !mixes && gate.renormalise;
        shared->divisor = divided ? sum + 1e-20f : 1.0f;
    }
    __syncthreads();
}

/* Routes row `row` with ROUTE_THREADS threads. */
__device__ static inline void route_row(const route_args &args, size_t row, route_shared *shared)
{
    const moe_router_gate &gate = args.gate;
    const float *logits = args.logits + row * gate.n_expert;
    probabilities(args, logits, shared);
    if (args.probs != NULL)
        for (uint32_t e = threadIdx.x; e < gate.n_expert; e += ROUTE_THREADS)
            args.probs[row * gate.n_expert + e] = shared->p[e];
    if (args.given == NULL) {
        select_experts(args, logits, shared);
    } else {
        if (threadIdx.x < gate.n_expert_used)
            shared->ids[threadIdx.x] = args.given[row * gate.n_expert_used + threadIdx.x];
        __syncthreads();
    }
    weigh_experts(gate, logits, shared);
    if (threadIdx.x < gate.n_expert_used) {
        size_t at = row * gate.n_expert_used + threadIdx.x;
        uint32_t expert = shared->ids[threadIdx.x];
        float weight = shared->weights[threadIdx.x] / shared->divisor * gate.scale;
        args.experts[at] = expert;
        args.weights[at] =
            gate.expert_scales != NULL ? weight * gate.expert_scales[expert] : weight;
    }
}

#endif
