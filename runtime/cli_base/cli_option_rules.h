/* SPDX-License-Identifier: MIT */
/* Which options need or exclude which others. The check of the command line, the help, the manual
 * page and the test of every pair (tests/cli/test_option_pairs.c) are all made from the one table
 * in cli_option_rules.c.
 *
 * To add an option that acts only together with another, or not together with one:
 *  1. give it a row in cli_option_table.c (with its subject: where it stands in help and manual);
 *  2. add a row to cli_option_rules[], or its name to a row that says the same:
 *       {RULE_NEEDS, CLI_RUN, "--mode-of-x", "--x", NULL, NULL, "there is no x without it"},
 *       {RULE_EXCLUDES, CLI_RUN, "--x", "--speculate=off", NULL, NULL, "nothing is drafted"},
 *     The lists have names of the table, separated by spaces. The first list has the constrained
 *     options; the second has the options that these need (one of them is enough) or exclude (all
 *     of them). A name may be followed by values. "--io=sync|threads" holds if the option is given
 *     and each of its parts, between commas, is one of the values. "--low-bit!=off" holds if the
 *     option is given and its value is another one. A value with a colon ("model:FILE") stands for
 *     all values with the same beginning; numbers are compared as numbers. Defaults do not count:
 *     an option that is not given does not hold. "when" and "unless" have the same form, and
 *     restrict the row to command lines where one of their names holds, or where none does.
 * Nothing more is needed. A condition that depends on the model or the terminal is checked by the
 * command itself. */
#ifndef CLI_OPTION_RULES_H
#define CLI_OPTION_RULES_H

#include <stddef.h>

#include "cli_option_table.h"

typedef enum cli_rule_kind { RULE_NEEDS, RULE_EXCLUDES } cli_rule_kind;

typedef struct cli_option_rule {
    cli_rule_kind kind;
    unsigned commands;
    const char *options; /* the options that the rule constrains */
    const char *others;  /* the options that `options` need or exclude */
    const char *when;    /* the rule acts only where one of these holds; NULL: everywhere */
    const char *unless;  /* the rule does not act where one of these holds; NULL: no exception */
    const char *why;     /* the reason, at the end of the error message */
} cli_option_rule;

extern const cli_option_rule cli_option_rules[];
extern const size_t cli_n_option_rules;

/* Checks the command line. Returns an exit code; an error names both options. */
int cli_option_rules_check(const cli_options *options, unsigned command, const char *title);

/* Reads the first term of a list such as "--io=sync|threads --low-bit": its name, and its values as
 * written. *values is NULL if there are none; *differs: the term has "!=". Returns the rest of the
 * list, or NULL. */
const char *cli_option_rule_term(const char *list, char name[32], char values[96], bool *differs);

/* Describes the rules for the option in these commands, as in "needs --format gnuplot. not with
 * --temp 0.". Returns the length, 0 if there are no rules; the text is cut at out's size. */
size_t cli_option_rules_describe(const cli_option_row *row, unsigned commands, char *out,
                                 size_t size);

#endif
