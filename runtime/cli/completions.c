/* SPDX-License-Identifier: MIT */
/* completions bash|zsh|fish: writes the script with which that shell completes the command's line,
 * from the tables of commands and options. It runs during the build; the command itself does not
 * need it. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli_help.h"
#include "cli_option_table.h"

/* ---- Values of options ---- */

/* True if the value is a file: its name in the help begins with FILE or PREFIX, or one of its
 * choices is a file.
 */
static bool takes_file(const cli_option_row *row)
{
    return row->argument != NULL &&
           (strstr(row->argument, "FILE") != NULL || strcmp(row->argument, "PREFIX") == 0);
}

/* True if the value is a model's name: those of the cache are offered. */
static bool takes_name(const cli_option_row *row)
{
    return strcmp(row->names[0], "-hf") == 0;
}

/* True if the command's first word after its name is a model's name. */
static bool begins_with_name(const cli_command *command)
{
    return (command->bit & (CLI_PULL | CLI_REMOVE | CLI_SHOW)) != 0;
}

/* Prints the value's words with blanks between: the choices that can be typed as they are. Returns
 * how many there are. With `print` off it only counts. */
static size_t put_words(const cli_option_row *row, bool print)
{
    size_t n = 0;
    const char *word = row->argument;
    if (word == NULL || strchr(word, '|') == NULL) {
        return 0;
    }
    for (;;) {
        size_t size = strcspn(word, "|");
        bool literal = size > 0;
        for (size_t i = 0; i < size; i++) {
            bool plain = islower((unsigned char)word[i]) || isdigit((unsigned char)word[i]);
            literal = literal && (plain || word[i] == '-' || word[i] == '_');
        }
        if (literal && print) {
            printf("%s%.*s", n > 0 ? " " : "", (int)size, word);
        }
        n += literal;
        if (word[size] == '\0') {
            return n;
        }
        word += size + 1;
    }
}

/* Prints the text with a backslash before each of the marks. */
static void put_escaped(const char *text, const char *marks)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            fputs("'\\''", stdout);
        } else {
            printf("%s%c", strchr(marks, *text) != NULL ? "\\" : "", *text);
        }
    }
}

/* Prints the first words of the commands, each once, with blanks between. */
static void put_command_words(void)
{
    const char *last = "";
    for (const cli_command *c = cli_commands; c->name != NULL; c++) {
        if (strcmp(c->name, last) != 0) {
            printf("%s ", c->name);
        }
        last = c->name;
    }
}

/* Prints the second words of the commands that have this first word. */
static void put_second_words(const char *name)
{
    for (const cli_command *c = cli_commands; c->name != NULL; c++) {
        if (strcmp(c->name, name) == 0 && c->word != NULL) {
            printf("%s ", c->word);
        }
    }
}

/* Whether this is the first command of its first word, and has a second word. */
static bool begins_group(const cli_command *command)
{
    bool first = command == cli_commands || strcmp(command[-1].name, command->name) != 0;
    return first && command->word != NULL;
}

/* ---- bash ---- */

static void bash_option_names(const cli_command *command)
{
    printf("        options='");
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        const cli_option_row *row = &cli_option_rows[i];
        if ((row->commands & command->bit) != 0) {
            printf("%s %s%s", row->names[0], row->names[1] != NULL ? row->names[1] : "",
                   row->names[1] != NULL ? " " : "");
        }
    }
    puts("-h --help --help-all'");
}

/* Writes a case with the values of an option; nothing for a flag. */
static void bash_option_value(const cli_option_row *row)
{
    if (row->argument == NULL) {
        return;
    }
    printf("        %s%s%s) ", row->names[0], row->names[1] != NULL ? "|" : "",
           row->names[1] != NULL ? row->names[1] : "");
    printf("values='");
    put_words(row, true);
    printf("'; files=%s; takes_value=yes%s ;;\n", takes_file(row) ? "yes" : "no",
           takes_name(row) ? "; names=yes" : "");
}

static void bash_command(const cli_command *command)
{
    char title[64];
    printf("    '%s')\n", cli_command_title(command, title, sizeof title));
    bash_option_names(command);
    if (begins_with_name(command)) {
        puts("        case $word in -*) ;; *) [ -n \"$previous\" ] || names=yes ;; esac");
    }
    puts("        case $previous in");
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        if ((cli_option_rows[i].commands & command->bit) != 0) {
            bash_option_value(&cli_option_rows[i]);
        }
    }
    puts("        esac\n        ;;");
}

static void put_bash(void)
{
    puts("# SPDX-License-Identifier: MIT\n"
         "# bash completion for moe-offload, made from the command's table of options.\n"
         "_moe_offload()\n{\n"
         "    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
         "    local command=${COMP_WORDS[1]} first=2 options='' values='' files=no takes_value=no\n"
         "    local names=no i=$COMP_CWORD whole=$word before=''\n"
         "    COMPREPLY=()\n"
         "    # bash divides words at : and @: OWNER/REPO@REVISION:QUANT is put together again.\n"
         "    case $word in [:@]) before=$word word='' ;; esac\n"
         "    while [ \"$i\" -gt 2 ] && [[ ${COMP_WORDS[i]} == [:@] || ${COMP_WORDS[i-1]} == [:@] "
         "]]; do\n"
         "        i=$((i - 1))\n"
         "        before=${COMP_WORDS[i]}$before\n"
         "    done\n"
         "    whole=$before$word\n"
         "    previous=${COMP_WORDS[i-1]}\n"
         "    if [ \"$COMP_CWORD\" -eq 1 ]; then");
    printf("        COMPREPLY=($(compgen -W '");
    put_command_words();
    puts("--help --version' -- \"$word\"))\n        return\n    fi\n    case $command in");
    for (const cli_command *c = cli_commands; c->name != NULL; c++) {
        if (begins_group(c)) {
            printf("    %s)\n        if [ \"$COMP_CWORD\" -eq 2 ]; then\n"
                   "            COMPREPLY=($(compgen -W '",
                   c->name);
            put_second_words(c->name);
            puts("--help' -- \"$word\"))\n            return\n        fi\n"
                 "        command=\"$command ${COMP_WORDS[2]}\" first=3\n        ;;");
        }
    }
    puts("    esac\n    [ \"$i\" -gt \"$first\" ] || previous=''\n    case $command in");
    for (const cli_command *c = cli_commands; c->name != NULL; c++) {
        bash_command(c);
    }
    puts("    *) return ;;\n    esac\n"
         "    if [ \"$takes_value\" = no ]; then\n        values=$options\n    fi\n"
         "    if [ \"$names\" = yes ]; then\n"
         "        values=$(\"${COMP_WORDS[0]}\" list 2>/dev/null | cut -d ' ' -f 1)\n"
         "        COMPREPLY=($(compgen -W \"$values\" -- \"$whole\"))\n"
         "        COMPREPLY=(\"${COMPREPLY[@]#\"$before\"}\")\n"
         "        return\n"
         "    fi\n"
         "    COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
         "    if [ \"$files\" = yes ]; then\n"
         "        compopt -o filenames 2>/dev/null\n"
         "        COMPREPLY+=($(compgen -f -- \"$word\"))\n    fi\n}\n"
         "complete -F _moe_offload moe-offload");
}

/* ---- zsh ---- */

static void zsh_option(const cli_option_row *row)
{
    if (row->names[1] != NULL) {
        printf("            '(%s %s)'{%s,%s}", row->names[0], row->names[1], row->names[0],
               row->names[1]);
    } else {
        printf("            %s%s", row->kind == OPTION_LIST ? "\\*" : "", row->names[0]);
    }
    printf("'[");
    put_escaped(row->help, "[]:\\");
    printf("]");
    if (row->argument != NULL) {
        printf(":");
        put_escaped(row->argument, "[]:\\");
        printf(":");
        if (takes_name(row)) {
            printf("_moe_offload_names");
        } else if (takes_file(row)) {
            printf("_files");
        } else if (put_words(row, false) > 0) {
            printf("(");
            put_words(row, true);
            printf(")");
        }
    }
    puts("' \\");
}

static void put_zsh(void)
{
    puts("#compdef moe-offload\n# SPDX-License-Identifier: MIT\n"
         "# zsh completion for moe-offload, made from the command's table of options.\n"
         "_moe_offload_names()\n{\n"
         "    compadd -- ${(f)\"$(_call_program names moe-offload list 2>/dev/null | cut -d ' ' -f "
         "1)\"}\n}\n"
         "_moe_offload()\n{\n    local command=${words[2]}\n"
         "    if (( CURRENT == 2 )); then");
    printf("        compadd -- ");
    put_command_words();
    puts("--help --version\n        return\n    fi\n    case $command in");
    for (const cli_command *c = cli_commands; c->name != NULL; c++) {
        if (begins_group(c)) {
            printf("    %s)\n        if (( CURRENT == 3 )); then\n            compadd -- ",
                   c->name);
            put_second_words(c->name);
            puts(
                "--help\n            return\n        fi\n        command=\"$command ${words[3]}\"\n"
                "        shift words\n        (( CURRENT-- ))\n        ;;");
        }
    }
    puts("    esac\n    shift words\n    (( CURRENT-- ))\n    case $command in");
    for (const cli_command *c = cli_commands; c->name != NULL; c++) {
        char title[64];
        printf("    '%s')\n        _arguments \\\n", cli_command_title(c, title, sizeof title));
        for (size_t i = 0; i < cli_n_option_rows; i++) {
            if ((cli_option_rows[i].commands & c->bit) != 0) {
                zsh_option(&cli_option_rows[i]);
            }
        }
        if (begins_with_name(c)) {
            puts("            '1:OWNER/REPO[@REVISION][\\:QUANT]:_moe_offload_names' \\");
        }
        puts("            '(-h --help)'{-h,--help}'[the everyday options]' "
             "--help-all'[all options]'\n        ;;");
    }
    puts("    esac\n}\n_moe_offload \"$@\"");
}

/* ---- fish ---- */

static void fish_name(const char *name)
{
    if (strncmp(name, "--", 2) == 0) {
        printf(" -l %s", name + 2);
    } else {
        printf(" -%c %s", strlen(name) == 2 ? 's' : 'o', name + 1);
    }
}

/* Ends the line with the text that the shell shows beside the word. */
static void fish_about(const char *text)
{
    printf(" -d '");
    for (; *text != '\0'; text++) {
        printf("%s%c", *text == '\'' || *text == '\\' ? "\\" : "", *text);
    }
    puts("'");
}

static void fish_option(const cli_command *command, const cli_option_row *row)
{
    char title[64];
    printf("complete -c moe-offload -n '__moe_offload_is %s'",
           cli_command_title(command, title, sizeof title));
    fish_name(row->names[0]);
    if (row->names[1] != NULL) {
        fish_name(row->names[1]);
    }
    if (row->argument != NULL) {
        printf(takes_file(row) ? " -r -F" : " -x");
        printf("%s", takes_name(row) ? " -a '(__moe_offload_names)'" : "");
        if (put_words(row, false) > 0) {
            printf(" -a '");
            put_words(row, true);
            printf("'");
        }
    }
    fish_about(row->help);
}

static void fish_command(const cli_command *command)
{
    char title[64];
    if (command->word == NULL || begins_group(command)) {
        printf("complete -c moe-offload -n '__moe_offload_is' -a %s", command->name);
        fish_about(command->word == NULL ? command->summary : "what is measured follows");
    }
    if (command->word != NULL) {
        printf("complete -c moe-offload -n '__moe_offload_is %s' -a %s", command->name,
               command->word);
        fish_about(command->summary);
    }
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        if ((cli_option_rows[i].commands & command->bit) != 0) {
            fish_option(command, &cli_option_rows[i]);
        }
    }
    cli_command_title(command, title, sizeof title);
    if (begins_with_name(command)) {
        printf("complete -c moe-offload -n '__moe_offload_is %s' -a '(__moe_offload_names)'\n",
               title);
    }
    printf("complete -c moe-offload -n '__moe_offload_is %s' -s h -l help -d 'everyday options'\n"
           "complete -c moe-offload -n '__moe_offload_is %s' -l help-all -d 'all options'\n",
           title, title);
}

static void put_fish(void)
{
    puts("# SPDX-License-Identifier: MIT\n"
         "# fish completion for moe-offload, made from the command's table of options.\n"
         "# True when the words before the cursor are these ones, up to the first option.\n"
         "function __moe_offload_is\n"
         "    set -l words\n"
         "    for word in (commandline -opc)[2..-1]\n"
         "        string match -q -- '-*' $word; and break\n"
         "        set -a words $word\n"
         "    end\n"
         "    test \"$words\" = \"$argv\"\n"
         "end\n"
         "# The models of the cache.\n"
         "function __moe_offload_names\n"
         "    moe-offload list 2>/dev/null | string replace -r ' .*' ''\n"
         "end\n"
         "complete -c moe-offload -f\n"
         "complete -c moe-offload -n '__moe_offload_is' -l help -d 'the commands'\n"
         "complete -c moe-offload -n '__moe_offload_is' -l version -d 'the version'");
    for (const cli_command *c = cli_commands; c->name != NULL; c++) {
        fish_command(c);
    }
}

int main(int argc, char **argv)
{
    const char *shell = argc == 2 ? argv[1] : "";
    if (strcmp(shell, "bash") == 0) {
        put_bash();
    } else if (strcmp(shell, "zsh") == 0) {
        put_zsh();
    } else if (strcmp(shell, "fish") == 0) {
        put_fish();
    } else {
        fputs("usage: completions bash|zsh|fish\n", stderr);
        return 2;
    }
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
