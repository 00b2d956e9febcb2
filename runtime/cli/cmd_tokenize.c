/* SPDX-License-Identifier: MIT */
#include <stdio.h>

#include <moe/moe.h>

#include "cli_engine.h"
#include "cli_json.h"
#include "cli_overrides.h"
#include "cli_prompt.h"
#include "commands.h"

static int print_ids(const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        printf("%d\n", tokens[i]);
    }
    return CLI_EXIT_OK;
}

static int print_pieces(const moe_engine *engine, const int32_t *tokens, size_t n)
{
    struct json_object *object = json_object_new_object();
    struct json_object *list = json_object_new_array();
    for (size_t i = 0; i < n; i++) {
        size_t size;
        const char *piece = moe_token_piece(engine, tokens[i], true, &size);
        struct json_object *token = json_object_new_object();
        cli_json_put(token, "id", json_object_new_int(tokens[i]));
        cli_json_put(token, "piece", cli_json_new_text(piece, size));
        cli_json_append(list, token);
    }
    cli_json_u64(object, "n_tokens", n);
    cli_json_put(object, "tokens", list);
    return cli_json_print(object, stdout);
}

/* Opens only the model's vocabulary. */
static int open_vocabulary(moe_engine **out, const cli_options *options)
{
    moe_engine_options engine_options;
    cli_overrides overrides;
    moe_error err = {""};
    int code = cli_overrides_read(&overrides, &options->overrides);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    moe_engine_options_init(&engine_options);
    engine_options.model_path = options->model;
    engine_options.metadata_overrides = overrides.list;
    engine_options.n_metadata_overrides = overrides.n;
    engine_options.vocabulary_only = true;
    int status = moe_engine_open(out, &engine_options, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

int cmd_tokenize(const cli_options *options)
{
    cli_buffer text = {NULL, 0, 0};
    moe_engine *engine = NULL;
    int32_t *tokens = NULL;
    size_t n = 0;
    int code = cli_check_chat_options(options);
    if (code == CLI_EXIT_OK) {
        code = cli_prompt_text(&text, options);
    }
    if (code == CLI_EXIT_OK) {
        code = open_vocabulary(&engine, options);
    }
    if (code == CLI_EXIT_OK) {
        code = cli_prompt_tokens(engine, options, &text, &tokens, &n);
    }
    if (code == CLI_EXIT_OK) {
        code = options->json ? print_pieces(engine, tokens, n) : print_ids(tokens, n);
    }
    moe_free(tokens);
    moe_engine_close(&engine);
    cli_buffer_free(&text);
    return code;
}
