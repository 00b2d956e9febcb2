/* SPDX-License-Identifier: MIT */
#include "cli_options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/moe.h>
#include <moe/trace.h>

#include "cli_foreign_names.h"
#include "cli_help.h"
#include "cli_nearest.h"
#include "cli_option_rules.h"
#include "cli_option_table.h"

/* Finds the row of that name that the command knows; *known distinguishes a misplaced option from
 * an unknown one. */
static const cli_option_row *find_row(const char *name, unsigned command, bool *known)
{
    *known = false;
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        if (cli_option_has_name(&cli_option_rows[i], name)) {
            *known = true;
            if ((cli_option_rows[i].commands & command) != 0) {
                return &cli_option_rows[i];
            }
        }
    }
    return NULL;
}

/* strtod() also accepts hexadecimal, leading blanks, "inf" and "nan". */
static bool is_decimal(const char *text)
{
    return text[0] != '\0' && strspn(text, "+-.0123456789eE") == strlen(text);
}

static bool parse_integer(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return is_decimal(text) && end != text && *end == '\0' && errno == 0;
}

static bool parse_real(const char *text, double *value)
{
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    return is_decimal(text) && end != text && *end == '\0' && errno == 0 && isfinite(*value);
}

bool cli_size_parse(const char *text, cli_size *size)
{
    static const char units[] = "KMGT";
    char *end;
    double number = strtod(text, &end);
    bool is_hex = memchr(text, 'x', (size_t)(end - text)) != NULL ||
                  memchr(text, 'X', (size_t)(end - text)) != NULL;
    if (end == text || is_hex || strchr("+.0123456789", text[0]) == NULL || !isfinite(number) ||
        number <= 0) {
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
        size_t colon = strcspn(word, ":");
        bool prefix = colon < length && size > colon + 1 && memcmp(word, text, colon + 1) == 0;
        if (prefix || (length == size && memcmp(word, text, size) == 0)) {
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
    return cli_fail(CLI_EXIT_USAGE, "%s must be %s from %s%.16g to %s%.16g, not '%s'", name,
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

/* Writes a size of the table, such as "64M" or "4K". */
static const char *short_size(char out[24], double bytes)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    size_t unit = 0;
    while (unit < 4 && bytes >= 1024 && fmod(bytes, 1024) == 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 24, "%.0f%s", bytes, units[unit]);
    return out;
}

static int store_size(const cli_option_row *row, const char *name, cli_size *value,
                      const char *text)
{
    char least[24];
    char most[24];
    char step[24];
    bool valid = cli_size_parse(text, value);
    if (row->max > 0) {
        return valid && value->share == 0 && in_range(row, (double)value->bytes) &&
                       (row->step == 0 || value->bytes % row->step == 0)
                   ? CLI_EXIT_OK
                   : cli_fail(CLI_EXIT_USAGE, "%s must be a size from %s to %s%s%s, not '%s'", name,
                              short_size(least, row->min), short_size(most, row->max),
                              row->step == 0 ? "" : ", a multiple of ",
                              row->step == 0 ? "" : short_size(step, row->step), text);
    }
    if (valid && value->share > 0 && row->no_share) {
        return cli_fail(CLI_EXIT_USAGE, "%s must be a size like 256M, not a percentage ('%s')",
                        name, text);
    }
    return valid ? CLI_EXIT_OK
                 : cli_fail(CLI_EXIT_USAGE, "%s must be a size like 800M%s, not '%s'", name,
                            row->no_share ? " or 6G" : ", 6G or 40% (at most 100%)", text);
}

/* Whether the option's text may be empty: a prompt may, but not a file, a name or a list. */
static bool may_be_empty(const cli_option_row *row)
{
    return strcmp(row->argument, "TEXT") == 0;
}

static int store(const cli_option_row *row, const char *name, cli_options *options,
                 const char *text)
{
    void *value = (char *)options + row->offset;
    int word;
    options->given[row - cli_option_rows] = text;
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)value = true;
        return CLI_EXIT_OK;
    case OPTION_TEXT:
        *(const char **)value = text;
        return text[0] != '\0' || may_be_empty(row)
                   ? CLI_EXIT_OK
                   : cli_fail(CLI_EXIT_USAGE, "%s must not be empty: %s %s", name, name,
                              row->argument);
    case OPTION_LIST:
        return append_text(name, value, text);
    case OPTION_SIZE:
        return store_size(row, name, value, text);
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

/* Checks only the kind; the library checks the rest. */
static bool is_device(const char *text)
{
    return text == NULL || strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0 ||
           strcmp(text, "cuda") == 0 || strncmp(text, "cuda:", 5) == 0 ||
           strncmp(text, "sim:", 4) == 0;
}

/* A plug-in's name ends in .so; the library opens it. */
static bool is_policy(const char *name, size_t size)
{
    if (size > 3 && memcmp(name + size - 3, ".so", 3) == 0) {
        return true;
    }
    for (uint32_t i = 0; moe_policy_name(i) != NULL; i++) {
        if (strlen(moe_policy_name(i)) == size && memcmp(moe_policy_name(i), name, size) == 0) {
            return true;
        }
    }
    return false;
}

/* Checks one policy, or a list; "all" is for simulate. */
static int check_policies(const char *list, bool all, const char *title)
{
    char names[512] = "";
    if (list == NULL || (all && strcmp(list, "all") == 0)) {
        return CLI_EXIT_OK;
    }
    for (const char *at = list;; at++) {
        size_t size = strcspn(at, ",");
        if (size > 0 && !is_policy(at, size)) {
            for (uint32_t i = 0; moe_policy_name(i) != NULL; i++) {
                size_t n = strlen(names);
                snprintf(names + n, sizeof names - n, "%s%s", n > 0 ? ", " : "",
                         moe_policy_name(i));
            }
            return cli_fail(CLI_EXIT_USAGE,
                            "%s: --policy: no cache policy '%.*s'; choose one of %s, or a "
                            "plug-in's FILE.so",
                            title, (int)size, at, names);
        }
        at += size;
        if (*at == '\0') {
            return CLI_EXIT_OK;
        }
    }
}

static int check_together(const cli_options *options, unsigned command, const char *title)
{
    if (!is_device(options->device)) {
        return cli_fail(CLI_EXIT_USAGE,
                        "%s: --device must be auto, cpu, cuda, cuda:1 or "
                        "sim:memory=...,link=...GB/s, not '%s'",
                        title, options->device);
    }
    int code = cli_option_rules_check(options, command, title);
    code = code == CLI_EXIT_OK ? check_policies(options->policy, false, title) : code;
    return code == CLI_EXIT_OK ? check_policies(options->policies, command == CLI_SIMULATE, title)
                               : code;
}

/* ---- llama.cpp's names ---- */

/* The values of -ctk and -ctv; "" if not given. */
typedef struct kv_types {
    const char *keys;
    const char *values;
} kv_types;

static int check_kv_types(const kv_types *kv, const char *title)
{
    return strcmp(kv->keys, kv->values) == 0
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_USAGE,
                          "%s: keys and values have one type here: give -ctk and -ctv the same, or "
                          "--kv TYPE",
                          title);
}

/* Joins the row's prefix and the value; NULL: too long. Paths with a folder need no "./". */
static const char *join_value(cli_options *options, const cli_foreign_row *row, const char *value)
{
    if (row->value == NULL || (strcmp(row->value, "./") == 0 && value[0] == '/')) {
        return value;
    }
    char *joined = options->joined[row->value[0] == '.'];
    int n = snprintf(joined, sizeof options->joined[0], "%s%s", row->value, value);
    return n < (int)sizeof options->joined[0] ? joined : NULL;
}

/* Takes the option by a name of llama.cpp's. value: NULL if the line ends. */
static int store_foreign(cli_options *options, const cli_command *command, const char *name,
                         const char *value, kv_types *kv)
{
    char title[64];
    bool known;
    cli_command_title(command, title, sizeof title);
    const cli_foreign_row *row = cli_foreign_find(name, value);
    if (row->kind == FOREIGN_NOT) {
        return cli_fail(CLI_EXIT_USAGE, "%s: %s%s%.60s, a flag of llama.cpp: %s", title, name,
                        value == NULL ? "" : " ", value == NULL ? "" : value, row->text);
    }
    if (row->kind == FOREIGN_HOLDS) {
        return CLI_EXIT_OK;
    }
    const cli_option_row *option = find_row(row->option, command->bit, &known);
    if (option == NULL) {
        return cli_fail(CLI_EXIT_USAGE,
                        "%s: %s, here %s, is an option of other commands, not of this one (see "
                        "'moe-offload %s --help')",
                        title, name, row->option, title);
    }
    if (strcmp(name, "-ctk") == 0 || strcmp(name, "--cache-type-k") == 0) {
        kv->keys = value;
    } else if (strcmp(name, "-ctv") == 0 || strcmp(name, "--cache-type-v") == 0) {
        kv->values = value;
    }
    const char *text = row->kind == FOREIGN_MEANS ? row->value : join_value(options, row, value);
    return option->kind == OPTION_FLAG ? store(option, name, options, "")
           : text == NULL              ? cli_fail(CLI_EXIT_USAGE, "%s: the value is too long", name)
                                       : store(option, name, options, text);
}

static int unknown_option(const cli_command *command, const char *name, const char *title,
                          bool known)
{
    cli_nearest nearest = {.typed = name};
    for (size_t i = 0; !known && i < 2 * cli_n_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i / 2];
        if ((row->commands & command->bit) != 0 && row->names[i % 2] != NULL) {
            cli_nearest_try(&nearest, row->names[i % 2]);
        }
    }
    for (const cli_foreign_row *row = cli_foreign_rows; !known && row->names[0] != NULL; row++) {
        for (size_t i = 0; i < 3 && row->names[i] != NULL && row->kind == FOREIGN_IS; i++) {
            cli_nearest_try(&nearest, row->names[i]);
        }
    }
    if (nearest.word != NULL) {
        return cli_fail(CLI_EXIT_USAGE, "%s: %s is not an option; did you mean %s?", title, name,
                        nearest.word);
    }
    return cli_fail(CLI_EXIT_USAGE, "%s: %s %s (see 'moe-offload %s --help')", title, name,
                    known ? "is an option of other commands, not of this one" : "is not an option",
                    title);
}

/* Whether the command accepts a model's name without -hf. */
static bool takes_name(const cli_command *command)
{
    return (command->bit & (CLI_PULL | CLI_REMOVE | CLI_SHOW)) != 0;
}

static bool apply(cli_options *options, const cli_command *command, int argc, char *const *argv,
                  int *exit_code)
{
    char title[64];
    kv_types kv = {"", ""};
    cli_command_title(command, title, sizeof title);
    *exit_code = CLI_EXIT_OK;
    for (int i = 0; i < argc && *exit_code == CLI_EXIT_OK; i++) {
        const char *name = argv[i];
        bool known;
        bool all = strcmp(name, "--help-all") == 0;
        if (all || strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0) {
            cli_print_command_help(command, all);
            return false;
        }
        if (name[0] != '-' && takes_name(command) && options->hub_model == NULL) {
            *exit_code = store(find_row("-hf", command->bit, &known), "-hf", options, name);
            continue;
        }
        if (name[0] != '-') {
            bool is_model = command->needs_model && options->model == NULL;
            *exit_code =
                cli_fail(CLI_EXIT_USAGE,
                         "%s: unexpected argument '%s'%s (see 'moe-offload "
                         "%s --help')",
                         title, name, is_model ? ": a model is given by -m or -hf" : "", title);
            break;
        }
        bool takes_value = false;
        const cli_option_row *row = find_row(name, command->bit, &known);
        if (row == NULL && cli_foreign_is_name(name, &takes_value)) {
            *exit_code =
                takes_value && i + 1 >= argc
                    ? cli_fail(CLI_EXIT_USAGE, "%s: %s needs a value", title, name)
                    : store_foreign(options, command, name, takes_value ? argv[++i] : NULL, &kv);
        } else if (row == NULL) {
            *exit_code = unknown_option(command, name, title, known);
        } else if (row->kind == OPTION_FLAG) {
            *exit_code = store(row, name, options, "");
        } else if (i + 1 >= argc) {
            *exit_code = cli_fail(CLI_EXIT_USAGE, "%s: %s needs a value: %s %s", title, name, name,
                                  row->argument);
        } else {
            *exit_code = store(row, name, options, argv[++i]);
        }
    }
    if (*exit_code == CLI_EXIT_OK) {
        *exit_code = check_kv_types(&kv, title);
    }
    if (*exit_code == CLI_EXIT_OK) {
        *exit_code = check_together(options, command->bit, title);
    }
    return *exit_code == CLI_EXIT_OK;
}

bool cli_options_apply(cli_options *options, const cli_command *command, int argc,
                       char *const *argv, int *exit_code)
{
    const char **given = calloc(cli_n_option_rows, sizeof *given);
    if (given == NULL) {
        *exit_code = cli_fail(CLI_EXIT_FAILURE, "out of memory for the options");
        return false;
    }
    if (options->given != NULL) {
        memcpy(given, options->given, cli_n_option_rows * sizeof *given);
    }
    options->given = given;
    bool ok = apply(options, command, argc, argv, exit_code);
    if (!ok) {
        cli_options_free(options);
    }
    return ok;
}

void cli_options_free(cli_options *options)
{
    free(options->given);
    options->given = NULL;
}

bool cli_options_parse(cli_options *options, const cli_command *command, int argc,
                       char *const *argv, int *exit_code)
{
    *options = cli_option_defaults;
    if (!cli_options_apply(options, command, argc, argv, exit_code)) {
        return false;
    }
    if (command->needs_model && options->model == NULL && options->hub_model == NULL) {
        char title[64];
        cli_command_title(command, title, sizeof title);
        *exit_code = cli_fail(CLI_EXIT_USAGE, "%s: say which model: %s", title,
                              takes_name(command) ? "OWNER/REPO[:QUANT]"
                                                  : "-m FILE, or -hf OWNER/REPO[:QUANT]");
        cli_options_free(options);
    }
    return *exit_code == CLI_EXIT_OK;
}
