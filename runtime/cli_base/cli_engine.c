/* SPDX-License-Identifier: MIT */
#include "cli_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/model_file.h>

#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_library_words.h"

static bool on_progress(double fraction, void *user)
{
    const cli_terminal *terminal = user;
    cli_progress_show(terminal->working, fraction);
    return !cli_interrupted();
}

void cli_engine_show(moe_engine_options *engine_options, const cli_progress *progress)
{
    engine_options->progress = on_progress;
    engine_options->pass_progress = progress->enabled ? cli_progress_pass : NULL;
    engine_options->user = progress->terminal; /* the terminal outlives every engine */
}

/* Called on any thread of the engine, as long as the engine is open. */
static void on_note(const char *line, void *user)
{
    char words[2 * MOE_ERROR_MESSAGE_SIZE];
    cli_library_words(line, words, sizeof words);
    cli_terminal_note(user, words);
}

int cli_report(int status, const moe_error *err)
{
    char options[128];
    if (status == MOE_ERR_CANCELLED && cli_interrupted()) {
        return CLI_EXIT_INTERRUPTED;
    }
    char message[MOE_ERROR_MESSAGE_SIZE];
    cli_library_words(err->message, message, sizeof message);
    cli_library_advice(status == MOE_ERR_BUDGET ? message : "", options, sizeof options);
    return cli_fail(status == MOE_ERR_ARGUMENT ? CLI_EXIT_USAGE : CLI_EXIT_FAILURE, "%s%s",
                    message[0] == '\0' ? moe_status_name(status) : message, options);
}

/* Computes a size in bytes. A percentage in --host-memory or --device-memory refers to the model's
 * file, all parts together. */
static int size_of(const cli_size *given, uint64_t *bytes, const cli_options *options)
{
    *bytes = given->bytes;
    if (given->share == 0) {
        return CLI_EXIT_OK;
    }
    moe_file *file;
    moe_file_summary summary = {.struct_size = sizeof summary};
    moe_error err = {""};
    int status = moe_file_open(&file, options->model, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    moe_file_get_summary(file, &summary);
    moe_file_close(&file);
    *bytes = (uint64_t)(given->share * (double)summary.file_bytes);
    return CLI_EXIT_OK;
}

void cli_speculate_by_default(cli_options *options)
{
    bool is_baseline = options->offload != NULL && strcmp(options->offload, "auto") != 0;
    if (options->speculate == NULL && !is_baseline && options->lookahead == NULL) {
        options->speculate = "auto";
    }
}

static int read_lookahead(const cli_options *options, uint32_t *lookahead)
{
    char *end;
    if (options->lookahead == NULL) {
        return CLI_EXIT_OK;
    }
    long n = strtol(options->lookahead, &end, 10);
    if (end == options->lookahead || *end != '\0' || n < 0 || n > 15) {
        return cli_fail(CLI_EXIT_USAGE, "--lookahead must be a number from 0 to 15, not '%s'",
                        options->lookahead);
    }
    *lookahead = 1 + (uint32_t)n;
    return CLI_EXIT_OK;
}

int cli_engine_options(cli_engine_settings *settings, const cli_options *options, uint64_t context)
{
    moe_engine_options *engine_options = &settings->options;
    moe_lossy_options *lossy = &settings->lossy;
    moe_lab_options *lab = &settings->lab;
    int code = cli_engine_words(settings, options);
    code =
        code == CLI_EXIT_OK ? cli_overrides_read(&settings->overrides, &options->overrides) : code;
    code = code == CLI_EXIT_OK ? cli_copies_read(&settings->copies, &options->model_copies) : code;
    code = code == CLI_EXIT_OK ? cli_workers_read(&settings->workers, options) : code;
    if (code != CLI_EXIT_OK) {
        return code;
    }
    engine_options->workers = settings->workers.list;
    engine_options->n_workers = settings->workers.n;
    engine_options->worker_key = settings->workers.key;
    engine_options->worker_key_bytes = settings->workers.key_bytes;
    engine_options->worker_compute = (moe_switch)options->worker_compute;
    engine_options->worker_timeout = options->worker_timeout;
    engine_options->worker_rebalance = options->worker_rebalance;
    engine_options->model_path = options->model;
    engine_options->device = options->device;
    engine_options->n_threads = (uint32_t)options->threads;
    engine_options->context = (uint32_t)context;
    engine_options->sessions = (uint32_t)options->server_sessions;
    engine_options->program_memory = options->server_memory;
    engine_options->prefill_chunk = (uint32_t)options->prefill_chunk;
    engine_options->panel = (uint32_t)options->panel;
    engine_options->panel_others = (uint32_t)options->panel_others;
    engine_options->kv_cache = (moe_kv_cache_type)options->kv;
    engine_options->float_gemm = (moe_float_gemm)options->float_gemm;
    engine_options->exact_attention = options->exact_attention;
    engine_options->expert_cache = options->expert_cache.bytes;
    engine_options->expert_cache_share = options->expert_cache.share;
    engine_options->policy = options->policy;
    engine_options->prefetch = (moe_switch)options->prefetch;
    engine_options->host_compute = (moe_switch)options->host_compute;
    engine_options->warm_start = (moe_switch)options->warm_start;
    engine_options->io_block_bytes = (uint32_t)options->io_block.bytes;
    engine_options->io_depth = (uint32_t)options->engine_depth;
    engine_options->io_timeout = options->io_timeout;
    engine_options->calibration = options->calibration;
    engine_options->checksums = options->checksums != NULL ? options->checksums : "auto";
    engine_options->idle_checksums = (moe_switch)options->idle_checksums;
    engine_options->model_copies = settings->copies.list;
    engine_options->n_model_copies = settings->copies.n;
    engine_options->metadata_overrides = settings->overrides.list;
    engine_options->n_metadata_overrides = settings->overrides.n;
    engine_options->draft_max = (uint32_t)options->draft_max;
    engine_options->tree_nodes = (uint32_t)options->tree_nodes;
    lab->worker_delay_ns = 1000 * options->worker_delay;
    lab->draft_experts = (uint32_t)options->draft_experts;
    lab->foresight = (moe_switch)options->foresight;
    lab->lookahead_overlap = (moe_switch)options->lookahead_overlap;
    lab->verify_bytes = options->verify_bytes.bytes;
    lossy->expert_budget = (uint32_t)options->expert_budget;
    lossy->quality_limit = options->quality_limit;
    lossy->quality_share = options->quality_share;
    lab->trace_path = options->trace;
    lab->trace_gates = options->trace != NULL;
    lab->route_trace = options->route_trace;
    engine_options->overcommit_memory = options->overcommit_memory;
    engine_options->read_file = options->read_file;
    engine_options->read_user = options->read_user;
    if (options->read_file != NULL) {
        engine_options->buffered_io = true;
        engine_options->io = MOE_IO_THREADS; /* read_file is a function, which io_uring cannot
                                              * call */
    }
    code = read_lookahead(options, &engine_options->lookahead);
    if (code == CLI_EXIT_OK) {
        code = size_of(&options->host_memory, &engine_options->host_memory, options);
    }
    return code != CLI_EXIT_OK
               ? code
               : size_of(&options->device_memory, &engine_options->device_memory, options);
}

int cli_engine_open(moe_engine **out, const cli_options *options, uint64_t context)
{
    cli_engine_settings settings;
    moe_error err = {""};
    int code = cli_engine_options(&settings, options, context);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    cli_progress *loading = &options->terminal->loading;
    cli_progress_start(loading, options, "loading");
    cli_engine_show(&settings.options, loading);
    settings.options.log = options->quiet || options->json ? NULL : on_note;
    int status = moe_engine_open(out, &settings.options, &err);
    cli_progress_end(loading);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

uint64_t cli_engine_now_ns(const moe_engine *engine)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    return cli_now_ns() - stats.oracle_ns;
}
