/* SPDX-License-Identifier: MIT */
/* option_runs: lists every option of every command with values that can be run, from the tables of
 * runtime/cli_base, for option_runs.py. One line a choice, words separated by tabs:
 *   choice  COMMAND  --option  value  [--other  value ...]
 * where the others are options that the parser wants beside the first, found by trying. "-" stands
 * for no value. The argument is a file for the parser's messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/cli_base/cli_option_rules.h"
#include "../../runtime/cli_base/cli_options.h"

#define MOST_CHOICES 512
#define MOST_WORDS   4

#define SWEEPS (CLI_BENCH_IO | CLI_BENCH_CACHE | CLI_BENCH_OFFLOAD)
#define TRACES (CLI_SIMULATE | CLI_ANALYZE)

typedef struct choice {
    const cli_option_row *row;
    char text[128];
    const struct choice *others[MOST_WORDS]; /* that it needs */
    size_t n_others;
} choice;

/* What the kind of an option does not say: names of option_runs.py's files, and values with which a
 * run is short. The first row of the option's name and the command counts. */
static const struct {
    const char *name;
    unsigned commands;
    const char *values; /* with bars between */
} values_of_names[] = {
    {"--model", ~0u, "model.gguf"},
    {"--prompt", ~0u, "once upon a time"},
    {"--prompt-tokens", ~0u, "5"},
    {"--file", CLI_BENCH_IO, "model.gguf"},
    {"--file", ~0u, "text"},
    {"--tokens", ~0u, "3 4 5"},
    {"--output", CLI_LOGITS, "out.npy"},
    {"--output", ~0u, "out"},
    {"--predict", CLI_CALIBRATE | TRACES, "40"},
    {"--predict", SWEEPS | CLI_BENCH_SPECULATE, "3"},
    {"--predict", ~0u, "0|3"},
    {"--system", ~0u, "Be brief."},
    {"--chat-template", ~0u, "chatml|./template.jinja"},
    {"--chat-template-kwargs", ~0u, "{\"a\": 1}"},
    {"--continue", ~0u, "Well"},
    {"--history", ~0u, "none|history"},
    {"--tokens-from", ~0u, "greedy|sampled|random|ids"},
    {"--host", ~0u, "127.0.0.1|localhost|::1"},
    {"--port", ~0u, "0"},
    {"--api-key-file", ~0u, "keys"},
    {"--api-key", ~0u, "secret,other"},
    {"--cache-dir", ~0u, "cache"},
    {"--alias", ~0u, "name"},
    {"--ctx-size", CLI_PERPLEXITY, "16"},
    {"--ctx-size", ~0u, "0|64"},
    {"--override-kv", ~0u, "general.name=str:other"},
    {"--model-copy", ~0u, "copy.gguf"},
    {"--threads", CLI_BENCH_OFFLOAD, "1,2"},
    {"--threads", ~0u, "1|3"},
    {"--batch-size", ~0u, "1|7|64"},
    {"--temp", ~0u, "0|1.5"},
    {"--top-p", ~0u, "0.7"},
    {"--min-p", ~0u, "0.1"},
    {"--repeat-penalty", ~0u, "1.3"},
    {"--presence-penalty", ~0u, "-1"},
    {"--frequency-penalty", ~0u, "0.5"},
    {"--top-k", ~0u, "0|5"},
    {"--logit-bias", ~0u, "5+2,6-inf"},
    {"--grammar", ~0u, "root ::= [a-z ]+"},
    {"--json-schema", ~0u, "{\"type\": \"integer\"}"},
    {"--device", ~0u, "auto|cpu|sim:memory=300M,link=16GB/s"},
    {"--host-memory", ~0u, "100M|60%"},
    {"--device-memory", ~0u, "30M"},
    {"--expert-cache", TRACES | SWEEPS | CLI_BENCH_SPECULATE, "50%,100%"},
    {"--expert-cache", ~0u, "50%|300K"},
    {"--policy", CLI_BENCH_OFFLOAD | CLI_BENCH_CACHE | CLI_SIMULATE, "lru,lfru"},
    {"--policy", ~0u, "lru|belady|gate-score"},
    {"--calibration", SWEEPS, "none|cal.gguf"},
    {"--checksums", ~0u, "none|sums"},
    {"--calibration", ~0u, "cal.gguf|none"},
    {"--speculate", ~0u, "off|auto|ngram|self|mtp|mtp:copy.gguf|auto:copy.gguf|model:copy.gguf"},
    {"--draft-max", ~0u, "1|20"},
    {"--tree", ~0u, "1|9"},
    {"--length-control", ~0u, "survival|cascade|static"},
    {"--draft-experts", ~0u, "3|5"},
    {"--lookahead", CLI_SIMULATE, "3"},
    {"--lookahead", ~0u, "1|3"},
    {"--verify-bytes", ~0u, "64K"},
    {"--expert-budget", ~0u, "4"},
    {"--expert-budget-mode", ~0u, "static,truncate|router,substitute"},
    {"--buddy", ~0u, "off|on|rho=3,alpha=0.9"},
    {"--low-bit", ~0u, "off|on"},
    {"--quality-limit", ~0u, "0.1"},
    {"--quality-share", ~0u, "0.5"},
    {"--io", CLI_BENCH_IO | CLI_BENCH_OFFLOAD, "auto,threads,sync"},
    {"--io-block", ~0u, "4K|1M"},
    {"--io-depth", ~0u, "1|64"},
    {"--io-timeout", ~0u, "20"},
    {"--trace", TRACES, "trace.jsonl"},
    {"--trace", ~0u, "out.jsonl"},
    {"--route-trace", ~0u, "trace.jsonl"},
    {"--disk", ~0u, "2.5"},
    {"--layers", ~0u, "1"},
    {"--experts", ~0u, "8"},
    {"--block", ~0u, "256K,1M"},
    {"--depth", ~0u, "4,16"},
    {"--range", ~0u, "64K-128K"},
    {"--bytes", ~0u, "256K"},
    {"--seconds", ~0u, "0.1"},
    {"--prefetch", CLI_BENCH_OFFLOAD, "on,off"},
    {"--suite", ~0u, "text"},
    {"--configs", ~0u, "off; self --draft-max 3"},
    {"--parallel", ~0u, "2"},
    {"--plot", ~0u, "out.svg"},
    {"--csv", ~0u, "out.csv"},
    {"--export", ~0u, "out.jsonl"},
    {"--seed", ~0u, "7"},
    {"--calibrate", ~0u, "20"},
    {"--kernels", ~0u, "native|reference|avx2|avx512"},
};

static size_t add_words(choice *to, const cli_option_row *row, const char *words)
{
    size_t n = 0;
    for (const char *at = words;; at++) {
        size_t size = strcspn(at, "|");
        to[n] = (choice){.row = row};
        snprintf(to[n++].text, sizeof to->text, "%.*s", (int)size, at);
        at += size;
        if (*at == '\0') {
            return n;
        }
    }
}

static size_t values_of(choice *to, const cli_option_row *row, unsigned command)
{
    char number[32];
    for (size_t i = 0; i < sizeof values_of_names / sizeof *values_of_names; i++) {
        if ((values_of_names[i].commands & command) != 0 &&
            cli_option_has_name(row, values_of_names[i].name)) {
            return add_words(to, row, values_of_names[i].values);
        }
    }
    switch (row->kind) {
    case OPTION_FLAG:
        return add_words(to, row, "-");
    case OPTION_CHOICE:
    case OPTION_NAME:
        return add_words(to, row, row->argument);
    case OPTION_SIZE:
        return add_words(to, row, "1M");
    case OPTION_TEXT:
    case OPTION_LIST:
        printf("FAIL %s: values_of_names has no row for it\n", row->names[0]);
        exit(1);
    default:
        snprintf(number, sizeof number, "%.16g", row->min_open ? row->max / 2 : row->min);
        return add_words(to, row, number);
    }
}

static size_t add_argument(char **argv, size_t n, const choice *c)
{
    argv[n++] = (char *)c->row->names[0];
    if (c->row->kind != OPTION_FLAG) {
        argv[n++] = (char *)c->text;
    }
    return n;
}

/* Adds the choice and what it needs; false: an option is there already with another value. */
static bool add_choice(const choice **list, size_t *n, const choice *c)
{
    for (size_t i = 0; i < *n; i++) {
        if (list[i]->row == c->row) {
            return strcmp(list[i]->text, c->text) == 0;
        }
    }
    list[(*n)++] = c;
    for (size_t i = 0; i < c->n_others; i++) {
        if (!add_choice(list, n, c->others[i])) {
            return false;
        }
    }
    return true;
}

static bool is_accepted(const cli_command *command, const choice *const *choices, size_t n)
{
    const choice *list[4 * MOST_WORDS];
    char *argv[8 * MOST_WORDS];
    cli_options options = cli_option_defaults;
    size_t n_list = 0;
    size_t argc = 0;
    int code;
    for (size_t i = 0; i < n; i++) {
        if (!add_choice(list, &n_list, choices[i])) {
            return false;
        }
    }
    for (size_t i = 0; i < n_list; i++) {
        argc = add_argument(argv, argc, list[i]);
    }
    return cli_options_apply(&options, command, (int)argc, argv, &code);
}

/* Finds the options that the choice needs: none, one or two. */
static bool find_others(const cli_command *command, choice *c, const choice *all, size_t n)
{
    if (is_accepted(command, &(const choice *){c}, 1)) {
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        if (is_accepted(command, (const choice *[]){c, &all[i]}, 2)) {
            c->others[c->n_others++] = &all[i];
            return true;
        }
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t k = i + 1; k < n; k++) {
            if (is_accepted(command, (const choice *[]){c, &all[i], &all[k]}, 3)) {
                c->others[c->n_others++] = &all[i];
                c->others[c->n_others++] = &all[k];
                return true;
            }
        }
    }
    return false;
}

static void print_choice(const cli_command *command, const choice *c)
{
    const choice *list[2 * MOST_WORDS];
    size_t n = 0;
    (void)add_choice(list, &n, c);
    printf("choice\t%s%s%s", command->name, command->word != NULL ? " " : "",
           command->word != NULL ? command->word : "");
    for (size_t i = 0; i < n; i++) {
        printf("\t%s\t%s", list[i]->row->names[0], list[i]->text);
    }
    printf("\n");
}

static bool list_choices(const cli_command *command)
{
    static choice all[MOST_CHOICES];
    size_t n = 0;
    bool good = true;
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        if ((cli_option_rows[i].commands & command->bit) != 0) {
            n += values_of(all + n, &cli_option_rows[i], command->bit);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (!find_others(command, &all[i], all, n)) {
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
