/* SPDX-License-Identifier: MIT */
#include "cli_chat_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_option_table.h"

/* Whether /set can change the option: numbers of sampling, and the length of answers. */
static bool can_be_set(const cli_option_row *row)
{
    bool number =
        row->kind == OPTION_REAL || row->kind == OPTION_COUNT || row->kind == OPTION_SIGNED;
    return (row->commands & CLI_RUN) != 0 && number &&
           (row->subject == SUBJECT_SAMPLING || cli_option_has_name(row, "--predict"));
}

/* The option's long name without its hyphens. */
static const char *name_of(const cli_option_row *row)
{
    return (row->names[1] != NULL ? row->names[1] : row->names[0]) + 2;
}

static int fail(const char *name)
{
    char names[256] = "";
    size_t n = 0;
    for (size_t i = 0; i < cli_n_option_rows && n < sizeof names; i++) {
        if (can_be_set(&cli_option_rows[i])) {
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n > 0 ? ", " : "",
                                  name_of(&cli_option_rows[i]));
        }
    }
    return cli_fail(CLI_EXIT_USAGE, "/set takes a name and a value, not '%.60s'; names are %s",
                    name, names);
}

static const cli_command *run_command(void)
{
    const cli_command *command = cli_commands;
    while (command->bit != CLI_RUN) {
        command++;
    }
    return command;
}

int cli_chat_set(cli_options *options, cli_chat_values *values, const char *argument)
{
    char name[32], value[32], more[2], flag[40];
    if (sscanf(argument, "%31s %31s %1s", name, value, more) != 2) {
        return fail(argument);
    }
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        cli_options changed = *options;
        int code;
        if (!can_be_set(&cli_option_rows[i]) || strcmp(name_of(&cli_option_rows[i]), name) != 0) {
            continue;
        }
        snprintf(flag, sizeof flag, "--%s", name);
        char *const words[] = {flag, value};
        if (!cli_options_apply(&changed, run_command(), 2, words, &code)) {
            return code;
        }
        if (values->text != NULL) {
            cli_options_free(options); /* of an earlier /set */
        } else if ((values->text = calloc(cli_n_option_rows, sizeof *values->text)) == NULL) {
            cli_options_free(&changed);
            return cli_fail(CLI_EXIT_FAILURE, "out of memory for /set");
        }
        snprintf(values->text[i], sizeof values->text[i], "%s", value);
        changed.given[i] = values->text[i];
        *options = changed;
        return CLI_EXIT_OK;
    }
    return fail(argument);
}

void cli_chat_values_free(cli_options *options, cli_chat_values *values)
{
    if (values->text != NULL) {
        cli_options_free(options);
        free(values->text);
        values->text = NULL;
    }
}
