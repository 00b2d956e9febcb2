/* SPDX-License-Identifier: MIT */
/* What `report` measures, what it works out from that, and the page that says it. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdio.h>

#include <moe/model_file.h>
#include <moe/moe.h>
#include <moe/trace.h>

#include "cli_options.h"
#include "cli_progress.h"

enum {
    CLI_REPORT_POLICIES = 5, /* the engine's, three others, the bound */
    CLI_REPORT_SIZES = 14,   /* shares of the experts, and this machine's */
    CLI_REPORT_RUNS = 4,
    CLI_REPORT_ADVICE = 5
};

/* A measured or predicted figure: the middle, and how far it varies. */
typedef struct cli_report_range {
    double low, middle, high;
} cli_report_range;

/* Decoding with a part of the experts in memory, done twice. The same tokens miss the same experts,
 * so the faster of a token's two times is the one with less disturbance, and that counts. */
typedef struct cli_report_run {
    double share;  /* of the experts */
    double *times; /* [2][n_ids] seconds of each token, and those of it that it did not wait */
    uint64_t slots;
    double tokens_per_s, hit_rate;
    double bytes_per_token;     /* read from the drive */
    double wait_s;              /* of a token, for experts */
    cli_report_range compute_s; /* of a token, without that: quartiles */
    cli_report_range predicted; /* tokens/s */
} cli_report_run;

/* What is expected with so many experts in memory. */
typedef struct cli_report_size {
    uint64_t slots;
    double memory;                        /* bytes that the process then takes */
    double hit_rate[CLI_REPORT_POLICIES]; /* [0]: the engine's policy */
    double wait_s, compute_s;
    cli_report_range tokens_per_s;
} cli_report_size;

/* A change of the machine. */
typedef struct cli_report_advice {
    char what[160];
    cli_report_range tokens_per_s;
    double times; /* faster than now, of the middles */
} cli_report_advice;

typedef struct cli_report_data {
    const cli_options *options;
    cli_progress *progress;
    struct json_object *machine; /* moe_machine_describe() */
    moe_file_summary model;      /* strings are copied: */
    char family[64], architecture[64];
    moe_memory_plan plan;
    moe_engine_info info; /* of the first run's engine */
    char text_source[512];
    int32_t *ids; /* [n_ids] that every run decodes, one a pass */
    size_t n_ids, n_warm_up;
    moe_trace *trace;
    cli_report_range disk_bytes_per_s; /* many pieces at a time */
    char disk_how[128];
    double memory_bytes_per_s; /* 0: not measured */
    /* Fitted to the first run: what a read costs whatever its length, with the processor's work for
     * it; or, if the run was faster than the measured speed allows even without that, how many
     * times as fast the drive was. */
    double read_latency_s, drive_times;
    cli_report_run runs[CLI_REPORT_RUNS];
    size_t n_runs;
    double error; /* of the predictions for runs: the largest, as a share of what was predicted */
    cli_report_size sizes[CLI_REPORT_SIZES];
    size_t n_sizes;
    cli_report_size here; /* as many experts as this machine's budget holds */
    cli_report_advice advice[CLI_REPORT_ADVICE];
    size_t n_advice;
} cli_report_data;

extern const char *const cli_report_policies[CLI_REPORT_POLICIES];

/* Each returns an exit code; errors have been printed. */

/* Chooses the text, decodes it with several parts of the experts in memory, records its routing,
 * and measures drive and memory. */
int cli_report_measure(cli_report_data *report);
/* Simulates what was recorded: other sizes, policies and machines. */
int cli_report_predict(cli_report_data *report);
/* Writes the page. It cannot fail but for the file. */
void cli_report_write(const cli_report_data *report, FILE *page);

/* The memory that the process takes with so many experts. */
double cli_report_memory(const cli_report_data *report, uint64_t slots);

#endif
