/* SPDX-License-Identifier: MIT */
/* One row an option, apart from the code that reads it. A name may stand in several rows when it
 * means different things to different commands. */
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
    OPTION_REAL,   /* double in [min, max], without the ends that are open */
    OPTION_SIZE,   /* cli_size: bytes with K, M, G or T, or a percentage */
    OPTION_CHOICE, /* unsigned: index into the words of `argument`, separated by '|' */
    OPTION_NAME    /* const char *, one of the words of `argument` */
} cli_option_kind;

typedef struct cli_option_row {
    const char *names[2]; /* the second may be NULL */
    const char *argument; /* what the value is called in the help; choices: its words */
    const char *help;
    double min;
    double max;
    size_t offset; /* of the value in cli_options */
    unsigned commands;
    cli_option_kind kind;
    bool min_open;
    bool max_open;
} cli_option_row;

extern const cli_option_row cli_option_rows[];
extern const size_t cli_n_option_rows;
/* The values of options that are not given. */
extern const cli_options cli_option_defaults;

#endif
