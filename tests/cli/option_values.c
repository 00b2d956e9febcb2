/* SPDX-License-Identifier: MIT */
#include "option_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWEEPS (CLI_BENCH_IO | CLI_BENCH_CACHE | CLI_BENCH_OFFLOAD)
#define TRACES (CLI_SIMULATE | CLI_ANALYZE)

/* What the kind of an option does not say: names of option_runs.py's files, and values with which a
 * run is short. The first row of the option's name and the command counts. */
static const struct {
    const char *name;
    unsigned commands;
    const char *values; /* with bars between */
} values_of_names[] = {
    {"--model", ~0u, "model.gguf"},
    {"--hf-repo", ~0u, "me/demo"},
    {"--prompt", ~0u, "once upon a time"},
    {"--prompt-tokens", ~0u, "5"},
    {"--file", CLI_BENCH_IO, "model.gguf"},
    {"--file", ~0u, "text"},
    {"--tokens", ~0u, "3 4 5"},
    {"--output", CLI_LOGITS, "out.npy"},
    {"--output", ~0u, "out"},
    {"--program", ~0u, "all|0"},
    {"--predict", CLI_CALIBRATE | TRACES, "40"},
    {"--predict", CLI_REPORT, "16"},
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
    {"--disk-cache", ~0u, "far|far:100M"},
    {"--alias", ~0u, "name|one,two"},
    {"--ctx-size", CLI_PERPLEXITY, "16"},
    {"--ctx-size", ~0u, "0|256|64"},
    {"--override-kv", ~0u, "general.name=str:other"},
    {"--model-copy", ~0u, "copy.gguf"},
    {"--workers", ~0u, "127.0.0.1:9"},
    {"--worker-timeout", ~0u, "0.5"},
    {"--worker-key", ~0u, "worker_key"},
    {"--listen", ~0u, "127.0.0.1:0|localhost:0"},
    {"--share", ~0u, "1/2|2/2"},
    {"--experts", CLI_WORKER | CLI_SPLIT, "0|0-1:0,1:1"},
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
    {"--host-memory", ~0u, "400M|2G|60%"},
    {"--device-memory", ~0u, "100M|200M|30M"},
    {"--expert-cache", TRACES | SWEEPS | CLI_BENCH_SPECULATE, "50%,100%"},
    {"--expert-cache", ~0u, "50%|90%|300K"},
    {"--policy", CLI_BENCH_OFFLOAD | CLI_BENCH_CACHE | CLI_SIMULATE, "lru,lfru"},
    {"--policy", ~0u, "lru|gate-score|belady"},
    {"--calibration", SWEEPS, "none|cal.gguf"},
    {"--checksums", ~0u, "none|sums"},
    {"--calibration", ~0u, "cal.gguf|none"},
    {"--speculate", ~0u, "off|auto|ngram|self|mtp|mtp:copy.gguf|auto:copy.gguf|model:copy.gguf"},
    {"--draft-max", ~0u, "1|20"},
    {"--tree", ~0u, "1|9"},
    {"--length-control", ~0u, "survival|cascade|static"},
    {"--draft-experts", CLI_RUN, "8|9|3|5"},
    {"--draft-experts", ~0u, "3|5"},
    {"--lookahead", CLI_SIMULATE, "3"},
    {"--lookahead", ~0u, "1|3"},
    {"--verify-bytes", ~0u, "64K"},
    {"--expert-budget", ~0u, "8|16|4"},
    {"--expert-budget-mode", ~0u, "static,truncate|router,substitute"},
    {"--buddy", ~0u, "off|on|rho=3,alpha=0.9"},
    {"--low-bit", ~0u, "off|on"},
    {"--quality-limit", ~0u, "0.1"},
    {"--quality-share", ~0u, "0.5"},
    {"--io", CLI_BENCH_IO | CLI_BENCH_OFFLOAD, "auto,threads,sync"},
    {"--io-block", ~0u, "4K|1M"},
    {"--io-depth", ~0u, "1|64"},
    {"--io-timeout", ~0u, "20"},
    {"--trace", TRACES | CLI_PLAN, "trace.jsonl"},
    {"--timeline", ~0u, "out.json"},
    {"--what-if", ~0u, "host-memory=4G,disk=7GB/s"},
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

static size_t add_words(option_choice *to, const cli_option_row *row, const char *words)
{
    size_t n = 0;
    for (const char *at = words;; at++) {
        size_t size = strcspn(at, "|");
        to[n] = (option_choice){.row = row};
        snprintf(to[n++].text, sizeof to->text, "%.*s", (int)size, at);
        at += size;
        if (*at == '\0') {
            return n;
        }
    }
}

size_t option_values_of(option_choice *to, const cli_option_row *row, unsigned command)
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

size_t option_values_argument(char **argv, size_t n, const option_choice *c)
{
    argv[n++] = (char *)c->row->names[0];
    if (c->row->kind != OPTION_FLAG) {
        argv[n++] = (char *)c->text;
    }
    return n;
}

/* Adds the choice and what it needs; false: an option is there already with another value. */
bool option_values_add(const option_choice **list, size_t *n, const option_choice *c)
{
    for (size_t i = 0; i < *n; i++) {
        if (list[i]->row == c->row) {
            return strcmp(list[i]->text, c->text) == 0;
        }
    }
    list[(*n)++] = c;
    for (size_t i = 0; i < c->n_others; i++) {
        if (!option_values_add(list, n, c->others[i])) {
            return false;
        }
    }
    return true;
}

bool option_values_accepted(const cli_command *command, const option_choice *const *choices,
                            size_t n)
{
    const option_choice *list[OPTION_VALUES_MOST];
    char *argv[2 * OPTION_VALUES_MOST];
    cli_options options = cli_option_defaults;
    size_t n_list = 0;
    size_t argc = 0;
    int code;
    for (size_t i = 0; i < n; i++) {
        if (!option_values_add(list, &n_list, choices[i])) {
            return false;
        }
    }
    for (size_t i = 0; i < n_list; i++) {
        argc = option_values_argument(argv, argc, list[i]);
    }
    bool accepted = cli_options_apply(&options, command, (int)argc, argv, &code);
    cli_options_free(&options);
    return accepted;
}

/* Finds the options that the choice needs: none, one or two. */
bool option_values_find_others(const cli_command *command, option_choice *c,
                               const option_choice *all, size_t n)
{
    if (option_values_accepted(command, &(const option_choice *){c}, 1)) {
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        if (option_values_accepted(command, (const option_choice *[]){c, &all[i]}, 2)) {
            c->others[c->n_others++] = &all[i];
            return true;
        }
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t k = i + 1; k < n; k++) {
            if (option_values_accepted(command, (const option_choice *[]){c, &all[i], &all[k]},
                                       3)) {
                c->others[c->n_others++] = &all[i];
                c->others[c->n_others++] = &all[k];
                return true;
            }
        }
    }
    return false;
}
