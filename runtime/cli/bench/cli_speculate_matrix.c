/* SPDX-License-Identifier: MIT */
#include "cli_speculate_matrix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_format.h"
#include "cli_lossy_words.h"

#define DEFAULT_CONFIGS "off; auto; ngram; self"
#define MOST_WORDS      24
#define DEFAULT_DECODE  64

/* ---- Configurations ---- */

/* "self --draft-max 4": a mode and those options of run that say how tokens are drafted and
 * computed. The bench itself sets the others, such as -n or --temp. */
static int parse_config(cli_speculate_matrix *m, const char *text, size_t size)
{
    cli_speculate_config *c = &m->configs[m->n_configs];
    char *argv[MOST_WORDS];
    int argc = 0;
    if (m->n_configs == CLI_SPECULATE_CONFIGS || size >= CLI_SPECULATE_WORDS) {
        return cli_fail(CLI_EXIT_USAGE, "bench speculate: --configs: at most %d, of %d characters",
                        CLI_SPECULATE_CONFIGS, CLI_SPECULATE_WORDS - 1);
    }
    memcpy(c->text, text, size);
    memcpy(c->words, text, size);
    argv[argc++] = "--speculate";
    for (char *word = strtok(c->words, " "); word != NULL && argc < MOST_WORDS;
         word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    if (argc < 2) {
        return cli_fail(CLI_EXIT_USAGE, "bench speculate: --configs: an empty one in '%s'",
                        m->given->configs);
    }
    static const cli_command configuration = {
        .name = "bench speculate", .word = "--configs", .bit = CLI_CONFIG};
    c->options = *m->given;
    int code;
    if (!cli_options_apply(&c->options, &configuration, argc, argv, &code)) {
        return code;
    }
    c->lossy = cli_lossy_is_asked(&c->options);
    m->n_configs++;
    return CLI_EXIT_OK;
}

static int parse_configs(cli_speculate_matrix *m)
{
    const char *text = m->given->configs != NULL ? m->given->configs : DEFAULT_CONFIGS;
    int code = CLI_EXIT_OK;
    while (*text != '\0' && code == CLI_EXIT_OK) {
        text += strspn(text, " ");
        size_t n = strcspn(text, ";");
        size_t size = n;
        while (size > 0 && text[size - 1] == ' ') {
            size--;
        }
        code = parse_config(m, text, size);
        text += n + (text[n] == ';');
    }
    return code;
}

int cli_speculate_open(cli_speculate_matrix *m, const cli_options *o)
{
    *m = (cli_speculate_matrix){.given = o};
    int code = parse_configs(m);
    if (code == CLI_EXIT_OK) {
        code = cli_bench_shares(o->cache_sizes != NULL ? o->cache_sizes : "100%", "--expert-cache",
                                m->caches, &m->n_caches);
    }
    if (code == CLI_EXIT_OK) {
        code = cli_bench_counts(o->batches != NULL ? o->batches : "1", "--parallel", m->batches,
                                &m->n_batches);
    }
    m->n_prompt = o->bench_prompt;
    m->n_decode = o->predict < 1 ? DEFAULT_DECODE : (size_t)o->predict;
    m->n_prompts = o->trace_prompts;
    m->repeat = o->bench_repeat;
    size_t n = m->n_caches * m->n_batches * m->n_configs;
    m->outcomes = calloc(n > 0 ? n : 1, sizeof *m->outcomes);
    for (size_t i = 0; m->outcomes != NULL && i < n; i++) {
        m->outcomes[i].speed = calloc(m->repeat, sizeof(double));
        m->outcomes[i].ratio = calloc(m->repeat, sizeof(double));
    }
    return code != CLI_EXIT_OK || m->outcomes != NULL
               ? code
               : cli_fail(CLI_EXIT_FAILURE, "out of memory for %zu outcomes", n);
}

/* ---- All runs ---- */

/* Whether a configuration's text is that of plain decoding with the same seed. */
static bool keeps_text(const cli_speculate_matrix *m, size_t c)
{
    const cli_options *o = &m->configs[c].options;
    bool draws = o->acceptance != NULL && strcmp(o->acceptance, "rejection") == 0;
    return !m->configs[c].lossy && (m->given->bench_temperature == 0 || !draws);
}

static int check_text(const cli_speculate_matrix *m, const cli_speculate_outcome *first, size_t c)
{
    bool same = strcmp(first->hash, first[c].hash) == 0;
    bool must = keeps_text(m, c) && keeps_text(m, 0);
    return same || !must
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE, "configuration '%s' wrote other tokens than '%s'",
                          m->configs[c].text, m->configs[0].text);
}

/* Runs all configurations of one cache size and batch in turn, for all repetitions. */
static int run_cell(cli_speculate_matrix *m, size_t cache, size_t batch)
{
    cli_speculate_outcome *first = m->outcomes + (cache * m->n_batches + batch) * m->n_configs;
    int code = CLI_EXIT_OK;
    for (size_t r = 0; r < m->repeat; r++) {
        for (size_t c = 0; c < m->n_configs && code == CLI_EXIT_OK; c++) {
            if (m->forced && m->configs[c].options.speculate != NULL &&
                strcmp(m->configs[c].options.speculate, "off") != 0) {
                continue;
            }
            code = cli_speculate_decode(m, &m->configs[c], m->caches[cache], m->batches[batch], r,
                                        &first[c]);
            if (code == CLI_EXIT_OK) {
                first[c].ratio[r] = first[c].speed[r] / first->speed[r];
                code = check_text(m, first, c);
            }
        }
    }
    return code;
}

int cli_speculate_run(cli_speculate_matrix *m)
{
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < m->n_caches && code == CLI_EXIT_OK; i++) {
        for (size_t b = 0; b < m->n_batches && code == CLI_EXIT_OK; b++) {
            code = run_cell(m, i, b);
        }
    }
    return code;
}

const cli_speculate_outcome *cli_speculate_outcome_of(const cli_speculate_matrix *m, size_t cache,
                                                      size_t batch, size_t config)
{
    return &m->outcomes[(cache * m->n_batches + batch) * m->n_configs + config];
}

double cli_speculate_gain(const cli_speculate_outcome *first, const cli_speculate_outcome *o)
{
    bool known = first->cost > 0 && o->cost > 0;
    return known ? first->cost / (double)first->n_emitted * (double)o->n_emitted / o->cost : NAN;
}

void cli_speculate_close(cli_speculate_matrix *m)
{
    size_t n = m->n_caches * m->n_batches * m->n_configs;
    for (size_t i = 0; m->outcomes != NULL && i < n; i++) {
        free(m->outcomes[i].speed);
        free(m->outcomes[i].ratio);
    }
    free(m->outcomes);
    m->outcomes = NULL;
    for (size_t c = 0; c < m->n_configs; c++) { /* their texts stay, for a summary */
        cli_options_free(&m->configs[c].options);
    }
}
