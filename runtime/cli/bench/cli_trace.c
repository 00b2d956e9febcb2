/* SPDX-License-Identifier: MIT */
#include "cli_trace.h"

#include <errno.h>
#include <string.h>

#include <moe/moe.h>

#include "cli_engine.h"

static int generate(moe_trace **out, const cli_options *options)
{
    moe_error err = {""};
    moe_trace_generator generator;
    int status = moe_trace_generator_init(&generator, options->synthetic, &err);
    if (status == MOE_OK) {
        generator.n_prompts = (uint32_t)options->trace_prompts;
        generator.n_sequences = (uint32_t)options->trace_sequences;
        generator.prompt_rows = (uint32_t)options->trace_prompt_rows;
        generator.decode_passes = (uint32_t)options->trace_passes;
        generator.seed = options->seed < 0 ? 0 : (uint64_t)options->seed;
        status = moe_trace_generate(out, &generator, &err);
    }
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

int cli_trace_open(moe_trace **out, const cli_options *options, const char *command)
{
    if (options->trace == NULL && options->synthetic == NULL) {
        return cli_fail(CLI_EXIT_USAGE, "%s: give --trace FILE or --synthetic NAME", command);
    }
    if (options->synthetic != NULL) {
        return generate(out, options);
    }
    moe_error err = {""};
    moe_trace_open_options open_options;
    moe_trace_open_options_init(&open_options);
    open_options.path = options->trace;
    open_options.n_layer = (uint32_t)options->trace_layers;
    open_options.n_expert = (uint32_t)options->trace_experts;
    int status = moe_trace_open(out, &open_options, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

unsigned cli_output_format(const cli_options *options)
{
    return options->json ? CLI_FORMAT_JSON : options->format;
}

FILE *cli_output_create(const cli_options *options, const char *suffix)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s%s", options->output, suffix) >= sizeof path) {
        cli_fail(CLI_EXIT_FAILURE, "-o: the path is too long");
        return NULL;
    }
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        cli_fail(CLI_EXIT_FAILURE, "%s: %s", path, strerror(errno));
    }
    return file;
}

int cli_output_close(FILE *file, const cli_options *options, const char *suffix)
{
    int failed = ferror(file);
    if (fclose(file) != 0 || failed) {
        return cli_fail(CLI_EXIT_FAILURE, "%s%s could not be written", options->output, suffix);
    }
    return CLI_EXIT_OK;
}
