/* SPDX-License-Identifier: MIT */
/* Decides, for the experts that a layer lacks on the device and has in host memory, how many the
 * host computes and how many move, so that both finish at about the same time. The decision uses
 * the measured costs of each place; a small share of decisions tries sides that were not measured
 * lately. It changes where an expert is computed, never the result. */
#ifndef MOE_PLACE_PLACE_SPLIT_H
#define MOE_PLACE_PLACE_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/place/place_times.h"

typedef struct moe_place_split {
    double link_ns_per_byte; /* a nominal value until the link has been measured */
    double link_latency_ns;
    bool all_on_host; /* computes all of them on the host, whatever it costs */
    uint64_t n_decisions;
    uint64_t n_link_forced, n_host_forced; /* decisions made to measure the other side */
} moe_place_split;

void moe_place_split_init(moe_place_split *split, uint64_t link_bytes_per_s,
                          uint64_t link_latency_ns);
/* Notes a measured speed, latency included. */
void moe_place_split_note_link(moe_place_split *split, double ns_per_byte);

typedef struct moe_split_work {
    /* [n], ascending: how many rows each expert has that may go either way */
    const uint32_t *n_rows;
    uint32_t n;
    uint64_t expert_bytes;
    uint32_t n_resident;      /* experts that are on the device already */
    uint32_t n_resident_rows; /* rows of those experts */
    uint32_t n_disk;          /* experts on the disk, which must come over the link */
} moe_split_work;

/* How many of the experts the host takes: those with the fewest rows. */
uint32_t moe_place_split_choose(moe_place_split *split, const moe_place_times *host,
                                const moe_place_times *device, const moe_split_work *work);

#endif
