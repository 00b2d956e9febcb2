/* SPDX-License-Identifier: MIT */
/* A process of iterations to hold controllers against: acceptance by depth and confidence, costs by
 * rows with noise, outliers and drift. A simulated process, not a model: its rates say how a
 * controller reacts and nothing about what a model would reach. */
#ifndef MOE_TESTS_SPECULATE_LENGTH_PROCESS_H
#define MOE_TESTS_SPECULATE_LENGTH_PROCESS_H

#include "runtime/draft/length_control.h"

#define N_ITERATIONS 5000u /* of a random process */

typedef struct length_process {
    double accept;       /* mean probability of acceptance at depth 1, in odd phases if phase > 0 */
    double accept_other; /* ... in even phases */
    uint32_t phase;      /* iterations of a phase; 0: one phase */
    double fade;         /* factor on it for each further depth */
    double spread;       /* confidences are within accept +- spread, and calibrated */
    double row;          /* cost of a row more; a plain iteration costs 1 */
    double draft;    /* cost of a draft pass, one a token; 0: n-grams, which draft silently too */
    double no_match; /* share of iterations in which there is nothing to draft */
    double noise;    /* uniform, +- this share */
    double outliers; /* share of the iterations that cost 5 times as much */
    double drift;    /* all costs are 1 + drift * progress */
    uint32_t n_iterations;
    uint64_t seed;
} length_process;

typedef struct length_outcome {
    double tokens;
    double cost;   /* as noisy as the controller saw it */
    double excess; /* 1 - what the same tokens would have cost plainly, over the noiseless cost */
} length_outcome;

/* Controllers that tests make: fails the test when it cannot. */
moe_length_control *length_control_new(const moe_length_options *options);
moe_length_control *length_control_of(moe_length_kind kind, uint32_t max_draft);

/* A process in which anything may be; nothing is ever accepted in a third of them. */
length_process length_process_random(uint64_t seed);

void length_process_run(const length_process *process, moe_length_control *control,
                        length_outcome *outcome);

#endif
