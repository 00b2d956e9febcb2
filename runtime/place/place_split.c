/* SPDX-License-Identifier: MIT */
#include "runtime/place/place_split.h"

#include "runtime/base/moe_assert.h"

/* One decision in this many gives work to the host, and one to the link, even if that side would
 * stay idle, so that its time is known when the machine's load changes. */
#define TRY_EVERY 64u

void moe_place_split_init(moe_place_split *split, uint64_t link_bytes_per_s,
                          uint64_t link_latency_ns)
{
    *split = (moe_place_split){.link_ns_per_byte = 1e9 / (double)link_bytes_per_s,
                               .link_latency_ns = (double)link_latency_ns};
}

void moe_place_split_note_link(moe_place_split *split, double ns_per_byte)
{
    split->link_ns_per_byte = ns_per_byte;
    split->link_latency_ns = 0.0;
}

/* The time until both sides are done if the host takes the first n_host experts. */
static double time_of(const moe_place_split *split, const moe_place_times *host,
                      const moe_place_times *device, const moe_split_work *work, uint32_t n_host)
{
    double host_ns = 0.0;
    double compute_ns = 0.0;
    double last_ns = 0.0;
    double expert_link_ns =
        split->link_latency_ns + split->link_ns_per_byte * (double)work->expert_bytes;
    double link_ns = expert_link_ns * (work->n - n_host + work->n_disk);
    for (uint32_t i = 0; i < n_host; i++) {
        host_ns += moe_place_cost_ns(host, work->n_rows[i]);
    }
    if (work->n_resident > 0) {
        compute_ns = work->n_resident *
                     moe_place_cost_ns(device, (double)work->n_resident_rows / work->n_resident);
    }
    for (uint32_t i = n_host; i < work->n; i++) {
        last_ns = moe_place_cost_ns(device, work->n_rows[i]);
        compute_ns += last_ns;
    }
    double moved_ns = link_ns + last_ns;
    double device_ns = moved_ns > compute_ns ? moved_ns : compute_ns;
    return host_ns > device_ns ? host_ns : device_ns;
}

uint32_t moe_place_split_choose(moe_place_split *split, const moe_place_times *host,
                                const moe_place_times *device, const moe_split_work *work)
{
    if (work->n == 0 || split->all_on_host) {
        return work->n;
    }
    for (uint32_t i = 0; MOE_ASSERTS_ARE_ON && i + 1 < work->n; i++) {
        MOE_ASSERT(work->n_rows[i] <= work->n_rows[i + 1]);
    }
    uint32_t best = 0;
    double best_ns = time_of(split, host, device, work, 0);
    for (uint32_t n_host = 1; n_host <= work->n; n_host++) {
        double ns = time_of(split, host, device, work, n_host);
        if (ns < best_ns) {
            best = n_host;
            best_ns = ns;
        }
    }
    bool try_host = split->n_decisions % TRY_EVERY == 0;
    bool try_link = split->n_decisions % TRY_EVERY == TRY_EVERY / 2;
    split->n_decisions++;
    if (moe_place_cost_ns(host, work->n_rows[0]) == 0.0) {
        best = try_host ? 1 : 0; /* no host time is known yet: measures one, with one expert */
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
