/* SPDX-License-Identifier: MIT */
/* A conversation is a list of messages. For each question the command renders the whole list, and
 * the session follows: tokens that its timeline and the rendered conversation have in common stay
 * evaluated, so only the rest is computed. If the template changes earlier messages (most leave out
 * earlier reasoning), the rest begins at the change. */
#include "cli_chat.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moe/calibrate.h>
#include <moe/files.h>

#include "cli_chat_set.h"
#include "cli_engine.h"
#include "cli_format.h"
#include "cli_generate.h"
#include "cli_interrupt.h"
#include "cli_line_reader.h"
#include "cli_messages.h"
#include "cli_sampling.h"

typedef struct conversation {
    moe_engine *engine;
    cli_options options;    /* the given options, with changes by /think, /system and /set */
    cli_chat_values values; /* of /set */
    char *system_text;      /* the text of /system; NULL: that of --system */
    moe_grammar *grammar;   /* the grammar of every answer; NULL: none */
    moe_session_options session_options;
    moe_session *session;
    uint64_t load_ns;
    cli_answer total;
    cli_chat_template chat_template;
    struct json_object *messages; /* the messages so far */
    bool leave;
} conversation;

static void forget_messages(conversation *c, size_t keep)
{
    size_t n = json_object_array_length(c->messages);
    if (n > keep) {
        json_object_array_del_idx(c->messages, keep, n - keep);
    }
}

static int add_message(conversation *c, const char *role, const char *text, const char *reasoning)
{
    return cli_add_message(c->messages, role, text, reasoning)
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE, "out of memory for the conversation");
}

static int reset(conversation *c)
{
    moe_error err = {""};
    forget_messages(c, 0);
    int status = moe_session_truncate(c->session, 0, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    return c->options.system_text == NULL ? CLI_EXIT_OK
                                          : add_message(c, "system", c->options.system_text, NULL);
}

/* Renders the conversation with the question at its end, and makes the session follow. */
static int ask(conversation *c, const char *question, moe_chat_prompt **prompt)
{
    moe_error err = {""};
    size_t n;
    *prompt = NULL;
    int code = add_message(c, "user", question, NULL);
    if (code == CLI_EXIT_OK) {
        code = cli_render_messages(prompt, c->engine, &c->options, &c->chat_template, c->messages,
                                   false);
    }
    if (code != CLI_EXIT_OK) {
        return code;
    }
    const int32_t *tokens = moe_chat_prompt_tokens(*prompt, &n);
    int status = moe_session_follow(c->session, tokens, n, NULL, &err);
    return status == MOE_OK ? cli_session_hold(c->session, c->engine, c->grammar, *prompt)
                            : cli_report(status, &err);
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

/* Asks a question and prints the answer. If the question cannot be asked, drops it. */
static int say(conversation *c, const char *question)
{
    cli_answer answer;
    moe_chat_prompt *prompt;
    size_t keep = json_object_array_length(c->messages);
    int code = ask(c, question, &prompt);
    if (code != CLI_EXIT_OK) {
        forget_messages(c, keep);
        moe_chat_prompt_close(&prompt);
        return code;
    }
    memset(&answer, 0, sizeof answer);
    cli_interrupt_clear();
    cli_interrupt_watch(c->session);
    code = cli_generate(c->engine, c->session, &c->options, prompt, &answer);
    cli_interrupt_watch(NULL);
    cli_interrupt_clear();
    puts("");
    add_to_total(c, &answer);
    int added = add_message(c, "assistant", answer.text.size == 0 ? "" : answer.text.data,
                            answer.reasoning.data);
    code = code == CLI_EXIT_OK ? added : code;
    if (answer.stop == CLI_STOP_CONTEXT) {
        fputs("(the context is full: /reset starts over, a larger -c holds more)\n", stderr);
    }
    moe_chat_prompt_close(&prompt);
    cli_answer_free(&answer);
    return code;
}

/* The tokens are in FILE, the messages in FILE.messages.json. */
static int messages_path(char *out, size_t size, const char *path)
{
    int n = snprintf(out, size, "%s.messages.json", path);
    return n > 0 && (size_t)n < size
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_USAGE, "the name of the file is too long: %.60s...", path);
}

/* Writes the messages to the disk, but does not yet replace the older file. */
static int write_messages(moe_atomic_file **file, const conversation *c, const char *path,
                          moe_error *err)
{
    const char *json = json_object_to_json_string_ext(c->messages, JSON_C_TO_STRING_PLAIN);
    int status = moe_atomic_file_open(file, path, MOE_FILE_PRIVATE, err);
    if (status == MOE_OK && json == NULL) {
        snprintf(err->message, sizeof err->message, "out of memory for the messages");
        status = MOE_ERR_MEMORY;
    }
    status = status == MOE_OK ? moe_atomic_file_write(*file, json, strlen(json), err) : status;
    return status == MOE_OK ? moe_atomic_file_sync(*file, err) : status;
}

/* Writes both files before it replaces either, so that a full disk destroys neither of the old
 * ones. */
static int save(conversation *c, const char *path)
{
    moe_error err = {""};
    char messages[PATH_MAX];
    int code = messages_path(messages, sizeof messages, path);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    moe_atomic_file *file;
    int status = write_messages(&file, c, messages, &err);
    status = status == MOE_OK ? moe_session_save(c->session, path, &err) : status;
    if (status == MOE_OK) {
        status = moe_atomic_file_commit(&file, &err);
    }
    moe_atomic_file_abandon(&file);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    fprintf(stderr, "saved %zu tokens to %s and what was said to %s\n",
            moe_session_n_tokens(c->session), path, messages);
    return CLI_EXIT_OK;
}

static int read_messages(struct json_object **messages, const char *name, const char *path)
{
    int fd;
    moe_error err = {""};
    if (moe_input_open(&fd, name, 0, &err) == MOE_OK) {
        *messages = json_object_from_fd(fd);
        close(fd);
    }
    if (json_object_is_type(*messages, json_type_array)) {
        return CLI_EXIT_OK;
    }
    json_object_put(*messages);
    return cli_fail(CLI_EXIT_FAILURE,
                    "%s, which /save writes beside %s, is missing or holds no messages", name,
                    path);
}

static const char *text_of(struct json_object *message, const char *key)
{
    const char *text = json_object_get_string(json_object_object_get(message, key));
    return text == NULL ? "" : text;
}

/* Prints the conversation so far; questions begin with "> ". */
static void print_transcript(const conversation *c)
{
    for (size_t i = 0; i < json_object_array_length(c->messages); i++) {
        struct json_object *message = json_object_array_get_idx(c->messages, i);
        const char *role = text_of(message, "role");
        fprintf(stderr, "%s%s\n",
                strcmp(role, "user") == 0     ? "> "
                : strcmp(role, "system") == 0 ? "system: "
                                              : "",
                text_of(message, "content"));
    }
}

static int load(conversation *c, const char *path)
{
    moe_error err = {""};
    char name[PATH_MAX];
    moe_session *loaded;
    int code = messages_path(name, sizeof name, path);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    struct json_object *messages = NULL;
    code = read_messages(&messages, name, path);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    int status = moe_session_load(&loaded, c->engine, path, &err);
    if (status == MOE_OK) {
        status = moe_session_set_sampling(loaded, &c->session_options.sampling, &err);
    }
    if (status != MOE_OK) {
        moe_session_close(&loaded);
        json_object_put(messages);
        return cli_report(status, &err);
    }
    moe_session_close(&c->session);
    c->session = loaded;
    json_object_put(c->messages);
    c->messages = messages;
    fprintf(stderr, "loaded %zu tokens from %s\n", moe_session_n_tokens(loaded), path);
    if (!c->options.quiet && !c->options.json) {
        print_transcript(c);
    }
    return CLI_EXIT_OK;
}

/* Adds the experts' use in this conversation to the sidecar, for later ones. */
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

/* Returns the index of the last question; the number of messages if there is none. */
static size_t last_question(const conversation *c)
{
    size_t n = json_object_array_length(c->messages);
    for (size_t i = n; i-- > 0;) {
        if (strcmp(text_of(json_object_array_get_idx(c->messages, i), "role"), "user") == 0) {
            return i;
        }
    }
    return n;
}

/* Removes the last question and everything after it. */
static int command_undo(conversation *c, const char *argument)
{
    (void)argument;
    size_t n = last_question(c);
    if (n == json_object_array_length(c->messages)) {
        return cli_fail(CLI_EXIT_USAGE, "/undo: nothing has been said that could be taken back");
    }
    const char *text = text_of(json_object_array_get_idx(c->messages, n), "content");
    int size = (int)strcspn(text, "\n");
    fprintf(stderr, "took back: %.*s%s\n", size > 60 ? 60 : size, text,
            size > 60 || text[size] != '\0' ? "..." : "");
    forget_messages(c, n);
    return CLI_EXIT_OK;
}

static int set_sampling(conversation *c)
{
    moe_error err = {""};
    int status = moe_session_set_sampling(c->session, &c->session_options.sampling, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

/* Answers the last question again. The sampler's generator continues, so the answer differs. */
static int command_regen(conversation *c, const char *argument)
{
    (void)argument;
    size_t n = last_question(c);
    if (n == json_object_array_length(c->messages)) {
        return cli_fail(CLI_EXIT_USAGE, "/regen: nothing has been asked");
    }
    char *question = strdup(text_of(json_object_array_get_idx(c->messages, n), "content"));
    if (question == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the question");
    }
    forget_messages(c, n);
    int code = say(c, question);
    free(question);
    return code;
}

static int command_read(conversation *c, const char *path)
{
    cli_buffer text = {NULL, 0, 0};
    int code = cli_read_file(&text, path);
    if (code == CLI_EXIT_OK && (text.size == 0 || strlen(text.data) != text.size)) {
        code = cli_fail(CLI_EXIT_FAILURE, "/read: %s is empty or has a NUL byte", path);
    }
    code = code == CLI_EXIT_OK ? say(c, text.data) : code;
    cli_buffer_free(&text);
    return code;
}

static int command_set(conversation *c, const char *argument)
{
    uint32_t seed = c->session_options.sampling.seed;
    int code = cli_chat_set(&c->options, &c->values, argument);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    cli_session_options(&c->session_options, &c->options);
    if (c->options.seed < 0) {
        c->session_options.sampling.seed = seed; /* the seed that was drawn */
    }
    return set_sampling(c);
}

/* Renders with the settings of the next question, so that errors are reported at once. */
static int check_rendering(conversation *c)
{
    size_t keep = json_object_array_length(c->messages);
    moe_chat_prompt *prompt = NULL;
    int code = add_message(c, "user", "?", NULL);
    if (code == CLI_EXIT_OK) {
        code = cli_render_messages(&prompt, c->engine, &c->options, &c->chat_template, c->messages,
                                   false);
    }
    moe_chat_prompt_close(&prompt);
    forget_messages(c, keep);
    return code;
}

/* Copies the messages, with another system message. NULL: memory is short. */
static struct json_object *with_system(struct json_object *messages, const char *text)
{
    struct json_object *all = json_object_new_array();
    bool whole = all != NULL && cli_add_message(all, "system", text, NULL);
    for (size_t i = 0; whole && i < json_object_array_length(messages); i++) {
        struct json_object *message = json_object_array_get_idx(messages, i);
        if (i > 0 || strcmp(text_of(message, "role"), "system") != 0) {
            whole = json_object_array_add(all, json_object_get(message)) == 0;
        }
    }
    if (!whole) {
        json_object_put(all);
    }
    return whole ? all : NULL;
}

static int command_system(conversation *c, const char *argument)
{
    struct json_object *before = c->messages;
    struct json_object *messages = with_system(before, argument);
    char *text = strdup(argument);
    int code = messages == NULL || text == NULL
                   ? cli_fail(CLI_EXIT_FAILURE, "out of memory for the conversation")
                   : CLI_EXIT_OK;
    if (code == CLI_EXIT_OK) {
        c->messages = messages;
        code = check_rendering(c);
    }
    if (code != CLI_EXIT_OK) {
        c->messages = before;
        json_object_put(messages);
        free(text);
        return code;
    }
    json_object_put(before);
    free(c->system_text);
    c->system_text = text;
    c->options.system_text = text;
    return CLI_EXIT_OK;
}

/* Reports at once if the template has no such switch, and not only at the next question. */
static int command_think(conversation *c, const char *argument)
{
    static const char *const words[] = {"auto", "on", "off"};
    unsigned before = c->options.think;
    for (unsigned i = 0; i < 3; i++) {
        if (strcmp(argument, words[i]) != 0) {
            continue;
        }
        c->options.think = i;
        int code = check_rendering(c);
        c->options.think = code == CLI_EXIT_OK ? i : before;
        return code;
    }
    return cli_fail(CLI_EXIT_USAGE, "/think takes auto, on or off, not '%.40s'; it is %s now",
                    argument, words[before]);
}

static int command_stats(conversation *c, const char *argument)
{
    (void)argument;
    cli_options options = c->options;
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
    const char *argument; /* NULL: takes no argument */
    int (*run)(conversation *c, const char *argument);
    const char *help; /* NULL: not listed */
} chat_commands[] = {
    {"/reset", NULL, command_reset, "forget the conversation; also /clear"},
    {"/clear", NULL, command_reset, NULL},
    {"/regen", NULL, command_regen, "answer the last question anew"},
    {"/undo", NULL, command_undo, "take the last question and its answer back"},
    {"/read", "FILE", command_read, "say what is in FILE"},
    {"/system", "TEXT", command_system, "set the system message, from here on"},
    {"/set", "NAME VALUE", command_set, "set temp, top-k, top-p, min-p, predict, seed, ..."},
    {"/think", "MODE", command_think, "auto, on or off: whether the model reasons first"},
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
        if (chat_commands[i].help != NULL) {
            fprintf(stderr, "%-8s%-11s%s\n", chat_commands[i].name,
                    chat_commands[i].argument == NULL ? "" : chat_commands[i].argument,
                    chat_commands[i].help);
        }
    }
    fputs(
        "Ctrl-C stops an answer, twice it leaves. A blank before / makes it a message.\n"
        "Where lines are edited, Alt-Enter begins a new one, and what is pasted is one message.\n",
        stderr);
    return CLI_EXIT_OK;
}

/* A failed command prints its error, and the conversation goes on. */
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
            cli_fail(CLI_EXIT_USAGE, "%s takes %s: %s %s", line,
                     chat_commands[i].argument == NULL ? "no argument" : "an argument", line,
                     chat_commands[i].argument == NULL ? "" : chat_commands[i].argument);
            return;
        }
        chat_commands[i].run(c, argument);
        return;
    }
    cli_fail(CLI_EXIT_USAGE,
             "%.60s is not a command here: /help lists them, and a blank before it makes it a "
             "message",
             line);
}

/* Handles a line; true if it was a message. */
static bool take_line(conversation *c, const char *line)
{
    bool is_command = line[0] == '/' && strchr(line, '\n') == NULL;
    bool is_message = !is_command && line[strspn(line, " \t\n")] != '\0';
    char *words = is_command ? strdup(line) : NULL;
    if (words != NULL) {
        run_command(c, words);
    } else if (is_message) {
        say(c, line);
    }
    free(words);
    return is_message;
}

static int converse(conversation *c)
{
    cli_line_reader reader;
    const char *line;
    const char *words[N_CHAT_COMMANDS + 1] = {NULL};
    for (size_t i = 0; i < N_CHAT_COMMANDS; i++) {
        words[i] = chat_commands[i].name;
    }
    int code = reset(c);
    cli_line_reader_open(&reader, &c->options, words);
    while (code == CLI_EXIT_OK && !c->leave) {
        moe_engine_warm(c->engine); /* while the user types */
        cli_line_result result = cli_line_read(&reader, &line);
        if (result == CLI_LINE_END || result == CLI_LINE_INTERRUPTED) {
            code = cli_interrupted() ? CLI_EXIT_INTERRUPTED : CLI_EXIT_OK;
            break;
        }
        if (result == CLI_LINE_READ) {
            bool said = take_line(c, line);
            c->leave = c->leave || (said && c->options.single_turn);
        }
        code = cli_interrupt_ends() ? CLI_EXIT_INTERRUPTED : code;
    }
    cli_line_reader_close(&reader);
    return code;
}

static int open_conversation(conversation *c)
{
    moe_error err = {""};
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(c->engine, &info);
    int code = cli_chat_template_load(&c->chat_template, &c->options);
    code = code == CLI_EXIT_OK ? cli_read_grammar(&c->grammar, &c->options) : code;
    c->messages = json_object_new_array();
    if (code == CLI_EXIT_OK && c->messages == NULL) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory for the conversation");
    }
    if (code != CLI_EXIT_OK) {
        return code;
    }
    cli_session_options(&c->session_options, &c->options);
    int status = moe_session_create(&c->session, c->engine, &c->session_options, &err);
    if (status == MOE_OK && (code = cli_session_biases(c->session, &c->options)) != CLI_EXIT_OK) {
        return code;
    }
    if (status == MOE_OK) {
        status = moe_learn_begin(c->engine, &err);
    }
    if (status == MOE_OK && !c->options.quiet && !c->options.json) {
        fprintf(stderr, "%s, context of %u tokens. /help lists commands.\n",
                info.model_name[0] == '\0' ? info.family : info.model_name, info.context);
    }
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

int cli_chat(moe_engine *engine, const cli_options *options, uint64_t load_ns)
{
    conversation c;
    memset(&c, 0, sizeof c);
    c.engine = engine;
    c.options = *options;
    c.load_ns = load_ns;
    int code = open_conversation(&c);
    if (code == CLI_EXIT_OK) {
        code = converse(&c);
        int told = cli_print_statistics(engine, options, &c.total, c.session_options.sampling.seed,
                                        load_ns);
        code = code == CLI_EXIT_OK ? told : code;
    }
    json_object_put(c.messages);
    cli_chat_template_free(&c.chat_template);
    cli_answer_free(&c.total);
    moe_grammar_close(&c.grammar);
    moe_session_close(&c.session);
    free(c.system_text);
    cli_chat_values_free(&c.options, &c.values);
    return code;
}
