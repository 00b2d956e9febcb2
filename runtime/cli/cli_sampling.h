/* SPDX-License-Identifier: MIT */
#ifndef CLI_SAMPLING_H
#define CLI_SAMPLING_H

#include <moe/chat.h>
#include <moe/grammar.h>
#include <moe/moe.h>

#include "cli_options.h"

/* Fills in the session options from the command line. A seed that was not given is drawn from the
 * system, with 32 bits so that it can be typed again; options.sampling.seed has it. */
void cli_session_options(moe_session_options *session_options, const cli_options *options);
/* Sets the session's biases by --logit-bias. Returns an exit code, after printing an error. */
int cli_session_biases(moe_session *session, const cli_options *options);
/* Reads the file of --grammar or --json-schema; *grammar is NULL without either. Returns an exit
 * code. */
int cli_read_grammar(moe_grammar **grammar, const cli_options *options);
/* Makes the text that the session samples from now on match the grammar (NULL: nothing changes).
 * After a prompt of turns (NULL: a raw one) only the answer must match, not the reasoning before
 * it. Returns an exit code. */
int cli_session_hold(moe_session *session, const moe_engine *engine, moe_grammar *grammar,
                     const moe_chat_prompt *prompt);

#endif
