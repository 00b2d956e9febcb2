/* SPDX-License-Identifier: MIT */
/* Where bench decode gets its tokens. Greedy text may settle into a loop that needs few experts,
 * and random tokens need more than any text, so the results name their source. */
#ifndef CLI_BENCH_TOKENS_H
#define CLI_BENCH_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli_options.h"

typedef enum cli_bench_source {
    CLI_BENCH_GREEDY,  /* a random prompt; then the model's likeliest tokens */
    CLI_BENCH_SAMPLED, /* a random prompt; then tokens drawn by the default sampling */
    CLI_BENCH_RANDOM,  /* prompt and decoded tokens are random */
    CLI_BENCH_FILE     /* prompt and decoded tokens come from a file */
} cli_bench_source;

typedef struct cli_bench_tokens {
    cli_bench_source source;
    const char *path; /* of the file, or NULL */
    uint64_t seed;
    size_t n_prompt, n_forced; /* of each sequence; n_forced is 0 if the model chooses */
    int32_t *ids;              /* [n_sequences][n_prompt + n_forced] */
} cli_bench_tokens;

/* Reads --tokens-from. Sequence i of a file takes the i-th stretch of n_prompt + n_decode ids.
 * Returns an exit code; call cli_bench_tokens_free() in any case. */
int cli_bench_tokens_read(cli_bench_tokens *tokens, const cli_options *options, size_t n_sequences,
                          size_t n_prompt, size_t n_decode, uint32_t n_vocab);
void cli_bench_tokens_free(cli_bench_tokens *tokens);

/* The [n_prompt] tokens of a sequence, with [n_forced] behind them. */
const int32_t *cli_bench_tokens_of(const cli_bench_tokens *tokens, size_t sequence);
bool cli_bench_tokens_forced(const cli_bench_tokens *tokens);

/* "greedy", "sampled", "random" or "file". */
const char *cli_bench_source_name(cli_bench_source source);
/* In words, for people. */
void cli_bench_tokens_describe(const cli_bench_tokens *tokens, char *text, size_t size);

#endif
