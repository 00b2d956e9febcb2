/* SPDX-License-Identifier: MIT */
/* Keeps measurements as they are made: rows of text cells in memory and, with a path, in a CSV file
 * that a later run can continue.
 *
 *    # {"bench":"cache","fingerprint":"...","machine":"...",...}     what all rows have in common
 *    expert_cache,policy,repetition,tokens_per_s,...                 keys first, then results
 *    25%,lru,0,41.31,...
 *
 * A row is appended by one write and is on the disk before the next measurement begins. If the
 * process is killed, the file has whole rows and at most one torn line at its end, which is
 * dropped. A file of another bench, model, machine or setting is refused, because its rows are not
 * comparable. */
#ifndef CLI_BENCH_LOG_H
#define CLI_BENCH_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include <json-c/json.h>

typedef struct cli_bench_log cli_bench_log;

typedef struct cli_bench_log_options {
    const char *path; /* NULL: only in memory */
    bool resume;      /* continues an existing file; otherwise one is an error */
    const char *const *columns;
    size_t n_columns;
    size_t n_keys;                /* the first columns, which identify a row */
    struct json_object *identity; /* texts by name; not kept */
} cli_bench_log_options;

/* Opens the log. Returns an exit code. Only the path must outlive the call. */
int cli_bench_log_open(cli_bench_log **out, const cli_bench_log_options *options);
void cli_bench_log_close(cli_bench_log **log);

/* The [n_columns] cells of the row with these keys, valid until the log is closed; or NULL. */
const char *const *cli_bench_log_find(const cli_bench_log *log, const char *const *keys);
/* cells: [n_columns], copied. Returns an exit code. */
int cli_bench_log_append(cli_bench_log *log, const char *const *cells);

#endif
