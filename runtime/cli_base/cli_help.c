/* SPDX-License-Identifier: MIT */
#include "cli_help.h"

#include <stdio.h>
#include <string.h>

#include "cli_option_rules.h"
#include "cli_option_table.h"

#define WIDTH  100
#define INDENT 32

const char *cli_command_title(const cli_command *command, char *out, size_t size)
{
    snprintf(out, size, "%s%s%s", command->name, command->word == NULL ? "" : " ",
             command->word == NULL ? "" : command->word);
    return out;
}

/* Prints words from INDENT on; *at is the column where the line ends. */
static void print_words(const char *text, int *at)
{
    while (*text != '\0') {
        int size = (int)strcspn(text, " ");
        if (*at > INDENT && *at + 1 + size > WIDTH) {
            printf("\n%*s", INDENT, "");
            *at = INDENT;
        }
        *at += printf("%s%.*s", *at > INDENT ? " " : "", size, text);
        text += size;
        text += strspn(text, " ");
    }
}

static void print_option(const cli_option_row *row, unsigned command)
{
    char names[128];
    char rules[512];
    char text[1024];
    snprintf(names, sizeof names, "%s%s%s%s%s", row->names[0], row->names[1] == NULL ? "" : ", ",
             row->names[1] == NULL ? "" : row->names[1], row->argument == NULL ? "" : " ",
             row->argument == NULL ? "" : row->argument);
    printf("  %-*s", INDENT - 2, names);
    int at = INDENT;
    if (strlen(names) >= INDENT - 2) {
        printf("\n%*s", INDENT, "");
    }
    bool more = cli_option_rules_describe(row, command, rules, sizeof rules) > 0;
    snprintf(text, sizeof text, "%s%s%s", row->help, more ? "; " : "", rules);
    print_words(text, &at);
    printf("\n");
}

static bool is_shown(const cli_option_row *row, unsigned command, size_t subject)
{
    return (row->commands & command) != 0 && row->subject == (cli_option_subject)subject;
}

static void print_subject(size_t subject, unsigned command)
{
    bool any = false;
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        if (is_shown(&cli_option_rows[i], command, subject)) {
            if (!any) {
                printf("%s:\n", cli_option_subjects[subject]);
            }
            any = true;
            print_option(&cli_option_rows[i], command);
        }
    }
    printf("%s", any ? "\n" : "");
}

void cli_print_command_help(const cli_command *command)
{
    char title[64];
    printf("usage: moe-offload %s%s [options]\n\n%s\n\n", cli_command_title(command, title, 64),
           command->needs_model ? " -m FILE" : "", command->summary);
    for (size_t subject = SUBJECT_OTHER + 1; subject < SUBJECT_COUNT; subject++) {
        print_subject(subject, command->bit);
    }
    print_subject(SUBJECT_OTHER, command->bit);
    printf("  %-30s%s\n", "-h, --help", "this text");
    if (command->details != NULL) {
        printf("\n%s\n", command->details);
    }
}

void cli_print_overview(const char *name)
{
    puts(name == NULL ? "usage: moe-offload COMMAND [options]\n\n"
                        "Runs mixture-of-experts language models (GGUF files).\n"
                      : "usage: moe-offload COMMAND [options]\n");
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        char title[64];
        if (name == NULL || strcmp(command->name, name) == 0) {
            printf("  %-16s%s\n", cli_command_title(command, title, sizeof title),
                   command->summary);
        }
    }
    puts("\n'moe-offload COMMAND --help' lists a command's options; "
         "'moe-offload --version' the version.\n"
         "Exit status: 0 ok, 1 failure, 2 usage, 129 hung up, 130 interrupted, 143 terminated.");
}
