/* SPDX-License-Identifier: MIT */
#ifndef CLI_SAMPLING_H
#define CLI_SAMPLING_H

#include <moe/moe.h>

#include "cli_options.h"

/* The session options that the command line asks for. A seed that was not given is drawn from the
 * system, of 32 bits so that it can be typed again; options.sampling.seed tells it. */
void cli_session_options(moe_session_options *session_options, const cli_options *options);

#endif
