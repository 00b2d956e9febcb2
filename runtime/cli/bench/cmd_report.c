/* SPDX-License-Identifier: MIT */
/* report: how fast a model runs on this machine, and what would make it faster, as one page. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <moe/machine.h>

#include "bench_commands.h"
#include "cli_engine.h"
#include "cli_interrupt.h"
#include "cli_json.h"
#include "cli_report.h"

/* Copies the summary: its strings live as long as the file. */
static int read_model(cli_report_data *r)
{
    moe_file *file = NULL;
    moe_error err = {""};
    int status = moe_file_open(&file, r->options->model, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    r->model.struct_size = sizeof r->model;
    moe_file_get_summary(file, &r->model);
    snprintf(r->family, sizeof r->family, "%s", r->model.family);
    snprintf(r->architecture, sizeof r->architecture, "%s", r->model.architecture);
    moe_file_close(&file);
    if (!r->model.runnable) {
        return cli_fail(CLI_EXIT_FAILURE, "%s", r->model.why_not);
    }
    return r->model.n_layer_moe > 0
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE, "%s has no experts to keep or to read",
                          r->options->model);
}

static int make_plan(cli_report_data *r)
{
    cli_engine_settings settings;
    cli_options plain = *r->options;
    moe_error err = {""};
    plain.calibration = "none";
    int code = cli_engine_options(&settings, &plain, plain.context);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    r->plan.struct_size = sizeof r->plan;
    int status = moe_plan_memory(&settings.options, &r->plan, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

static int describe(cli_report_data *r)
{
    char *json = NULL;
    moe_error err = {""};
    int status = moe_machine_describe(r->options->model, &json, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    r->machine = json_tokener_parse(json);
    moe_free(json);
    return r->machine != NULL ? CLI_EXIT_OK : cli_fail(CLI_EXIT_FAILURE, "out of memory");
}

/* The page is written to a file beside it, which then takes its name. */
static FILE *begin_page(const char *path, char *part, size_t size)
{
    FILE *page = NULL;
    struct stat state;
    if (stat(path, &state) == 0 && !S_ISREG(state.st_mode)) {
        cli_fail(CLI_EXIT_FAILURE, "-o: %s is not a regular file", path);
        return NULL;
    }
    errno = ENAMETOOLONG;
    if ((size_t)snprintf(part, size, "%s.part", path) < size) {
        page = fopen(part, "wxe");
    }
    if (page == NULL) {
        cli_fail(CLI_EXIT_FAILURE, "%s: %s%s", part, strerror(errno),
                 errno == EEXIST ? "; remove it if no other report is being written" : "");
    }
    return page;
}

static int end_page(FILE *page, const char *part, const char *path, int code)
{
    const bool failed = ferror(page) != 0;
    if ((fclose(page) != 0 || failed) && code == CLI_EXIT_OK) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s could not be written: %s", part, strerror(errno));
    }
    if (code == CLI_EXIT_OK && rename(part, path) != 0) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s could not be written: %s", path, strerror(errno));
    }
    if (code != CLI_EXIT_OK) {
        unlink(part);
    }
    return code;
}

static int make_report(cli_report_data *r)
{
    int code = read_model(r);
    code = code == CLI_EXIT_OK ? make_plan(r) : code;
    code = code == CLI_EXIT_OK ? describe(r) : code;
    code = code == CLI_EXIT_OK ? cli_report_measure(r) : code;
    return code == CLI_EXIT_OK ? cli_report_predict(r) : code;
}

int cmd_report(const cli_options *options)
{
    char part[4096];
    cli_progress progress;
    cli_options on_cpu = *options;
    if (options->output == NULL) {
        return cli_fail(CLI_EXIT_USAGE, "report: say where to write it: -o FILE.html");
    }
    on_cpu.device = "cpu";
    cli_report_data *r = calloc(1, sizeof *r);
    FILE *page = r != NULL ? begin_page(options->output, part, sizeof part) : NULL;
    if (page == NULL) {
        free(r);
        return r != NULL ? CLI_EXIT_FAILURE : cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    cli_interrupt_install();
    cli_progress_start(&progress, options, "measuring");
    r->options = &on_cpu;
    r->progress = &progress;
    int code = make_report(r);
    cli_progress_end(&progress);
    if (code == CLI_EXIT_OK) {
        cli_report_write(r, page);
    }
    code = end_page(page, part, options->output, code);
    for (size_t i = 0; i < CLI_REPORT_RUNS; i++) {
        free(r->runs[i].times);
    }
    moe_trace_close(&r->trace);
    json_object_put(r->machine);
    free(r->ids);
    free(r);
    return code;
}
