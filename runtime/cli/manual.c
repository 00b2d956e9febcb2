/* SPDX-License-Identifier: MIT */
/* manual TEMPLATE: writes the manual page, with its options made from the tables of options and
 * rules. The template is the page, with
 *  .\" options            where the options go
 *  .\" about --name       a note on an option, in addition to the table's line; up to the next
 *                         such line or .\" end
 *  .\" llama              where the table of llama.cpp's names goes
 * A note on an option that is not in the table is an error, so the two always agree. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_foreign_names.h"
#include "cli_help.h"
#include "cli_option_rules.h"
#include "cli_option_table.h"

#define OPTIONS_LINE ".\\\" options"
#define ABOUT_LINE   ".\\\" about "
#define END_LINE     ".\\\" end"
#define NAMES_LINE   ".\\\" llama"

typedef struct note {
    char name[64];
    const char *text;
    size_t size;
    bool used;
} note;

static note *notes; /* [cli_n_option_rows] */
static size_t n_notes;

static char *read_template(const char *path)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "r");
    size_t n = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file == NULL || ferror(file) || n == 0) {
        fprintf(stderr, "manual: %s cannot be read\n", path);
        exit(1);
    }
    fclose(file);
    text[n] = '\0';
    return text;
}

static const char *next_line(const char *at)
{
    at += strcspn(at, "\n");
    return *at == '\n' ? at + 1 : at;
}

static bool begins(const char *line, const char *word)
{
    return strncmp(line, word, strlen(word)) == 0;
}

/* Reads the notes. Returns the text behind them. */
static const char *read_notes(const char *at)
{
    while (begins(at, ABOUT_LINE) && n_notes < cli_n_option_rows) {
        note *n = &notes[n_notes++];
        at += strlen(ABOUT_LINE);
        snprintf(n->name, sizeof n->name, "%.*s", (int)strcspn(at, "\n"), at);
        n->text = at = next_line(at);
        while (*at != '\0' && !begins(at, ABOUT_LINE) && !begins(at, END_LINE)) {
            at = next_line(at);
        }
        n->size = (size_t)(at - n->text);
    }
    return begins(at, END_LINE) ? next_line(at) : at;
}

/* ---- roff ---- */

static void put_text(const char *text, bool capital)
{
    for (; *text != '\0'; text++, capital = false) {
        if (*text == '-' || *text == '\\') {
            fputs(*text == '-' ? "\\-" : "\\e", stdout);
        } else {
            putchar(capital ? toupper((unsigned char)*text) : *text);
        }
    }
}

static void put_font(const char *text, char font)
{
    printf("\\f%c", font);
    put_text(text, false);
    fputs("\\fR", stdout);
}

static const char *long_name(const cli_option_row *row)
{
    return row->names[1] != NULL ? row->names[1] : row->names[0];
}

static void put_heading(const cli_option_row *row, bool same_argument)
{
    puts(".TP");
    put_font(row->names[0], 'B');
    if (row->names[1] != NULL) {
        fputs(", ", stdout);
        put_font(row->names[1], 'B');
    }
    if (row->argument != NULL && same_argument) {
        putchar(' ');
        put_font(row->argument, islower((unsigned char)row->argument[0]) ? 'B' : 'I');
    }
    putchar('\n');
}

static void put_commands(const cli_option_row *row)
{
    const char *separator = "";
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        char title[64];
        if ((row->commands & command->bit) != 0) {
            fputs(separator, stdout);
            put_font(cli_command_title(command, title, sizeof title), 'B');
            separator = ", ";
        }
    }
}

/* ---- Options ---- */

static void put_meaning(const cli_option_row *row)
{
    char rules[512];
    put_text(row->help, true);
    puts(".");
    if (cli_option_rules_describe(row, row->commands, rules, sizeof rules) > 0) {
        put_text(rules, !begins(rules, "-"));
        puts(".");
    }
    fputs("(", stdout);
    put_commands(row);
    puts(")");
}

static void put_note(const char *name)
{
    for (size_t i = 0; i < n_notes; i++) {
        if (strcmp(notes[i].name, name) == 0) {
            printf("%.*s", (int)notes[i].size, notes[i].text);
            notes[i].used = true;
        }
    }
}

static bool same_name(const cli_option_row *a, const cli_option_row *b)
{
    return strcmp(long_name(a), long_name(b)) == 0;
}

/* Writes all rows with the first row's name. */
static void put_option(size_t first)
{
    const cli_option_row *row = &cli_option_rows[first];
    bool same_argument = true;
    for (size_t i = first + 1; i < cli_n_option_rows; i++) {
        const char *argument = cli_option_rows[i].argument;
        if (same_name(&cli_option_rows[i], row)) {
            same_argument = same_argument && row->argument != NULL && argument != NULL &&
                            strcmp(argument, row->argument) == 0;
        }
    }
    put_heading(row, same_argument);
    for (size_t i = first; i < cli_n_option_rows; i++) {
        const cli_option_row *other = &cli_option_rows[i];
        if (!same_name(other, row)) {
            continue;
        }
        if (i > first) {
            puts(".br");
        }
        if (!same_argument && other->argument != NULL) {
            put_font(other->argument, islower((unsigned char)other->argument[0]) ? 'B' : 'I');
            fputs(": ", stdout);
        }
        put_meaning(other);
    }
    put_note(long_name(row));
}

static bool is_first(size_t at)
{
    for (size_t i = 0; i < at; i++) {
        if (same_name(&cli_option_rows[i], &cli_option_rows[at])) {
            return false;
        }
    }
    return true;
}

static void put_options(void)
{
    for (size_t subject = 0; subject < SUBJECT_COUNT; subject++) {
        bool any = false;
        for (size_t i = 0; i < cli_n_option_rows; i++) {
            if (cli_option_rows[i].subject == (cli_option_subject)subject && is_first(i)) {
                if (!any) {
                    printf(".SS %s\n", cli_option_subjects[subject]);
                }
                any = true;
                put_option(i);
            }
        }
    }
}

/* ---- llama.cpp's names ---- */

static void put_foreign_value(const cli_foreign_row *row)
{
    if (row->values == NULL) {
        return;
    }
    putchar(' ');
    if (strcmp(row->values, "*") == 0) {
        put_font("VALUE", 'I');
    } else {
        put_text(row->values, false);
    }
}

static void put_foreign_names(void)
{
    for (const cli_foreign_row *row = cli_foreign_rows; row->names[0] != NULL; row++) {
        puts(".TP");
        for (size_t i = 0; i < 3 && row->names[i] != NULL; i++) {
            fputs(i > 0 ? ", " : "", stdout);
            put_font(row->names[i], 'B');
        }
        put_foreign_value(row);
        putchar('\n');
        if (row->kind == FOREIGN_IS || row->kind == FOREIGN_MEANS) {
            put_font(row->option, 'B');
            fputs(row->value == NULL && row->kind == FOREIGN_MEANS ? "" : " ", stdout);
            put_text(row->value == NULL ? "" : row->value, false);
            if (row->kind == FOREIGN_IS) {
                put_font("VALUE", 'I');
            }
            puts(".");
        } else {
            fputs(row->kind == FOREIGN_HOLDS ? "Accepted: " : "Refused: ", stdout);
            put_text(row->text, false);
            puts(".");
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        return 2;
    }
    const char *at = read_template(argv[1]);
    notes = calloc(cli_n_option_rows, sizeof *notes);
    if (notes == NULL) {
        return 1;
    }
    while (*at != '\0') {
        const char *next = next_line(at);
        if (begins(at, OPTIONS_LINE)) {
            next = read_notes(next);
            put_options();
        } else if (begins(at, NAMES_LINE)) {
            put_foreign_names();
        } else {
            printf("%.*s", (int)(next - at), at);
        }
        at = next;
    }
    for (size_t i = 0; i < n_notes; i++) {
        if (!notes[i].used) {
            fprintf(stderr, "manual: there is no option %s\n", notes[i].name);
            return 1;
        }
    }
    return n_notes > 0 && fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
