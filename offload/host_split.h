/* SPDX-License-Identifier: MIT */
/* Decides, for the experts that a layer lacks on the device and has in host memory, how many the
 * host computes and how many move, so that both finish at about the same time. The decision uses
 * measured times (moving averages); it tries what has not been measured on a small share of
 * decisions. It changes where an expert is computed, never the result.
 *
 * An expert's time depends on its rows, so times are kept for each power of two of rows. */
#ifndef MOE_OFFLOAD_HOST_SPLIT_H
#define MOE_OFFLOAD_HOST_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#define MOE_SPLIT_BUCKETS 14

typedef struct moe_host_split {
    double host_ns[MOE_SPLIT_BUCKETS];   /* of one expert; 0: not measured */
    double device_ns[MOE_SPLIT_BUCKETS]; /* likewise */
    double link_ns_per_byte;             /* nominal, until measured */
    double link_latency_ns;
    uint64_t n_decisions;
    uint64_t n_link_forced, n_host_forced; /* decisions made to measure the other side */
} moe_host_split;

void moe_host_split_init(moe_host_split *split, uint64_t link_bytes_per_s,
                         uint64_t link_latency_ns);
/* Notes that n_experts with n_rows rows between them took this long. */
void moe_host_split_note_host(moe_host_split *split, uint32_t n_experts, uint32_t n_rows,
                              uint64_t ns);
void moe_host_split_note_device(moe_host_split *split, uint32_t n_experts, uint32_t n_rows,
                                uint64_t ns);
/* Notes a measured speed, latency included. */
void moe_host_split_note_link(moe_host_split *split, double ns_per_byte);

typedef struct moe_split_work {
    const uint32_t *n_rows; /* [n], ascending: rows of the experts that may go either way */
    uint32_t n;
    uint64_t expert_bytes;
    uint32_t n_resident;      /* experts that the device has already */
    uint32_t n_resident_rows; /* rows of those experts */
    uint32_t n_disk;          /* experts that must come over the link in any case */
} moe_split_work;

/* How many of the experts the host takes: those with the fewest rows. */
uint32_t moe_host_split_choose(moe_host_split *split, const moe_split_work *work);

#endif
