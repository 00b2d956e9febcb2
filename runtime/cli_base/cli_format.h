/* SPDX-License-Identifier: MIT */
/* Formats numbers for people. */
#ifndef CLI_FORMAT_H
#define CLI_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include <moe/statistics.h>

#define CLI_FORMAT_SIZE 32

/* "1.25 GiB", "512 B". */
const char *cli_format_bytes(char out[CLI_FORMAT_SIZE], uint64_t bytes);
/* Says how the time of opening was spent; printed behind "loaded in 6.27 s": "(0.21 s until the
 * plan, 0.02 s for memory, 6.03 s for 1.41 GiB of resident weights)". */
const char *cli_format_opening(char out[4 * CLI_FORMAT_SIZE], const moe_engine_stats *stats);
/* "6.92 B", "1.3 M", "870": the form of model sizes. */
const char *cli_format_count(char out[CLI_FORMAT_SIZE], uint64_t count);
/* tokens / ns as tokens per second; 0 when no time passed. */
double cli_per_second(uint64_t tokens, uint64_t ns);
double cli_seconds(uint64_t ns);
uint64_t cli_now_ns(void);
/* The most memory that this process has had resident. */
uint64_t cli_peak_rss_bytes(void);

#endif
