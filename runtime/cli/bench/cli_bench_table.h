/* SPDX-License-Identifier: MIT */
/* Rows of named values, as a bench measures them, in all forms that results are printed in. The
 * first row's names are every row's. */
#ifndef CLI_BENCH_TABLE_H
#define CLI_BENCH_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include <json-c/json.h>

#include "cli_options.h"

#define CLI_BENCH_PARTS 32 /* most values of a list option */

/* Lists of options: "5%,25%" as shares, "1,8,64" as counts of at least 1. Exit codes. */
int cli_bench_shares(const char *text, const char *option, double *shares, size_t *n);
int cli_bench_counts(const char *text, const char *option, uint64_t *counts, size_t *n);

typedef struct cli_bench_table cli_bench_table;

/* NULL when memory is short; what is added to a table after that is lost, and told when printed. */
cli_bench_table *cli_bench_table_create(const char *bench, const char *title);
void cli_bench_table_free(cli_bench_table **table);

void cli_bench_begin_row(cli_bench_table *table);
void cli_bench_text(cli_bench_table *table, const char *name, const char *value);
void cli_bench_count(cli_bench_table *table, const char *name, uint64_t value);
/* NaN: absent, as is told in every form. */
void cli_bench_real(cli_bench_table *table, const char *name, int digits, double value);
/* The median of values, and in CSV and JSON their least and greatest too; n = 0: absent, as is told
 * in every form. */
void cli_bench_median(cli_bench_table *table, const char *name, int digits, const double *values,
                      size_t n);

/* The cells of the last call are not for the table for people. */
void cli_bench_detail(cli_bench_table *table);
/* What all rows have in common, printed above them: texts by name, which must stay until then. */
void cli_bench_table_about(cli_bench_table *table, struct json_object *about);

/* format: CLI_FORMAT_*; the plot has y over x, a curve for each text value. An exit code. */
int cli_bench_table_print(const cli_bench_table *table, const cli_options *options, unsigned format,
                          const char *x, const char *y);

#endif
