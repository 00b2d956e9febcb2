/* SPDX-License-Identifier: MIT */
/* What the routers of a few rows have chosen, as products that read each expert once: an expert's
 * rows are one product of each matrix, in place of its first pick. The pass stops here if an expert
 * is in no memory that the device reads. */
#include "cuda/kernels/product_launch.h"
#include "cuda/kernels/route.cuh"

#define THREADS ROUTE_THREADS
#define MOST    (MOE_CUDA_CHOSEN_ROWS * MOE_ROUTER_MAX_USED)

typedef struct picks {
    uint32_t experts[MOST]; /* n_expert: none */
    uint32_t first[MOST];   /* the first pick of the same expert; n_picks: none */
    uint32_t n_missing;
    bool runs, is_first;
} picks;

/* Decides by the number of missing picks. One thread. */
__device__ static inline void stop_or_go_on(const moe_resident_stop &stop, picks *p)
{
    bool before = stop.stopped != NULL && !stop.begins && *stop.stopped != 0;
    bool stops = stop.stopped != NULL && p->n_missing > 0;
    p->is_first = !before && stops;
    p->runs = !before && !stops;
    if (stop.stopped != NULL)
        *stop.stopped = before || stops;
}

/* The products of pick i's expert, if it is its first; it has rows at..at + n_rows - 1 among all
 * picks in the order of their experts. */
__device__ static inline void put_products(const moe_cuda_chosen_experts &experts, uint32_t i,
                                           uint32_t n, uint32_t expert, uint32_t at,
                                           uint32_t n_rows)
{
    moe_cuda_product products[3] = {};
    for (int p = 0; p < 3 && n_rows > 0; p++) {
        products[p].weights = experts.addresses[expert].parts[p];
        products[p].n_rows = n_rows;
        if (experts.biases[p] != NULL)
            products[p].bias = experts.biases[p] + expert * experts.bias_stride[p];
    }
    size_t inner = (size_t)at * experts.gate.n_out;
    products[0].x = products[1].x = experts.x;
    products[0].x_index = products[1].x_index = experts.index + at;
    products[0].out = experts.gate_out + inner;
    products[1].out = experts.up_out + inner;
    products[2].x = experts.gate_out + inner;
    products[2].first_row = at;
    products[2].out = experts.out;
    products[2].out_index = experts.index + n + at;
    for (uint32_t p = 0; p < 3; p++)
        experts.list[p * n + i] = products[p];
}

/* By one block. */
__device__ static inline void list_picks(const moe_cuda_chosen_experts &experts, picks &p)
{
    const uint32_t n = experts.n_rows * experts.n_used;
    if (threadIdx.x == 0)
        p.n_missing = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t expert = experts.chosen[i];
        p.experts[i] = expert < experts.n_expert ? expert : experts.n_expert;
        if (experts.resident != NULL && expert < experts.n_expert && !experts.resident[expert])
            atomicAdd(&p.n_missing, 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        stop_or_go_on(experts.stop, &p);
        if (experts.n_missing != NULL)
            *experts.n_missing = p.n_missing;
    }
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t first = 0;
        while (p.experts[first] != p.experts[i])
            first++;
        p.first[i] = p.experts[i] < experts.n_expert ? first : n;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; p.is_first && i < experts.stop.n; i += THREADS) {
        experts.stop.kept[0][i] = experts.stop.inputs[0][i];
        experts.stop.kept[1][i] = experts.stop.inputs[1][i];
    }
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t at = 0, n_rows = 0;
        for (uint32_t j = 0; j < n; j++) {
            at += p.first[j] < p.first[i] || (p.first[j] == p.first[i] && j < i);
            n_rows += p.first[j] == i;
        }
        experts.index[at] = i / experts.n_used;
        experts.index[n + at] = i;
        put_products(experts, i, n, p.experts[i], at, p.runs ? n_rows : 0);
    }
}

__global__ __launch_bounds__(THREADS) void moe_list_chosen(moe_cuda_chosen_experts experts)
{
    __shared__ picks p;
    list_picks(experts, p);
}

/* The router of one row first. Rows would follow one another in a block, so several have a kernel
 * of a block each in front of the list. */
__global__ __launch_bounds__(THREADS) void moe_route_and_list(route_args args,
                                                              moe_cuda_chosen_experts experts)
{
    __shared__ route_shared shared;
    __shared__ picks p;
    route_row(args, 0, &shared);
    __syncthreads();
    list_picks(experts, p);
}

void moe_cuda_list_chosen(moe_cuda_stream stream, const moe_cuda_chosen_experts *experts)
{
    const moe_cuda_chosen_router *router = experts->router;
    if (router != NULL) {
        route_args args = {*router->gate,   router->logits,  router->bias,
                           router->experts, router->weights, router->probs};
        MOE_LAUNCH(moe_route_and_list, 1, THREADS, 0, stream, args, *experts);
    } else {
        MOE_LAUNCH(moe_list_chosen, 1, THREADS, 0, stream, *experts);
    }
}
