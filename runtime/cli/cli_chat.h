/* SPDX-License-Identifier: MIT */
/* A conversation on a terminal. */
#ifndef CLI_CHAT_H
#define CLI_CHAT_H

#include <moe/moe.h>

#include "cli_options.h"

/* Runs until /exit, the end of input (exit code 0), or Ctrl-C at the prompt (130). */
int cli_chat(moe_engine *engine, const cli_options *options, uint64_t load_ns);

#endif
