/* SPDX-License-Identifier: MIT */
/* A sweep that runs a model: its prompt, and the settings that its rows share. */
#ifndef CLI_SWEEP_MODEL_H
#define CLI_SWEEP_MODEL_H

#include "cli_bench_run.h"
#include "cli_sweep.h"

typedef struct cli_sweep_model {
    cli_sweep sweep; /* the sweep's user pointer is this struct */
    cli_bench_run run;
    cli_buffer text;
} cli_sweep_model;

/* Reads the prompt of the sweep's options into run, and describes it. Returns an exit code. */
int cli_sweep_model_describe(cli_sweep_model *m);
void cli_sweep_model_close(cli_sweep_model *m);

#endif
