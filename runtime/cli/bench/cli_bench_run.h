/* SPDX-License-Identifier: MIT */
/* One run of a bench: opens the model again, evaluates a prompt, and decodes greedily; decoding is
 * measured. */
#ifndef CLI_BENCH_RUN_H
#define CLI_BENCH_RUN_H

#include "cli_buffer.h"
#include "cli_options.h"
#include "cli_hash.h"

typedef struct cli_bench_run {
    cli_options options; /* for the engine; `seed` also chooses the random prompt */
    size_t n_prompt, n_decode;
    const cli_buffer *text; /* the prompt is its first n_prompt tokens; NULL: random tokens */
} cli_bench_run;

typedef struct cli_bench_outcome {
    char how[128]; /* how experts were read */
    uint64_t slots;
    double cached_share; /* share of the model's files in the page cache before opening; -1: not
                          * known */
    double prompt_per_s, decode_per_s;
    /* Figures of decoding, per token or as a share: */
    double hit_rate;
    double bytes_read, stall_s;
    double stall_share;
    double read_bytes_per_s;
    double cpu_s_per_gb; /* CPU time of the process, computing included; NaN if nothing is read */
    uint64_t prefetches, prefetches_used;
    uint64_t policy_faults;
    char hash[CLI_HASH_HEX_SIZE]; /* of the tokens written */
} cli_bench_outcome;

/* Drops the model from the page cache, opens it and measures. Returns an exit code. */
int cli_bench_run_once(const cli_bench_run *run, cli_bench_outcome *out);

/* CPU time of this process so far, user and system. */
double cli_bench_cpu_seconds(void);

#endif
