/* SPDX-License-Identifier: MIT */
/* run --timeline: writes a slice for each step, in the trace format of Chrome and Perfetto (JSON):
 * how long the step waited for experts and how long it computed, and counters of its reads. */
#ifndef CLI_TIMELINE_H
#define CLI_TIMELINE_H

#include <moe/moe.h>

#include "cli_options.h"

typedef struct cli_timeline cli_timeline;

/* Creates the file. Returns an exit code. */
int cli_timeline_open(cli_timeline **out, const char *path);
/* Before and after a step. NULL does nothing. n_sampled: tokens that it sampled. */
void cli_timeline_begin(cli_timeline *timeline, const moe_engine *engine);
void cli_timeline_end(cli_timeline *timeline, const moe_engine *engine, size_t n_sampled);
/* Finishes the file. Returns `code`, or the code of a failure to write. */
int cli_timeline_close(cli_timeline **timeline, int code);

#endif
