/* SPDX-License-Identifier: MIT */
#include "cli_options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_option_table.h"

int cli_fail(int exit_code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("moe-offload: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return exit_code;
}

static const char *command_title(const cli_command *command, char *out, size_t size)
{
    snprintf(out, size, "%s%s%s", command->name, command->word == NULL ? "" : " ",
             command->word == NULL ? "" : command->word);
    return out;
}

static bool row_has_name(const cli_option_row *row, const char *name)
{
    return strcmp(row->names[0], name) == 0 ||
           (row->names[1] != NULL && strcmp(row->names[1], name) == 0);
}

/* The row of that name that the command knows; *known tells a misplaced option from a wrong one. */
static const cli_option_row *find_row(const char *name, unsigned command, bool *known)
{
    *known = false;
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        if (row_has_name(&cli_option_rows[i], name)) {
            *known = true;
            if ((cli_option_rows[i].commands & command) != 0) {
                return &cli_option_rows[i];
            }
        }
    }
    return NULL;
}

static bool parse_integer(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0;
}

static bool parse_real(const char *text, double *value)
{
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && errno == 0 && isfinite(*value);
}

/* "512M", "1.5G", "123456", "40%". Units are powers of 1024, as in llama.cpp's and the shell's. */
static bool parse_size(const char *text, cli_size *size)
{
    static const char units[] = "KMGT";
    char *end;
    double number = strtod(text, &end);
    if (end == text || !isfinite(number) || number <= 0 || text[0] == '-') {
        return false;
    }
    *size = (cli_size){0, 0};
    if (strcmp(end, "%") == 0) {
        size->share = number / 100;
        return number <= 100;
    }
    const char *unit = *end == '\0' ? NULL : strchr(units, toupper((unsigned char)*end));
    if (*end != '\0' && (unit == NULL || end[1] != '\0')) {
        return false;
    }
    double bytes = unit == NULL ? number : ldexp(number, 10 * (int)(unit - units + 1));
    if (bytes > 1e18) {
        return false;
    }
    size->bytes = bytes < 1 ? 1 : (uint64_t)bytes;
    return true;
}

static int append_text(const char *name, cli_text_list *list, const char *text)
{
    size_t used = strlen(list->text);
    size_t size = strlen(text);
    if (size == 0) {
        return cli_fail(CLI_EXIT_USAGE, "%s: the value is empty", name);
    }
    if (used + size + 2 > sizeof list->text) {
        return cli_fail(CLI_EXIT_USAGE, "%s: its values are longer than %zu bytes together", name,
                        sizeof list->text - 2);
    }
    if (used > 0) {
        list->text[used++] = ',';
    }
    memcpy(list->text + used, text, size + 1);
    return CLI_EXIT_OK;
}

static bool in_range(const cli_option_row *row, double value)
{
    return (row->min_open ? value > row->min : value >= row->min) &&
           (row->max_open ? value < row->max : value <= row->max);
}

/* Index of text among the words of the row's argument, or -1. */
static int find_word(const cli_option_row *row, const char *text)
{
    int index = 0;
    size_t size = strlen(text);
    for (const char *word = row->argument;; index++) {
        size_t length = strcspn(word, "|");
        if (length == size && memcmp(word, text, size) == 0) {
            return index;
        }
        if (word[length] == '\0') {
            return -1;
        }
        word += length + 1;
    }
}

static int range_error(const cli_option_row *row, const char *name, const char *text)
{
    return cli_fail(CLI_EXIT_USAGE, "%s must be %s from %s%.15g to %s%.15g, not '%s'", name,
                    row->kind == OPTION_REAL ? "a number" : "a whole number",
                    row->min_open ? "above " : "", row->min, row->max_open ? "below " : "",
                    row->max, text);
}

static int store_number(const cli_option_row *row, const char *name, void *value, const char *text)
{
    int64_t integer = 0;
    double real = 0;
    bool valid = row->kind == OPTION_REAL ? parse_real(text, &real) : parse_integer(text, &integer);
    if (!valid || !in_range(row, row->kind == OPTION_REAL ? real : (double)integer)) {
        return range_error(row, name, text);
    }
    if (row->kind == OPTION_REAL) {
        *(double *)value = real;
    } else if (row->kind == OPTION_SIGNED) {
        *(int64_t *)value = integer;
    } else {
        *(uint64_t *)value = (uint64_t)integer;
    }
    return CLI_EXIT_OK;
}

static int store(const cli_option_row *row, const char *name, cli_options *options,
                 const char *text)
{
    void *value = (char *)options + row->offset;
    int word;
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)value = true;
        return CLI_EXIT_OK;
    case OPTION_TEXT:
        *(const char **)value = text;
        return CLI_EXIT_OK;
    case OPTION_LIST:
        return append_text(name, value, text);
    case OPTION_SIZE:
        return parse_size(text, value)
                   ? CLI_EXIT_OK
                   : cli_fail(CLI_EXIT_USAGE,
                              "%s must be a size like 800M, 6G or 40%% (at most 100%%), not '%s'",
                              name, text);
    case OPTION_CHOICE:
    case OPTION_NAME:
        word = find_word(row, text);
        if (word < 0) {
            return cli_fail(CLI_EXIT_USAGE, "%s must be %s, not '%s'", name, row->argument, text);
        }
        if (row->kind == OPTION_CHOICE) {
            *(unsigned *)value = (unsigned)word;
        } else {
            *(const char **)value = text;
        }
        return CLI_EXIT_OK;
    default:
        return store_number(row, name, value, text);
    }
}

/* By its kind; the library looks at the rest. */
static bool is_device(const char *text)
{
    return text == NULL || strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0 ||
           strcmp(text, "cuda") == 0 || strncmp(text, "cuda:", 5) == 0 ||
           strncmp(text, "sim:", 4) == 0;
}

/* What two options together cannot mean. */
static int check_together(const cli_options *options, const char *title)
{
    if (options->prompt != NULL && options->prompt_file != NULL) {
        return cli_fail(CLI_EXIT_USAGE, "%s: -p and -f are two prompts: give one", title);
    }
    if (options->tokens != NULL && (options->prompt != NULL || options->prompt_file != NULL)) {
        return cli_fail(CLI_EXIT_USAGE, "%s: --tokens stands instead of -p or -f: give one", title);
    }
    if (!is_device(options->device)) {
        return cli_fail(CLI_EXIT_USAGE,
                        "%s: --device must be auto, cpu, cuda, cuda:1 or "
                        "sim:memory=...,link=...GB/s, not '%s'",
                        title, options->device);
    }
    if (options->raw && options->chat) {
        return cli_fail(CLI_EXIT_USAGE, "%s: --raw and --chat exclude each other", title);
    }
    if (options->tokens != NULL && (options->raw || options->chat)) {
        return cli_fail(CLI_EXIT_USAGE, "%s: --tokens are ids already: --%s cannot apply", title,
                        options->raw ? "raw" : "chat");
    }
    return CLI_EXIT_OK;
}

static void print_command_help(const cli_command *command)
{
    char title[64];
    printf("usage: moe-offload %s%s [options]\n\n%s\n\n", command_title(command, title, 64),
           command->needs_model ? " -m FILE" : "", command->summary);
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i];
        if ((row->commands & command->bit) == 0) {
            continue;
        }
        char names[96];
        snprintf(names, sizeof names, "%s%s%s%s%s", row->names[0],
                 row->names[1] == NULL ? "" : ", ", row->names[1] == NULL ? "" : row->names[1],
                 row->argument == NULL ? "" : " ", row->argument == NULL ? "" : row->argument);
        printf("  %-30s%s%s\n", names,
               strlen(names) < 30 ? "" : "\n                                ", row->help);
    }
    printf("  %-30s%s\n", "-h, --help", "this text");
    if (command->details != NULL) {
        printf("\n%s\n", command->details);
    }
}

void cli_print_overview(void)
{
    puts("usage: moe-offload COMMAND [options]\n\n"
         "Runs mixture-of-experts language models (GGUF files).\n");
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        char title[64];
        printf("  %-16s%s\n", command_title(command, title, sizeof title), command->summary);
    }
    puts("\n'moe-offload COMMAND --help' lists a command's options; "
         "'moe-offload --version' the version.\n"
         "Exit status: 0 ok, 1 failure, 2 usage, 130 interrupted.");
}

static int unknown_option(const char *name, const char *title, bool known)
{
    return cli_fail(CLI_EXIT_USAGE, "%s: %s %s (see 'moe-offload %s --help')", title, name,
                    known ? "is an option of other commands, not of this one" : "is not an option",
                    title);
}

bool cli_options_parse(cli_options *options, const cli_command *command, int argc,
                       char *const *argv, int *exit_code)
{
    *options = cli_option_defaults;
    if (!cli_options_apply(options, command, argc, argv, exit_code)) {
        return false;
    }
    if (command->needs_model && options->model == NULL) {
        char title[64];
        command_title(command, title, sizeof title);
        *exit_code = cli_fail(CLI_EXIT_USAGE, "%s: say which model: -m FILE", title);
    }
    return *exit_code == CLI_EXIT_OK;
}

bool cli_options_apply(cli_options *options, const cli_command *command, int argc,
                       char *const *argv, int *exit_code)
{
    char title[64];
    command_title(command, title, sizeof title);
    *exit_code = CLI_EXIT_OK;
    for (int i = 0; i < argc && *exit_code == CLI_EXIT_OK; i++) {
        const char *name = argv[i];
        bool known;
        if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0) {
            print_command_help(command);
            return false;
        }
        if (name[0] != '-') {
            *exit_code = cli_fail(CLI_EXIT_USAGE,
                                  "%s: unexpected argument '%s' (see 'moe-offload "
                                  "%s --help')",
                                  title, name, title);
            break;
        }
        const cli_option_row *row = find_row(name, command->bit, &known);
        if (row == NULL) {
            *exit_code = unknown_option(name, title, known);
        } else if (row->kind == OPTION_FLAG) {
            *exit_code = store(row, name, options, NULL);
        } else if (i + 1 >= argc) {
            *exit_code = cli_fail(CLI_EXIT_USAGE, "%s: %s needs a value: %s %s", title, name, name,
                                  row->argument);
        } else {
            *exit_code = store(row, name, options, argv[++i]);
        }
    }
    if (*exit_code == CLI_EXIT_OK) {
        *exit_code = check_together(options, title);
    }
    return *exit_code == CLI_EXIT_OK;
}
