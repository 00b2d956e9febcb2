/* SPDX-License-Identifier: MIT */
/* Opens the engine as the options say, with progress and notes on stderr. */
#ifndef CLI_ENGINE_H
#define CLI_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/moe.h>

#include "cli_engine_words.h"
#include "cli_options.h"
#include "cli_progress.h"

/* Makes --speculate auto the default, except in the modes of --offload that are baselines. */
void cli_speculate_by_default(cli_options *options);

/* Fills the library's options, which are settings->options. A percentage of the file needs its
 * size, so this may fail: an exit code. The caller sets progress and log. */
int cli_engine_options(cli_engine_settings *settings, const cli_options *options, uint64_t context);

/* Makes the engine show the progress of opening and of passes on the terminal. */
void cli_engine_show(moe_engine_options *engine_options, const cli_progress *progress);

/* Opens the engine. context: the session's; 0: the model's. Returns an exit code; errors have been
 * printed. */
int cli_engine_open(moe_engine **out, const cli_options *options, uint64_t context);

/* Prints the error of a failed call, with flags instead of the library's fields, and returns the
 * exit code: CLI_EXIT_USAGE for a wrong argument; CLI_EXIT_INTERRUPTED, silently, for a call that
 * Ctrl-C cancelled. */
int cli_report(int status, const moe_error *err);

/* Like cli_now_ns(), without the time that the engine spent on the overlap baseline's oracle: use
 * differences. */
uint64_t cli_engine_now_ns(const moe_engine *engine);

#endif
