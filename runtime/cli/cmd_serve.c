/* SPDX-License-Identifier: MIT */
/* Opens the model and serves it over HTTP until a signal comes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/moe.h>

#include "cli_engine.h"
#include "cli_interrupt.h"
#include "cli_messages.h"
#include "commands.h"
#include "server.h"
#include "server_heap.h"

typedef struct key_list {
    cli_buffer text; /* the file; its lines are the keys, each terminated */
    const char *keys[SERVER_MOST_KEYS];
    size_t n;
} key_list;

static bool is_stopped(void *user)
{
    (void)user;
    return cli_interrupted();
}

static void log_line(const char *line, void *user)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

/* Reads one key a line; skips empty lines and lines that begin with '#'. */
static int read_keys(key_list *list, const char *path)
{
    int code = cli_read_file(&list->text, path);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    char *rest = list->text.data;
    for (char *line; list->text.size > 0 && (line = strsep(&rest, "\r\n")) != NULL;) {
        if (line[0] == '\0' || line[0] == '#') {
            continue;
        }
        if (list->n == SERVER_MOST_KEYS) {
            return cli_fail(CLI_EXIT_FAILURE, "--api-key-file %s has more than %d keys", path,
                            SERVER_MOST_KEYS);
        }
        list->keys[list->n++] = line;
    }
    return list->n > 0
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE, "--api-key-file %s has no key: write one a line", path);
}

/* Splits --api-key, which has keys with commas between. */
static int split_keys(key_list *list, const char *keys)
{
    if (!cli_buffer_append(&list->text, keys, strlen(keys))) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for --api-key");
    }
    char *rest = list->text.data;
    for (char *key; (key = strsep(&rest, ",")) != NULL;) {
        if (key[0] == '\0') {
            return cli_fail(CLI_EXIT_USAGE, "serve: --api-key has an empty key");
        }
        if (list->n == SERVER_MOST_KEYS) {
            return cli_fail(CLI_EXIT_USAGE, "serve: --api-key has more than %d keys",
                            SERVER_MOST_KEYS);
        }
        list->keys[list->n++] = key;
    }
    return CLI_EXIT_OK;
}

/* Writes the file's name without its folder and ".gguf". */
static void name_model(char *out, size_t size, const cli_options *options)
{
    const char *slash = strrchr(options->model, '/');
    const char *name = slash == NULL ? options->model : slash + 1;
    size_t length = strlen(name);
    length -= length > 5 && strcmp(name + length - 5, ".gguf") == 0 ? 5 : 0;
    snprintf(out, size, "%.*s", (int)(length < size ? length : size - 1), name);
}

enum { MOST_NAMES = 32 };

/* Splits --alias; without it, takes the model's own name. */
static int split_names(const char *names[MOST_NAMES], size_t *n, char *text, const char *own)
{
    char *rest = text[0] == '\0' ? NULL : text;
    *n = 0;
    for (char *name; (name = strsep(&rest, ",")) != NULL;) {
        if (name[0] == '\0') {
            return cli_fail(CLI_EXIT_USAGE, "serve: --alias has an empty name");
        }
        if (*n == MOST_NAMES) {
            return cli_fail(CLI_EXIT_USAGE, "serve: --alias has more than %d names", MOST_NAMES);
        }
        names[(*n)++] = name;
    }
    if (*n == 0) {
        names[(*n)++] = own;
    }
    return CLI_EXIT_OK;
}

static int serve(moe_engine *engine, const cli_options *options, const key_list *keys,
                 const cli_chat_template *chat_template)
{
    char error[512] = "";
    char model[256];
    const char *names[MOST_NAMES];
    size_t n_names;
    cli_text_list aliases = options->server_aliases;
    name_model(model, sizeof model, options);
    int code = split_names(names, &n_names, aliases.text, model);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    server_options serving = {
        .host = options->server_host == NULL ? "127.0.0.1" : options->server_host,
        .port = (uint16_t)options->server_port,
        .keys = keys->keys,
        .n_keys = keys->n,
        .parallel = (uint32_t)options->server_sessions,
        .names = names,
        .n_names = n_names,
        .model = names[0],
        .strict_model = options->strict_model,
        .strict_fields = options->strict_fields,
        .chat_template_name = chat_template->name,
        .chat_template_text = chat_template->text.data,
        .thinking = (moe_switch)options->think,
        .pooling = (server_pooling)options->server_pooling,
        .cache_folder = options->cache_folder,
        .cache_bytes =
            options->cache_limit.bytes == 0 ? UINT64_C(8) << 30 : options->cache_limit.bytes,
        .stopped = is_stopped,
        .log = options->quiet ? NULL : log_line,
    };
    return server_run(engine, &serving, error, sizeof error) == 0
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE, "%s", error);
}

int cmd_serve(const cli_options *given)
{
    cli_options speculating = *given;
    const cli_options *options = &speculating;
    const uint64_t rows = options->prefill_chunk == 0 ? 512 : options->prefill_chunk;
    key_list keys = {.n = 0};
    cli_chat_template chat_template = {.name = NULL};
    moe_engine *engine = NULL;
    cli_speculate_by_default(&speculating);
    speculating.server_sessions = options->server_sessions == 0 ? 4 : options->server_sessions;
    speculating.server_memory =
        server_memory((uint32_t)options->server_sessions, options->host_memory.bytes);
    if (options->server_sessions > rows) {
        return cli_fail(CLI_EXIT_USAGE,
                        "serve: --parallel %u is more than the %u rows of a pass: raise -b",
                        (unsigned)options->server_sessions, (unsigned)rows);
    }
    server_heap_configure();
    cli_interrupt_install();
    int code = options->server_keys != NULL  ? read_keys(&keys, options->server_keys)
               : options->server_key != NULL ? split_keys(&keys, options->server_key)
                                             : CLI_EXIT_OK;
    code = code == CLI_EXIT_OK ? cli_chat_template_load(&chat_template, options) : code;
    if (code == CLI_EXIT_OK && !options->quiet && !cli_has_template(options)) {
        cli_terminal_note(options->terminal, "the model has no chat template: messages need "
                                             "--chat-template; /v1/completions does not");
    }
    code = code == CLI_EXIT_OK ? cli_engine_open(&engine, options, options->context) : code;
    if (code == CLI_EXIT_OK) {
        code = serve(engine, options, &keys, &chat_template);
    }
    moe_engine_close(&engine);
    cli_chat_template_free(&chat_template);
    cli_buffer_free(&keys.text);
    return code;
}
