/* SPDX-License-Identifier: MIT */
/* cli_report_measure(): every run opens the model anew, without speculation, read-ahead and warm
 * start, and decodes the same tokens, one a pass. The first run has the fewest experts in memory.
 * It records the routing, and chooses the tokens if there is no text. All runs are made twice, in
 * turn.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moe/lab.h>

#include "cli_buffer.h"
#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_prompt.h"
#include "cli_report.h"

#define DEFAULT_TOKENS 256
#define DEFAULT_PROMPT "Once upon a time"
#define TEMPERATURE    0.8f
#define DRIVE_BYTES    (UINT64_C(64) << 20)
#define DRIVE_SECONDS  0.5

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. */
static cli_report_range quartiles(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
    return (cli_report_range){values[n / 4], values[n / 2], values[n - 1 - n / 4]};
}

/* ---- The text ---- */

static int read_text(cli_report_data *r, const moe_engine *engine)
{
    const cli_options *o = r->options;
    const size_t n_wanted = o->predict > 0 ? (size_t)o->predict : DEFAULT_TOKENS;
    cli_buffer text = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    cli_options plain = *o;
    plain.raw = true;
    bool ok = o->prompt_file != NULL ||
              cli_buffer_append(&text, DEFAULT_PROMPT, sizeof DEFAULT_PROMPT - 1);
    int code = ok ? CLI_EXIT_OK : cli_fail(CLI_EXIT_FAILURE, "out of memory");
    if (o->prompt_file != NULL) {
        code = cli_prompt_text(&text, o);
    }
    code = code == CLI_EXIT_OK ? cli_prompt_tokens(engine, &plain, &text, &ids, &n) : code;
    cli_buffer_free(&text);
    if (code == CLI_EXIT_OK && o->prompt_file != NULL && n < n_wanted) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s has %zu tokens: -n %zu or less, or a longer text",
                        o->prompt_file, n, n);
    }
    r->ids = code == CLI_EXIT_OK ? calloc(n_wanted, sizeof *r->ids) : NULL;
    if (code == CLI_EXIT_OK && r->ids == NULL) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    if (code == CLI_EXIT_OK) {
        n = n < n_wanted ? n : n_wanted;
        memcpy(r->ids, ids, n * sizeof *ids);
        r->n_ids = n; /* the first run adds the missing tokens */
    }
    moe_free(ids);
    return code;
}

/* ---- A run ---- */

typedef struct decoding {
    moe_engine *engine;
    moe_session *session;
    cli_report_run *run;
    size_t n_tokens;
} decoding;

/* Keeps the faster of the token's times. */
static void keep_time(const decoding *d, size_t i, double step_s, double wait_s)
{
    double *step = &d->run->times[i], *computing = step + d->n_tokens;
    if (*step == 0 || step_s < *step) {
        *step = step_s;
        *computing = step_s - wait_s;
    }
}

/* Evaluates token i and takes times; a token that is not known yet is the model's choice. */
static int decode_token(cli_report_data *r, decoding *d, size_t i)
{
    moe_engine_stats before = {.struct_size = sizeof before};
    moe_engine_stats after = {.struct_size = sizeof after};
    moe_error err = {""};
    if (i == r->n_ids) {
        r->ids[r->n_ids++] = moe_session_tokens(d->session)[i];
    }
    int status = moe_session_truncate(d->session, i, &err);
    status = status == MOE_OK ? moe_session_feed(d->session, &r->ids[i], 1, &err) : status;
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    moe_engine_get_stats(d->engine, &before);
    const uint64_t start = cli_now_ns();
    status = moe_step(d->engine, &d->session, 1, &err);
    const uint64_t ns = cli_now_ns() - start;
    moe_engine_get_stats(d->engine, &after);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    keep_time(d, i, cli_seconds(ns), cli_seconds(after.expert_wait_ns - before.expert_wait_ns));
    return cli_interrupted() ? CLI_EXIT_INTERRUPTED : CLI_EXIT_OK;
}

static int decode(cli_report_data *r, decoding *d)
{
    moe_engine_stats before = {.struct_size = sizeof before};
    moe_engine_stats after = {.struct_size = sizeof after};
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < d->n_tokens && code == CLI_EXIT_OK; i++) {
        if (i == r->n_warm_up) {
            moe_engine_get_stats(d->engine, &before);
        }
        code = decode_token(r, d, i);
        cli_progress_show(r->progress, (double)(i + 1) / (double)d->n_tokens);
    }
    moe_engine_get_stats(d->engine, &after);
    cli_report_run *run = d->run;
    const double hits = (double)(after.expert_hits - before.expert_hits);
    const double misses = (double)(after.expert_misses - before.expert_misses);
    run->slots = after.expert_slots;
    run->hit_rate = hits + misses > 0 ? hits / (hits + misses) : 1;
    run->bytes_per_token = (double)(after.bytes_read_disk - before.bytes_read_disk) /
                           (double)(d->n_tokens - r->n_warm_up);
    return code;
}

/* Sums the times after the warm-up. Sorts them. */
static void sum_up(const cli_report_data *r, cli_report_run *run)
{
    const size_t n = r->n_ids - r->n_warm_up;
    double *step_s = run->times + r->n_warm_up, *compute_s = step_s + r->n_ids;
    double total_s = 0, computing_s = 0;
    for (size_t i = 0; i < n; i++) {
        total_s += step_s[i];
        computing_s += compute_s[i];
    }
    run->tokens_per_s = (double)n / total_s;
    run->wait_s = (total_s - computing_s) / (double)n;
    run->compute_s = quartiles(compute_s, n);
}

static int open_session(decoding *d)
{
    moe_session_options options;
    moe_error err = {""};
    moe_session_options_init(&options);
    options.sampling.temperature = TEMPERATURE;
    options.sampling.seed = 0;
    int status = moe_session_create(&d->session, d->engine, &options, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

static int allocate(cli_report_data *r, decoding *d)
{
    int code = r->ids == NULL ? read_text(r, d->engine) : CLI_EXIT_OK;
    if (code != CLI_EXIT_OK) {
        return code;
    }
    if (d->run->times == NULL) {
        d->run->times = calloc(2 * d->n_tokens, sizeof *d->run->times);
    }
    return d->run->times != NULL ? CLI_EXIT_OK : cli_fail(CLI_EXIT_FAILURE, "out of memory");
}

/* trace: where the routing is recorded; NULL: nowhere. */
static int run_once(cli_report_data *r, cli_report_run *run, const char *trace)
{
    const size_t n = r->options->predict > 0 ? (size_t)r->options->predict : DEFAULT_TOKENS;
    decoding d = {.run = run, .n_tokens = n};
    moe_error err = {""};
    cli_options o = *r->options;
    o.quiet = true;
    o.calibration = "none";
    o.checksums = "none";
    /* with all experts in memory they are loaded at the start */
    o.warm_start = run->share < 1.0 ? MOE_SWITCH_OFF : MOE_SWITCH_AUTO;
    o.prefetch = MOE_SWITCH_OFF;
    o.host_memory = (cli_size){0}; /* the budget of the plan; these runs never take more */
    o.expert_cache = (cli_size){.share = run->share};
    o.trace = trace;
    r->n_warm_up = n / 2;
    int status = moe_file_cache_drop(o.model, NULL, &err);
    int code = status == MOE_OK ? cli_engine_open(&d.engine, &o, n + 2) : cli_report(status, &err);
    code = code == CLI_EXIT_OK ? open_session(&d) : code;
    code = code == CLI_EXIT_OK ? allocate(r, &d) : code;
    code = code == CLI_EXIT_OK ? decode(r, &d) : code;
    if (code == CLI_EXIT_OK && trace != NULL) {
        r->info.struct_size = sizeof r->info;
        moe_engine_get_info(d.engine, &r->info);
        if (moe_engine_measure_bandwidth(d.engine, &r->memory_bytes_per_s, NULL) != MOE_OK) {
            r->memory_bytes_per_s = 0;
        }
    }
    moe_session_close(&d.session);
    moe_engine_close(&d.engine);
    return code;
}

static int open_trace(cli_report_data *r, const char *path)
{
    moe_trace_open_options options;
    moe_error err = {""};
    moe_trace_open_options_init(&options);
    options.path = path;
    options.format = MOE_TRACE_JSONL;
    int status = moe_trace_open(&r->trace, &options, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

static int run_and_record(cli_report_data *r)
{
    char path[] = P_tmpdir "/moe-offload-report-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: %s", path, strerror(errno));
    }
    close(fd);
    int code = run_once(r, &r->runs[0], path);
    code = code == CLI_EXIT_OK ? open_trace(r, path) : code;
    unlink(path);
    return code;
}

/* Chooses the runs' shares of the experts: a quarter, half and all, if the budget holds them and
 * they are enough for a layer; and as many as the budget holds. */
static void choose_shares(cli_report_data *r)
{
    static const double shares[] = {0.25, 0.5, 1.0};
    const double here = (double)r->plan.expert_slots / (double)r->plan.experts;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        const bool works = shares[i] * (double)r->plan.experts >= r->model.n_expert_used + 1.0;
        if ((works && shares[i] < 0.97 * here) || (shares[i] == 1.0 && here >= 1.0)) {
            r->runs[r->n_runs++].share = shares[i];
        }
    }
    if (here < 1.0) {
        r->runs[r->n_runs++].share = here;
    }
}

/* ---- The drive ---- */

static int measure_drive(cli_report_data *r, uint64_t seed, double *bytes_per_s)
{
    moe_storage_test test;
    moe_storage_speed speed = {.struct_size = sizeof speed};
    moe_error err = {""};
    moe_storage_test_init(&test);
    test.path = r->options->model;
    test.small_pages = true; /* like the slots */
    test.range_min_bytes = r->model.smallest_expert_bytes / 3;
    test.range_max_bytes = r->model.largest_expert_bytes / 3;
    test.total_bytes = DRIVE_BYTES;
    test.max_seconds = DRIVE_SECONDS;
    test.seed = seed;
    int status = moe_storage_measure(&test, &speed, &err);
    *bytes_per_s = speed.bytes_per_s;
    memcpy(r->disk_how, speed.how, sizeof r->disk_how);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

/* Makes all runs twice, and measures the drive after each run. */
static int run_all(cli_report_data *r)
{
    double speeds[2 * CLI_REPORT_RUNS];
    const size_t n = 2 * r->n_runs;
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < n && code == CLI_EXIT_OK; i++) {
        code = i == 0 ? run_and_record(r) : run_once(r, &r->runs[i % r->n_runs], NULL);
        code = code == CLI_EXIT_OK ? measure_drive(r, i, &speeds[i]) : code;
    }
    if (code != CLI_EXIT_OK) {
        return code;
    }
    qsort(speeds, n, sizeof *speeds, compare);
    r->disk_bytes_per_s = (cli_report_range){speeds[0], speeds[n / 2], speeds[n - 1]};
    for (size_t i = 0; i < r->n_runs; i++) {
        sum_up(r, &r->runs[i]);
    }
    return CLI_EXIT_OK;
}

int cli_report_measure(cli_report_data *r)
{
    if (r->options->prompt_file != NULL) {
        snprintf(r->text_source, sizeof r->text_source, "the first tokens of %s",
                 r->options->prompt_file);
    } else {
        snprintf(r->text_source, sizeof r->text_source,
                 "what the model writes after \"%s\" at temperature %.1f, seed 0", DEFAULT_PROMPT,
                 (double)TEMPERATURE);
    }
    choose_shares(r);
    return run_all(r);
}
