/* SPDX-License-Identifier: MIT */
/* What the routers of a few rows have chosen, as products that read each expert once: an expert's
 * rows are one product of each matrix, in place of its first pick. The pass stops here if an expert
 * is in no memory that the device reads. Experts in host memory are given spare slots of the
 * device, by one thread, in the order of the picks. */
#include "cuda/kernels/product_launch.h"
#include "cuda/kernels/route.cuh"

#define THREADS     ROUTE_THREADS
#define MOST        (MOE_CUDA_CHOSEN_ROWS * MOE_ROUTER_MAX_USED)
#define NOT_FETCHED 0xffffu

typedef struct picks {
    uint32_t experts[MOST]; /* n_expert: none */
    uint32_t first[MOST];   /* the first pick of the same expert; n_picks: none */
    uint32_t n_missing;
    bool runs, is_first;
    /* Where experts are kept: */
    uint16_t spare[MOST]; /* of a pick: the number of its expert's spare, behind the range's first;
                           * or NOT_FETCHED */
    bool over_link[MOST];
    bool used[MOE_MAX_SPARES]; /* of the spares from the range's first on */
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

/* Whether an expert of this layer has been chosen. */
__device__ static inline bool is_chosen(const picks *p, uint32_t n, uint64_t expert)
{
    bool is = false;
    for (uint32_t i = 0; i < n; i++)
        is = is || p->experts[i] == expert;
    return is;
}

/* Notes which spares this layer needs as they are, and which picks are over the link. */
__device__ static inline void note_spares(const moe_cuda_chosen_experts &experts, picks *p,
                                          uint32_t n, uint32_t next, uint32_t end)
{
    const moe_resident_keep &keep = experts.keep;
    for (uint32_t i = threadIdx.x; i < end - next; i += THREADS) {
        moe_expert_spare *spare = &keep.spares[next + i];
        const uint64_t at = (uint64_t)(uintptr_t)spare->entry - (uint64_t)(uintptr_t)keep.table;
        const bool here = at / sizeof(moe_expert_address) < experts.n_expert;
        bool used = spare->used != 0;
        if (here && !used && is_chosen(p, n, at / sizeof(moe_expert_address)))
            spare->used = used = true;
        p->used[i] = used;
    }
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const uint32_t expert = p->experts[i];
        p->spare[i] = NOT_FETCHED;
        p->over_link[i] =
            p->first[i] == i && expert < experts.n_expert && keep.table[expert].over_link != 0;
    }
}

/* Gives spares to experts. One thread. */
__device__ static inline void take_spares(const moe_cuda_chosen_experts &experts, picks *p,
                                          uint32_t n, uint32_t next, uint32_t end)
{
    const moe_resident_keep &keep = experts.keep;
    uint32_t at = next, n_fetched = 0;
    for (uint32_t i = 0; i < n && at < end; i++) {
        if (!p->over_link[i])
            continue;
        for (; at < end && p->used[at - next]; at++)
            keep.taken[at] = MOE_SPARE_UNTAKEN;
        if (at < end) {
            keep.taken[at] = keep.first_key + p->experts[i];
            p->spare[i] = (uint16_t)(at++ - next);
            n_fetched++;
        }
    }
    keep.range->next = at;
    *experts.fetches.n = n_fetched;
}

/* Lists the copies, and changes the table. */
__device__ static inline void list_fetches(const moe_cuda_chosen_experts &experts, const picks *p,
                                           uint32_t n, uint32_t next)
{
    const moe_resident_keep &keep = experts.keep;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t at = 0;
        if (p->spare[i] == NOT_FETCHED)
            continue;
        for (uint32_t j = 0; j < i; j++)
            at += p->spare[j] != NOT_FETCHED;
        const moe_expert_spare *spare = &keep.spares[next + p->spare[i]];
        moe_expert_address *own = &keep.table[p->experts[i]];
        experts.fetches.list[at].from = *own;
        experts.fetches.list[at].to = spare->slot;
        if (spare->entry != NULL)
            *spare->entry = spare->home;
        *own = spare->slot;
    }
}

/* All threads of the block. */
__device__ static inline void keep_chosen(const moe_cuda_chosen_experts &experts, picks *p,
                                          uint32_t n)
{
    const uint32_t next = experts.keep.range->next, end = experts.keep.range->end;
    __syncthreads(); /* all have read `next` */
    if (p->runs)
        note_spares(experts, p, n, next, end);
    __syncthreads();
    if (threadIdx.x == 0 && p->runs)
        take_spares(experts, p, n, next, end);
    if (threadIdx.x == 0 && !p->runs)
        *experts.fetches.n = 0;
    __syncthreads();
    if (p->runs)
        list_fetches(experts, p, n, next);
    __syncthreads();
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
    if (experts.keep.spares != NULL)
        keep_chosen(experts, &p, n);
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
