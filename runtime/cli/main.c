/* SPDX-License-Identifier: MIT */
/* Chooses among the commands. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <moe/moe.h>

#include "bench_commands.h"
#include "cli_help.h"
#include "cli_interrupt.h"
#include "cli_nearest.h"
#include "cli_options.h"
#include "cli_progress.h"
#include "commands.h"
#include "far_model.h"
#include "hub_model.h"

/* Finds the command that the arguments name, and how many words it took. */
static const cli_command *find_command(int argc, char *const *argv, int *n_words)
{
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        if (strcmp(argv[1], command->name) != 0) {
            continue;
        }
        *n_words = command->word == NULL ? 1 : 2;
        if (command->word == NULL || (argc > 2 && strcmp(argv[2], command->word) == 0)) {
            return command;
        }
    }
    return NULL;
}

/* Lists the second words of a command, such as "decode, io, cache"; "" if there are none. */
static void list_words(const char *name, char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        if (strcmp(name, command->name) == 0 && n < size) {
            n += (size_t)snprintf(out + n, size - n, "%s%s", n > 0 ? ", " : "", command->word);
        }
    }
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
}

static int unknown_command(const char *name, const char *word)
{
    char words[256];
    list_words(name, words, sizeof words);
    if (words[0] != '\0' && word != NULL && is_help(word)) {
        cli_print_overview(name);
        return CLI_EXIT_OK;
    }
    if (words[0] != '\0') {
        return cli_fail(CLI_EXIT_USAGE, "%s: say which: %s (see 'moe-offload %s --help')", name,
                        words, name);
    }
    cli_nearest nearest = {.typed = name};
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        cli_nearest_try(&nearest, command->name);
    }
    return cli_fail(CLI_EXIT_USAGE, "'%s' is not a command%s%s (see 'moe-offload --help')", name,
                    nearest.word != NULL ? "; did you mean " : "",
                    nearest.word != NULL ? nearest.word : "");
}

static const struct {
    unsigned command;
    int (*run)(const cli_options *options); /* exit code */
} runs[] = {
    {CLI_RUN, cmd_run},
    {CLI_SERVE, cmd_serve},
    {CLI_WORKER, cmd_worker},
    {CLI_SPLIT, cmd_split_experts},
    {CLI_TOKENIZE, cmd_tokenize},
    {CLI_LOGITS, cmd_logits},
    {CLI_PERPLEXITY, cmd_perplexity},
    {CLI_BENCH_DECODE, cmd_bench_decode},
    {CLI_BENCH_IO, cmd_bench_io},
    {CLI_BENCH_CACHE, cmd_bench_cache},
    {CLI_BENCH_OFFLOAD, cmd_bench_offload},
    {CLI_BENCH_SPECULATE, cmd_bench_speculate},
    {CLI_PLAN, cmd_plan},
    {CLI_CALIBRATE, cmd_calibrate},
    {CLI_REPORT, cmd_report},
    {CLI_VERIFY, cmd_verify},
    {CLI_INSPECT, cmd_inspect},
    {CLI_DEVICES, cmd_devices},
    {CLI_PULL, cmd_pull},
    {CLI_LIST, cmd_list},
    {CLI_SHOW, cmd_show},
    {CLI_REMOVE, cmd_rm},
    {CLI_SIMULATE, cmd_simulate},
    {CLI_ANALYZE, cmd_analyze},
};

/* commands that take a model's name as their argument */
#define OF_NAMES (CLI_PULL | CLI_SHOW | CLI_REMOVE)
/* commands that read no weights */
#define OF_HEADERS (CLI_PLAN | CLI_INSPECT | CLI_DEVICES | CLI_TOKENIZE)

static int run_command(unsigned command, cli_options *options)
{
    size_t i = 0;
    while (runs[i].command != command) {
        i++;
    }
    const bool is_far = far_model_is_asked(options);
    if (!is_far && (options->hub_model == NULL || (command & OF_NAMES) != 0)) {
        return runs[i].run(options);
    }
    int code = CLI_EXIT_OK;
    if (is_far) {
        far_model *far = NULL;
        code = far_model_take(&far, options, (command & OF_HEADERS) != 0);
        code = code == CLI_EXIT_OK ? runs[i].run(options) : code;
        int right = far_model_release(&far);
        return code == CLI_EXIT_OK ? right : code;
    }
    hub_model model;
    code = hub_model_take(&model, options, (command & OF_HEADERS) != 0);
    code = code == CLI_EXIT_OK ? runs[i].run(options) : code;
    hub_model_release(&model);
    return code;
}

/* Returns the exit status of the process, after checking that everything printed has been written.
 */
static int finish(int code)
{
    bool failed = ferror(stdout) != 0;
    if ((fflush(stdout) != 0 || failed) && code == CLI_EXIT_OK) {
        code = cli_fail(CLI_EXIT_FAILURE, "standard output could not be written: %s",
                        errno != 0 ? strerror(errno) : "an error");
    }
    return cli_interrupt_status(code);
}

int main(int argc, char **argv)
{
    cli_terminal terminal = CLI_TERMINAL_INIT;
    cli_options options;
    int n_words = 0;
    int code;
    if (argc < 2) {
        return cli_fail(CLI_EXIT_USAGE, "say what to do (see 'moe-offload --help')");
    }
    if (is_help(argv[1])) {
        cli_print_overview(NULL);
        return finish(CLI_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("moe-offload %s\n", moe_version());
        return finish(CLI_EXIT_OK);
    }
    const cli_command *command = find_command(argc, argv, &n_words);
    if (command == NULL) {
        return finish(unknown_command(argv[1], argc > 2 ? argv[2] : NULL));
    }
    if (!cli_options_parse(&options, command, argc - 1 - n_words, argv + 1 + n_words, &code)) {
        return finish(code);
    }
    options.terminal = &terminal;
    code = run_command(command->bit, &options);
    cli_options_free(&options);
    return finish(code);
}
