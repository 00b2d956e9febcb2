/* SPDX-License-Identifier: MIT */
/* Options of the command with values that can be run, from the tables of runtime/cli_base. */
#ifndef OPTION_VALUES_H
#define OPTION_VALUES_H

#include "../../runtime/cli_base/cli_option_rules.h"
#include "../../runtime/cli_base/cli_options.h"

#define OPTION_VALUES_MOST        512 /* of a command */
#define OPTION_VALUES_MOST_OTHERS 4

typedef struct option_choice {
    const cli_option_row *row;
    char text[128];
    const struct option_choice *others[OPTION_VALUES_MOST_OTHERS]; /* that it needs */
    size_t n_others;
} option_choice;

/* The values of an option that are tried; returns how many. Ends the program if there are none. */
size_t option_values_of(option_choice *to, const cli_option_row *row, unsigned command);
/* Appends the option, and its value if it has one; returns how many words there are then. */
size_t option_values_argument(char **argv, size_t n, const option_choice *c);
/* Adds the choice and what it needs; false: an option is there already with another value. */
bool option_values_add(const option_choice **list, size_t *n, const option_choice *c);
/* Whether the parser accepts all of them with what they need. */
bool option_values_accepted(const cli_command *command, const option_choice *const *choices,
                            size_t n);
/* Finds the options that the choice needs: none, one or two. False: it is never accepted. */
bool option_values_find_others(const cli_command *command, option_choice *c,
                               const option_choice *all, size_t n);

#endif
