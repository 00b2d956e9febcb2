/* SPDX-License-Identifier: MIT */
/* The input trace of simulate and analyze, and their output formats. */
#ifndef CLI_TRACE_H
#define CLI_TRACE_H

#include <stdio.h>

#include <moe/trace.h>

#include "cli_options.h"

enum { CLI_FORMAT_TABLE, CLI_FORMAT_CSV, CLI_FORMAT_JSON, CLI_FORMAT_GNUPLOT };

/* Reads --trace or generates --synthetic. Returns an exit code; errors have been printed. */
int cli_trace_open(moe_trace **out, const cli_options *options, const char *command);

/* --json and --format in one. */
unsigned cli_output_format(const cli_options *options);

/* Creates PREFIX with the suffix ("pairs.gp"); NULL after printing an error. */
FILE *cli_output_create(const cli_options *options, const char *suffix);
/* Closes it. Returns an exit code. */
int cli_output_close(FILE *file, const cli_options *options, const char *suffix);

#endif
