/* SPDX-License-Identifier: MIT */
#ifndef CLI_SAMPLING_H
#define CLI_SAMPLING_H

#include <moe/moe.h>

#include "cli_options.h"

/* Fills in the session options from the command line. A seed that was not given is drawn from the
 * system, with 32 bits so that it can be typed again; options.sampling.seed has it. */
void cli_session_options(moe_session_options *session_options, const cli_options *options);
/* Gives the session what --logit-bias says. Returns an exit code, after printing an error. */
int cli_session_biases(moe_session *session, const cli_options *options);
/* Holds what the session samples from now on to the file of --grammar or --json-schema. */
int cli_session_grammar(moe_session *session, const cli_options *options);

#endif
