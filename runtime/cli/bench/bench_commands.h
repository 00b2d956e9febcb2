/* SPDX-License-Identifier: MIT */
/* The commands that measure: each takes the parsed options and returns the exit code. */
#ifndef CLI_BENCH_COMMANDS_H
#define CLI_BENCH_COMMANDS_H

#include "cli_options.h"

int cmd_bench_decode(const cli_options *options);
int cmd_calibrate(const cli_options *options);
int cmd_report(const cli_options *options);
int cmd_bench_io(const cli_options *options);
int cmd_bench_cache(const cli_options *options);
int cmd_bench_offload(const cli_options *options);
int cmd_bench_speculate(const cli_options *options);
/* bench speculate --suite. */
int cmd_bench_suite(const cli_options *options);
int cmd_simulate(const cli_options *options);
int cmd_analyze(const cli_options *options);

#endif
