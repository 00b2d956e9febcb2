/* SPDX-License-Identifier: MIT */
/* A worker: computes experts for engines elsewhere (moe/workers.h); and files for workers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/moe.h>
#include <moe/workers.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_progress.h"
#include "commands.h"

typedef struct serving {
    const cli_options *options;
    const moe_engine *engine;
} serving;

static const char *address_of(const cli_options *options)
{
    return options->worker_listen != NULL ? options->worker_listen : "127.0.0.1:7070";
}

/* The library has found the address, so it has a port. */
static void on_start(uint16_t port, uint64_t n_experts, void *user)
{
    const serving *s = user;
    char bytes[CLI_FORMAT_SIZE];
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(s->engine, &info);
    const char *listen = address_of(s->options);
    char total[CLI_FORMAT_SIZE];
    printf("worker at %.*s:%" PRIu16 ": %" PRIu64 " experts, memory for %" PRIu64
           " (%s; %s of RAM in all)\n",
           (int)(strrchr(listen, ':') - listen), listen, port, n_experts,
           info.memory.expert_slots + info.memory.host_slots,
           cli_format_bytes(bytes, info.memory.expert_cache + info.memory.host_cache),
           cli_format_bytes(total, info.memory.total));
    fflush(stdout);
}

static bool is_stopped(void *user)
{
    (void)user;
    return cli_interrupted();
}

static void on_note(const char *line, void *user)
{
    (void)user;
    fprintf(stderr, "moe-offload: note: %s\n", line);
}

static int read_share(const char *text, moe_worker_options *options)
{
    char end;
    if (text != NULL && (sscanf(text, "%" SCNu32 "/%" SCNu32 "%c", &options->share,
                                &options->n_shares, &end) != 2 ||
                         options->share == 0 || options->share > options->n_shares)) {
        return cli_fail(CLI_EXIT_USAGE, "--share must be I/N with I from 1 to N, not '%s'", text);
    }
    return CLI_EXIT_OK;
}

static void print_counts(const moe_engine *engine, const cli_options *options)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    char bytes[CLI_FORMAT_SIZE];
    moe_engine_get_stats(engine, &stats);
    if (!options->quiet) {
        fprintf(stderr, "worker: %" PRIu64 " jobs, %" PRIu64 " rows of experts, %s read\n",
                stats.worker_jobs, stats.worker_rows,
                cli_format_bytes(bytes, stats.bytes_read_disk));
    }
}

static int serve(const cli_options *options, const cli_engine_settings *settings,
                 moe_engine *engine)
{
    serving s = {.options = options, .engine = engine};
    moe_worker_options worker;
    moe_error err = {""};
    moe_worker_options_init(&worker);
    int code = read_share(options->worker_share, &worker);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    worker.experts = options->worker_experts;
    worker.listen = address_of(options);
    worker.key = settings->workers.key;
    worker.key_bytes = settings->workers.key_bytes;
    worker.started = on_start;
    worker.is_stopped = is_stopped;
    worker.user = &s;
    int status = moe_worker_serve(engine, &worker, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    print_counts(engine, options);
    return CLI_EXIT_OK;
}

int cmd_worker(const cli_options *options)
{
    cli_engine_settings settings;
    moe_engine *engine = NULL;
    moe_error err = {""};
    int code = cli_engine_options(&settings, options, 1);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    settings.options.experts_only = true;
    settings.options.prefetch = MOE_SWITCH_OFF;
    settings.options.warm_start = MOE_SWITCH_OFF;
    settings.options.log = options->quiet ? NULL : on_note;
    cli_interrupt_install();
    int status = moe_engine_open(&engine, &settings.options, &err);
    code = status == MOE_OK ? serve(options, &settings, engine) : cli_report(status, &err);
    moe_engine_close(&engine);
    return code;
}

/* ---- split-experts ---- */

typedef struct splitting {
    cli_progress progress;
} splitting;

static bool on_progress(double fraction, void *user)
{
    cli_progress_show(&((splitting *)user)->progress, fraction);
    return !cli_interrupted();
}

int cmd_split_experts(const cli_options *options)
{
    cli_engine_settings settings;
    moe_worker_options share;
    splitting s;
    moe_error err = {""};
    uint64_t bytes = 0;
    char size[CLI_FORMAT_SIZE];
    moe_worker_options_init(&share);
    if (options->output == NULL) {
        return cli_fail(CLI_EXIT_USAGE, "split-experts needs -o FILE, which it writes");
    }
    if (options->worker_share == NULL && options->worker_experts == NULL) {
        return cli_fail(CLI_EXIT_USAGE, "split-experts needs --share I/N, or --experts LIST");
    }
    int code = read_share(options->worker_share, &share);
    code = code == CLI_EXIT_OK ? cli_engine_options(&settings, options, 1) : code;
    if (code != CLI_EXIT_OK) {
        return code;
    }
    share.experts = options->worker_experts;
    settings.options.progress = on_progress;
    settings.options.user = &s;
    cli_interrupt_install();
    cli_progress_start(&s.progress, options, "splitting");
    int status = moe_split_experts(&settings.options, &share, options->output, &bytes, &err);
    cli_progress_end(&s.progress);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    printf("%s: %s\n", options->output, cli_format_bytes(size, bytes));
    return CLI_EXIT_OK;
}
