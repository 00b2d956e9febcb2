/* SPDX-License-Identifier: MIT */
/* /set NAME VALUE: changes an option of sampling during a conversation. */
#ifndef CLI_CHAT_SET_H
#define CLI_CHAT_SET_H

#include "cli_options.h"

/* The values that were set, for the check of options against each other; begin with zeros. */
typedef struct cli_chat_values {
    char (*text)[32]; /* for each row of the option table; NULL: nothing was set */
} cli_chat_values;

/* Changes the option, or nothing after an error. Returns an exit code. */
int cli_chat_set(cli_options *options, cli_chat_values *values, const char *argument);

/* Frees the values, and what the options own since then. */
void cli_chat_values_free(cli_options *options, cli_chat_values *values);

#endif
