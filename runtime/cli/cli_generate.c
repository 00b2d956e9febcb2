/* SPDX-License-Identifier: MIT */
#include "cli_generate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_timeline.h"

/* The state of one call of cli_generate(). */
typedef struct generation {
    moe_engine *engine;
    moe_session *session;
    const cli_options *options;
    cli_answer *answer;
    moe_text *text;        /* of a raw prompt, else NULL */
    moe_chat_reply *reply; /* of a prompt of turns, else NULL */
    bool in_reasoning;     /* the last piece written was reasoning */
    uint64_t n_sampled;
    uint64_t n_written;
    bool done;
} generation;

size_t cli_answer_n_tokens(const cli_answer *answer)
{
    return answer->tokens.size / sizeof(int32_t);
}

void cli_answer_free(cli_answer *answer)
{
    cli_buffer_free(&answer->tokens);
    cli_buffer_free(&answer->text);
    cli_buffer_free(&answer->reasoning);
}

static void stop(generation *g, cli_stop why)
{
    g->answer->stop = why;
    g->done = true;
}

static int write_text(generation *g, const char *bytes, size_t size)
{
    if (!cli_buffer_append(&g->answer->text, bytes, size)) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the answer's text");
    }
    if (fwrite(bytes, 1, size, stdout) != size || fflush(stdout) != 0) {
        return cli_fail(CLI_EXIT_FAILURE, "standard output: %s", strerror(errno));
    }
    return CLI_EXIT_OK;
}

/* Marks where reasoning begins and ends: dim letters on a terminal, headings on standard error. */
static void frame_reasoning(generation *g, bool begins)
{
    bool on_terminal = isatty(STDOUT_FILENO);
    if (g->in_reasoning == begins) {
        return;
    }
    g->in_reasoning = begins;
    if (on_terminal) {
        fputs(begins ? "\033[2m" : "\033[0m\n\n", stdout);
    } else if (!g->options->quiet && !g->options->json) {
        fputs(begins ? "[reasoning]\n" : "\n[answer]\n", stderr);
    }
}

static int write_reasoning(generation *g, const char *text)
{
    size_t size = strlen(text);
    if (size == 0) {
        return CLI_EXIT_OK;
    }
    frame_reasoning(g, true);
    if (!cli_buffer_append(&g->answer->reasoning, text, size)) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the reasoning");
    }
    if (isatty(STDOUT_FILENO)) {
        return fwrite(text, 1, size, stdout) == size && fflush(stdout) == 0
                   ? CLI_EXIT_OK
                   : cli_fail(CLI_EXIT_FAILURE, "standard output: %s", strerror(errno));
    }
    if (!g->options->quiet && !g->options->json) {
        fputs(text, stderr);
    }
    return CLI_EXIT_OK;
}

static int write_parts(generation *g, const char *reasoning, const char *content)
{
    int code = write_reasoning(g, reasoning);
    if (code == CLI_EXIT_OK && content[0] != '\0') {
        frame_reasoning(g, false);
        code = write_text(g, content, strlen(content));
    }
    return code;
}

static int write_token_text(generation *g, int32_t token)
{
    if (g->reply != NULL) {
        const char *reasoning;
        const char *content;
        moe_chat_reply_push(g->reply, token, &reasoning, &content);
        return write_parts(g, reasoning, content);
    }
    size_t size;
    const char *bytes = moe_text_push(g->text, token, &size);
    return write_text(g, bytes, size);
}

/* Writes the rest of a text. A text that was cut off may end within a character; those bytes are
 * left out. */
static int write_rest(generation *g)
{
    bool cut_off = g->answer->stop != CLI_STOP_END;
    if (g->reply != NULL) {
        const char *reasoning;
        const char *content;
        if (cut_off) {
            moe_chat_reply_cut_off(g->reply);
        }
        moe_chat_reply_finish(g->reply, &reasoning, &content);
        int code = write_parts(g, reasoning, content);
        frame_reasoning(g, false);
        return code;
    }
    if (cut_off) {
        return CLI_EXIT_OK;
    }
    size_t size;
    const char *rest = moe_text_finish(g->text, &size);
    return write_text(g, rest, size);
}

static int write_token(generation *g, int32_t token)
{
    if (!g->options->ignore_eos && moe_token_is_end(g->engine, token)) {
        stop(g, CLI_STOP_END);
        return CLI_EXIT_OK;
    }
    if (!cli_buffer_append(&g->answer->tokens, &token, sizeof token)) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the answer's tokens");
    }
    g->n_written++;
    int code = write_token_text(g, token);
    if (g->options->predict >= 0 && g->n_written >= (uint64_t)g->options->predict) {
        stop(g, CLI_STOP_LENGTH);
    }
    return code;
}

/* Runs one pass, and handles the tokens that it sampled. */
static int advance(generation *g)
{
    int32_t tokens[256];
    moe_error err = {""};
    cli_timeline *timeline = g->options->timeline_open;
    cli_timeline_begin(timeline, g->engine);
    int status = moe_step(g->engine, &g->session, 1, &err);
    if (status == MOE_ERR_CANCELLED) {
        /* If no signal is pending, the request to cancel is left over from the answer before. */
        if (cli_interrupted()) {
            stop(g, CLI_STOP_INTERRUPTED);
        }
        return CLI_EXIT_OK;
    }
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    size_t n = moe_session_take(g->session, tokens, sizeof tokens / sizeof tokens[0]);
    g->n_sampled += n;
    cli_timeline_end(timeline, g->engine, n);
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < n && !g->done && code == CLI_EXIT_OK; i++) {
        code = write_token(g, tokens[i]);
    }
    /* A prompt that fills the context leaves no room for a token: nothing is ever sampled. */
    bool is_evaluated = n > 0 || moe_session_n_pending(g->session) == 0;
    if (!g->done && is_evaluated && moe_session_is_full(g->session)) {
        stop(g, CLI_STOP_CONTEXT);
    }
    return code;
}

/* With -n 0 the session samples nothing, and only evaluates the prompt. */
static bool prompt_is_all(const generation *g)
{
    return g->options->predict == 0 && moe_session_n_pending(g->session) == 0;
}

static int run_passes(generation *g)
{
    cli_progress progress;
    int code = CLI_EXIT_OK;
    size_t n_prompt = moe_session_n_pending(g->session);
    uint64_t start = cli_engine_now_ns(g->engine);
    uint64_t first = 0;
    cli_progress_start(&progress, g->options, "prompt");
    progress.n_rows = n_prompt;
    while (!g->done && code == CLI_EXIT_OK) {
        code = advance(g);
        if (g->n_sampled == 0) {
            size_t left = moe_session_n_pending(g->session);
            cli_progress_show(&progress, 1 - (double)left / (double)n_prompt);
        } else if (first == 0) {
            first = cli_engine_now_ns(g->engine);
            cli_progress_end(&progress);
        }
        if (!g->done && prompt_is_all(g)) {
            stop(g, CLI_STOP_LENGTH);
        }
    }
    cli_progress_end(&progress);
    uint64_t end = cli_engine_now_ns(g->engine);
    g->answer->prompt_tokens +=
        n_prompt - (g->n_sampled == 0 ? moe_session_n_pending(g->session) : 0);
    g->answer->prompt_ns += (first == 0 ? end : first) - start;
    g->answer->decode_ns += first == 0 ? 0 : end - first;
    g->answer->decode_steps += g->n_sampled > 0 ? g->n_sampled - 1 : 0;
    return code;
}

int cli_generate(moe_engine *engine, moe_session *session, const cli_options *options,
                 const moe_chat_prompt *prompt, cli_answer *answer)
{
    generation g = {.engine = engine, .session = session, .options = options, .answer = answer};
    moe_error err = {""};
    answer->stop = CLI_STOP_FAILED;
    int status = prompt != NULL ? moe_chat_reply_create(&g.reply, engine, prompt, &err)
                                : moe_text_create(&g.text, engine, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    int code = run_passes(&g);
    if (code == CLI_EXIT_OK) {
        code = write_rest(&g);
    } else {
        frame_reasoning(&g, false);
    }
    moe_text_close(&g.text);
    moe_chat_reply_close(&g.reply);
    if (code != CLI_EXIT_OK) {
        answer->stop = CLI_STOP_FAILED;
    }
    return code;
}
