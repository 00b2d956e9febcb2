/* SPDX-License-Identifier: MIT */
/* The trace that simulate and analyze work on, and the forms they print in. */
#ifndef CLI_TRACE_H
#define CLI_TRACE_H

#include <stdio.h>

#include <moe/trace.h>

#include "cli_options.h"

enum { CLI_FORMAT_TABLE, CLI_FORMAT_CSV, CLI_FORMAT_JSON, CLI_FORMAT_GNUPLOT };

/* Reads --trace or generates --synthetic. An exit code, having told the error. */
int cli_trace_open(moe_trace **out, const cli_options *options, const char *command);

/* --json and --format in one. */
unsigned cli_output_format(const cli_options *options);

/* Creates PREFIX and suffix ("pairs.gp"); NULL after telling the error. */
FILE *cli_output_create(const cli_options *options, const char *suffix);
/* Closes it. An exit code. */
int cli_output_close(FILE *file, const cli_options *options, const char *suffix);

#endif
