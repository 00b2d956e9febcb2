/* SPDX-License-Identifier: MIT */
/* option_pairs: gives every pair of options of every command to the parser, each with several
 * values, and checks that
 *  - a pair is accepted or refused alike in both orders, with the same words;
 *  - what is refused has exit status 2 and a message that names the options it speaks of;
 *  - every row of cli_option_rules.c refuses something, for each option that it names.
 * Prints the pairs that are refused, one a line, for the command itself to be tried with:
 *   command|option|other option|arguments
 * The file for messages is the first argument. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/cli_base/cli_foreign_names.h"
#include "../../runtime/cli_base/cli_option_rules.h"
#include "../../runtime/cli_base/cli_options.h"

#define MOST_VALUES 16

typedef struct choice {
    const cli_option_row *row;
    char text[96];
} choice;

static int n_failed;
static int message_fd;
static bool fired[256][16]; /* [rule][option of the rule] */

static void fail(const char *command, const choice *a, const choice *b, const char *why)
{
    fprintf(stdout, "FAIL %s %s %s, %s %s: %s\n", command, a->row->names[0], a->text,
            b->row->names[0], b->text, why);
    n_failed++;
}

/* ---- Values to try ---- */

static size_t add_words(choice *values, size_t n, const char *words)
{
    for (const char *at = words; n < MOST_VALUES; at++) {
        size_t size = strcspn(at, "|");
        snprintf(values[n++].text, sizeof values[0].text, "%.*s", (int)size, at);
        at += size;
        if (*at == '\0') {
            break;
        }
    }
    return n;
}

/* Values of the rules' own, so that each "name=value" is met. */
static size_t add_values_of_rules(choice *values, size_t n, const cli_option_row *row)
{
    for (size_t i = 0; i < cli_n_option_rules; i++) {
        const char *const lists[] = {cli_option_rules[i].options, cli_option_rules[i].others};
        for (size_t k = 0; k < 2; k++) {
            for (const char *list = lists[k]; list != NULL;) {
                char name[32];
                char words[96];
                bool differs;
                list = cli_option_rule_term(list, name, words, &differs);
                if (words[0] != '\0' && cli_option_has_name(row, name)) {
                    n = add_words(values, n, words);
                }
            }
        }
    }
    return n;
}

static size_t values_of(choice *values, const cli_option_row *row)
{
    size_t n = 0;
    switch (row->kind) {
    case OPTION_FLAG:
        n = 1;
        values[0].text[0] = '\0';
        break;
    case OPTION_CHOICE:
    case OPTION_NAME:
        n = add_words(values, n, row->argument);
        break;
    case OPTION_SIZE:
        snprintf(values[n++].text, sizeof values[0].text, "1M");
        break;
    case OPTION_TEXT:
        n = add_values_of_rules(values, n, row);
        if (strcmp(row->names[0], "--device") == 0) {
            n = add_words(values, n, "auto|sim:memory=2G");
        } else if (strcmp(row->names[0], "--policy") == 0) {
            n = add_words(values, n, "lru|./plug-in.so");
        } else if (strcmp(row->names[0], "--buddy") == 0) {
            n = add_words(values, n, "on|rho=3,alpha=0.9");
        } else {
            n = add_words(values, n, "text|a,b");
        }
        break;
    default:
        n = add_values_of_rules(values, n, row);
        snprintf(values[n++].text, sizeof values[0].text, "%.16g",
                 row->max_open || row->min_open ? (row->min + row->max) / 2 : row->max);
    }
    for (size_t i = 0; i < n; i++) {
        values[i].row = row;
    }
    return n;
}

/* ---- One command line ---- */

static size_t add_argument(char **argv, size_t n, const choice *c)
{
    argv[n++] = (char *)c->row->names[0];
    if (c->row->kind != OPTION_FLAG) {
        argv[n++] = (char *)c->text;
    }
    return n;
}

/* The exit code; what was told is in message. */
static int parse(const cli_command *command, const choice *a, const choice *b, char *message,
                 size_t size)
{
    char *argv[4];
    cli_options options = cli_option_defaults;
    int code;
    size_t n = add_argument(argv, 0, a);
    n = b != NULL ? add_argument(argv, n, b) : n;
    fflush(stderr);
    if (ftruncate(message_fd, 0) != 0 || lseek(message_fd, 0, SEEK_SET) != 0) {
        abort();
    }
    bool ok = cli_options_apply(&options, command, (int)n, argv, &code);
    cli_options_free(&options);
    fflush(stderr);
    ssize_t got = pread(message_fd, message, size - 1, 0);
    message[got > 0 ? got : 0] = '\0';
    return ok == (code == CLI_EXIT_OK) ? code : -1;
}

/* ---- Which rule spoke ---- */

static void note_rule(const choice *c, const char *message)
{
    for (size_t i = 0; i < cli_n_option_rules; i++) {
        size_t k = 0;
        if (strstr(message, cli_option_rules[i].why) == NULL) {
            continue;
        }
        for (const char *list = cli_option_rules[i].options; list != NULL; k++) {
            char name[32];
            char values[96];
            bool differs;
            list = cli_option_rule_term(list, name, values, &differs);
            fired[i][k] |= cli_option_has_name(c->row, name) && strstr(message, name) != NULL;
        }
    }
}

static void check_rules_fired(void)
{
    for (size_t i = 0; i < cli_n_option_rules; i++) {
        size_t k = 0;
        for (const char *list = cli_option_rules[i].options; list != NULL; k++) {
            char name[32];
            char values[96];
            bool differs;
            list = cli_option_rule_term(list, name, values, &differs);
            if (!fired[i][k]) {
                fprintf(stdout, "FAIL rule %zu, '%s' / '%s': %s is never refused\n", i,
                        cli_option_rules[i].options, cli_option_rules[i].others, name);
                n_failed++;
            }
        }
    }
}

/* ---- Pairs ---- */

static bool names_of(const choice *c, const char *message)
{
    for (int i = 0; i < 2 && c->row->names[i] != NULL; i++) {
        size_t size = strlen(c->row->names[i]);
        const char *at = message;
        while ((at = strstr(at, c->row->names[i])) != NULL) {
            if (strchr(" :,\n", at[size]) != NULL && at[-1] == ' ') {
                return true;
            }
            at += size;
        }
    }
    return false;
}

static void print_pair(const cli_command *command, const choice *a, const choice *b)
{
    const choice *const both[] = {a, b};
    printf("%s %s|%s|%s|", command->name, command->word != NULL ? command->word : "",
           a->row->names[0], b->row->names[0]);
    for (size_t i = 0; i < 2; i++) {
        bool flag = both[i]->row->kind == OPTION_FLAG;
        printf("%s%s%s%s ", both[i]->row->names[0], flag ? "" : " '", both[i]->text,
               flag ? "" : "'");
    }
    printf("\n");
}

static void check_pair(const cli_command *command, const choice *a, const choice *b)
{
    char alone[2][512];
    char first[512];
    char second[512];
    int code_a = parse(command, a, NULL, alone[0], sizeof alone[0]);
    int code_b = parse(command, b, NULL, alone[1], sizeof alone[1]);
    int code = parse(command, a, b, first, sizeof first);
    int turned = parse(command, b, a, second, sizeof second);
    note_rule(a, alone[0]);
    note_rule(b, alone[1]);
    note_rule(a, first);
    note_rule(b, first);
    if (code != turned || strcmp(first, second) != 0) {
        fail(command->name, a, b, "the order matters");
    } else if (code == CLI_EXIT_OK && first[0] != '\0') {
        fail(command->name, a, b, "accepted, with a message");
    } else if (code != CLI_EXIT_OK && code != CLI_EXIT_USAGE) {
        fail(command->name, a, b, "another exit status than 2");
    } else if (code != CLI_EXIT_OK && !names_of(a, first) && !names_of(b, first)) {
        fail(command->name, a, b, first);
    } else if (code_a == CLI_EXIT_OK && code_b == CLI_EXIT_OK && code != CLI_EXIT_OK) {
        if (!names_of(a, first) || !names_of(b, first)) {
            fail(command->name, a, b, first);
        } else if (command->bit != CLI_CONFIG) {
            print_pair(command, a, b);
        }
    }
}

static unsigned long try_pairs(const cli_command *command)
{
    choice(*values)[MOST_VALUES] = calloc(cli_n_option_rows, sizeof *values);
    size_t *n_values = calloc(cli_n_option_rows, sizeof *n_values);
    unsigned long n = 0;
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i];
        n_values[i] = (row->commands & command->bit) != 0 ? values_of(values[i], row) : 0;
    }
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        for (size_t j = i + 1; j < cli_n_option_rows; j++) {
            for (size_t v = 0; v < n_values[i]; v++) {
                for (size_t w = 0; w < n_values[j]; w++) {
                    check_pair(command, &values[i][v], &values[j][w]);
                    n++;
                }
            }
        }
    }
    free(values);
    free(n_values);
    return n;
}

/* ---- llama.cpp's names ---- */

static bool is_option(const char *name)
{
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        if (cli_option_has_name(&cli_option_rows[i], name)) {
            return true;
        }
    }
    return false;
}

/* Each leads to an option that exists or has a text, hides none, and is ready for every value. */
static void check_foreign_names(void)
{
    for (const cli_foreign_row *row = cli_foreign_rows; row->names[0] != NULL; row++) {
        bool leads = row->kind == FOREIGN_IS || row->kind == FOREIGN_MEANS;
        bool right = leads ? is_option(row->option) : row->text != NULL && row->option == NULL;
        for (size_t i = 0; i < 3 && row->names[i] != NULL; i++) {
            const char *any = row->values == NULL ? NULL : "any value at all";
            right =
                right && !is_option(row->names[i]) && cli_foreign_find(row->names[i], any) != NULL;
        }
        if (!right) {
            fprintf(stdout, "FAIL llama.cpp's name %s\n", row->names[0]);
            n_failed++;
        }
    }
}

int main(int argc, char **argv)
{
    static const cli_command configuration = {
        .name = "bench speculate", .word = "--configs", .bit = CLI_CONFIG};
    unsigned long n = 0;
    if (argc != 2 || freopen(argv[1], "w+", stderr) == NULL) {
        return 2;
    }
    message_fd = fileno(stderr);
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        n += try_pairs(command);
    }
    n += try_pairs(&configuration);
    check_rules_fired();
    check_foreign_names();
    printf("# %lu pairs, %d failed\n", n, n_failed);
    return n > 1000 && n_failed == 0 ? 0 : 1;
}
