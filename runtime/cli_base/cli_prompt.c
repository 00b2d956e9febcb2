/* SPDX-License-Identifier: MIT */
#include "cli_prompt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_engine.h"
#include "cli_messages.h"

int cli_check_chat_options(const cli_options *options)
{
    const char *name = options->system_text != NULL               ? "--system"
                       : options->chat_template != NULL           ? "--chat-template"
                       : options->chat_template_arguments != NULL ? "--chat-template-kwargs"
                       : options->think != 0                      ? "--think"
                                                                  : NULL;
    return name == NULL || options->chat
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_USAGE, "%s needs --chat: a raw prompt has no turns", name);
}

int cli_prompt_text(cli_buffer *text, const cli_options *options)
{
    if (options->prompt != NULL) {
        return cli_buffer_append(text, options->prompt, strlen(options->prompt))
                   ? CLI_EXIT_OK
                   : cli_fail(CLI_EXIT_FAILURE, "out of memory for the prompt");
    }
    if (options->prompt_file == NULL && isatty(STDIN_FILENO)) {
        return cli_fail(CLI_EXIT_USAGE, "no prompt: give -p TEXT, -f FILE or standard input");
    }
    int code = cli_read_file(text, options->prompt_file == NULL ? "-" : options->prompt_file);
    if (code == CLI_EXIT_OK && text->size > 0 && text->data[text->size - 1] == '\n') {
        text->data[--text->size] = '\0';
    }
    return code;
}

static int chat_tokens(const moe_engine *engine, const cli_options *options, const cli_buffer *text,
                       int32_t **tokens, size_t *n_tokens)
{
    moe_chat_prompt *prompt;
    int code = cli_render_question(&prompt, engine, options, text);
    const int32_t *rendered = moe_chat_prompt_tokens(prompt, n_tokens);
    *tokens = NULL;
    if (code == CLI_EXIT_OK) {
        *tokens = malloc(*n_tokens * sizeof **tokens + 1);
        code = *tokens != NULL ? CLI_EXIT_OK
                               : cli_fail(CLI_EXIT_FAILURE, "out of memory for the prompt");
    }
    if (code == CLI_EXIT_OK && *n_tokens > 0) {
        memcpy(*tokens, rendered, *n_tokens * sizeof **tokens);
    }
    moe_chat_prompt_close(&prompt);
    return code;
}

int cli_prompt_tokens(const moe_engine *engine, const cli_options *options, const cli_buffer *text,
                      int32_t **tokens, size_t *n_tokens)
{
    moe_error err = {""};
    if (options->chat) {
        return chat_tokens(engine, options, text, tokens, n_tokens);
    }
    const unsigned flags = MOE_TOKENIZE_ADD_SPECIAL | MOE_TOKENIZE_PARSE_SPECIAL;
    int status = moe_tokenize(engine, text->data, text->size, flags, tokens, n_tokens, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

int cli_text_tokens(moe_engine **engine, const cli_options *options, uint64_t context,
                    int32_t **tokens, size_t *n_tokens)
{
    cli_buffer text = {NULL, 0, 0};
    moe_error err = {""};
    *engine = NULL;
    *tokens = NULL;
    *n_tokens = 0;
    int code = cli_prompt_text(&text, options);
    if (code == CLI_EXIT_OK) {
        code = cli_engine_open(engine, options, context);
    }
    if (code == CLI_EXIT_OK) {
        int status = moe_tokenize(*engine, text.data, text.size, MOE_TOKENIZE_ADD_SPECIAL, tokens,
                                  n_tokens, &err);
        code = status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
    }
    cli_buffer_free(&text);
    return code;
}

int cli_check_fits(const moe_engine *engine, size_t n_tokens)
{
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    if (n_tokens == 0) {
        return cli_fail(CLI_EXIT_FAILURE, "the prompt is empty, and this model has no token that "
                                          "begins a text: give at least one character");
    }
    if (n_tokens > info.context) {
        return cli_fail(CLI_EXIT_FAILURE,
                        "the prompt has %zu tokens and the context holds %u: raise -c (the model "
                        "was trained for %u)",
                        n_tokens, info.context, info.context_train);
    }
    return CLI_EXIT_OK;
}

int cli_parse_ids(const char *text, const char *option, int32_t **tokens, size_t *n)
{
    static const char separators[] = " ,\t\r\n";
    cli_buffer list = {NULL, 0, 0};
    *tokens = NULL;
    *n = 0;
    for (const char *at = text + strspn(text, separators); *at != '\0';) {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno != 0 || id < 0 || id > INT32_MAX ||
            (*end != '\0' && strchr(separators, *end) == NULL)) {
            cli_buffer_free(&list);
            size_t word = strcspn(at, separators);
            return cli_fail(CLI_EXIT_USAGE, "%s must be ids like \"1 2 3\", not '%.*s'", option,
                            word < 40 ? (int)word : 40, at);
        }
        int32_t token = (int32_t)id;
        if (!cli_buffer_append(&list, &token, sizeof token)) {
            cli_buffer_free(&list);
            return cli_fail(CLI_EXIT_FAILURE, "out of memory for %s", option);
        }
        at = end + strspn(end, separators);
    }
    if (list.size == 0) {
        return cli_fail(CLI_EXIT_USAGE, "%s must be ids like \"1 2 3\": there are none", option);
    }
    *tokens = (int32_t *)list.data;
    *n = list.size / sizeof **tokens;
    return CLI_EXIT_OK;
}
