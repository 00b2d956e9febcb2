/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>

#include <moe/calibrate.h>
#include <moe/moe.h>

#include "cli_engine.h"
#include "cli_interrupt.h"
#include "cli_prompt.h"
#include "bench_commands.h"

#define CONTEXT 512 /* tokens of a window that calibration evaluates */

static bool on_progress(double fraction, void *user)
{
    cli_progress_show(user, fraction);
    return !cli_interrupted();
}

static int calibrate(moe_engine *engine, const cli_options *options, const int32_t *tokens,
                     size_t n_tokens)
{
    moe_calibrate_options calibrate_options;
    moe_error err = {""};
    cli_progress progress;
    size_t most = options->predict < 0 ? n_tokens : (size_t)options->predict;
    moe_calibrate_options_init(&calibrate_options);
    calibrate_options.tokens = tokens;
    calibrate_options.n_tokens = n_tokens < most ? n_tokens : most;
    calibrate_options.text_name = options->prompt_file;
    calibrate_options.path = options->output;
    calibrate_options.gram = options->gram;
    calibrate_options.low_bit_type = options->low_bit_type;
    calibrate_options.progress = on_progress;
    calibrate_options.user = &progress;
    cli_progress_start(&progress, options, "calibrating");
    int status = moe_calibrate(engine, &calibrate_options, &err);
    cli_progress_end(&progress);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    if (!options->quiet) {
        fprintf(stderr, "calibrated on %zu tokens\n", calibrate_options.n_tokens);
    }
    return CLI_EXIT_OK;
}

int cmd_calibrate(const cli_options *options)
{
    moe_engine *engine;
    int32_t *tokens;
    size_t n_tokens;
    cli_interrupt_install();
    /* The plan's own chunk depends on free memory; samples, and what a later run goes on from, must
     * not. */
    cli_options steady = *options;
    steady.prefill_chunk = options->prefill_chunk == 0 ? CONTEXT : options->prefill_chunk;
    int code = cli_text_tokens(&engine, &steady, CONTEXT, &tokens, &n_tokens);
    if (code == CLI_EXIT_OK) {
        code = calibrate(engine, options, tokens, n_tokens);
    }
    moe_free(tokens);
    moe_engine_close(&engine);
    return code;
}
