/* SPDX-License-Identifier: MIT */
#include "offload/host_split.h"

#include "runtime/base/moe_assert.h"

/* Weight of the newest measurement. */
#define NEWEST_WEIGHT 0.125
/* One decision in this many tries the side that would stay idle, so that its time is known when the
 * machine's load changes. */
#define TRY_EVERY 64u

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
