/* SPDX-License-Identifier: MIT */
#include "cli_engine_words.h"

#include <stdio.h>
#include <string.h>

#include "cli_lossy_words.h"

#define MOST_ITERATIONS 1000000u

/* Returns the index of a word in a list that ends with NULL; 0 if the word is NULL. Prints an error
 * and returns -1 if the word is not in the list. */
static int find_word(const char *flag, const char *word, const char *const *words)
{
    char list[128] = "";
    size_t size = 0;
    for (int i = 0; words[i] != NULL; i++) {
        if (word == NULL || strcmp(words[i], word) == 0) {
            return i;
        }
        int n = snprintf(list + size, sizeof list - size, "%s%s", i > 0 ? ", " : "", words[i]);
        size += n > 0 && size + (size_t)n < sizeof list ? (size_t)n : 0;
    }
    cli_fail(CLI_EXIT_USAGE, "%s: '%s' is none of %s", flag, word, list);
    return -1;
}

int cli_io_kind(moe_io_kind *kind, const char *word)
{
    static const char *const words[] = {"auto", "uring", "threads", "sync", NULL};
    int value = find_word("--io", word, words);
    *kind = value > 0 ? (moe_io_kind)value : MOE_IO_AUTO;
    return value >= 0 ? CLI_EXIT_OK : CLI_EXIT_USAGE;
}

/* ---- The controller of a draft's length: "cascade:t=2,set=8,back-off=off" ---- */

static bool is_word(const char *text, size_t size, const char *word)
{
    return strlen(word) == size && memcmp(text, word, size) == 0;
}

static bool set_switch(bool *without, const char *value, size_t size)
{
    *without = is_word(value, size, "off");
    return *without || is_word(value, size, "on");
}

static bool set_count(uint32_t *count, const char *value, size_t size)
{
    uint32_t n = 0;
    for (size_t i = 0; i < size; i++) {
        if (value[i] < '0' || value[i] > '9' || n > MOST_ITERATIONS) {
            return false;
        }
        n = 10 * n + (uint32_t)(value[i] - '0');
    }
    *count = n;
    return n >= 1 && n <= MOST_ITERATIONS;
}

static bool set_length_item(moe_lab_options *o, const char *item, size_t size)
{
    const char *equals = memchr(item, '=', size);
    if (equals == NULL) {
        return false;
    }
    size_t n = (size_t)(equals - item);
    const char *value = equals + 1;
    size_t n_value = size - n - 1;
    if (is_word(item, n, "t")) {
        return set_count(&o->trial_iterations, value, n_value);
    }
    if (is_word(item, n, "trials")) {
        return set_count(&o->test_trials, value, n_value);
    }
    if (is_word(item, n, "set")) {
        return set_count(&o->set_iterations, value, n_value);
    }
    if (is_word(item, n, "refresh")) {
        return set_count(&o->refresh_iterations, value, n_value);
    }
    if (is_word(item, n, "back-off")) {
        return set_switch(&o->no_back_off, value, n_value);
    }
    if (is_word(item, n, "early-exit")) {
        return set_switch(&o->no_early_exit, value, n_value);
    }
    if (is_word(item, n, "climb")) {
        return set_switch(&o->no_climb, value, n_value);
    }
    return is_word(item, n, "disable") && set_switch(&o->no_disable, value, n_value);
}

static bool find_length_kind(moe_length_kind *kind, const char *text, size_t size)
{
    static const char *const words[] = {[MOE_LENGTH_SURVIVAL] = "survival",
                                        [MOE_LENGTH_CASCADE] = "cascade",
                                        [MOE_LENGTH_STATIC] = "static"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (is_word(text, size, words[i])) {
            *kind = (moe_length_kind)i;
            return true;
        }
    }
    return false;
}

static int set_length_control(moe_lab_options *o, const char *text)
{
    if (text == NULL) {
        return CLI_EXIT_OK;
    }
    size_t n = strcspn(text, ":");
    if (!find_length_kind(&o->length_control, text, n)) {
        return cli_fail(CLI_EXIT_USAGE,
                        "--length-control: '%.60s' is none of survival, cascade, static", text);
    }
    if (text[n] == ':' && o->length_control != MOE_LENGTH_CASCADE) {
        return cli_fail(CLI_EXIT_USAGE,
                        "--length-control: only cascade has settings, and '%.60s' gives some",
                        text);
    }
    for (const char *item = text + n; *item != '\0';) {
        item++; /* ':' or ',' */
        size_t size = strcspn(item, ",");
        if (!set_length_item(o, item, size)) {
            return cli_fail(CLI_EXIT_USAGE,
                            "--length-control: '%.*s' in '%.60s' is not understood; t=, trials=, "
                            "set=, refresh= (iterations, 1 or more), back-off=, early-exit=, "
                            "disable= (on or off)",
                            size < 60 ? (int)size : 60, item, text);
        }
        item += size;
    }
    return CLI_EXIT_OK;
}

/* ---- The engine's options from the command's words ---- */

static int set_speculate(moe_engine_options *o, const char *text)
{
    static const char *const words[] = {"off", "auto",     "ngram",     "self", "model:FILE",
                                        "mtp", "mtp:FILE", "auto:FILE", NULL};
    const struct {
        const char *prefix;
        moe_speculate speculate;
    } with_file[] = {{"model:", MOE_SPECULATE_MODEL},
                     {"mtp:", MOE_SPECULATE_MTP},
                     {"auto:", MOE_SPECULATE_AUTO}};
    for (size_t i = 0; i < sizeof with_file / sizeof with_file[0]; i++) {
        size_t n = strlen(with_file[i].prefix);
        if (text != NULL && strncmp(text, with_file[i].prefix, n) == 0 && text[n] != '\0') {
            o->speculate = with_file[i].speculate;
            o->draft_model = text + n;
            return CLI_EXIT_OK;
        }
    }
    int value = find_word("--speculate", text, words);
    o->speculate = value > 0 ? (moe_speculate)value : MOE_SPECULATE_OFF;
    return value >= 0 ? CLI_EXIT_OK : CLI_EXIT_USAGE;
}

int cli_engine_words(cli_engine_settings *s, const cli_options *options)
{
    static const char *const offload[] = {"auto", "on-demand", "overlap", "caching", NULL};
    static const char *const kernels[] = {"native", "reference", "avx2", "avx512", NULL};
    static const char *const acceptance[] = {"exact", "rejection", NULL};
    static const char *const cost[] = {"time", "bytes", NULL};
    static const char *const pin[] = {"hot-temporal", "hot-global", "random", NULL};
    static const char *const affinity[] = {"topk",     "output", "weight", "coact", "router",
                                           "shuffled", "random", "none",   NULL};
    int values[6];
    const struct {
        const char *flag, *word;
        const char *const *words;
    } rows[] = {
        {"--offload", options->offload, offload},
        {"--kernels", options->kernels, kernels},
        {"--acceptance", options->acceptance, acceptance},
        {"--cost", options->cost, cost},
        {"--draft-pin", options->draft_pin, pin},
        {"--affinity", options->affinity, affinity},
    };
    moe_engine_options_init(&s->options);
    moe_lossy_options_init(&s->lossy);
    moe_lab_options_init(&s->lab);
    s->options.lossy = &s->lossy;
    s->options.lab = &s->lab;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        values[i] = find_word(rows[i].flag, rows[i].word, rows[i].words);
        if (values[i] < 0) {
            return CLI_EXIT_USAGE;
        }
    }
    s->lab.offload = (moe_offload_mode)values[0];
    s->lab.kernels = (moe_kernels)values[1];
    s->options.acceptance = (moe_acceptance)values[2];
    s->lab.cost_by_bytes = values[3] != 0;
    s->lab.draft_pin = (moe_draft_pin)values[4];
    s->lab.affinity = (moe_stand_in)values[5];
    int code = cli_io_kind(&s->options.io, options->io);
    if (code == CLI_EXIT_OK) {
        code = set_speculate(&s->options, options->speculate);
    }
    if (code == CLI_EXIT_OK) {
        code = set_length_control(&s->lab, options->length_control);
    }
    return code == CLI_EXIT_OK ? cli_lossy_words(&s->lossy, &s->lab, options) : code;
}
