/* SPDX-License-Identifier: MIT */
/* The session's timeline holds the conversation; each turn renders only what is new. One rule keeps
 * the two in step: an answer that did not end by itself (Ctrl-C, -n) lacks the markup that closes a
 * turn, so before anything follows it the timeline is cut back to where its question began, and
 * question and answer are rendered whole. */
#include "cli_chat.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/calibrate.h>

#include "cli_buffer.h"
#include "cli_engine.h"
#include "cli_format.h"
#include "cli_generate.h"
#include "cli_interrupt.h"
#include "cli_sampling.h"

typedef struct conversation {
    moe_engine *engine;
    const cli_options *options;
    moe_session_options session_options;
    moe_session *session;
    uint64_t load_ns;
    cli_answer total;
    /* What was said; texts are owned. */
    moe_chat_message *messages;
    size_t n_messages;
    size_t capacity;
    /* The last question and answer: where it began, and whether its end is rendered. */
    size_t turn_start; /* tokens on the timeline */
    size_t turn_first; /* index of the question's message */
    bool turn_open;
    bool leave;
} conversation;

static void forget_messages(conversation *c, size_t keep)
{
    while (c->n_messages > keep) {
        free((char *)c->messages[--c->n_messages].text);
    }
}

static bool add_message(conversation *c, const char *role, const char *text)
{
    if (c->n_messages == c->capacity) {
        size_t capacity = c->capacity == 0 ? 16 : c->capacity * 2;
        moe_chat_message *grown = realloc(c->messages, capacity * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        c->messages = grown;
        c->capacity = capacity;
    }
    char *copy = strdup(text);
    if (copy == NULL) {
        return false;
    }
    c->messages[c->n_messages++] = (moe_chat_message){role, copy};
    return true;
}

/* Renders the messages from `first` on and feeds them. */
static int feed_messages(conversation *c, size_t first, bool open_assistant)
{
    int32_t *tokens = NULL;
    size_t n = 0;
    moe_error err = {""};
    int status = moe_chat_tokens(c->engine, c->messages, c->n_messages, first, open_assistant,
                                 &tokens, &n, &err);
    if (status == MOE_OK) {
        status = moe_session_feed(c->session, tokens, n, &err);
    }
    moe_free(tokens);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

static int close_turn(conversation *c)
{
    moe_error err = {""};
    if (!c->turn_open) {
        return CLI_EXIT_OK;
    }
    int status = moe_session_truncate(c->session, c->turn_start, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    c->turn_open = false;
    return feed_messages(c, c->turn_first, false);
}

static int reset(conversation *c)
{
    moe_error err = {""};
    forget_messages(c, 0);
    c->turn_open = false;
    int status = moe_session_truncate(c->session, 0, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    if (c->options->system_text != NULL && !add_message(c, "system", c->options->system_text)) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the conversation");
    }
    return CLI_EXIT_OK;
}

/* The first question takes the system message along; later ones are rendered from themselves. */
static int ask(conversation *c, const char *question)
{
    int code = close_turn(c);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    size_t keep = c->n_messages;
    c->turn_first = moe_session_n_tokens(c->session) == 0 ? 0 : keep;
    c->turn_start = moe_session_n_tokens(c->session);
    if (!add_message(c, "user", question)) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the conversation");
    }
    code = feed_messages(c, c->turn_first, true);
    if (code != CLI_EXIT_OK) {
        forget_messages(c, keep);
    }
    return code;
}

static void add_to_total(conversation *c, const cli_answer *answer)
{
    c->total.stop = answer->stop;
    c->total.prompt_tokens += answer->prompt_tokens;
    c->total.prompt_ns += answer->prompt_ns;
    c->total.decode_steps += answer->decode_steps;
    c->total.decode_ns += answer->decode_ns;
    if (!cli_buffer_append(&c->total.tokens, answer->tokens.data, answer->tokens.size)) {
        cli_fail(CLI_EXIT_FAILURE, "out of memory: the statistics miss an answer");
    }
}

static int say(conversation *c, const char *question)
{
    cli_answer answer;
    int code = ask(c, question);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    memset(&answer, 0, sizeof answer);
    cli_interrupt_clear();
    cli_interrupt_watch(c->session);
    code = cli_generate(c->engine, c->session, c->options, &answer);
    cli_interrupt_watch(NULL);
    cli_interrupt_clear();
    puts("");
    add_to_total(c, &answer);
    c->turn_open = answer.stop != CLI_STOP_END;
    if (!add_message(c, "assistant", answer.text.size == 0 ? "" : answer.text.data)) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory for the conversation");
    }
    if (answer.stop == CLI_STOP_CONTEXT) {
        fputs("(the context is full: /reset starts over, a larger -c holds more)\n", stderr);
    }
    cli_answer_free(&answer);
    return code;
}

static int save(conversation *c, const char *path)
{
    moe_error err = {""};
    int code = close_turn(c);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    int status = moe_session_save(c->session, path, &err);
    if (status == MOE_OK) {
        fprintf(stderr, "saved %zu tokens to %s\n", moe_session_n_tokens(c->session), path);
    }
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

/* The file holds tokens, not messages: one empty message stands for all of what was said, so that
 * what follows is rendered as a continuation. */
static int load(conversation *c, const char *path)
{
    moe_error err = {""};
    moe_session *loaded;
    int status = moe_session_load(&loaded, c->engine, path, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    moe_session_close(&c->session);
    c->session = loaded;
    forget_messages(c, 0);
    c->turn_open = false;
    status = moe_session_set_sampling(loaded, &c->session_options.sampling, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    if (!add_message(c, "assistant", "")) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the conversation");
    }
    fprintf(stderr, "loaded %zu tokens from %s\n", moe_session_n_tokens(loaded), path);
    return CLI_EXIT_OK;
}

/* What this conversation has shown of the experts' use, for later ones. */
static int command_learn(conversation *c, const char *argument)
{
    (void)argument;
    moe_engine_info info = {.struct_size = sizeof info};
    uint64_t n_tokens;
    moe_error err = {""};
    int status = moe_learn_save(c->engine, NULL, &n_tokens, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    moe_engine_get_info(c->engine, &info);
    fprintf(stderr, "learnt from %" PRIu64 " tokens, kept in %s\n", n_tokens, info.sidecar);
    return CLI_EXIT_OK;
}

static int command_reset(conversation *c, const char *argument)
{
    (void)argument;
    return reset(c);
}

static int command_stats(conversation *c, const char *argument)
{
    (void)argument;
    cli_options options = *c->options;
    options.quiet = false;
    return cli_print_statistics(c->engine, &options, &c->total, c->session_options.sampling.seed,
                                c->load_ns);
}

static int command_exit(conversation *c, const char *argument)
{
    (void)argument;
    c->leave = true;
    return CLI_EXIT_OK;
}

static int command_help(conversation *c, const char *argument);

static const struct {
    const char *name;
    const char *argument; /* NULL: takes none */
    int (*run)(conversation *c, const char *argument);
    const char *help;
} chat_commands[] = {
    {"/reset", NULL, command_reset, "forget the conversation"},
    {"/save", "FILE", save, "keep the conversation in FILE"},
    {"/load", "FILE", load, "go on with the conversation in FILE"},
    {"/learn", NULL, command_learn, "keep which experts were used, for a warm start of later runs"},
    {"/stats", NULL, command_stats, "speeds and bytes so far"},
    {"/help", NULL, command_help, "this list"},
    {"/exit", NULL, command_exit, "leave (also Ctrl-D)"},
};

#define N_CHAT_COMMANDS (sizeof chat_commands / sizeof chat_commands[0])

static int command_help(conversation *c, const char *argument)
{
    (void)c;
    (void)argument;
    for (size_t i = 0; i < N_CHAT_COMMANDS; i++) {
        fprintf(stderr, "%-7s%-6s%s\n", chat_commands[i].name,
                chat_commands[i].argument == NULL ? "" : chat_commands[i].argument,
                chat_commands[i].help);
    }
    fputs("Ctrl-C stops an answer; at the prompt it leaves.\n", stderr);
    return CLI_EXIT_OK;
}

/* A failed command is told and the conversation goes on. */
static void run_command(conversation *c, char *line)
{
    char *argument = line + strcspn(line, " ");
    if (*argument != '\0') {
        *argument++ = '\0';
        argument += strspn(argument, " ");
    }
    for (size_t i = 0; i < N_CHAT_COMMANDS; i++) {
        if (strcmp(line, chat_commands[i].name) != 0) {
            continue;
        }
        if ((chat_commands[i].argument != NULL) != (*argument != '\0')) {
            cli_fail(CLI_EXIT_USAGE, "%s takes %s", line,
                     chat_commands[i].argument == NULL ? "no argument" : "a file name");
            return;
        }
        chat_commands[i].run(c, argument);
        return;
    }
    cli_fail(CLI_EXIT_USAGE, "%s is not a command here: /help lists them", line);
}

static int converse(conversation *c)
{
    char *line = NULL;
    size_t size = 0;
    int code = reset(c);
    while (code == CLI_EXIT_OK && !c->leave) {
        fputs("> ", stdout);
        fflush(stdout);
        moe_engine_warm(c->engine); /* while the user types */
        ssize_t length = getline(&line, &size, stdin);
        if (length < 0) {
            puts("");
            code = cli_interrupted() ? CLI_EXIT_INTERRUPTED : CLI_EXIT_OK;
            break;
        }
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '/') {
            run_command(c, line);
        } else if (line[0] != '\0') {
            say(c, line);
        }
        code = cli_interrupt_ends() ? CLI_EXIT_INTERRUPTED : code;
    }
    free(line);
    return code;
}

int cli_chat(moe_engine *engine, const cli_options *options, uint64_t load_ns)
{
    conversation c;
    moe_engine_info info = {.struct_size = sizeof info};
    moe_error err = {""};
    memset(&c, 0, sizeof c);
    c.engine = engine;
    c.options = options;
    c.load_ns = load_ns;
    moe_engine_get_info(engine, &info);
    if (!info.has_chat_template) {
        return cli_fail(CLI_EXIT_FAILURE, "this model has no chat template that is known: give a "
                                          "prompt with -p, or --raw and standard input");
    }
    cli_session_options(&c.session_options, options);
    int status = moe_session_create(&c.session, engine, &c.session_options, &err);
    if (status == MOE_OK) {
        status = moe_learn_begin(engine, &err);
    }
    if (status != MOE_OK) {
        moe_session_close(&c.session);
        return cli_report(status, &err);
    }
    if (!options->quiet && !options->json) {
        fprintf(stderr, "%s, context of %u tokens. /help lists commands.\n",
                info.model_name[0] == '\0' ? info.family : info.model_name, info.context);
    }
    int code = converse(&c);
    int told =
        cli_print_statistics(engine, options, &c.total, c.session_options.sampling.seed, load_ns);
    code = code == CLI_EXIT_OK ? told : code;
    forget_messages(&c, 0);
    free(c.messages);
    cli_answer_free(&c.total);
    moe_session_close(&c.session);
    return code;
}
