/* SPDX-License-Identifier: MIT */
/* The experts of a layer that the host computes in place of moving them: first the decision how
 * many, from measured times alone (host_split.h), then the store's part: which ones, and their
 * slots in the host tier. */
#include "offload/expert_store_state.h"

/* Weight of the newest measurement. */
#define NEWEST_WEIGHT 0.125
/* One decision in this many tries the side that would stay idle, so that its time is known when the
 * machine's load changes. */
#define TRY_EVERY 64u
/* At most this part of a size class's slots is held for the host at once; moves need the rest. */
#define HELD_DIVISOR 2

/* ---- How many ---- */

void moe_host_split_init(moe_host_split *split, uint64_t link_bytes_per_s, uint64_t link_latency_ns)
{
    *split = (moe_host_split){.link_ns_per_byte = 1e9 / (double)link_bytes_per_s,
                              .link_latency_ns = (double)link_latency_ns};
}

static int bucket_of(double rows_per_expert)
{
    int bucket = 0;
    while (rows_per_expert >= 2.0 && bucket + 1 < MOE_SPLIT_BUCKETS) {
        rows_per_expert /= 2.0;
        bucket++;
    }
    return bucket;
}

static void note(double *times, uint32_t n_experts, uint32_t n_rows, uint64_t ns)
{
    if (n_experts == 0) {
        return;
    }
    double *average = &times[bucket_of((double)n_rows / n_experts)];
    double newest = (double)ns / n_experts;
    *average = *average == 0.0 ? newest : *average + NEWEST_WEIGHT * (newest - *average);
}

void moe_host_split_note_host(moe_host_split *split, uint32_t n_experts, uint32_t n_rows,
                              uint64_t ns)
{
    note(split->host_ns, n_experts, n_rows, ns);
}

void moe_host_split_note_device(moe_host_split *split, uint32_t n_experts, uint32_t n_rows,
                                uint64_t ns)
{
    note(split->device_ns, n_experts, n_rows, ns);
}

void moe_host_split_note_link(moe_host_split *split, double ns_per_byte)
{
    split->link_ns_per_byte = ns_per_byte;
    split->link_latency_ns = 0.0;
}

/* Estimates the time of one expert with so many rows: the measured one, or one scaled from the
 * nearest measured bucket. More rows cost at most in proportion; fewer are assumed to cost the
 * same. 0 when nothing is known.
 */
static double estimate(const double *times, double rows)
{
    int bucket = bucket_of(rows);
    for (int b = bucket; b >= 0; b--) {
        if (times[b] > 0.0) {
            return times[b] * (double)(1u << (bucket - b));
        }
    }
    for (int b = bucket + 1; b < MOE_SPLIT_BUCKETS; b++) {
        if (times[b] > 0.0) {
            return times[b];
        }
    }
    return 0.0;
}

/* The time until both sides are done if the host takes the first n_host experts. */
static double time_of(const moe_host_split *split, const moe_split_work *work, uint32_t n_host)
{
    double host_ns = 0.0;
    double compute_ns = 0.0;
    double last_ns = 0.0;
    double expert_link_ns =
        split->link_latency_ns + split->link_ns_per_byte * (double)work->expert_bytes;
    double link_ns = expert_link_ns * (work->n - n_host + work->n_disk);
    for (uint32_t i = 0; i < n_host; i++) {
        host_ns += estimate(split->host_ns, work->n_rows[i]);
    }
    if (work->n_resident > 0) {
        compute_ns = work->n_resident *
                     estimate(split->device_ns, (double)work->n_resident_rows / work->n_resident);
    }
    for (uint32_t i = n_host; i < work->n; i++) {
        last_ns = estimate(split->device_ns, work->n_rows[i]);
        compute_ns += last_ns;
    }
    double moved_ns = link_ns + last_ns;
    double device_ns = moved_ns > compute_ns ? moved_ns : compute_ns;
    return host_ns > device_ns ? host_ns : device_ns;
}

uint32_t moe_host_split_choose(moe_host_split *split, const moe_split_work *work)
{
    if (work->n == 0) {
        return 0;
    }
    for (uint32_t i = 0; MOE_ASSERTS_ARE_ON && i + 1 < work->n; i++) {
        MOE_ASSERT(work->n_rows[i] <= work->n_rows[i + 1]);
    }
    uint32_t best = 0;
    double best_ns = time_of(split, work, 0);
    for (uint32_t n_host = 1; n_host <= work->n; n_host++) {
        double ns = time_of(split, work, n_host);
        if (ns < best_ns) {
            best = n_host;
            best_ns = ns;
        }
    }
    bool try_host = split->n_decisions % TRY_EVERY == 0;
    bool try_link = split->n_decisions % TRY_EVERY == TRY_EVERY / 2;
    split->n_decisions++;
    if (estimate(split->host_ns, work->n_rows[0]) == 0.0) {
        best = try_host ? 1 : 0; /* no host time is known: measure with one expert */
        split->n_host_forced += best;
    } else if (best == 0 && try_host) {
        best = 1;
        split->n_host_forced++;
    } else if (best == work->n && try_link) {
        best--;
        split->n_link_forced++;
    }
    MOE_ASSERT(best <= work->n);
    return best;
}

/* ---- Which ---- */

/* Inserts position `at` into the list of n, which is ordered by rows. */
static void insert_by_rows(moe_expert_store *store, uint32_t n, uint32_t at)
{
    MOE_ASSERT(n < store->options.map->n_expert && at < store->request.n);
    uint32_t rows = store->request.n_rows[at];
    uint32_t i = n;
    while (i > 0 && store->host_rows[i - 1] > rows) {
        store->host_rows[i] = store->host_rows[i - 1];
        store->host_positions[i] = store->host_positions[i - 1];
        i--;
    }
    store->host_rows[i] = rows;
    store->host_positions[i] = at;
}

static moe_split_work list_candidates(moe_expert_store *store)
{
    const moe_layer_request *request = &store->request;
    const moe_tensor_map *map = store->options.map;
    moe_split_work work = {.n_rows = store->host_rows,
                           .expert_bytes =
                               moe_expert_ref_bytes(&map->layers[request->layer].experts[0])};
    for (uint32_t i = 0; i < request->n; i++) {
        uint32_t key = store->keys[i];
        if (moe_expert_cache_find(store->cache, key) != MOE_SLOT_NONE) {
            work.n_resident++;
            work.n_resident_rows += request->n_rows[i];
        } else if (moe_host_tier_has(store->host, key)) {
            insert_by_rows(store, work.n++, i);
        } else {
            work.n_disk++;
        }
    }
    return work;
}

static uint32_t choose(moe_expert_store *store, const moe_split_work *work)
{
    if (store->options.host_compute == MOE_SWITCH_ON) {
        return work->n;
    }
    moe_mover_stats moves;
    moe_mover_get_stats(store->mover, &moves);
    if (moves.link_ns_per_byte > 0.0) {
        moe_host_split_note_link(&store->split, moves.link_ns_per_byte);
    }
    return moe_host_split_choose(&store->split, work);
}

void moe_store_choose_host(moe_expert_store *store)
{
    store->n_host = 0;
    if (store->host == NULL || store->options.host_compute == MOE_SWITCH_OFF) {
        return;
    }
    moe_split_work work = list_candidates(store);
    uint32_t n = choose(store, &work);
    uint32_t most = moe_host_tier_slots_of(store->host, store->request.layer) / HELD_DIVISOR;
    store->n_host = n < most ? n : most;
    MOE_ASSERT(n <= work.n);
    for (uint32_t i = 0; i < store->n_host; i++) {
        uint32_t at = store->host_positions[i];
        MOE_ASSERT(!store->handled[at]);
        store->handled[at] = true;
        store->host_keys[i] = store->keys[at];
        moe_host_tier_hold(store->host, store->keys[at], &store->accesses[at]);
    }
    store->n_host_computed += store->n_host;
}

void moe_expert_store_take_host(moe_expert_store *store, uint32_t *positions,
                                moe_expert_view *views, uint32_t *n)
{
    *n = store->n_host;
    for (uint32_t i = 0; i < store->n_host; i++) {
        uint32_t key = store->host_keys[i];
        positions[i] = store->host_positions[i];
        moe_store_fill_view(store, key, moe_host_tier_data(store->host, key), &views[i]);
    }
}

void moe_expert_store_host_done(moe_expert_store *store, uint64_t pass)
{
    moe_policy_access access = {.pass = pass};
    for (uint32_t i = 0; i < store->n_host; i++) {
        moe_host_tier_release(store->host, store->host_keys[i]);
    }
    for (uint32_t i = 0; i < store->n_host && !store->options.keep_nothing; i++) {
        uint32_t key = store->host_keys[i];
        access.layer = key / store->options.map->n_expert;
        if (moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE &&
            moe_expert_cache_has_room(store->cache, key)) {
            (void)moe_store_prefetch_key(store, key, &access, MOE_CAUSE_PREFETCH);
        }
    }
    store->n_host = 0;
}

void moe_expert_store_note_host(moe_expert_store *store, uint32_t n, uint32_t n_rows, uint64_t ns)
{
    moe_host_split_note_host(&store->split, n, n_rows, ns);
}

void moe_expert_store_note_device(moe_expert_store *store, uint32_t n, uint32_t n_rows, uint64_t ns)
{
    moe_host_split_note_device(&store->split, n, n_rows, ns);
}
