/* SPDX-License-Identifier: MIT */
#include "cli_help.h"

#include <stdio.h>
#include <string.h>

#include "cli_option_rules.h"
#include "cli_option_table.h"

#define WIDTH  100
#define INDENT 32
/* --help lists this many options at most. */
#define MOST_OPTIONS 24

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

/* The options of one command that are listed. */
typedef struct choice {
    unsigned command;
    bool all; /* not only the everyday ones */
} choice;

#define LEAST_CLAUSE 12

/* Returns the length of the first clause of a help text. */
static int first_clause(const char *help)
{
    size_t size = strlen(help);
    static const char *const ends[] = {"; ", ". ", " (", ": "};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const char *end = strstr(help, ends[i]);
        size_t before = end == NULL ? size : (size_t)(end - help);
        size = before < size && before >= LEAST_CLAUSE ? before : size;
    }
    return (int)size;
}

/* Shortens a help text to its first clause and its default, if these fit on a line. */
static void shorten(const char *help, char *out, size_t size)
{
    const char *usual = strstr(help, "(default ");
    int clause = first_clause(help);
    int n = snprintf(out, size, "%.*s", clause, help);
    if (usual != NULL && usual >= help + clause) {
        snprintf(out + n, size - (size_t)n, " %.*s)", (int)strcspn(usual, ")"), usual);
    }
    if (INDENT + strlen(out) > WIDTH) {
        out[clause] = '\0';
    }
}

static void print_option(const cli_option_row *row, const choice *shown)
{
    char names[128];
    char rules[512];
    char text[1024];
    int n = snprintf(names, sizeof names, "%s%s%s%s%s", row->names[0],
                     row->names[1] == NULL ? "" : ", ", row->names[1] == NULL ? "" : row->names[1],
                     row->argument == NULL ? "" : " ", row->argument == NULL ? "" : row->argument);
    if (!shown->all && n > INDENT - 3) {
        snprintf(names + INDENT - 6, 4, "...");
    }
    printf("  %-*s", INDENT - 2, names);
    int at = INDENT;
    if (strlen(names) >= INDENT - 2) {
        printf("\n%*s", INDENT, "");
    }
    if (shown->all) {
        bool more = cli_option_rules_describe(row, shown->command, rules, sizeof rules) > 0;
        snprintf(text, sizeof text, "%s%s%s", row->help, more ? "; " : "", rules);
    } else {
        shorten(row->help, text, sizeof text);
    }
    print_words(text, &at);
    printf("\n");
}

static bool is_shown(const cli_option_row *row, const choice *shown)
{
    return (row->commands & shown->command) != 0 && (shown->all || row->everyday);
}

static size_t count_options(const choice *shown)
{
    size_t n = 0;
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        n += is_shown(&cli_option_rows[i], shown);
    }
    return n;
}

static void print_subject(cli_option_subject subject, const choice *shown)
{
    bool any = false;
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i];
        if (row->subject == subject && is_shown(row, shown)) {
            if (!any) {
                printf("%s:\n", cli_option_subjects[subject]);
            }
            any = true;
            print_option(row, shown);
        }
    }
    printf("%s", any && shown->all ? "\n" : "");
}

void cli_print_command_help(const cli_command *command, bool all)
{
    char title[64];
    choice shown = {command->bit, true};
    size_t n = count_options(&shown);
    bool short_form = !all && n > MOST_OPTIONS;
    shown.all = !short_form;
    printf("usage: moe-offload %s%s [options]\n\n%s\n\n", cli_command_title(command, title, 64),
           !command->needs_model ? ""
           : (command->bit & (CLI_PULL | CLI_REMOVE | CLI_SHOW)) != 0
               ? " OWNER/REPO[@REVISION][:QUANT]"
               : " -m FILE",
           command->summary);
    for (int subject = SUBJECT_OTHER + 1; subject < SUBJECT_COUNT; subject++) {
        print_subject((cli_option_subject)subject, &shown);
    }
    print_subject(SUBJECT_OTHER, &shown);
    printf("%s  %-30s%s\n", short_form ? "\n" : "", "-h, --help", "this text");
    if (short_form) {
        printf("  %-30sall %zu options, and more about these\n", "--help-all", n);
    } else if (command->details != NULL) {
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
