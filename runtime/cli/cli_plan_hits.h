/* SPDX-License-Identifier: MIT */
/* For `plan`: hit rates on a recorded routing, and the changes of --what-if. */
#ifndef CLI_PLAN_HITS_H
#define CLI_PLAN_HITS_H

#include <moe/moe.h>
#include <moe/trace.h>

#include "cli_options.h"

/* The share of a token's experts that are in memory: over the routing without its first quarter,
 * which fills the cache, and in the worst and the best of the other quarters. */
typedef struct cli_plan_hits {
    double low, middle, high;
} cli_plan_hits;

/* Reads --trace, and checks that it is of the plan's model. *trace: NULL if the option was not
 * given; moe_trace_close(). Returns an exit code. */
int cli_plan_trace(moe_trace **trace, const cli_options *options, const moe_memory_plan *plan);

/* Simulates the options' policy on the routing. Returns an exit code. */
int cli_plan_hits_of(cli_plan_hits *hits, const moe_trace *trace, const cli_options *options,
                     uint64_t slots, const moe_memory_plan *plan);

/* A change of the machine; 0: as it is. */
typedef struct cli_what_if {
    uint64_t host_memory, device_memory; /* bytes */
    double disk, link;                   /* bytes/s */
} cli_what_if;

/* Reads --what-if, such as "host-memory=64G,device-memory=24G,disk=7GB/s,link=25GB/s". Returns an
 * exit code. */
int cli_what_if_read(cli_what_if *change, const char *text);

#endif
