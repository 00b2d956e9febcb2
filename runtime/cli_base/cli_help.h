/* SPDX-License-Identifier: MIT */
/* --help: made from the tables of commands, options and rules. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include <stdbool.h>
#include <stddef.h>

#include "cli_options.h"

/* "bench decode" */
const char *cli_command_title(const cli_command *command, char *out, size_t size);

/* Prints a command's help. If the command has many options, --help lists the everyday ones and
 * --help-all all of them. */
void cli_print_command_help(const cli_command *command, bool all);

/* Prints the list of commands on stdout. With a name, prints only commands of two words that begin
 * with it. */
void cli_print_overview(const char *name);

#endif
