/* SPDX-License-Identifier: MIT */
/* cli_report_write(): one HTML file that needs no other. The findings come first, in words, then
 * the pictures, then the machine and the method of measuring. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include <json-c/json.h>
#include <moe/version.h>

#include "cli_format.h"
#include "cli_report.h"
#include "cli_report_chart.h"

static const char *const style =
    ":root{color-scheme:light dark;--back:#fff;--text:#1b1b1b;--soft:#595959;--grid:#dedede;"
    "--k0:#0060a8;--k1:#c24e00;--k2:#00795a;--k3:#9c3d86;--k4:#8a6100;--k5:#444}\n"
    "@media(prefers-color-scheme:dark){:root{--back:#16181b;--text:#ececec;--soft:#b0b0b0;"
    "--grid:#3a3d42;--k0:#62b8f5;--k1:#ff9650;--k2:#33d1a0;--k3:#eb9fd6;--k4:#e6cf45;--k5:#ccc}}\n"
    "body{background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif;"
    "max-width:760px;margin:2em auto;padding:0 1em}\n"
    "h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em}figure{margin:2em 0}"
    "figcaption{font-weight:600}.note,.legend{color:var(--soft);font-size:.9em}"
    ".legend span{margin-right:1.2em;white-space:nowrap}\n"
    "table{border-collapse:collapse;width:100%;font-size:.93em}"
    "th,td{text-align:left;padding:.25em .8em .25em 0;border-bottom:1px solid var(--grid);"
    "vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\n"
    ".chart{width:100%;height:auto}svg text{fill:var(--text);font:13px system-ui,sans-serif}"
    ".grid{stroke:var(--grid)}.mark{stroke:var(--soft);stroke-dasharray:2 3}\n";

/* Curves, their bands and dots: colours of the palette, and dashes. */
static void write_style(FILE *page)
{
    static const char *const dashes[CLI_CHART_CURVES] = {"none",    "9 4", "2 3",
                                                         "9 3 2 3", "5 3", "1 4"};
    fputs("<style>\n", page);
    fputs(style, page);
    for (int k = 0; k < CLI_CHART_CURVES; k++) {
        fprintf(page,
                ".c%d{fill:none;stroke:var(--k%d);stroke-width:2.2;stroke-dasharray:%s}"
                ".d%d{fill:var(--k%d)}.b%d{fill:var(--k%d);opacity:.22}\n",
                k, k, dashes[k], k, k, k, k);
    }
    fputs("</style>\n", page);
}

/* ---- Words ---- */

static bool all_in_memory(const cli_report_data *r)
{
    return r->plan.expert_slots >= r->plan.experts;
}

static double wait_share(const cli_report_data *r)
{
    const double total = r->here.wait_s + r->here.compute_s;
    return total > 0 ? r->here.wait_s / total : 0;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void write_speed(const cli_report_data *r, FILE *page)
{
    char memory[CLI_FORMAT_SIZE];
    const cli_report_size *here = &r->here;
    fprintf(page,
            "<p>With %s of memory, %" PRIu64 " of %" PRIu64
            " experts are in memory at a time. The model should then write <b>%.1f tokens a "
            "second</b> (%.1f to %.1f, as drive and processor vary), without speculation and "
            "reading ahead, which make it faster. %.0f %% of the experts that a token needs are "
            "in memory, and %.0f %% of the time is spent waiting for the others.</p>\n",
            cli_format_bytes(memory, (uint64_t)here->memory), r->plan.expert_slots, r->plan.experts,
            here->tokens_per_s.middle, here->tokens_per_s.low, here->tokens_per_s.high,
            100 * here->hit_rate[0], 100 * wait_share(r));
}

/* Writes the least memory that gives nine tenths of the speed with all experts in memory. */
static void write_enough(const cli_report_data *r, FILE *page)
{
    const cli_report_size *all = &r->sizes[r->n_sizes - 1];
    char memory[CLI_FORMAT_SIZE];
    for (size_t i = 0; i + 1 < r->n_sizes; i++) {
        const cli_report_size *size = &r->sizes[i];
        if (size->tokens_per_s.middle >= 0.9 * all->tokens_per_s.middle) {
            fprintf(page,
                    "<p>%s of memory (%.0f %% of the experts) are enough for nine tenths of the "
                    "speed that the model has with all experts in memory.</p>\n",
                    cli_format_bytes(memory, (uint64_t)size->memory),
                    100 * (double)size->slots / (double)r->plan.experts);
            return;
        }
    }
}

static void write_verdict(const cli_report_data *r, FILE *page)
{
    const cli_report_advice *best = &r->advice[0];
    for (size_t i = 1; i < r->n_advice; i++) {
        best = r->advice[i].times > best->times ? &r->advice[i] : best;
    }
    if (all_in_memory(r)) {
        fputs("<p>All experts are in memory. More memory or a faster drive would not make this "
              "model faster.</p>\n",
              page);
    } else if (best->times < 1.1) {
        fputs("<p>None of this would help much.</p>\n", page);
    } else {
        fprintf(page, "<p>Most helps <b>%s</b>.</p>\n", best->what);
    }
}

static void write_advice(const cli_report_data *r, FILE *page)
{
    fputs("<h2>What would help</h2>\n<table><tr><th>with</th><th class=\"n\">times as fast</th>"
          "<th class=\"n\">tokens a second</th><th class=\"n\">from</th><th class=\"n\">to</th>"
          "</tr>\n",
          page);
    for (size_t i = 0; i < r->n_advice; i++) {
        const cli_report_advice *a = &r->advice[i];
        fprintf(page,
                "<tr><td>%s</td><td class=\"n\"><b>%.1f</b></td><td class=\"n\">%.1f</td>"
                "<td class=\"n\">%.1f</td><td class=\"n\">%.1f</td></tr>\n",
                a->what, a->times, a->tokens_per_s.middle, a->tokens_per_s.low,
                a->tokens_per_s.high);
    }
    fputs("</table>\n", page);
    write_verdict(r, page);
    write_enough(r, page);
}

/* ---- Pictures ---- */

static double unit_of(const cli_report_data *r, const char **name)
{
    const bool large = r->sizes[r->n_sizes - 1].memory >= 2147483648.0;
    *name = large ? "memory of the process (GiB, logarithmic)"
                  : "memory of the process (MiB, logarithmic)";
    return large ? 1073741824.0 : 1048576.0;
}

static void draw_speed(const cli_report_data *r, FILE *page)
{
    cli_chart chart = {.title = "Speed by memory",
                       .y_label = "tokens a second",
                       .log_x = true,
                       .mark = "this budget",
                       .n_curves = 2};
    const double unit = unit_of(r, &chart.x_label);
    cli_chart_curve *predicted = &chart.curves[0], *measured = &chart.curves[1];
    *predicted =
        (cli_chart_curve){.name = "predicted, with its range", .n = r->n_sizes, .has_band = true};
    *measured = (cli_chart_curve){.name = "measured", .n = r->n_runs, .dots = true};
    chart.mark_x = r->here.memory / unit;
    for (size_t i = 0; i < r->n_sizes; i++) {
        predicted->x[i] = r->sizes[i].memory / unit;
        predicted->y[i] = r->sizes[i].tokens_per_s.middle;
        predicted->low[i] = r->sizes[i].tokens_per_s.low;
        predicted->high[i] = r->sizes[i].tokens_per_s.high;
    }
    for (size_t i = 0; i < r->n_runs; i++) {
        measured->x[i] = cli_report_memory(r, r->runs[i].slots) / unit;
        measured->y[i] = r->runs[i].tokens_per_s;
    }
    cli_chart_write(&chart, page);
    if (r->memory_bytes_per_s > 0) {
        fprintf(page,
                "<p class=\"note\">A token reads %.1f MB of weights, and this machine's threads "
                "read memory at %.1f GB/s: that alone allows %.1f tokens a second at most.</p>\n",
                1e-6 * (double)r->info.active_bytes, 1e-9 * r->memory_bytes_per_s,
                r->memory_bytes_per_s / (double)r->info.active_bytes);
    }
}

static double percent_of(const cli_report_data *r, const cli_report_size *size)
{
    return 100 * (double)size->slots / (double)r->plan.experts;
}

static void draw_hits(const cli_report_data *r, FILE *page)
{
    static const char *const names[CLI_REPORT_POLICIES] = {
        "lfru (the engine's)", "lru", "s3-fifo", "arc", "belady (the bound: knows the future)"};
    cli_chart chart = {.title = "Experts found in memory, by the number kept and by cache policy",
                       .x_label = "experts in memory (% of all)",
                       .y_label = "hit rate (%)",
                       .y_most = 100,
                       .mark = "this budget",
                       .mark_x = percent_of(r, &r->here),
                       .n_curves = CLI_REPORT_POLICIES};
    for (size_t p = 0; p < CLI_REPORT_POLICIES; p++) {
        cli_chart_curve *curve = &chart.curves[p];
        *curve = (cli_chart_curve){.name = names[p], .n = r->n_sizes};
        for (size_t i = 0; i < r->n_sizes; i++) {
            curve->x[i] = percent_of(r, &r->sizes[i]);
            curve->y[i] = 100 * r->sizes[i].hit_rate[p];
        }
    }
    cli_chart_write(&chart, page);
}

static void draw_times(const cli_report_data *r, FILE *page)
{
    cli_chart chart = {.title = "Where the time of a token goes",
                       .x_label = "experts in memory (% of all)",
                       .y_label = "time of a token (ms)",
                       .mark = "this budget",
                       .mark_x = percent_of(r, &r->here),
                       .n_curves = 3};
    static const char *const names[] = {"waiting for experts", "computing", "in all"};
    for (size_t k = 0; k < 3; k++) {
        chart.curves[k] = (cli_chart_curve){.name = names[k], .n = r->n_sizes};
        for (size_t i = 0; i < r->n_sizes; i++) {
            const cli_report_size *size = &r->sizes[i];
            chart.curves[k].x[i] = percent_of(r, size);
            chart.curves[k].y[i] =
                1e3 * ((k != 1 ? size->wait_s : 0) + (k != 0 ? size->compute_s : 0));
        }
    }
    cli_chart_write(&chart, page);
}

static void write_checks(const cli_report_data *r, FILE *page)
{
    fputs("<h2>Predicted and measured</h2>\n<table><tr><th class=\"n\">experts in memory</th>"
          "<th class=\"n\">hits, %</th><th class=\"n\">MB read a token</th>"
          "<th class=\"n\">tokens a second</th><th class=\"n\">predicted</th>"
          "<th class=\"n\">from</th><th class=\"n\">to</th><th></th></tr>\n",
          page);
    for (size_t i = 0; i < r->n_runs; i++) {
        const cli_report_run *run = &r->runs[i];
        fprintf(page,
                "<tr><td class=\"n\">%" PRIu64 "</td><td class=\"n\">%.1f</td>"
                "<td class=\"n\">%.3g</td><td class=\"n\">%.1f</td><td class=\"n\">%.1f</td>"
                "<td class=\"n\">%.1f</td><td class=\"n\">%.1f</td><td>%s</td></tr>\n",
                run->slots, 100 * run->hit_rate, 1e-6 * run->bytes_per_token, run->tokens_per_s,
                run->predicted.middle, run->predicted.low, run->predicted.high,
                i == 0 ? "fitted" : "check");
    }
    fputs("</table>\n<p class=\"note\">What a read costs was fitted to the first run; the others "
          "check "
          "the prediction.</p>\n",
          page);
}

/* ---- The machine, and the method ---- */

static void write_row(FILE *page, const char *what, const char *value)
{
    fputs("<tr><th>", page);
    cli_chart_text(page, what);
    fputs("</th><td>", page);
    cli_chart_text(page, value);
    fputs("</td></tr>\n", page);
}

/* Writes a value of the machine's description, or "not known". */
static void write_known(const cli_report_data *r, FILE *page, const char *what, const char *group,
                        const char *key)
{
    struct json_object *of_group = NULL, *value = NULL;
    char bytes[CLI_FORMAT_SIZE];
    const char *text = "not known";
    const size_t size = strlen(key);
    if (json_object_object_get_ex(r->machine, group, &of_group) &&
        json_object_object_get_ex(of_group, key, &value) && value != NULL) {
        text = size > 6 && strcmp(key + size - 6, "_bytes") == 0
                   ? cli_format_bytes(bytes, json_object_get_uint64(value))
                   : json_object_get_string(value);
    }
    write_row(page, what, text);
}

static void write_machine(const cli_report_data *r, FILE *page)
{
    char text[256], size[CLI_FORMAT_SIZE];
    fputs("<h2>The machine</h2>\n<table>\n", page);
    write_known(r, page, "processor", "cpu", "model");
    write_known(r, page, "cores that may be used", "cpu", "usable_cores");
    write_known(r, page, "memory", "memory", "total_bytes");
    snprintf(text, sizeof text, "%s (%s)", cli_format_bytes(size, r->plan.budget),
             r->plan.budget_is_default ? "what the machine and its control group leave"
                                       : "--host-memory");
    write_row(page, "budget", text);
    if (r->memory_bytes_per_s > 0) {
        snprintf(text, sizeof text, "%.1f GB/s, %u threads", 1e-9 * r->memory_bytes_per_s,
                 r->info.n_threads);
        write_row(page, "reading memory", text);
    }
    write_known(r, page, "drive", "storage", "device");
    write_known(r, page, "file system", "storage", "file_system");
    snprintf(text, sizeof text, "%.2f GB/s (%.2f to %.2f): %s, pieces as long as an expert's parts",
             1e-9 * r->disk_bytes_per_s.middle, 1e-9 * r->disk_bytes_per_s.low,
             1e-9 * r->disk_bytes_per_s.high, r->disk_how);
    write_row(page, "reading the drive", text);
    if (r->drive_times > 1) {
        snprintf(text, sizeof text, "%.2f times that fast in the first run, which is assumed",
                 r->drive_times);
    } else {
        snprintf(text, sizeof text, "and %.0f us of each read, fitted to the first run",
                 1e6 * r->read_latency_s);
    }
    write_row(page, "", text);
    write_known(r, page, "kernel", "system", "kernel");
    fputs("</table>\n", page);
}

static void write_model(const cli_report_data *r, FILE *page)
{
    char text[256], size[CLI_FORMAT_SIZE], fixed[CLI_FORMAT_SIZE];
    fputs("<h2>The model</h2>\n<table>\n", page);
    write_row(page, "file", file_name(r->options->model));
    snprintf(text, sizeof text, "%s (%s)", r->family, r->architecture);
    write_row(page, "family", text);
    snprintf(text, sizeof text, "%016" PRIx64, r->info.fingerprint);
    write_row(page, "fingerprint", text);
    snprintf(text, sizeof text, "%" PRIu64 " in %u layers, %s together; a token uses %u of %u",
             r->plan.experts, r->model.n_layer_moe, cli_format_bytes(size, r->plan.expert_bytes),
             r->model.n_expert_used, r->model.n_expert);
    write_row(page, "experts", text);
    snprintf(text, sizeof text, "%s: weights that are always in memory %s, the rest for %u tokens",
             cli_format_bytes(fixed, r->plan.total - r->plan.expert_cache),
             cli_format_bytes(size, r->plan.resident), r->plan.context);
    write_row(page, "memory beside experts", text);
    fputs("</table>\n", page);
}

static void write_method(const cli_report_data *r, FILE *page)
{
    fputs("<h2>How it was measured</h2>\n<p>", page);
    fprintf(page,
            "%zu tokens were decoded one by one with several numbers of experts in memory, the "
            "model's files dropped from the page cache before each run; the first %zu are not "
            "counted. All runs were made twice, in turn, and the faster of a token's two times "
            "counts. The text is ",
            r->n_ids, r->n_warm_up);
    cli_chart_text(page, r->text_source);
    fputs(". The first run recorded which experts each token used. The simulator, which has the "
          "engine's own cache, replayed this for the other sizes and policies, with the speeds "
          "that were measured. Ranges go from the slowest to the fastest reading of the drive, by "
          "the "
          "quartiles of computing, and are wider by the largest error of the table above. Other "
          "texts route otherwise, and other work on the machine "
          "makes it slower.</p>\n",
          page);
}

void cli_report_write(const cli_report_data *r, FILE *page)
{
    char when[32];
    const time_t now = time(NULL);
    struct tm local;
    strftime(when, sizeof when, "%Y-%m-%d", localtime_r(&now, &local));
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>",
          page);
    cli_chart_text(page, file_name(r->options->model));
    fputs(" on this machine</title>\n", page);
    write_style(page);
    fputs("</head><body>\n<h1>", page);
    cli_chart_text(page, file_name(r->options->model));
    fprintf(page, " on this machine</h1>\n<p class=\"note\">moe-offload %s report, %s</p>\n",
            moe_version(), when);
    write_speed(r, page);
    write_advice(r, page);
    fputs("<h2>Pictures</h2>\n", page);
    draw_speed(r, page);
    draw_hits(r, page);
    draw_times(r, page);
    write_checks(r, page);
    write_machine(r, page);
    write_model(r, page);
    write_method(r, page);
    fputs("</body></html>\n", page);
}
