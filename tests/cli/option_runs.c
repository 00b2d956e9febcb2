/* SPDX-License-Identifier: MIT */
/* option_runs: lists every option of every command with values that can be run, from the tables of
 * runtime/cli_base, for option_runs.py. One line a choice, words separated by tabs:
 *   choice  COMMAND  --option  value  [--other  value ...]
 * where the others are options that the parser wants beside the first, found by trying. "-" stands
 * for no value. The argument is a file for the parser's messages. */
#include <stdio.h>

#include "option_values.h"

static void print_choice(const cli_command *command, const option_choice *c)
{
    const option_choice *list[2 * OPTION_VALUES_MOST_OTHERS];
    size_t n = 0;
    (void)option_values_add(list, &n, c);
    printf("choice\t%s%s%s", command->name, command->word != NULL ? " " : "",
           command->word != NULL ? command->word : "");
    for (size_t i = 0; i < n; i++) {
        printf("\t%s\t%s", list[i]->row->names[0], list[i]->text);
    }
    printf("\n");
}

static bool list_choices(const cli_command *command)
{
    static option_choice all[OPTION_VALUES_MOST];
    size_t n = 0;
    bool good = true;
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        if ((cli_option_rows[i].commands & command->bit) != 0) {
            n += option_values_of(all + n, &cli_option_rows[i], command->bit);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (!option_values_find_others(command, &all[i], all, n)) {
            printf("FAIL %s: %s %s is never accepted\n", command->name, all[i].row->names[0],
                   all[i].text);
            good = false;
        }
        print_choice(command, &all[i]);
    }
    return good;
}

int main(int argc, char **argv)
{
    bool good = true;
    if (argc != 2 || freopen(argv[1], "w", stderr) == NULL) {
        return 2;
    }
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        good = list_choices(command) && good;
    }
    return good ? 0 : 1;
}
