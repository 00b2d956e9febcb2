/* SPDX-License-Identifier: MIT */
/* The runs that compare configurations of speculation: their settings, one run, and its outcome. */
#ifndef CLI_SPECULATE_DECODE_H
#define CLI_SPECULATE_DECODE_H

#include <moe/moe.h>

#include "cli_bench_table.h"
#include "cli_options.h"
#include "cli_hash.h"

#define CLI_SPECULATE_CONFIGS 64  /* at most */
#define CLI_SPECULATE_WORDS   256 /* bytes of a configuration's text */

typedef struct cli_speculate_config {
    char text[CLI_SPECULATE_WORDS];
    char words[CLI_SPECULATE_WORDS]; /* cut into arguments */
    cli_options options;
    bool lossy;
} cli_speculate_config;

/* Results of one configuration with one cache size and batch: sums over repetitions, and the speed
 * of each repetition. */
typedef struct cli_speculate_outcome {
    double *speed; /* [repeat] tokens a second */
    double *ratio; /* [repeat] ratio to the first configuration of the same repetition */
    double seconds;
    uint64_t n_emitted;
    double cost;    /* modelled, of these tokens */
    uint64_t n_all; /* tokens including those of copies; so are the sums below */
    moe_engine_stats sum;
    uint64_t n_iterations; /* steps times sequences that are no copies */
    double repeated;       /* share of the written text's 16-byte windows that occurred before in
                            * it */
    char hash[CLI_HASH_HEX_SIZE];
    bool simulated;
} cli_speculate_outcome;

typedef struct cli_speculate_matrix {
    const cli_options *given;
    /* The text's own tokens are decoded one by one instead of the model's choices. Configurations
     * that verify drafts do not run then: n_emitted stays 0. */
    bool forced;
    cli_bench_table *steps; /* gets a row for every step of the first repetition; NULL: none */
    cli_speculate_config configs[CLI_SPECULATE_CONFIGS];
    size_t n_configs;
    double caches[CLI_BENCH_PARTS];
    size_t n_caches;
    uint64_t batches[CLI_BENCH_PARTS];
    size_t n_batches;
    size_t n_prompt, n_decode, n_prompts, repeat;
    cli_speculate_outcome *outcomes; /* [n_caches][n_batches][n_configs] */
} cli_speculate_matrix;

/* Decodes all groups of sequences with one configuration, and adds to *outcome. Returns an exit
 * code. */
int cli_speculate_decode(const cli_speculate_matrix *matrix, const cli_speculate_config *config,
                         double cache, size_t batch, size_t repetition,
                         cli_speculate_outcome *outcome);

#endif
