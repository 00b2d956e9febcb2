/* SPDX-License-Identifier: MIT */
/* Changes the routers' choices according to which experts are in the device's memory, without
 * asking the host. There are two ways: a choice among resident experts (moe_resident_fill) and, as
 * a lossy mode, substitution by a table (moe_substitution).
 *
 * A block is a row. Ranks are served one after the other, because each takes an expert that earlier
 * ranks have not taken. The threads of a warp share the search for a rank's expert: the first of a
 * list that is resident and free. A set of bits in shared memory marks the experts that are taken.
 */
#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

#define THREADS   128u
#define NOWHERE   0xffffffffu
#define SET_WORDS (MOE_ROUTER_MAX_EXPERTS / 32)

typedef struct row_shared {
    float merit[MOE_ROUTER_MAX_EXPERTS];
    float candidate[MOE_ROUTER_MAX_EXPERTS];
    uint32_t taken[SET_WORDS]; /* experts that serve the row */
    uint32_t experts[MOE_ROUTER_MAX_USED];
    float weights[MOE_ROUTER_MAX_USED];
    uint32_t n_requested;
    uint32_t n_missing;
    uint32_t n_resident;
    uint32_t n_kept;
    bool gated;
} row_shared;

__device__ static inline bool has(const uint32_t *set, uint32_t expert)
{
    return set[expert / 32] >> (expert % 32) & 1;
}

/* Ids of n_expert or more are dropped ranks. */
__device__ static inline bool is_missing(const moe_cuda_route_edit &edit, uint32_t expert)
{
    return expert < edit.n_expert && !edit.resident[expert];
}

/* Copies the row's choice into shared memory, and computes what the edits need to know about it. */
__device__ static inline void begin_row(const moe_cuda_route_edit &edit, row_shared *row)
{
    for (uint32_t w = threadIdx.x; w < SET_WORDS; w += THREADS)
        row->taken[w] = 0;
    if (threadIdx.x == 0)
        row->n_requested = row->n_missing = row->n_resident = 0;
    __syncthreads();
    if (threadIdx.x < edit.n_used) {
        size_t at = (size_t)blockIdx.x * edit.n_used + threadIdx.x;
        uint32_t expert = edit.chosen[at];
        row->experts[threadIdx.x] = expert;
        row->weights[threadIdx.x] = edit.weights[at];
        if (expert < edit.n_expert) {
            atomicOr(&row->taken[expert / 32], 1u << (expert % 32));
            atomicAdd(&row->n_requested, 1u);
            if (!edit.resident[expert])
                atomicAdd(&row->n_missing, 1u);
        }
    }
    for (uint32_t e = threadIdx.x; e < edit.n_expert; e += THREADS)
        if (edit.resident[e])
            atomicAdd(&row->n_resident, 1u);
    __syncthreads();
}

__device__ static inline void end_row(const moe_cuda_route_edit &edit, const row_shared *row)
{
    __syncthreads();
    if (threadIdx.x < edit.n_used) {
        size_t at = (size_t)blockIdx.x * edit.n_used + threadIdx.x;
        edit.experts[at] = row->experts[threadIdx.x];
        edit.weights[at] = row->weights[threadIdx.x];
    }
}

/* The first of a list of n experts that is resident and does not serve the row yet, or none. All
 * threads of the first warp call it, and all get the result. */
__device__ static inline uint32_t first_free(const moe_cuda_route_edit &edit, const row_shared *row,
                                             const uint16_t *list, uint32_t n)
{
    for (uint32_t first = 0; first < n; first += MOE_WARP) {
        uint32_t i = first + threadIdx.x;
        bool fits =
            i < n && list[i] < edit.n_expert && edit.resident[list[i]] && !has(row->taken, list[i]);
        uint32_t found = fits ? i : NOWHERE;
        for (int half = 16; half > 0; half /= 2) {
            uint32_t other = __shfl_xor_sync(MOE_ALL_WARP, found, half);
            found = other < found ? other : found;
        }
        if (found != NOWHERE)
            return list[found];
    }
    return MOE_CUDA_EXPERT_NONE;
}

/* Computes the mixing weights of the experts that serve the row, by the model's rule. One thread
 * runs it, because the order of the sum is fixed. */
__device__ static inline void mix(const moe_cuda_route_edit &edit, row_shared *row)
{
    const float *probs = edit.probs + (size_t)blockIdx.x * edit.n_expert;
    float sum = 0.0f;
    for (uint32_t k = 0; k < edit.n_used; k++) {
        uint32_t expert = row->experts[k];
        row->weights[k] = expert < edit.n_expert ? probs[expert] : 0.0f;
        sum += row->weights[k];
    }
    for (uint32_t k = 0; k < edit.n_used; k++) {
        if (edit.renormalise)
            row->weights[k] /= sum + 1e-20f;
        row->weights[k] *= edit.scale;
    }
}

/* ---- The draft ---- */

/* Moves resident picks to the front, in their order, and returns their number. One thread runs it.
 */
__device__ static inline uint32_t keep_resident(const moe_cuda_route_edit &edit, row_shared *row)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < edit.n_used; k++) {
        uint32_t expert = row->experts[k];
        if (expert < edit.n_expert && edit.resident[expert])
            row->experts[n++] = expert;
    }
    for (uint32_t k = n; k < edit.n_used; k++)
        row->experts[k] = MOE_CUDA_EXPERT_NONE;
    return n;
}

/* Sorts all experts, best first, where the first n_kept are sorted already: inserts each further
 * expert before all worse ones. One thread runs it. */
__device__ static inline void put_in_order(const moe_cuda_route_edit &edit, row_shared *row)
{
    for (uint32_t i = row->n_kept; i < edit.n_used; i++) {
        uint32_t expert = row->experts[i];
        uint32_t at = i;
        if (expert == MOE_CUDA_EXPERT_NONE)
            break;
        for (; at > 0 && row->merit[expert] > row->merit[row->experts[at - 1]]; at--)
            row->experts[at] = row->experts[at - 1];
        row->experts[at] = expert;
    }
}

/* Keeps resident picks, and fills the row with the best other resident experts by the router's
 * ranking. Drops ranks that stay empty. */
__device__ static inline void choose_again(const moe_cuda_route_edit &edit, row_shared *row)
{
    const float *probs = edit.probs + (size_t)blockIdx.x * edit.n_expert;
    for (uint32_t e = threadIdx.x; e < edit.n_expert; e += THREADS) {
        float merit = edit.bias != NULL ? probs[e] + edit.bias[e] : probs[e];
        row->merit[e] = merit == merit ? merit : -MOE_INFINITY;
        /* NaN marks experts that are no candidates; comparisons with NaN are false. */
        bool candidate = edit.resident[e] && !has(row->taken, e);
        row->candidate[e] = candidate ? row->merit[e] : MOE_NAN;
    }
    if (threadIdx.x == 0)
        row->n_kept = keep_resident(edit, row);
    __syncthreads();
    uint32_t n_places = edit.n_used - row->n_kept;
    for (uint32_t e = threadIdx.x; e < edit.n_expert; e += THREADS) {
        float own = row->candidate[e];
        uint32_t rank = own == own ? 0 : n_places;
        for (uint32_t other = 0; other < edit.n_expert && rank < n_places; other++) {
            float its = row->candidate[other];
            rank += its > own || (its == own && other < e);
        }
        if (rank < n_places)
            row->experts[row->n_kept + rank] = e;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        put_in_order(edit, row);
        mix(edit, row);
    }
}

/* Gives stand-ins to ranks whose picks are not resident, in rank order. Resident picks keep their
 * ranks. The first warp runs it. */
__device__ static inline void stand_in(const moe_cuda_route_edit &edit,
                                       const moe_cuda_draft_routing &routing, row_shared *row)
{
    for (uint32_t k = 0; k < edit.n_used; k++) {
        uint32_t wanted = row->experts[k];
        if (!is_missing(edit, wanted))
            continue;
        uint32_t expert = MOE_CUDA_EXPERT_NONE;
        if (routing.fill == MOE_RESIDENT_FILL_LIST)
            expert = first_free(edit, row, routing.lists + (size_t)wanted * edit.n_expert,
                                edit.n_expert);
        __syncwarp();
        if (threadIdx.x == 0) {
            row->experts[k] = expert;
            if (expert == MOE_CUDA_EXPERT_NONE)
                row->weights[k] = 0.0f;
            else
                row->taken[expert / 32] |= 1u << (expert % 32);
        }
        __syncwarp();
    }
}

__global__ __launch_bounds__(THREADS) void moe_draft_rows(moe_cuda_route_edit edit,
                                                          moe_cuda_draft_routing routing)
{
    __shared__ row_shared row;
    begin_row(edit, &row);
    bool again = routing.fill == MOE_RESIDENT_FILL_ROUTER ||
                 (routing.fill == MOE_RESIDENT_FILL_LIST && routing.lists == NULL) ||
                 (row.n_resident <= edit.n_used && routing.fill != MOE_RESIDENT_FILL_NONE);
    if (row.n_missing > 0 && again)
        choose_again(edit, &row);
    else if (row.n_missing > 0 && threadIdx.x < MOE_WARP)
        stand_in(edit, routing, &row);
    end_row(edit, &row);
    if (threadIdx.x == 0 && routing.n_missing != NULL)
        routing.n_missing[blockIdx.x] = row.n_missing;
}

void moe_cuda_draft_route(moe_cuda_stream stream, const moe_cuda_route_edit *edit,
                          const moe_cuda_draft_routing *routing)
{
    if (edit->n_rows > 0)
        MOE_LAUNCH(moe_draft_rows, edit->n_rows, THREADS, 0, stream, *edit, *routing);
}

/* ---- Substitution ---- */

/* The entropy -sum p log p / log n of the n picks, whose probabilities are first renormalised. */
__device__ static inline float entropy_of(const moe_cuda_route_edit &edit, const row_shared *row,
                                          const float *probs, float temperature)
{
    double power = 1.0 / temperature;
    double sum = 0.0;
    double entropy = 0.0;
    for (uint32_t k = 0; k < edit.n_used; k++)
        sum += row->experts[k] < edit.n_expert ? pow((double)probs[row->experts[k]], power) : 0.0;
    for (uint32_t k = 0; k < edit.n_used; k++) {
        uint32_t expert = row->experts[k];
        double p = expert < edit.n_expert ? pow((double)probs[expert], power) / sum : 0.0;
        entropy -= p > 0.0 ? p * log(p) : 0.0;
    }
    return (float)(entropy / log((double)row->n_requested));
}

__device__ static inline void two_greatest(float p, float best[2])
{
    best[1] = p > best[0] ? best[0] : p > best[1] ? p : best[1];
    best[0] = p > best[0] ? p : best[0];
}

/* The difference of the two best picks' renormalised probabilities; for a single pick, the margin
 * over all of the router's experts. */
__device__ static inline double margin_of(const moe_cuda_route_edit &edit, const row_shared *row,
                                          const float *probs)
{
    float best[2] = {0.0f, 0.0f};
    double sum = 0.0;
    bool lone = row->n_requested == 1;
    for (uint32_t e = 0; lone && e < edit.n_expert; e++)
        two_greatest(probs[e], best);
    for (uint32_t k = 0; !lone && k < edit.n_used; k++) {
        if (row->experts[k] < edit.n_expert) {
            two_greatest(probs[row->experts[k]], best);
            sum += probs[row->experts[k]];
        }
    }
    return (double)(best[0] - best[1]) / (lone ? 1.0 : sum);
}

/* Whether a gate leaves the row unchanged, because the router is too sure of its experts. One
 * thread runs it. */
__device__ static inline bool is_gated(const moe_cuda_route_edit &edit,
                                       const moe_substitution &rules, const row_shared *row)
{
    const float *probs = edit.probs + (size_t)blockIdx.x * edit.n_expert;
    if (row->n_requested > 1 && rules.entropy_threshold >= 0.0f &&
        entropy_of(edit, row, probs, rules.entropy_temperature) <= rules.entropy_threshold)
        return true;
    return margin_of(edit, row, probs) >= rules.margin_threshold;
}

/* Replaces missing experts in rank order, each by the first of its list that is free. The first
 * warp runs it. */
__device__ static inline void substitute(const moe_cuda_route_edit &edit,
                                         const moe_substitution &rules,
                                         moe_cuda_substitution_counts *counts, row_shared *row)
{
    uint32_t n_replaced = 0;
    uint32_t n_unserved = 0;
    for (uint32_t k = 0; k < edit.n_used && n_replaced < rules.max_replaced; k++) {
        uint32_t wanted = row->experts[k];
        if (!is_missing(edit, wanted))
            continue;
        uint32_t n = rules.count[wanted];
        n = rules.search > 0 && rules.search < n ? rules.search : n;
        uint32_t found = first_free(edit, row, rules.lists + (size_t)wanted * rules.max, n);
        n_replaced += found != MOE_CUDA_EXPERT_NONE;
        n_unserved += found == MOE_CUDA_EXPERT_NONE;
        __syncwarp();
        if (threadIdx.x == 0 && found != MOE_CUDA_EXPERT_NONE) {
            row->experts[k] = found;
            row->taken[found / 32] |= 1u << (found % 32);
        } else if (threadIdx.x == 0 && rules.drop_unserved) {
            row->experts[k] = MOE_CUDA_EXPERT_NONE;
            row->weights[k] = 0.0f;
        }
        __syncwarp();
    }
    if (threadIdx.x > 0)
        return;
    if (n_replaced > 0 && rules.own_weight)
        mix(edit, row);
    atomicAdd(&counts->n_replaced, n_replaced);
    atomicAdd(&counts->n_unserved, n_unserved);
    if (rules.drop_unserved)
        atomicAdd(&counts->n_dropped, n_unserved);
}

typedef struct census {
    uint32_t seen[SET_WORDS]; /* experts that any row asks for */
    uint32_t n_requested;     /* requested picks */
    uint32_t n_missing;
    uint32_t n_distinct; /* distinct experts */
    uint32_t n_distinct_missing;
} census;

/* Counts the whole layer before any row changes, and decides whether to leave the layer alone. The
 * number of distinct experts decides, because each expert would be moved once. One block runs it.
 */
__global__ __launch_bounds__(THREADS) void moe_substitution_census(
    moe_cuda_route_edit edit, moe_substitution rules, moe_cuda_substitution_counts *counts)
{
    __shared__ census all;
    for (uint32_t w = threadIdx.x; w < SET_WORDS; w += THREADS)
        all.seen[w] = 0;
    if (threadIdx.x == 0)
        all.n_requested = all.n_missing = all.n_distinct = all.n_distinct_missing = 0;
    __syncthreads();
    for (size_t i = threadIdx.x; i < (size_t)edit.n_rows * edit.n_used; i += THREADS) {
        uint32_t expert = edit.experts[i];
        if (expert >= edit.n_expert)
            continue;
        atomicOr(&all.seen[expert / 32], 1u << (expert % 32));
        atomicAdd(&all.n_requested, 1u);
        if (!edit.resident[expert])
            atomicAdd(&all.n_missing, 1u);
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < edit.n_expert; e += THREADS) {
        if (!has(all.seen, e))
            continue;
        atomicAdd(&all.n_distinct, 1u);
        if (!edit.resident[e])
            atomicAdd(&all.n_distinct_missing, 1u);
    }
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    bool idle = all.n_missing == 0 || rules.max_replaced == 0;
    float share = rules.missing_threshold;
    bool bypass =
        !idle && share < 1.0f && (float)all.n_distinct_missing >= share * (float)all.n_distinct;
    counts->n_requested += all.n_requested;
    counts->n_missing += all.n_missing;
    counts->n_bypassed += bypass;
    counts->leave_alone = idle || bypass;
}

__global__ __launch_bounds__(THREADS) void moe_substitution_rows(
    moe_cuda_route_edit edit, moe_substitution rules, moe_cuda_substitution_counts *counts)
{
    __shared__ row_shared row;
    if (counts->leave_alone)
        return;
    begin_row(edit, &row);
    if (row.n_missing == 0)
        return;
    if (threadIdx.x == 0) {
        row.gated = is_gated(edit, rules, &row);
        if (row.gated)
            atomicAdd(&counts->n_gated, 1u);
    }
    __syncthreads();
    if (row.gated)
        return;
    if (threadIdx.x < MOE_WARP)
        substitute(edit, rules, counts, &row);
    end_row(edit, &row);
}

void moe_cuda_substitute(moe_cuda_stream stream, const moe_cuda_route_edit *edit,
                         const moe_substitution *rules, moe_cuda_substitution_counts *counts)
{
    if (edit->n_rows == 0)
        return;
    MOE_LAUNCH(moe_substitution_census, 1, THREADS, 0, stream, *edit, *rules, counts);
    MOE_LAUNCH(moe_substitution_rows, edit->n_rows, THREADS, 0, stream, *edit, *rules, counts);
}
