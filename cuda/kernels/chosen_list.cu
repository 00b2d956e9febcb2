/* SPDX-License-Identifier: MIT */
/* Turns the experts that the routers chose for a few rows into a list of products that reads each
 * expert once. All rows of an expert are one product of each of its matrices, listed at the place
 * of the expert's first pick. The pass stops here if an expert is in no memory that the device can
 * read. One thread gives spare slots of the device to experts in host memory, in the order of the
 * picks. Slots of layers that this pass has finished come first, whatever order the policy gave the
 * slots before the pass. */
#include "cuda/kernels/product_launch.h"
#include "cuda/kernels/route.cuh"

#define THREADS     ROUTE_THREADS
#define MOST        (MOE_CUDA_CHOSEN_ROWS * MOE_ROUTER_MAX_USED)
#define NOT_FETCHED 0xffffu

/* The state of a spare slot. SHUT: already used, or of a later layer whose slots may not be taken.
 * OPEN: free to take. OPEN_LATER: free to take when no slot is OPEN any more. */
enum { SHUT, OPEN, OPEN_LATER };

typedef struct picks {
    uint32_t experts[MOST]; /* n_expert: none */
    uint32_t first[MOST];   /* the first pick of the same expert; n_picks: none */
    uint32_t n_missing;
    bool runs, is_first;
    /* Where experts are kept: */
    uint16_t spare[MOST]; /* of a pick: the number, within the range, of the spare slot that its
                           * expert gets; or NOT_FETCHED */
    bool over_link[MOST];
    uint8_t state[MOE_MAX_SPARES];  /* of the range's spares */
    uint16_t order[MOE_MAX_SPARES]; /* spares that can be taken, in the order of taking */
    uint32_t n_open;                /* entries of `order` */
    uint32_t n_over_link;           /* experts that are read over the link */
} picks;

/* Decides by the number of missing picks whether the pass stops. One thread runs it. */
__device__ static inline void stop_or_go_on(const moe_resident_stop &stop, picks *p)
{
    bool before = stop.stopped != NULL && !stop.begins && *stop.stopped != 0;
    bool stops = stop.stopped != NULL && p->n_missing > 0;
    p->is_first = !before && stops;
    p->runs = !before && !stops;
    if (stop.stopped != NULL)
        *stop.stopped = before || stops;
}

/* Writes the products of pick i's expert, if i is the expert's first pick. In the list of all picks
 * ordered by expert, this expert has entries at .. at + n_rows - 1. */
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

/* Notes which spare slots can be taken, and which picks are read over the link. */
__device__ static inline void note_spares(const moe_cuda_chosen_experts &experts, picks *p,
                                          uint32_t n, const moe_spare_range &range)
{
    const moe_resident_keep &keep = experts.keep;
    const uint64_t table = (uint64_t)(uintptr_t)keep.table;
    for (uint32_t i = threadIdx.x; i < range.end - range.first; i += THREADS) {
        moe_expert_spare *spare = &keep.spares[range.first + i];
        const uint64_t entry = (uint64_t)(uintptr_t)spare->entry;
        /* Huge if the entry lies before the table. */
        const uint64_t at = (entry - table) / sizeof(moe_expert_address);
        const bool comes = entry >= table && at >= experts.n_expert;
        bool used = spare->used != 0;
        if (at < experts.n_expert && !used && is_chosen(p, n, at))
            spare->used = used = true;
        p->state[i] = used || (comes && range.first + i >= range.early_end) ? SHUT
                      : comes                                               ? OPEN_LATER
                                                                            : OPEN;
    }
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const uint32_t expert = p->experts[i];
        p->spare[i] = NOT_FETCHED;
        p->over_link[i] =
            p->first[i] == i && expert < experts.n_expert && keep.table[expert].over_link == 1;
        if (p->over_link[i])
            atomicAdd(&p->n_over_link, 1u);
    }
}

/* Lists the spare slots that can be taken, in their order. */
__device__ static inline void order_spares(picks *p, uint32_t n_spares)
{
    for (uint32_t i = threadIdx.x; i < n_spares; i += THREADS) {
        uint32_t at = 0;
        if (p->state[i] == SHUT)
            continue;
        for (uint32_t j = 0; j < n_spares; j++)
            at += p->state[j] == p->state[i] ? j < i
                                             : p->state[j] == OPEN && p->state[i] == OPEN_LATER;
        p->order[at] = (uint16_t)i;
        atomicAdd(&p->n_open, 1u);
    }
}

/* Gives spares to experts that are read over the link. One thread runs it. */
__device__ static inline void take_spares(const moe_cuda_chosen_experts &experts, picks *p,
                                          uint32_t n, uint32_t first)
{
    const moe_resident_keep &keep = experts.keep;
    uint32_t n_fetched = 0;
    for (uint32_t i = 0; i < n && n_fetched < p->n_open; i++) {
        if (!p->over_link[i])
            continue;
        p->spare[i] = p->order[n_fetched++];
        keep.taken[first + p->spare[i]] = keep.first_key + p->experts[i];
    }
    *experts.fetches.n = n_fetched;
}

/* Lists the copies, and enters the new addresses into the table. */
__device__ static inline void list_fetches(const moe_cuda_chosen_experts &experts, const picks *p,
                                           uint32_t n, uint32_t first)
{
    const moe_resident_keep &keep = experts.keep;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t at = 0;
        if (p->spare[i] == NOT_FETCHED)
            continue;
        for (uint32_t j = 0; j < i; j++)
            at += p->spare[j] != NOT_FETCHED;
        moe_expert_spare *spare = &keep.spares[first + p->spare[i]];
        moe_expert_address *own = &keep.table[p->experts[i]];
        experts.fetches.list[at].from = *own;
        experts.fetches.list[at].to = spare->slot;
        if (spare->entry != NULL)
            *spare->entry = spare->home;
        spare->used = 1;
        *own = spare->slot;
    }
}

/* Gives spare slots to chosen experts that are read over the link, and lists the copies. All
 * threads of the block call it. */
__device__ static inline void keep_chosen(const moe_cuda_chosen_experts &experts, picks *p,
                                          uint32_t n)
{
    const moe_spare_range range = *experts.keep.range;
    if (!p->runs) {
        if (threadIdx.x == 0)
            *experts.fetches.n = 0;
        return;
    }
    note_spares(experts, p, n, range);
    __syncthreads();
    if (p->n_over_link > 0)
        order_spares(p, range.end - range.first);
    __syncthreads();
    if (threadIdx.x == 0)
        take_spares(experts, p, n, range.first);
    __syncthreads();
    list_fetches(experts, p, n, range.first);
    __syncthreads();
}

/* The place of pick i in its row if the row is ordered by ascending number of the expert. */
__device__ static inline uint32_t place_in_row(const picks *p, uint32_t n_used, uint32_t i)
{
    uint32_t first = i / n_used * n_used;
    uint32_t place = first;
    for (uint32_t j = first; j < first + n_used; j++)
        place += p->experts[j] < p->experts[i] || (p->experts[j] == p->experts[i] && j < i);
    return place;
}

/* Makes the list of products for all picks. One block runs it. */
__device__ static inline void list_picks(const moe_cuda_chosen_experts &experts, picks &p)
{
    const uint32_t n = experts.n_rows * experts.n_used;
    if (threadIdx.x == 0)
        p.n_missing = p.n_open = p.n_over_link = 0;
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
        const uint32_t place = place_in_row(&p, experts.n_used, i);
        experts.index[n + at] = place;
        experts.ordered[place] = experts.weights[i];
        put_products(experts, i, n, p.experts[i], at, p.runs ? n_rows : 0);
    }
}

__global__ __launch_bounds__(THREADS) void moe_list_chosen(moe_cuda_chosen_experts experts)
{
    __shared__ picks p;
    MOE_BEGIN_EARLY();
    MOE_WAIT_FOR_STREAM();
    list_picks(experts, p);
}

/* Routes one row, then lists its picks. One block would have to route several rows one after the
 * other. So for several rows another kernel, with a block for each row, runs before the list. */
__global__ __launch_bounds__(THREADS) void moe_route_and_list(route_args args,
                                                              moe_cuda_chosen_experts experts)
{
    __shared__ route_shared shared;
    __shared__ picks p;
    MOE_BEGIN_EARLY();
    MOE_WAIT_FOR_STREAM();
    route_row(args, 0, &shared);
    __syncthreads();
    list_picks(experts, p);
}

void moe_cuda_list_chosen(moe_cuda_stream stream, const moe_cuda_chosen_experts *experts)
{
    const moe_cuda_chosen_router *router = experts->router;
    if (router != NULL) {
        route_args args = {*router->gate,   router->logits,  router->bias, NULL,
                           router->experts, router->weights, router->probs};
        MOE_LAUNCH_EARLY(moe_route_and_list, 1, THREADS, 0, stream, args, *experts);
    } else {
        MOE_LAUNCH_EARLY(moe_list_chosen, 1, THREADS, 0, stream, *experts);
    }
}
