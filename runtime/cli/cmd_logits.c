/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/moe.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_npy.h"
#include "cli_prompt.h"
#include "cli_score.h"
#include "commands.h"

typedef struct logits_writer {
    cli_npy npy;
    cli_progress progress;
    size_t n_tokens;
    size_t n_written;
    moe_error error; /* of writing; "": none */
} logits_writer;

static bool on_logits(size_t position, const float *logits, void *user)
{
    logits_writer *writer = user;
    (void)position;
    if (!cli_npy_write_row(&writer->npy, logits, &writer->error)) {
        return false;
    }
    writer->n_written++;
    cli_progress_show(&writer->progress, (double)writer->n_written / (double)writer->n_tokens);
    return true;
}

static int write_logits(moe_engine *engine, const cli_options *options, const int32_t *tokens,
                        size_t n)
{
    logits_writer writer;
    moe_engine_info info = {.struct_size = sizeof info};
    moe_session *session = NULL;
    memset(&writer, 0, sizeof writer);
    writer.n_tokens = n;
    moe_engine_get_info(engine, &info);
    int code = cli_score_open(&session, engine);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    if (!cli_npy_create(&writer.npy, options->output, n, info.n_vocab, &writer.error)) {
        cli_score_close(&session);
        return cli_report(MOE_ERR_IO, &writer.error);
    }
    cli_progress_start(&writer.progress, options, "logits");
    code = cli_score(session, tokens, n, on_logits, &writer);
    cli_progress_end(&writer.progress);
    cli_score_close(&session);
    bool complete = code == CLI_EXIT_OK && writer.error.message[0] == '\0';
    bool closed = cli_npy_close(&writer.npy, complete, &writer.error);
    if (code == CLI_EXIT_OK && !closed) {
        return cli_report(MOE_ERR_IO, &writer.error);
    }
    if (code == CLI_EXIT_OK && !options->quiet) {
        fprintf(stderr, "wrote float32 [%zu][%u] to %s\n", n, info.n_vocab, options->output);
    }
    return code;
}

int cmd_logits(const cli_options *options)
{
    cli_buffer text = {NULL, 0, 0};
    moe_engine *engine = NULL;
    int32_t *given = NULL;   /* from --tokens */
    int32_t *encoded = NULL; /* from a text */
    size_t n = 0;
    int code = cli_check_chat_options(options);
    if (code == CLI_EXIT_OK && options->output == NULL) {
        code = cli_fail(CLI_EXIT_USAGE, "logits: say where to write them: -o FILE.npy");
    }
    if (code == CLI_EXIT_OK) {
        code = options->tokens != NULL ? cli_parse_ids(options->tokens, "--tokens", &given, &n)
                                       : cli_prompt_text(&text, options);
    }
    cli_interrupt_install();
    if (code == CLI_EXIT_OK) {
        code = cli_engine_open(&engine, options, options->context);
    }
    if (code == CLI_EXIT_OK && given == NULL) {
        code = cli_prompt_tokens(engine, options, &text, &encoded, &n);
    }
    if (code == CLI_EXIT_OK) {
        code = cli_check_fits(engine, n);
    }
    if (code == CLI_EXIT_OK) {
        code = write_logits(engine, options, given != NULL ? given : encoded, n);
    }
    free(given);
    moe_free(encoded);
    moe_engine_close(&engine);
    cli_buffer_free(&text);
    return code;
}
