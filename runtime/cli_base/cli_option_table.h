/* SPDX-License-Identifier: MIT */
/* A row for each option, separate from the code that reads it. A name may have several rows if it
 * means different things to different commands. cli_option_rules.h says which options need which
 * others. */
#ifndef CLI_OPTION_TABLE_H
#define CLI_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "cli_options.h"

typedef enum cli_option_kind {
    OPTION_FLAG,   /* bool, no value */
    OPTION_TEXT,   /* const char * */
    OPTION_LIST,   /* cli_text_list; the option may be given again */
    OPTION_COUNT,  /* uint64_t in [min, max] */
    OPTION_SIGNED, /* int64_t in [min, max] */
    OPTION_REAL,   /* double in [min, max], except ends that are marked open */
    OPTION_SIZE,   /* cli_size: bytes with K, M, G or T, or a percentage */
    OPTION_CHOICE, /* unsigned: index into the words of `argument`, separated by '|' */
    OPTION_NAME    /* const char *: one of the words of `argument`, or a text that begins as
                    * "model:FILE" does */
} cli_option_kind;

/* The option's section in the help and the manual; sections appear in this order. */
typedef enum cli_option_subject {
    SUBJECT_OTHER,
    SUBJECT_INPUT,
    SUBJECT_SERVING,
    SUBJECT_SAMPLING,
    SUBJECT_COMPUTING,
    SUBJECT_MEMORY,
    SUBJECT_READING,
    SUBJECT_SPECULATION,
    SUBJECT_LOSSY,
    SUBJECT_MEASURING,
    SUBJECT_RESULTS,
    SUBJECT_COUNT
} cli_option_subject;

typedef struct cli_option_row {
    const char *names[2]; /* the second may be NULL */
    const char *argument; /* the value's name in the help; for choices their words */
    const char *help;
    double min;
    double max;
    size_t offset; /* offset of the value in cli_options */
    unsigned commands;
    cli_option_kind kind;
    cli_option_subject subject;
    bool everyday; /* listed by --help of commands with many options, and not only by --help-all */
    bool min_open;
    bool max_open;
    bool no_share; /* sizes: a percentage is not allowed */
    uint32_t step; /* sizes: must be a multiple of this; 0: any */
} cli_option_row;

extern const cli_option_row cli_option_rows[];
extern const size_t cli_n_option_rows;
extern const char *const cli_option_subjects[SUBJECT_COUNT];
/* The values of options that are not given. */
extern const cli_options cli_option_defaults;

bool cli_option_has_name(const cli_option_row *row, const char *name);

#endif
