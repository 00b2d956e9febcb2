/* SPDX-License-Identifier: MIT */
/* The description of a simulated device as text:
 *
 *    sim:memory=2G,link=16GB/s,latency=10us
 *
 * memory: bytes, K, M, G, T (powers of 1024). link: MB/s or GB/s (powers of 1000). latency: ns, us
 * or ms; 10us if not given. */
#ifndef MOE_DEVICE_SIM_SPEC_H
#define MOE_DEVICE_SIM_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/status.h>

typedef struct moe_sim_spec {
    uint64_t memory_bytes;
    uint64_t link_bytes_per_s;
    uint64_t link_latency_ns;
} moe_sim_spec;

/* True for "sim" and "sim:...", the texts that moe_sim_spec_parse() accepts. */
bool moe_sim_spec_is(const char *text);
/* Parses the text. MOE_ERR_ARGUMENT: the message names the wrong part and what it should be. */
int moe_sim_spec_parse(moe_sim_spec *out, const char *text, moe_error *err);

#endif
