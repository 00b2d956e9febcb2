/* SPDX-License-Identifier: MIT */
/* From an address and --disk-cache to a file that a command can open: as long as the far one, with
 * its header, while the rest comes when it is read. */
#ifndef FAR_MODEL_H
#define FAR_MODEL_H

#include "cli_options.h"

typedef struct far_model far_model;

/* Whether -m and --disk-cache ask for a far model. */
bool far_model_is_asked(const cli_options *options);

/* Sets options->model, and read_file if parts of it are still to come. header_only: its header is
 * enough. Exit codes. */
int far_model_take(far_model **out, cli_options *options, bool header_only);
/* Call when no engine uses the model. An exit code: CLI_EXIT_FAILURE if wrong bytes were used. */
int far_model_release(far_model **model);

#endif
