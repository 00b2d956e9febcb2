/* SPDX-License-Identifier: MIT */
/* A benchmark over all combinations of lists. It runs them interleaved (all combinations once, then
 * all of them again), keeps every measurement in a cli_bench_log, so that it is not repeated later,
 * and prints medians over the repetitions in every format.
 *
 *    axes  --policy lru,lfru  x  --expert-cache 25%,50%     -> run() -> measures, a log row each
 *          repetition 0, 1, 2 ...                              |
 *                                     table, CSV, JSON, gnuplot <- medians
 */
#ifndef CLI_SWEEP_H
#define CLI_SWEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <json-c/json.h>

#include "cli_options.h"
#include "cli_sweep_values.h"

#define CLI_SWEEP_AXES  8
#define CLI_SWEEP_PARTS 32
#define CLI_SWEEP_TEXT  256 /* bytes of a value, with its terminator */

typedef struct cli_axis {
    const char *name;                    /* its column */
    const char *option;                  /* the option that gives its list, for messages */
    const char *wants;                   /* the form of a value, for messages */
    bool (*is_valid)(const char *value); /* NULL: anything */
    bool is_number;                      /* a plot can have it as its x axis */
    char values[CLI_SWEEP_PARTS][CLI_SWEEP_TEXT];
    size_t n;
} cli_axis;

enum { CLI_MEASURE_TEXT = -1 };
typedef struct cli_measure {
    const char *name;
    int digits;     /* digits after the decimal point, or CLI_MEASURE_TEXT */
    bool is_detail; /* not in the table for people */
} cli_measure;

/* A text or a number, by the measure's kind. A number that is not finite is printed as absent. */
typedef struct cli_measured {
    double number;
    char text[CLI_SWEEP_TEXT];
} cli_measured;

typedef struct cli_sweep cli_sweep;
struct cli_sweep {
    const char *bench; /* "io" */
    const cli_options *options;
    cli_axis axes[CLI_SWEEP_AXES];
    size_t n_axes;
    const cli_measure *measures;
    size_t n_measures;
    struct json_object *identity; /* what all rows have in common: texts by name; owned by the sweep
                                   */
    const char *plotted;          /* the measure that plots show */
    /* Measures one combination: values: [n_axes]; results: [n_measures]. Returns an exit code. */
    int (*run)(cli_sweep *s, const char *const *values, size_t repetition, cli_measured *results);
    /* Not NULL: the name of a number that is derived from measurements of the same repetition; NAN:
     * none. */
    const char *derived;
    double (*derive)(const cli_sweep *s, const char *const *values, size_t repetition);
    /* Not NULL: a text measure that must be equal in all measurements. */
    const char *same;
    void *user;
    struct cli_bench_log *log;
    unsigned format;
};

/* Adds an axis with the values of the list, or of `standard` if the list is NULL. Returns an exit
 * code. */
int cli_sweep_add_axis(cli_sweep *s, const cli_axis *axis, const char *list, const char *standard);
/* Adds facts about the machine and the library to the identity, and about the model if path is not
 * NULL. */
int cli_sweep_identify(cli_sweep *s, const char *path, bool is_model);
/* Opens the log, runs the missing measurements and prints. Returns an exit code. */
int cli_sweep_run(cli_sweep *s);
void cli_sweep_close(cli_sweep *s);

/* The text of a measure in a measurement that was made, or NULL. */
const char *cli_sweep_find(const cli_sweep *s, const char *const *values, size_t repetition,
                           const char *measure);

#endif
