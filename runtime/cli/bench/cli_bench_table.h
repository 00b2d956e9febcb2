/* SPDX-License-Identifier: MIT */
/* Rows of named values that a bench measured, printed in any of the result formats. All rows have
 * the names of the first. */
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

/* NULL when memory is short; values added to such a table are lost, and printing it reports that.
 */
cli_bench_table *cli_bench_table_create(const char *bench, const char *title);
void cli_bench_table_free(cli_bench_table **table);

void cli_bench_begin_row(cli_bench_table *table);
void cli_bench_text(cli_bench_table *table, const char *name, const char *value);
void cli_bench_count(cli_bench_table *table, const char *name, uint64_t value);
/* NaN: absent; every format shows it as absent. */
void cli_bench_real(cli_bench_table *table, const char *name, int digits, double value);
/* The median of values; CSV and JSON also have their least and greatest. n = 0: absent; every
 * format shows it as absent. */
void cli_bench_median(cli_bench_table *table, const char *name, int digits, const double *values,
                      size_t n);

/* Leaves the cells of the last call out of the table for people. */
void cli_bench_detail(cli_bench_table *table);
/* Sets texts by name that are printed above the rows, because all rows share them. They must live
 * until then. */
void cli_bench_table_about(cli_bench_table *table, struct json_object *about);

/* format: CLI_FORMAT_*; the plot has y over x, a curve for each text value. Returns an exit code.
 */
int cli_bench_table_print(const cli_bench_table *table, const cli_options *options, unsigned format,
                          const char *x, const char *y);

#endif
