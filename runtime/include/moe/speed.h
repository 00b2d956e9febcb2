/* SPDX-License-Identifier: MIT */
/* Predicts the speed of a memory plan from the bytes that a token should move, the bandwidths of
 * disk and link, and the time of a token that misses nothing. Errors, ownership and sizes of
 * structs are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *  free: moe_plan_speed, moe_speed_measure */
#ifndef MOE_SPEED_H
#define MOE_SPEED_H

#include <moe/plan.h>
#include <moe/status.h>
#include <moe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 0: not known. */
typedef struct moe_speed_rates {
    size_t struct_size;         /* set by the program: sizeof(moe_speed_rates) */
    double disk_bytes_per_s;    /* reading as many experts at once as a layer is expected to miss */
    double link_bytes_per_s;    /* to a device with memory of its own */
    double compute_s_per_token; /* one sequence, one token a pass, without waiting for experts */
    /* How long a pass waits for an expert that it reads from the disk, beyond the time of its bytes
     * at disk_bytes_per_s: every request costs some time. Below 0: reads hide behind computing. 0
     * for devices with memory of their own. */
    double wait_s_per_expert;
    double spread; /* largest difference of a quarter of the measured tokens from all of them, as a
                    * share of a token's time; 0: not measured */
} moe_speed_rates;

typedef struct moe_speed_estimate {
    size_t struct_size;  /* set by the program: sizeof(moe_speed_estimate) */
    uint64_t disk_bytes; /* of experts, that a token is expected to read from the disk */
    uint64_t link_bytes; /* ... to move to the device */
    double disk_s, link_s, compute_s; /* of a token; 0 where nothing moves, or no rate is known */
    bool complete;                    /* every rate that is needed is known */
    double tokens_per_s; /* 1 / (disk_s + link_s + compute_s); an upper bound unless complete. 0:
                          * nothing is known */
} moe_speed_estimate;

/* Estimates the speed of decoding one sequence when nothing overlaps. Speculation, prefetch and
 * computing on the host make it faster, and so does a policy that follows the text
 * (moe_memory_plan.expected_hit_rate is a floor). */
MOE_API int moe_plan_speed(const moe_memory_plan *plan, const moe_speed_rates *rates,
                           moe_speed_estimate *estimate);

/* Measures the rates for these options. Opens the model and decodes tokens, from 16 to 256, for at
 * most two seconds if they are more than 16; computing and waiting for experts are timed apart. If
 * lab.route_trace is set, the tokens choose the recorded experts, and the cache is filled before:
 * with a quarter of the trace's tokens, or as many as two seconds allow. Without it the cache is
 * empty at first. Reads up to 256 MiB of the file at random, for at most a second, past the page
 * cache where the disk can. The link's speed is what a GPU showed when it was
 * opened, or the set speed of a simulated device. Takes the memory of the plan and some MiB of
 * buffers. Calls options->progress while opening, then again from 0 on while it decodes. */
MOE_API int moe_speed_measure(const moe_engine_options *options, moe_speed_rates *rates,
                              moe_error *err);

#ifdef __cplusplus
}
#endif
#endif
