/* SPDX-License-Identifier: MIT */
#include "cli_sampling.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <moe/grammar.h>
#include <moe/sampling.h>

#include "cli_buffer.h"
#include "cli_engine.h"
#include "cli_format.h"
#include "cli_messages.h"

static uint64_t random_seed(void)
{
    uint32_t seed;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
        seed = (uint32_t)cli_now_ns();
    }
    return seed;
}

void cli_session_options(moe_session_options *session_options, const cli_options *options)
{
    moe_session_options_init(session_options);
    moe_sampling *sampling = &session_options->sampling;
    sampling->temperature = (float)options->temperature;
    sampling->top_k = (uint32_t)options->top_k;
    sampling->top_p = (float)options->top_p;
    sampling->min_p = (float)options->min_p;
    sampling->repeat_penalty = (float)options->repeat_penalty;
    sampling->presence_penalty = (float)options->presence_penalty;
    sampling->frequency_penalty = (float)options->frequency_penalty;
    sampling->seed = options->seed < 0 ? random_seed() : (uint64_t)options->seed;
    session_options->evaluate_only = options->predict == 0;
}

/* Reads one bias, ID+B, ID-B or ID-inf, which ends at a comma or the text's end. NULL: it is wrong.
 */
static const char *read_bias(const char *text, moe_token_bias *bias)
{
    char *end;
    errno = 0;
    long token = strtol(text, &end, 10);
    if (end == text || errno != 0 || token < 0 || token > INT32_MAX ||
        (*end != '+' && *end != '-')) {
        return NULL;
    }
    const char *number = end;
    bool bans = strncmp(number, "-inf", 4) == 0;
    double value = bans ? -INFINITY : strtod(number, &end);
    end = bans ? end + 4 : end;
    if (end == number || (!bans && !(fabs(value) <= 1e6)) || (*end != ',' && *end != '\0')) {
        return NULL;
    }
    *bias = (moe_token_bias){(int32_t)token, (float)value};
    return end;
}

int cli_session_biases(moe_session *session, const cli_options *options)
{
    moe_error err = {""};
    size_t n = 0;
    const char *text = options->logit_biases.text;
    if (text[0] == '\0') {
        return CLI_EXIT_OK;
    }
    moe_token_bias *biases = calloc(strlen(text) + 1, sizeof *biases);
    if (biases == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for --logit-bias");
    }
    while (text != NULL && *text != '\0') {
        text = read_bias(text, &biases[n++]);
        if (text != NULL && *text == ',') {
            text++;
        }
    }
    int code = CLI_EXIT_OK;
    if (text == NULL) {
        code = cli_fail(CLI_EXIT_USAGE,
                        "--logit-bias takes ID+B, ID-B or ID-inf, with commas between: %.100s",
                        options->logit_biases.text);
    } else {
        int status = moe_session_set_biases(session, biases, n, &err);
        code = status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
    }
    free(biases);
    return code;
}

static int create(moe_grammar **grammar, const char *text, size_t size)
{
    moe_error err = {""};
    int status = moe_grammar_create(grammar, text, size, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

int cli_session_hold(moe_session *session, const moe_engine *engine, moe_grammar *grammar,
                     const moe_chat_prompt *prompt)
{
    moe_error err = {""};
    moe_grammar *reasoned = NULL;
    int status = MOE_OK;
    if (grammar == NULL) {
        return CLI_EXIT_OK;
    }
    if (prompt != NULL) {
        status = moe_chat_grammar_create(&reasoned, engine, prompt, grammar, &err);
    }
    if (status == MOE_OK) {
        status = moe_session_set_grammar(session, reasoned == NULL ? grammar : reasoned, &err);
    }
    moe_grammar_close(&reasoned);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

int cli_read_grammar(moe_grammar **grammar, const cli_options *options)
{
    *grammar = NULL;
    cli_buffer file = {NULL, 0, 0};
    char *text = NULL;
    moe_error err = {""};
    if (options->grammar == NULL && options->json_schema == NULL) {
        return CLI_EXIT_OK;
    }
    bool is_schema = options->grammar == NULL;
    const char *given = is_schema ? options->json_schema : options->grammar;
    bool is_text =
        is_schema ? given[strspn(given, " \t\r\n")] == '{' : strstr(given, "::=") != NULL;
    int code = CLI_EXIT_OK;
    if (!is_text) {
        code = cli_read_file(&file, given);
    } else if (!cli_buffer_append(&file, given, strlen(given))) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory for the grammar");
    }
    const char *data = file.size == 0 ? "" : file.data;
    if (code == CLI_EXIT_OK && is_schema) {
        int status = moe_json_schema_grammar(&text, data, file.size, &err);
        code = status != MOE_OK ? cli_report(status, &err) : create(grammar, text, strlen(text));
    } else if (code == CLI_EXIT_OK) {
        code = create(grammar, data, file.size);
    }
    moe_free(text);
    cli_buffer_free(&file);
    return code;
}
