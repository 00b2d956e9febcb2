/* SPDX-License-Identifier: MIT */
#include "cli_option_rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUNS         (CLI_RUN | CLI_LOGITS | CLI_PERPLEXITY | CLI_BENCH_DECODE)
#define ENGINE       (RUNS | SPECULATES | CLI_CALIBRATE | CLI_BENCH_SPECULATE)
#define TAKES_TEXT   (CLI_RUN | CLI_TOKENIZE | CLI_LOGITS)
#define SWEEPS       (CLI_BENCH_IO | CLI_BENCH_CACHE | CLI_BENCH_OFFLOAD)
#define SWEEPS_MODEL (CLI_BENCH_CACHE | CLI_BENCH_OFFLOAD)
#define SPECULATES   (CLI_RUN | CLI_PLAN | CLI_CONFIG | CLI_SERVE)
#define LOSSY        (CLI_RUN | CLI_PLAN | CLI_CONFIG | CLI_PERPLEXITY)
#define TRACES       (CLI_SIMULATE | CLI_ANALYZE)
#define TABLES       (TRACES | SWEEPS | CLI_BENCH_SPECULATE)

#define OF_TURNS       "--system --chat-template --chat-template-kwargs --think"
#define OF_SELF_DRAFTS "--draft-experts --draft-pin --affinity --foresight --verify-bytes"
#define OF_DRAFTS      "--draft-max --tree --acceptance --length-control --cost=time"

/* clang-format off */
const cli_option_rule cli_option_rules[] = {
    /* Input. */
    {RULE_EXCLUDES, ~0u, "-m", "-hf", NULL, NULL, "they are two models: give one"},
    {RULE_NEEDS, ~(unsigned)CLI_SHOW, "--offline", "-hf", NULL, NULL,
     "only a model that is given by its name is downloaded"},
    {RULE_EXCLUDES, TAKES_TEXT, "-p", "-f", NULL, NULL, "they are two prompts: give one"},
    {RULE_EXCLUDES, CLI_LOGITS, "--tokens", "-p -f", NULL, NULL,
     "ids stand instead of a text: give one"},
    {RULE_EXCLUDES, CLI_LOGITS, "--tokens", "--raw --chat --continue " OF_TURNS, NULL, NULL,
     "ids are what a text would become"},
    {RULE_EXCLUDES, TAKES_TEXT, "--raw", "--chat --continue " OF_TURNS, NULL, NULL,
     "a raw prompt has no turns"},
    {RULE_NEEDS, TAKES_TEXT, "--continue", "--chat", NULL, NULL, "a raw prompt has no turns"},
    {RULE_NEEDS, CLI_RUN, "--continue", "-p -f", NULL, NULL, "it is the answer to one question"},
    {RULE_NEEDS, CLI_TOKENIZE | CLI_LOGITS, OF_TURNS, "--chat", NULL, NULL,
     "a raw prompt has no turns"},
    {RULE_NEEDS, CLI_RUN, OF_TURNS, "--chat -st", "-p -f", NULL, "a raw prompt has no turns"},
    {RULE_EXCLUDES, CLI_RUN, "-cnv", "-p -f --raw", NULL, NULL,
     "the messages of a conversation are standard input; -st answers one prompt"},
    {RULE_EXCLUDES, CLI_RUN, "-st", "--raw", NULL, NULL, "a raw prompt has no turns"},
    {RULE_NEEDS, CLI_SERVE, "--cache-dir-size", "--cache-dir", NULL, NULL,
     "it is the limit of that folder"},
    {RULE_NEEDS, CLI_VERIFY, "--calibration --checksums --model-copy --io --io-timeout",
     "-m -hf", NULL, NULL, "kept prompts have a checksum each"},
    {RULE_NEEDS, RUNS | CLI_SERVE,
     "--worker-key --worker-compute --worker-timeout --worker-delay --rebalance", "--workers", NULL,
     NULL, "it is about them"},
    {RULE_NEEDS, CLI_PLAN, "--worker-key --worker-timeout --worker-delay", "--workers", NULL, NULL,
     "it is about them"},
    {RULE_EXCLUDES, CLI_WORKER | CLI_SPLIT, "--experts", "--share", NULL, NULL,
     "both say which experts: give one"},
    {RULE_EXCLUDES, CLI_SERVE, "--api-key", "--api-key-file", NULL, NULL,
     "give the keys in one place"},
    {RULE_EXCLUDES, CLI_RUN, "--grammar", "--json-schema", NULL, NULL, "give one"},
    {RULE_EXCLUDES, CLI_RUN, "--history", "-p -f --raw", NULL, NULL,
     "only a conversation has a history"},
    {RULE_EXCLUDES, SWEEPS_MODEL, "-s", "-f", NULL, NULL, "the seed is of a random prompt"},
    {RULE_EXCLUDES, CLI_BENCH_DECODE, "-s", "--tokens-from!=greedy|sampled|random", NULL, NULL,
     "the file has all tokens, the prompt's too"},
    {RULE_EXCLUDES, CLI_BENCH_IO, "-m -hf", "--file", NULL, NULL, "they are two files to read"},
    {RULE_EXCLUDES, CLI_INSPECT, "--program", "--json --all", NULL, NULL,
     "a program is printed alone, as text"},

    /* Sampling. */
    {RULE_EXCLUDES, CLI_RUN, "--top-k --top-p --min-p --acceptance=rejection", "--temp=0", NULL,
     NULL, "the likeliest token is always taken"},
    {RULE_NEEDS, CLI_CONFIG, "--acceptance=rejection", "--temp!=0", NULL, NULL,
     "at temperature 0, the default, the likeliest token is always taken"},

    /* Where weights are kept and how they are loaded. */
    {RULE_EXCLUDES, ENGINE, "--policy --prefetch=on --host-compute=on --warm-start=on --lookahead",
     "--offload!=auto", NULL, NULL, "a baseline keeps, foresees and computes nothing of its own"},
    {RULE_EXCLUDES, ENGINE, "--device-memory --host-compute=on|off", "--device=cpu", NULL, NULL,
     "the CPU has no memory of its own"},
    {RULE_NEEDS, ENGINE & ~CLI_CONFIG, "--overcommit-memory", "--host-memory", NULL, NULL,
     "without a ceiling of your own nothing is overcommitted"},
    {RULE_EXCLUDES, ENGINE, "--warm-start=on", "--calibration=none", NULL, NULL,
     "the sidecar names the experts to begin with"},
    {RULE_EXCLUDES, ENGINE, "--io-depth", "--io=sync", NULL, NULL,
     "sync reads one piece at a time"},
    {RULE_EXCLUDES, CLI_BENCH_IO | CLI_BENCH_OFFLOAD, "--depth", "--io=sync", NULL, NULL,
     "sync reads one block at a time"},
    {RULE_EXCLUDES, CLI_BENCH_IO, "--plain-buffers", "--io=sync|threads", NULL, NULL,
     "only io_uring and fio register buffers"},
    {RULE_EXCLUDES, ENGINE | CLI_BENCH_OFFLOAD, "--prefetch=on", "--route-trace", NULL, NULL,
     "the routers cannot foretell a routing that is replayed"},

    /* Speculation. */
    {RULE_EXCLUDES, SPECULATES, OF_DRAFTS, "--speculate=off", NULL, NULL, "nothing is drafted"},
    {RULE_EXCLUDES, SPECULATES, OF_SELF_DRAFTS,
     "--speculate=off|ngram|model:FILE|mtp|mtp:FILE", NULL, NULL,
     "it is a setting of the self draft"},
    {RULE_EXCLUDES, CLI_RUN | CLI_PLAN | CLI_SERVE, OF_DRAFTS " " OF_SELF_DRAFTS,
     "--offload!=auto", NULL, "--speculate",
     "in the baselines nothing is drafted unless --speculate says so"},
    {RULE_EXCLUDES, SPECULATES, "--lookahead",
     "--speculate=auto|self|model:FILE|mtp|mtp:FILE|auto:FILE", NULL, NULL,
     "both drafts would write the same keys and values"},
    {RULE_EXCLUDES, CLI_RUN | CLI_PLAN | CLI_SERVE, OF_DRAFTS " " OF_SELF_DRAFTS, "--lookahead",
     NULL, "--speculate",
     "nothing is then drafted to be verified unless --speculate says so"},
    {RULE_EXCLUDES, SPECULATES | CLI_BENCH_DECODE | CLI_PERPLEXITY, "--lookahead",
     "--route-trace", NULL, NULL, "that routing does not know what a draft will hold"},
    {RULE_NEEDS, SPECULATES | CLI_BENCH_DECODE | CLI_PERPLEXITY, "--lookahead-overlap",
     "--lookahead", NULL, NULL, "it says when that draft runs"},
    {RULE_EXCLUDES, CLI_BENCH_SPECULATE, "--suite", "-f --temp --lengths", NULL, NULL,
     "the suite says which texts are decoded, and how"},
    {RULE_NEEDS, SPECULATES, "--draft-pin", "--draft-experts", NULL, NULL,
     "without a number the self draft uses all experts in memory, and none is chosen"},
    {RULE_EXCLUDES, SPECULATES, "--speculate!=off", "--offload=overlap", NULL, NULL,
     "overlap's oracle does not know what a draft will hold"},

    /* Lossy modes. */
    {RULE_NEEDS, LOSSY, "--expert-budget-mode", "--expert-budget", NULL, NULL,
     "it says how a budget is kept"},
    {RULE_NEEDS, LOSSY, "--quality-limit --quality-share",
     "--expert-budget --buddy!=off --low-bit!=off", NULL, NULL,
     "without a lossy mode nothing is lost"},
    {RULE_EXCLUDES, SPECULATES, "--affinity=output|weight|coact|router", "--calibration=none", NULL,
     NULL, "these are tables of the calibration"},
    {RULE_EXCLUDES, ENGINE, "--offload=caching", "--calibration=none", NULL, NULL,
     "it keeps the experts that a calibration found hottest"},
    {RULE_EXCLUDES, LOSSY, "--buddy!=off", "--calibration=none", NULL, NULL,
     "buddies are found by calibrating"},
    {RULE_EXCLUDES, LOSSY, "--low-bit!=off", "--calibration=none", NULL, NULL,
     "the copies of experts are beside the calibration"},
    {RULE_EXCLUDES, LOSSY, "--low-bit!=off", "--offload!=auto", NULL, NULL,
     "copies stand in for experts that a cache lacks, and the baselines have none"},

    /* Traces. */
    {RULE_EXCLUDES, TRACES, "--trace", "--synthetic", NULL, NULL, "give one, not both"},
    {RULE_NEEDS, TRACES, "-n --prompts --prompt-tokens --parallel", "--synthetic", NULL, NULL,
     "a recorded trace is as long as it is"},
    {RULE_EXCLUDES, CLI_SIMULATE, "--prefetch-recall --lookahead", "--order=sequential", NULL, NULL,
     "accesses one by one have no layer or pass to look ahead from"},
    {RULE_NEEDS, CLI_SIMULATE,
     "--lookahead-stands --lookahead-recall --lookahead-recall-wrong", "--lookahead", NULL, NULL,
     "they describe that draft"},
    {RULE_EXCLUDES, CLI_SIMULATE,
     "--lookahead-stands --lookahead-recall --lookahead-recall-wrong", "--lookahead=recorded",
     NULL, NULL, "recorded forecasts are as good as they were"},
    {RULE_NEEDS, CLI_SIMULATE, "--tiers --link-bandwidth --link-latency", "--host-slots", NULL,
     NULL, "a device's slots alone are one tier"},
    {RULE_EXCLUDES, CLI_SIMULATE, "--host-slots!=0", "--order=sequential", NULL, NULL,
     "accesses one by one have no second tier"},
    {RULE_NEEDS, CLI_ANALYZE, "-s", "--synthetic", NULL, NULL, "the seed is of a generated trace"},
    {RULE_EXCLUDES, TRACES, "--layers --experts", "--synthetic", NULL, NULL,
     "the name says how many there are"},
    {RULE_NEEDS, CLI_ANALYZE, "--expert-bytes", "--export", NULL, NULL, "it is the size written"},
    {RULE_NEEDS, CLI_ANALYZE, "--layer", "--format=gnuplot", NULL, NULL,
     "only gnuplot's heat map is of one layer"},
    {RULE_EXCLUDES, CLI_ANALYZE, "--load-share", "--format=gnuplot", NULL, NULL,
     "the heat map shows no times"},

    /* Results. */
    {RULE_EXCLUDES, CLI_RUN, "--quiet", "--json", NULL, NULL,
     "--json keeps standard error to the statistics, --quiet leaves them out"},
    {RULE_EXCLUDES, TABLES, "--json", "--format!=json", NULL, NULL, "they are two forms: give one"},
    {RULE_NEEDS, TABLES, "--format=gnuplot", "-o", NULL, NULL,
     "gnuplot's files are PREFIX.gp and PREFIX.dat"},
    {RULE_NEEDS, TABLES, "-o", "--format=gnuplot", NULL, NULL,
     "the other forms go to standard output"},
    {RULE_NEEDS, SWEEPS, "--resume", "--csv", NULL, NULL, "that file has what was measured"},
};
/* clang-format on */

const size_t cli_n_option_rules = sizeof cli_option_rules / sizeof cli_option_rules[0];

/* ---- The syntax of the table ---- */

const char *cli_option_rule_term(const char *list, char name[32], char values[96], bool *differs)
{
    size_t size = strcspn(list, " ");
    size_t n = strcspn(list, "!= ");
    snprintf(name, 32, "%.*s", (int)n, list);
    *differs = list[n] == '!';
    n += *differs;
    n += list[n] == '=';
    snprintf(values, 96, "%.*s", (int)(size - n), list + n);
    list += size;
    list += strspn(list, " ");
    return *list != '\0' ? list : NULL;
}

/* Returns the text that was given for the option, "" for a flag; NULL: the option was not given. */
static const char *given(const cli_options *options, const char *name)
{
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        if (options->given[i] != NULL && cli_option_has_name(&cli_option_rows[i], name)) {
            return options->given[i];
        }
    }
    return NULL;
}

static bool equal(const char *part, const char *word)
{
    size_t colon = strcspn(word, ":");
    if (word[colon] == ':') {
        return strncmp(part, word, colon + 1) == 0;
    }
    char *part_end;
    char *word_end;
    double a = strtod(part, &part_end);
    double b = strtod(word, &word_end);
    bool numbers = part_end != part && word_end != word && *part_end == '\0' && *word_end == '\0';
    return numbers ? a == b : strcmp(part, word) == 0;
}

static bool is_among(const char *part, const char *words)
{
    char word[96];
    for (const char *at = words;; at++) {
        size_t size = strcspn(at, "|");
        snprintf(word, sizeof word, "%.*s", (int)size, at);
        if (equal(part, word)) {
            return true;
        }
        at += size;
        if (*at == '\0') {
            return false;
        }
    }
}

/* Whether each part of the text, between commas, is one of the words. */
static bool are_among(const char *text, const char *words)
{
    char part[128];
    for (const char *at = text;; at++) {
        size_t size = strcspn(at, ",");
        snprintf(part, sizeof part, "%.*s", (int)size, at);
        if (!is_among(part, words)) {
            return false;
        }
        at += size;
        if (*at == '\0') {
            return true;
        }
    }
}

/* Finds the first option of the list that holds, with its value if the list names values; false:
 * none. */
static bool find_holding(const cli_options *options, const char *list, char *shown, size_t size)
{
    while (list != NULL) {
        char name[32];
        char values[96];
        bool differs;
        list = cli_option_rule_term(list, name, values, &differs);
        const char *text = given(options, name);
        if (text == NULL || (values[0] != '\0' && are_among(text, values) == differs)) {
            continue;
        }
        snprintf(shown, size, "%s%s%s", name, values[0] != '\0' ? " " : "",
                 values[0] != '\0' ? text : "");
        return true;
    }
    return false;
}

/* ---- For people ---- */

/* Appends text; cuts it off where the buffer ends. */
__attribute__((format(printf, 4, 5))) static void add(char *out, size_t size, size_t *n,
                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int more = vsnprintf(out + *n, size - *n, format, args);
    va_end(args);
    *n = more < 0 ? *n : *n + (size_t)more < size ? *n + (size_t)more : size - 1;
}

/* "--speculate ngram or model:FILE" */
static void add_term(char *out, size_t size, size_t *n, const char *name, const char *values,
                     bool differs)
{
    add(out, size, n, "%s%s%s", name, name[0] != '\0' && values[0] != '\0' ? " " : "",
        differs ? "other than " : "");
    for (const char *at = values; *at != '\0';) {
        size_t length = strcspn(at, "|");
        add(out, size, n, "%.*s", (int)length, at);
        at += length;
        if (*at == '|') {
            at++;
            add(out, size, n, "%s", strchr(at, '|') != NULL ? ", " : " or ");
        }
    }
}

static bool is_known(const char *name, unsigned commands)
{
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        if ((cli_option_rows[i].commands & commands) != 0 &&
            cli_option_has_name(&cli_option_rows[i], name)) {
            return true;
        }
    }
    return false;
}

/* " (analyze)" if a rule is only for some of the commands. */
static void add_commands(char *out, size_t size, size_t *n, unsigned of, unsigned all)
{
    if ((of & all) == all) {
        return;
    }
    const char *before = " (";
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        if ((command->bit & of & all) != 0) {
            add(out, size, n, "%s%s%s%s", before, command->name, command->word != NULL ? " " : "",
                command->word != NULL ? command->word : "");
            before = ", ";
        }
    }
    add(out, size, n, ")");
}

/* Writes "--raw or --chat": the options that the commands know. */
static void add_list(char *out, size_t size, size_t *n, const char *list, unsigned commands)
{
    bool differs;
    char name[32];
    char values[96];
    for (const char *before = ""; list != NULL;) {
        list = cli_option_rule_term(list, name, values, &differs);
        if (is_known(name, commands)) {
            add(out, size, n, "%s", before);
            add_term(out, size, n, name, values, differs);
            before = " or ";
        }
    }
}

/* Gets the values for which the rule constrains the option; false: the rule does not constrain
 * it. */
static bool constrains(const cli_option_rule *rule, const cli_option_row *row, char *values,
                       bool *differs)
{
    char name[32];
    for (const char *list = rule->options; list != NULL;) {
        list = cli_option_rule_term(list, name, values, differs);
        if (cli_option_has_name(row, name)) {
            return true;
        }
    }
    return false;
}

size_t cli_option_rules_describe(const cli_option_row *row, unsigned commands, char *out,
                                 size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    commands &= row->commands;
    for (size_t i = 0; i < cli_n_option_rules; i++) {
        const cli_option_rule *rule = &cli_option_rules[i];
        char others[256] = "";
        char values[96];
        size_t n_others = 0;
        bool differs;
        add_list(others, sizeof others, &n_others, rule->others, commands & rule->commands);
        /* "unless" rows concern defaults, which the help shows anyway. */
        if (n_others == 0 || rule->unless != NULL || !constrains(rule, row, values, &differs)) {
            continue;
        }
        add(out, size, &n, "%s", n > 0 ? "; " : "");
        if (values[0] != '\0') {
            add_term(out, size, &n, "", values, differs);
            add(out, size, &n, ": ");
        }
        add(out, size, &n, "%s %s", rule->kind == RULE_NEEDS ? "needs" : "not with", others);
        if (rule->when != NULL) {
            add(out, size, &n, ", if given with ");
            add_list(out, size, &n, rule->when, commands & rule->commands);
        }
        add_commands(out, size, &n, rule->commands, commands & ~(unsigned)CLI_CONFIG);
    }
    return n;
}

/* ---- The check ---- */

int cli_option_rules_check(const cli_options *options, unsigned command, const char *title)
{
    for (size_t i = 0; i < cli_n_option_rules; i++) {
        const cli_option_rule *rule = &cli_option_rules[i];
        char option[128];
        char with[128] = "";
        char other[256] = "";
        if ((rule->commands & command) == 0 ||
            (rule->when != NULL && !find_holding(options, rule->when, with, sizeof with)) ||
            (rule->unless != NULL && find_holding(options, rule->unless, other, sizeof other)) ||
            !find_holding(options, rule->options, option, sizeof option)) {
            continue;
        }
        bool holds = find_holding(options, rule->others, other, sizeof other);
        if (holds && rule->kind == RULE_EXCLUDES) {
            return cli_fail(CLI_EXIT_USAGE, "%s: %s and %s exclude each other: %s", title, option,
                            other, rule->why);
        }
        if (!holds && rule->kind == RULE_NEEDS) {
            size_t n = 0;
            add_list(other, sizeof other, &n, rule->others, command);
            return cli_fail(CLI_EXIT_USAGE, "%s: %s%s%s needs %s: %s", title, option,
                            with[0] != '\0' ? " with " : "", with, other, rule->why);
        }
    }
    return CLI_EXIT_OK;
}
