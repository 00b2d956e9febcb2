/* SPDX-License-Identifier: MIT */
/* The commands: each takes the parsed options and returns the exit code. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli_options.h"

int cmd_run(const cli_options *options);
int cmd_serve(const cli_options *options);
int cmd_worker(const cli_options *options);
int cmd_split_experts(const cli_options *options);
int cmd_tokenize(const cli_options *options);
int cmd_logits(const cli_options *options);
int cmd_perplexity(const cli_options *options);
int cmd_verify(const cli_options *options);
int cmd_plan(const cli_options *options);
int cmd_inspect(const cli_options *options);
int cmd_devices(const cli_options *options);
int cmd_pull(const cli_options *options);
int cmd_list(const cli_options *options);
int cmd_show(const cli_options *options);
int cmd_rm(const cli_options *options);

#endif
