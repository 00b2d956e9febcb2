/* SPDX-License-Identifier: MIT */
#include "cli_bench_tokens.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_buffer.h"
#include "cli_prompt.h"

static const char *const source_names[] = {"greedy", "sampled", "random", "file"};

const char *cli_bench_source_name(cli_bench_source source)
{
    return source_names[source];
}

/* SplitMix64: the tokens are the same for the same seed everywhere. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static void find_source(cli_bench_tokens *tokens, const char *name)
{
    tokens->source = name == NULL ? CLI_BENCH_GREEDY : CLI_BENCH_FILE;
    for (int i = 0; name != NULL && i < CLI_BENCH_FILE; i++) {
        if (strcmp(name, source_names[i]) == 0) {
            tokens->source = (cli_bench_source)i;
        }
    }
    tokens->path = tokens->source == CLI_BENCH_FILE ? name : NULL;
}

static int check_ids(const char *path, const int32_t *ids, size_t n, size_t needed,
                     uint32_t n_vocab)
{
    if (n < needed) {
        return cli_fail(CLI_EXIT_FAILURE,
                        "--tokens-from %s: %zu ids where %zu are needed: a longer text, or fewer "
                        "of -p, -n, --parallel",
                        path, n, needed);
    }
    for (size_t i = 0; i < needed; i++) {
        if ((uint32_t)ids[i] >= n_vocab) {
            return cli_fail(CLI_EXIT_FAILURE,
                            "--tokens-from %s: id %d, the %zu-th, is outside the vocabulary of %u: "
                            "take the ids from 'moe-offload tokenize' with this model",
                            path, ids[i], i + 1, n_vocab);
        }
    }
    return CLI_EXIT_OK;
}

static int read_ids(cli_bench_tokens *tokens, size_t needed, uint32_t n_vocab)
{
    cli_buffer text = {NULL, 0, 0};
    int32_t *ids = NULL;
    size_t n = 0;
    int code = cli_read_file(&text, tokens->path);
    if (code == CLI_EXIT_OK) {
        code = cli_parse_ids(text.data == NULL ? "" : text.data, "--tokens-from", &ids, &n);
    }
    if (code == CLI_EXIT_OK) {
        code = check_ids(tokens->path, ids, n, needed, n_vocab);
    }
    if (code == CLI_EXIT_OK) {
        memcpy(tokens->ids, ids, needed * sizeof *ids);
    }
    free(ids);
    cli_buffer_free(&text);
    return code;
}

int cli_bench_tokens_read(cli_bench_tokens *tokens, const cli_options *options, size_t n_sequences,
                          size_t n_prompt, size_t n_decode, uint32_t n_vocab)
{
    memset(tokens, 0, sizeof *tokens);
    find_source(tokens, options->tokens_from);
    tokens->seed = options->seed < 0 ? 0 : (uint64_t)options->seed;
    tokens->n_prompt = n_prompt;
    bool forced = tokens->source == CLI_BENCH_RANDOM || tokens->source == CLI_BENCH_FILE;
    tokens->n_forced = forced ? n_decode : 0;
    size_t needed = n_sequences * (n_prompt + tokens->n_forced);
    tokens->ids = calloc(needed, sizeof *tokens->ids);
    if (tokens->ids == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for %zu tokens", needed);
    }
    if (tokens->source == CLI_BENCH_FILE) {
        return read_ids(tokens, needed, n_vocab);
    }
    uint64_t state = tokens->seed;
    for (size_t i = 0; i < needed; i++) {
        tokens->ids[i] = (int32_t)(next_random(&state) % n_vocab);
    }
    return CLI_EXIT_OK;
}

void cli_bench_tokens_free(cli_bench_tokens *tokens)
{
    free(tokens->ids);
    tokens->ids = NULL;
}

const int32_t *cli_bench_tokens_of(const cli_bench_tokens *tokens, size_t sequence)
{
    return tokens->ids + sequence * (tokens->n_prompt + tokens->n_forced);
}

bool cli_bench_tokens_forced(const cli_bench_tokens *tokens)
{
    return tokens->n_forced > 0;
}

void cli_bench_tokens_describe(const cli_bench_tokens *tokens, char *text, size_t size)
{
    switch (tokens->source) {
    case CLI_BENCH_GREEDY:
    case CLI_BENCH_SAMPLED:
        snprintf(text, size, "prompt at random by seed %" PRIu64 ", decoded %s", tokens->seed,
                 tokens->source == CLI_BENCH_GREEDY ? "greedily" : "by sampling with that seed");
        break;
    case CLI_BENCH_RANDOM:
        snprintf(text, size, "prompt and decoded tokens at random by seed %" PRIu64, tokens->seed);
        break;
    case CLI_BENCH_FILE:
        snprintf(text, size, "prompt and decoded tokens from %s", tokens->path);
        break;
    }
}
