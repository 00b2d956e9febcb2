/* SPDX-License-Identifier: MIT */
/* Opening the engine as the options say, and what goes to stderr meanwhile. */
#ifndef CLI_ENGINE_H
#define CLI_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/moe.h>

#include "cli_options.h"
#include "cli_progress.h"

/* --speculate auto is the default, but in the modes of --offload that are there for comparison. */
void cli_speculate_unless_told(cli_options *options);

/* Fills the library's options. A percentage of the file needs its size, so this may fail: an exit
 * code. progress and log are left to the caller. */
int cli_engine_options(moe_engine_options *engine_options, const cli_options *options,
                       uint64_t context);

/* context: of the session; 0: the model's. Returns an exit code, having told the error. */
int cli_engine_open(moe_engine **out, const cli_options *options, uint64_t context);

/* The exit code for a failed call, after telling err's message with flags instead of the library's
 * fields: CLI_EXIT_USAGE for a wrong argument; CLI_EXIT_INTERRUPTED, silently, for a call that
 * Ctrl-C cancelled. */
int cli_report(int status, const moe_error *err);

/* Time as cli_now_ns(), less what the engine spent on the overlap baseline's oracle: differences
 * are the times that count. */
uint64_t cli_engine_now_ns(const moe_engine *engine);

#endif
