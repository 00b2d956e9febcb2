/* SPDX-License-Identifier: MIT */
/* The measurements of `report`, its predictions from them, and its page. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdio.h>

#include <moe/model_file.h>
#include <moe/moe.h>
#include <moe/trace.h>

#include "cli_options.h"
#include "cli_progress.h"

enum {
    CLI_REPORT_POLICIES = 5, /* the engine's policy, three others, and Belady's bound */
    CLI_REPORT_SIZES = 14,   /* shares of the experts, the last of them this machine's */
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
    double *times; /* [2][n_ids] seconds of each token, and its seconds without waiting */
    uint64_t slots;
    double tokens_per_s, hit_rate;
    double bytes_per_token;     /* read from the drive */
    double wait_s;              /* time that a token waits for experts */
    cli_report_range compute_s; /* time of a token without waiting: quartiles */
    cli_report_range predicted; /* tokens/s */
} cli_report_run;

/* Predictions for a number of experts in memory. */
typedef struct cli_report_size {
    uint64_t slots;
    double memory;                        /* bytes that the process takes then */
    double hit_rate[CLI_REPORT_POLICIES]; /* [0]: the engine's policy */
    double wait_s, compute_s;
    cli_report_range tokens_per_s;
} cli_report_size;

/* A change of the machine. */
typedef struct cli_report_advice {
    char what[160];
    cli_report_range tokens_per_s;
    double times; /* how many times as fast as now, by the middles */
} cli_report_advice;

typedef struct cli_report_data {
    const cli_options *options;
    cli_progress *progress;
    struct json_object *machine; /* moe_machine_describe() */
    moe_file_summary model;      /* its strings are copied */
    char family[64], architecture[64];
    moe_memory_plan plan;
    moe_engine_info info; /* info of the first run's engine */
    char text_source[512];
    int32_t *ids; /* [n_ids] tokens that every run decodes, one in each pass */
    size_t n_ids, n_warm_up;
    moe_trace *trace;
    cli_report_range disk_bytes_per_s; /* many pieces at a time */
    char disk_how[128];
    double memory_bytes_per_s; /* 0: not measured */
    /* Fitted to the first run: the time that each read costs in addition to its bytes, with the
     * processor's work for it. If the run was faster than the measured speed allows even without
     * this time: how many times as fast as measured the drive was. */
    double read_latency_s, drive_times;
    cli_report_run runs[CLI_REPORT_RUNS];
    size_t n_runs;
    double error; /* the largest error of the predictions for the other runs, as a share of the
                   * prediction */
    cli_report_size sizes[CLI_REPORT_SIZES];
    size_t n_sizes;
    cli_report_size here; /* as many experts as this machine's budget holds */
    cli_report_advice advice[CLI_REPORT_ADVICE];
    size_t n_advice;
} cli_report_data;

extern const char *const cli_report_policies[CLI_REPORT_POLICIES];

/* These functions return exit codes, after printing errors. */

/* Chooses the text, decodes it with several parts of the experts in memory, records its routing,
 * and measures drive and memory. */
int cli_report_measure(cli_report_data *report);
/* Simulates the recorded routing with other sizes, policies and machines. */
int cli_report_predict(cli_report_data *report);
/* Writes the page. Errors of writing show in the file's state. */
void cli_report_write(const cli_report_data *report, FILE *page);

/* Returns the memory that the process takes with this many expert slots. */
double cli_report_memory(const cli_report_data *report, uint64_t slots);

#endif
