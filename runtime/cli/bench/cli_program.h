/* SPDX-License-Identifier: MIT */
/* Runs other programs that a bench may use if they are installed: fio, gnuplot. No shell is
 * involved.
 */
#ifndef CLI_PROGRAM_H
#define CLI_PROGRAM_H

#include "cli_buffer.h"

enum { CLI_PROGRAM_NOT_RUN = -1 };

/* Runs argv[0], found along PATH, with the arguments up to NULL. stdin is the input (NULL: empty),
 * stdout is appended to the output (NULL: discarded), stderr is discarded. setting (may be NULL),
 * "NAME=value", is added to its environment. Waits; returns its exit status, or CLI_PROGRAM_NOT_RUN
 * if it could not be started or was killed. */
int cli_program_run(const char *const *argv, const char *setting, const cli_buffer *input,
                    cli_buffer *output);

#endif
