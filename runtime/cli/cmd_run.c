/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <moe/moe.h>

#include "cli_chat.h"
#include "cli_engine.h"
#include "cli_format.h"
#include "cli_generate.h"
#include "cli_interrupt.h"
#include "cli_messages.h"
#include "cli_prompt.h"
#include "cli_sampling.h"
#include "cli_timeline.h"
#include "commands.h"

/* Evaluates the prompt, writes the answer, and prints statistics. */
static int answer_prompt(moe_engine *engine, const cli_options *options, const int32_t *tokens,
                         size_t n_tokens, const moe_chat_prompt *prompt, uint64_t load_ns)
{
    moe_session_options session_options;
    moe_session *session;
    moe_error err = {""};
    cli_answer answer;
    memset(&answer, 0, sizeof answer);
    cli_session_options(&session_options, options);
    int status = moe_session_create(&session, engine, &session_options, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    cli_interrupt_watch(session);
    int code = cli_session_biases(session, options);
    moe_grammar *grammar = NULL;
    if (code == CLI_EXIT_OK) {
        status = moe_session_feed(session, tokens, n_tokens, &err);
        code = status == MOE_OK ? cli_read_grammar(&grammar, options) : cli_report(status, &err);
    }
    if (code == CLI_EXIT_OK) {
        code = cli_session_hold(session, engine, grammar, prompt);
    }
    moe_grammar_close(&grammar);
    if (code == CLI_EXIT_OK) {
        code = cli_generate(engine, session, options, prompt, &answer);
    }
    cli_interrupt_watch(NULL);
    /* Prints statistics even after a failure, if some of the answer has been written. */
    if (code == CLI_EXIT_OK || cli_answer_n_tokens(&answer) > 0) {
        /* On a terminal, ends the line, so that the shell's prompt or the statistics begin on a new
         * one. */
        if (isatty(STDOUT_FILENO)) {
            putchar('\n');
            fflush(stdout);
        }
        int told =
            cli_print_statistics(engine, options, &answer, session_options.sampling.seed, load_ns);
        code = code == CLI_EXIT_OK ? told : code;
    }
    if (code == CLI_EXIT_OK && answer.stop == CLI_STOP_INTERRUPTED) {
        code = CLI_EXIT_INTERRUPTED;
    }
    cli_answer_free(&answer);
    moe_session_close(&session);
    return code;
}

static int run_once(moe_engine *engine, const cli_options *options, const cli_buffer *text,
                    uint64_t load_ns)
{
    int32_t *raw = NULL;
    size_t n_tokens = 0;
    moe_chat_prompt *prompt = NULL;
    int code = options->chat ? cli_render_question(&prompt, engine, options, text)
                             : cli_prompt_tokens(engine, options, text, &raw, &n_tokens);
    const int32_t *tokens = prompt != NULL ? moe_chat_prompt_tokens(prompt, &n_tokens) : raw;
    if (code == CLI_EXIT_OK) {
        code = cli_check_fits(engine, n_tokens);
    }
    if (code == CLI_EXIT_OK) {
        code = answer_prompt(engine, options, tokens, n_tokens, prompt, load_ns);
    }
    moe_chat_prompt_close(&prompt);
    moe_free(raw);
    return code;
}

int cmd_run(const cli_options *given)
{
    cli_options speculating = *given;
    const cli_options *options = &speculating;
    cli_speculate_by_default(&speculating);
    cli_buffer text = {NULL, 0, 0};
    moe_engine *engine = NULL;
    bool converse = options->prompt == NULL && options->prompt_file == NULL &&
                    (isatty(STDIN_FILENO) || options->conversation) && !options->raw;
    speculating.chat = options->chat || (options->single_turn && !converse);
    int code = CLI_EXIT_OK;
    cli_interrupt_install();
    if (!converse) {
        code = cli_check_chat_options(options);
        code = code == CLI_EXIT_OK ? cli_prompt_text(&text, options) : code;
    }
    if (code == CLI_EXIT_OK && (converse || options->chat) && !cli_has_template(options)) {
        code = cli_fail(CLI_EXIT_FAILURE,
                        "this model has no chat template: name one with --chat-template (chatml, "
                        "llama3, ...), or %s",
                        converse ? "give a prompt with -p, or --raw and standard input"
                                 : "leave --chat out");
    }
    if (code == CLI_EXIT_OK && options->timeline != NULL) {
        code = cli_timeline_open(&speculating.timeline_open, options->timeline);
    }
    uint64_t start = cli_now_ns();
    if (code == CLI_EXIT_OK) {
        code = cli_engine_open(&engine, options, options->context);
    }
    uint64_t load_ns = cli_now_ns() - start;
    if (code == CLI_EXIT_OK) {
        code = converse ? cli_chat(engine, options, load_ns)
                        : run_once(engine, options, &text, load_ns);
    }
    moe_engine_close(&engine);
    cli_buffer_free(&text);
    return cli_timeline_close(&speculating.timeline_open, code);
}
